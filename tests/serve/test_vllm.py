"""vLLM as the engine, over real sockets: the same calls, the same tokens, new weights through a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import jax
import numpy as np
import openai
import pytest

from lightning_jax.presets import preset
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.engine import Engine, EngineStopped, GenerationRequest, PromptTooLong, QueueFull
from lightning_jax.serve.engines import build_engine, read_engine
from lightning_jax.serve.vllm.config import VllmConfig
from lightning_jax.serve.vllm.engine import VllmEngine
from lightning_jax.serve.vllm.server import VllmError
from tests.serve.conftest import ENGINE, MODEL, eventually, policy, requests, running, serving
from tests.serve.vllm_stand_in import StandIn, standing_in


@pytest.fixture
def behind(tokenizer) -> Iterator[StandIn]:
    """A server with weights of its own, which nobody is to see."""
    with running(seed=9) as engine, standing_in(engine, tokenizer) as stand_in:
        yield stand_in


@contextmanager
def started(stand_in: StandIn, folder: Any, seed: int = 0, **settings: Any) -> Iterator[VllmEngine]:
    config = VllmConfig(stand_in.url, str(folder), dtype="float32", **settings)
    engine = VllmEngine(MODEL, config, (256,))
    engine.start(policy(seed), 3)
    try:
        yield engine
    finally:
        engine.stop()


def same(a: Any, b: Any) -> bool:
    return (
        a.response_ids.tolist() == b.response_ids.tolist()
        and a.rollout_logps.tobytes() == b.rollout_logps.tobytes()
        and (a.finish_reason, a.tops) == (b.finish_reason, b.tops)
    )


def test_answers_are_those_of_the_weights_handed_over(behind, engine, tmp_path):
    batch = [replace(r, top_logprobs=i % 3) for i, r in enumerate(requests(24))]
    with started(behind, tmp_path) as vllm:
        assert (vllm.policy_version, vllm.max_length) == (3, ENGINE.max_length)
        told = [g.result(60) for g in [vllm.submit(r) for r in batch]]
        ours = [g.result(60) for g in [engine.submit(r) for r in batch]]
        assert all(map(same, told, ours))
        assert {r.policy_version for r in told} == {3}
        metrics = vllm.metrics()
        assert metrics["generated_tokens_total"] == sum(len(r.response_ids) for r in told)
        assert metrics["prompt_tokens_total"] == sum(len(r.prompt_ids) for r in batch)
        assert metrics["finished_stop_total"] + metrics["finished_length_total"] == 24
        # what a nucleus left of the distribution is not told
        assert all(
            (r.kept_mass == 1.0) == (q.top_p == 1.0 or not q.temperature) for r, q in zip(told, batch, strict=True)
        )


RELOAD = ["/collective_rpc", "/reset_prefix_cache"]
HANDOVERS = {
    "reload": RELOAD,
    "sleep": ["/sleep?level=2", "/wake_up?tags=weights", RELOAD[0], "/wake_up?tags=kv_cache", RELOAD[1]],
    "disk": [
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update", RELOAD[1],
    ],
}  # fmt: skip


@pytest.mark.parametrize("handover", list(HANDOVERS))
def test_new_weights_are_taken_between_requests(behind, tmp_path, handover):
    request = GenerationRequest(np.arange(20, dtype=np.int32), 30, seed=5, want_stream=True)
    behind.token_pause_s = 0.01
    with started(behind, tmp_path, handover=handover) as vllm, running() as old, running(seed=1) as new:
        early = [vllm.submit(replace(request, seed=s)) for s in range(4)]
        eventually(lambda: vllm.metrics()["slots_busy"] == 4)
        behind.calls.clear()
        thread = threading.Thread(target=vllm.publish, args=(policy(1), 4))
        thread.start()
        eventually(lambda: vllm._publishing)
        late = [vllm.submit(replace(request, seed=s)) for s in range(4)]
        thread.join()
        for seed, (a, b) in enumerate(zip(early, late, strict=True)):
            asked = replace(request, seed=seed)
            assert same(a.result(60), old.submit(asked).result(60))
            assert same(b.result(60), new.submit(asked).result(60))
            assert (a.result().policy_version, b.result().policy_version) == (3, 4)
    assert behind.calls == HANDOVERS[handover]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-3", "version-4"]


def test_old_directories_go(behind, tmp_path):
    with started(behind, tmp_path) as vllm:
        for version in (4, 5, 6):
            vllm.publish(policy(version), version)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-5", "version-6"]


def test_a_cancelled_request_ends_at_once_and_the_server_stops(behind, tmp_path):
    behind.token_pause_s = 0.02
    with started(behind, tmp_path, max_requests=1) as vllm:
        long = GenerationRequest(np.arange(9, dtype=np.int32), 140, seed=1, want_stream=True)
        first, second = vllm.submit(long), vllm.submit(long)
        stream = first.chunks()
        got = next(stream)
        vllm.cancel(second)  # it waits here
        assert second.result(20).finish_reason == "abort"
        assert len(second.result().response_ids) == 0
        vllm.cancel(first)
        result = first.result(20)
        assert result.finish_reason == "abort"
        rest = [token for chunk in stream for token in chunk.ids]
        assert result.response_ids.tolist() == [*got.ids, *rest]
        assert len(result.response_ids) == len(result.rollout_logps) < 140
        eventually(lambda: behind.disconnected == 1)
        assert behind.started == 3  # with the two probes at start
        assert vllm.submit(replace(long, max_tokens=3)).result(20).finish_reason == "length"


def test_a_failed_handover_stops_answers_until_one_succeeds(behind, tmp_path):
    request = GenerationRequest(np.arange(5, dtype=np.int32), 5)
    with started(behind, tmp_path) as vllm:
        behind.fail["/collective_rpc"] = "out of memory"
        with pytest.raises(VllmError, match=r"version 4 by reload.*out of memory"):
            vllm.publish(policy(1), 4)
        with pytest.raises(EngineStopped):
            vllm.submit(request)
        assert not vllm.running
        behind.fail.clear()
        vllm.publish(policy(1), 5)
        assert vllm.submit(request).result(20).policy_version == 5
        other = jax.tree.map(lambda x: x[..., :1], policy(1))
        with pytest.raises(ValueError, match=r"embed.*264, 1\].*264, 32"):
            vllm.publish(other, 6)
        assert vllm.submit(request).result(20).policy_version == 5


def test_servers_that_would_give_wrong_figures_are_refused_at_start(tokenizer, tmp_path):
    def refused(match: str, kind: type[Exception] = ValueError, given: Any = None, **settings: Any) -> None:
        with (
            running(seed=9) as engine,
            standing_in(engine, tokenizer, **settings) as stand_in,
            pytest.raises(kind, match=match),
            started(stand_in, tmp_path, **(given or {})),
        ):
            pass

    refused("--logprobs-mode processed_logprobs", processed_logprobs=False)
    refused("return_token_ids", VllmError, token_ids=False)
    refused("VLLM_SERVER_DEV_MODE=1", VllmError, development=False)
    refused("'other'.*base-model", given={"model_name": "other"})
    refused("401", VllmError, key="secret")


def test_the_key_comes_from_the_environment(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY_OF_VLLM", "secret")
    with (
        running(seed=9) as engine,
        standing_in(engine, tokenizer, key="secret") as stand_in,
        started(stand_in, tmp_path, api_key_env="KEY_OF_VLLM") as vllm,
    ):
        assert len(vllm.submit(GenerationRequest(np.arange(3, dtype=np.int32), 2)).result(20).response_ids) <= 2
    assert "secret" not in repr(vllm.config)


def test_refusals(behind, tmp_path):
    prompt = np.arange(5, dtype=np.int32)
    with started(behind, tmp_path, max_requests=1, max_queue=1) as vllm:
        with pytest.raises(PromptTooLong):
            vllm.submit(GenerationRequest(np.zeros(ENGINE.max_length, np.int32), 1))
        with pytest.raises(ValueError, match="temperature"):
            vllm.submit(GenerationRequest(prompt, 1, temperature=-1))
        behind.token_pause_s = 0.05
        for _ in range(2):
            vllm.submit(GenerationRequest(prompt, 100))
        with pytest.raises(QueueFull, match="max_queue is 1"):
            vllm.submit(GenerationRequest(prompt, 1))
    with pytest.raises(EngineStopped):
        vllm.submit(GenerationRequest(prompt, 1))


def test_a_server_that_goes_away_is_503_and_counts(tokenizer, tmp_path):
    with running(seed=9) as engine:
        with standing_in(engine, tokenizer) as stand_in:
            config = VllmConfig(stand_in.url, str(tmp_path), dtype="float32")
            vllm = VllmEngine(MODEL, config, (256,))
            vllm.start(policy(), 0)
        with serving(vllm, tokenizer) as front:
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            key = {"authorization": "Bearer ljx-key-1"}
            answer = httpx.post(f"{front.base_url(1)}/chat/completions", json=body, headers=key)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "ljx_engine_finished_failed_total 1.0" in httpx.get(f"{front.root}/metrics").text
            assert front.sink.calls == []
        vllm.stop()


def test_agents_see_no_difference(wide_engine, tokenizer, tmp_path):
    """Chat, streamed and plain, stop strings and an enforced tool call: what is recorded equals our own engine's."""
    tool = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {**tool, "additionalProperties": False}}}]
    asks: list[dict[str, Any]] = [
        {"max_tokens": 12, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 40, "stop": ["a", "e"]},
        {"max_tokens": 60, "tools": tools, "tool_choice": "required"},
    ]
    records = []
    wide = replace(ENGINE, max_length=512, cache_block=0)  # room for tools in the prompt
    with (
        running(wide, seed=9) as hidden,
        standing_in(hidden, tokenizer) as stand_in,
        started(stand_in, tmp_path) as vllm,
    ):
        for each in (vllm, wide_engine):
            with serving(each, tokenizer, tool_form="json") as front:
                with openai.OpenAI(base_url=front.base_url(1), api_key="ljx-key-1") as api:
                    for ask in asks:
                        messages: list[Any] = [{"role": "user", "content": "hi"}]
                        plain = api.chat.completions.create(model="m", messages=messages, **ask)
                        chunks = list(api.chat.completions.create(model="m", messages=messages, stream=True, **ask))
                        assert plain.choices[0].finish_reason
                        assert chunks[-1].choices[0].finish_reason
                records.append(front.sink.of(1))
    for a, b in zip(*records, strict=True):
        assert a.response_ids.tolist() == b.response_ids.tolist()
        assert a.rollout_logps.tobytes() == b.rollout_logps.tobytes()
        assert (a.text, a.finish_reason, a.prompt_ids.tolist()) == (b.text, b.finish_reason, b.prompt_ids.tolist())
    assert [c.sampling.kept_mass for c in records[0]] == [1.0] * 4 + [0.0] * 2


def test_configuration():
    values = {**preset("engine", "vllm"), "folder": "/shared/weights"}
    config = read_engine(values)
    assert isinstance(config, VllmConfig)
    assert isinstance(build_engine(MODEL, config, ()), VllmEngine)
    assert isinstance(build_engine(MODEL, read_engine({"slots": 2}), ()), Engine)
    assert read_engine(preset("engine", "small")) == EngineConfig.from_mapping(preset("engine", "small"))
    for change, match in (
        ({"kind": "vlm"}, "vllm"),
        ({"url": "localhost"}, "http://"),
        ({"folder": "here"}, "absolute"),
        ({"handover": "relod"}, "reload"),
        ({"dtype": "fp8"}, "float"),
        ({"max_requests": 0}, "at least 1"),
        ({"sloots": 3}, "sloots"),
    ):
        with pytest.raises(ValueError, match=match):
            read_engine({**values, **change})
