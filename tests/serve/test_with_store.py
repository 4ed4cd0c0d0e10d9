"""The policy server over the real store: keys it issued, calls it holds durably, attempts it ends."""

from __future__ import annotations

from dataclasses import replace

import openai
import pytest

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.calls import call_seed
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


def test_numbers_and_seeds_go_on_after_a_restart(engine, tokenizer, tmp_path):
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    options = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    key, attempt_id = "", ""
    for _ in range(2):
        with Store(url) as store:
            http = HttpServer(create_app(engine, tokenizer, store, ServeConfig()))
            root = f"http://127.0.0.1:{http.start()}"
            try:
                if not key:
                    rollout = Rollout("ro", "task", 0, "train", 7, {}, SamplingDefaults())
                    store.enqueue_rollouts([rollout]).result(20)
                    (attempt,) = store.claim("worker", 1, 600.0, root).result(20)
                    key, attempt_id = attempt.api_key, attempt.attempt_id
                with openai.OpenAI(base_url=f"{root}/v1", api_key=key) as api:
                    for _ in range(2):
                        api.chat.completions.create(**options)
                calls = store.list_calls(attempt_id)
            finally:
                http.stop()
    assert [c.sequence for c in calls] == [0, 1, 2, 3]
    assert [c.sampling.seed for c in calls] == [call_seed(7, calls[0].prompt_ids, i) for i in range(4)]


def test_the_mass_that_a_grammar_left_crosses_grpc(engine, tokenizer, tmp_path):
    """From the sampler through HTTP and the store to a gRPC client, which records it anew and reads it back."""
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        http = HttpServer(create_app(engine, tokenizer, store, ServeConfig()))
        root = f"http://127.0.0.1:{http.start()}"
        ingest = IngestServer(store, http_root=root)
        try:
            with IngestClient(f"127.0.0.1:{ingest.start()}") as client:
                client.enqueue([Rollout(f"ro-{n}", "task", n, "train", n, {}, SamplingDefaults()) for n in range(2)])
                first, second = client.claim("worker", 2, 600.0)
                with openai.OpenAI(base_url=first.base_url, api_key=first.api_key) as api:
                    options = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
                    api.chat.completions.create(**options, response_format={"type": "json_object"})
                    api.chat.completions.create(**options)
                constrained, free = client.list_calls(first.attempt_id)
                assert 0.0 < constrained.sampling.kept_mass < 1.0
                assert constrained.sampling.kept_mass == store.list_calls(first.attempt_id)[0].sampling.kept_mass
                assert free.sampling.kept_mass == 1.0
                again = [
                    replace(
                        call, call_id=f"x{call.call_id}", rollout_id=second.rollout.rollout_id,
                        attempt_id=second.attempt_id,
                    )
                    for call in (constrained, free)
                ]  # fmt: skip
                assert client.record_calls(again) == {}
                stored = client.list_calls(second.attempt_id)
                assert [c.sampling for c in stored] == [c.sampling for c in again]
        finally:
            http.stop()
            ingest.stop(grace=0.1)
