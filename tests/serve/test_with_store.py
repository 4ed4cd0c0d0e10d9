"""The policy server over the real store: keys it issued, calls it holds durably, attempts it ends."""

from __future__ import annotations

import openai
import pytest

from lightning_jax.ingest.store import Store
from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.http import HttpServer
from lightning_jax.types import Outcome, Rollout, SamplingDefaults


def test_calls_of_a_claimed_attempt_are_stored(engine, tokenizer, tmp_path):
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        http = HttpServer(create_app(engine, tokenizer, store, ServeConfig()))
        root = f"http://127.0.0.1:{http.start()}"
        try:
            rollout = Rollout("ro", "task", 0, "train", 7, {"q": 1}, SamplingDefaults(max_tokens=9))
            store.enqueue_rollouts([rollout]).result(20)
            (attempt,) = store.claim("worker", 1, 60.0, root).result(20)
            with openai.OpenAI(base_url=attempt.base_url, api_key=attempt.api_key) as api:
                options = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
                answers = [api.chat.completions.create(**options) for _ in range(3)]
                calls = store.list_calls(attempt.attempt_id)
                assert [f"chatcmpl-{c.call_id}" for c in calls] == [a.id for a in answers]
                assert [c.text for c in calls] == [a.choices[0].message.content for a in answers]
                assert len({c.sampling.seed for c in calls}) == 3
                assert all(0 < len(c.response_ids) <= 9 for c in calls)
                store.complete(attempt.attempt_id, Outcome("succeeded")).result(20)
                with pytest.raises(openai.APIStatusError) as refused:
                    api.chat.completions.create(**options)
            assert refused.value.status_code == 410
        finally:
            http.stop()
