"""What is sampled depends on the request and the weights, and on nothing else."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.model.transformer import forward, head, init_params
from lightning_jax.serve.engine import Engine, EngineConfig, EngineStopped, GenerationRequest, PromptTooLong, QueueFull
from tests.serve.conftest import ENGINE, MODEL, eventually, policy, requests, running


def same(a, b) -> bool:
    return (
        a.response_ids.tolist() == b.response_ids.tolist()
        and a.rollout_logps.tobytes() == b.rollout_logps.tobytes()
        and a.finish_reason == b.finish_reason
    )


THREE_CHUNKS = 3 * 2 * 2 * MODEL.num_kv_heads * MODEL.head_dim * 16 * 4


@pytest.fixture(scope="module")
def alone(engine):
    """64 requests of many kinds, and what each gets when nobody else is there."""
    batch = requests(64)
    results = [engine.submit(r).result(60) for r in batch]
    assert sum(len(r.response_ids) > 5 for r in results) > 32
    return batch, results


@pytest.mark.parametrize("cache", [None, 0, THREE_CHUNKS], ids=["prefix cache", "none", "evicting"])
def test_bits_do_not_depend_on_company_order_cancellations_or_the_prefix_cache(alone, engine, cache):
    batch, expected = alone
    with nullcontext(engine) if cache is None else running(replace(ENGINE, prefix_cache_bytes=cache)) as other:
        together = [g.result(60) for g in [other.submit(r) for r in batch]]
        assert all(map(same, expected, together))

        order = list(range(64))
        random.Random(1).shuffle(order)
        generations, extra = {}, []
        for i in order:  # shuffled, with others among them that are cancelled on the way
            generations[i] = other.submit(batch[i])
            if i % 3 == 0:
                extra.append(other.submit(replace(batch[i], seed=i, max_tokens=100)))
                if len(extra) > 2:
                    other.cancel(extra[-2])
        for generation in extra:
            other.cancel(generation)
        assert all(same(generations[i].result(60), expected[i]) for i in range(64))
        assert "abort" in {g.result(60).finish_reason for g in extra}
        metrics = other.metrics()
    assert (metrics["prefix_tokens_copied_total"] > 0) == (cache != 0)
    assert (metrics["prefix_evictions_total"] > 0) == (cache == THREE_CHUNKS)


def test_same_prompt_is_prefilled_once():
    with running() as engine:
        prompt = np.arange(50, dtype=np.int32)
        for g in [engine.submit(GenerationRequest(prompt, 4, seed=s)) for s in range(16)]:
            g.result(60)
        metrics = engine.metrics()
        assert metrics["prefill_tokens_total"] == 49
        assert metrics["prefix_tokens_copied_total"] == 49 * 15


OTHER_MODEL = {"sliding_window": 9, "qk_norm": True, "qkv_bias": True, "tie_embeddings": False}


@pytest.mark.parametrize("changes", [{}, OTHER_MODEL])
def test_log_probs_are_those_of_the_whole_sequence(changes):
    model = replace(MODEL, **changes)
    params = jax.tree.map(lambda x: x * 6.0 if x.ndim > 2 else x, init_params(model, jax.random.key(3)))
    engine = Engine(model, ENGINE, (256,))
    engine.start(params, 0)
    mask = jnp.tril(jnp.ones((1, 128, 128), bool))

    @jax.jit
    def whole(params, ids):
        hidden = forward(params, model, ids[None], jnp.arange(128)[None], mask)
        return jnp.einsum("td,vd->tv", hidden[0], head(params))

    worst = 0.0
    try:
        batch = [replace(r, top_p=1.0) for r in requests(12, seed=5)]
        for request, generation in [(r, engine.submit(r)) for r in batch]:
            result = generation.result(60)
            ids = np.concatenate([request.prompt_ids, result.response_ids])
            n, first = len(ids), len(request.prompt_ids) - 1
            logits = whole(params, np.pad(ids, (0, 128 - n))) / (request.temperature or 1.0)
            logps = np.asarray(jax.nn.log_softmax(logits))[np.arange(n - 1), ids[1:]][first:]
            worst = max(worst, float(np.max(np.abs(logps - result.rollout_logps))))
            if request.temperature == 0:
                assert np.argmax(logits, -1)[first : n - 1].tolist() == result.response_ids.tolist()
    finally:
        engine.stop()
    assert worst < 2e-5  # float32, other summation order


def test_end_token_and_limits(engine):
    base = GenerationRequest(np.arange(20, dtype=np.int32), 500, temperature=0.0)
    longest = engine.submit(base).result(60)
    assert longest.finish_reason == "length"
    assert len(longest.response_ids) == ENGINE.max_length - 20
    third = int(longest.response_ids[2])
    first = longest.response_ids.tolist().index(third)
    with running(eos_ids=(263, third)) as other:
        ended = other.submit(base).result(60)
    assert ended.finish_reason == "stop"
    assert ended.response_ids.tolist() == longest.response_ids[: first + 1].tolist()
    one = engine.submit(GenerationRequest(np.asarray([5], np.int32), 1)).result(60)
    assert len(one.response_ids) == 1


def test_stream_is_the_result_in_pieces(engine):
    generation = engine.submit(GenerationRequest(np.arange(9, dtype=np.int32), 23, want_stream=True, seed=4))
    chunks = list(generation.chunks())
    result = generation.result(60)
    assert [i for c in chunks for i in c.ids] == result.response_ids.tolist()
    assert np.asarray([p for c in chunks for p in c.logps], np.float32).tobytes() == result.rollout_logps.tobytes()
    assert len(chunks) > 1


def test_publish_lets_running_calls_finish_and_holds_new_ones():
    with running() as engine:
        request = GenerationRequest(np.arange(30, dtype=np.int32), 120, seed=7)
        before = engine.submit(replace(request, max_tokens=20)).result(60)
        seen = engine.metrics()["prompt_tokens_total"]
        old = [engine.submit(replace(request, seed=s)) for s in range(4)]
        eventually(lambda: engine.metrics()["prompt_tokens_total"] == seen + 4 * 30)
        done = threading.Event()
        weights = policy(1)
        thread = threading.Thread(target=lambda: (engine.publish(weights, 1), done.set()))
        thread.start()
        late = []
        while not done.is_set():
            late.append(engine.submit(replace(request, max_tokens=20)))
            done.wait(0.005)
        thread.join()
        jax.tree.map(lambda x: x.delete(), weights)  # the caller may donate its arrays
        after = engine.submit(replace(request, max_tokens=20)).result(60)
        assert after.policy_version == 1
        assert not same(after, before)  # new weights, and nothing of the old ones in the prefix cache
        for generation in late:
            result = generation.result(60)
            assert same(result, before if result.policy_version == 0 else after)
        assert {g.result(60).policy_version for g in old} == {0}
    with running(seed=1) as fresh:
        assert same(fresh.submit(replace(request, max_tokens=20)).result(60), after)


def test_publish_refuses_other_shapes_and_keeps_serving(engine):
    other = init_params(replace(MODEL, mlp_dim=128), jax.random.key(0))
    with pytest.raises(ValueError, match=r"down.*128.*64"):
        engine.publish(other, 5)
    assert engine.policy_version == 0
    assert engine.submit(GenerationRequest(np.arange(3, dtype=np.int32), 2)).result(60).policy_version == 0


def test_refusals(engine):
    prompt = np.arange(5, dtype=np.int32)
    for bad in (
        GenerationRequest(prompt[:0], 5),
        GenerationRequest(prompt, 0),
        GenerationRequest(prompt + 260, 5),
        GenerationRequest(prompt, 5, temperature=-1.0),
        GenerationRequest(prompt, 5, top_p=0.0),
    ):
        with pytest.raises(ValueError, match=r"\d|empty"):
            engine.submit(bad)
    with pytest.raises(PromptTooLong, match="160"):
        engine.submit(GenerationRequest(np.zeros(160, np.int32), 5))
    with pytest.raises(EngineStopped):
        Engine(MODEL, ENGINE).submit(GenerationRequest(prompt, 5))
    with pytest.raises(ValueError, match="take 32"):
        EngineConfig(max_length=30, prefill_chunk=16)
    with pytest.raises(ValueError, match="slotz"):
        EngineConfig.from_mapping({"slotz": 3})
    with pytest.raises(ValueError, match=r"1024.*512"):
        Engine(MODEL, replace(ENGINE, max_length=1024, cache_block=0))


def test_queue_is_bounded_and_stop_fails_what_is_left():
    with running(replace(ENGINE, slots=1, max_queue=2)) as engine:
        request = GenerationRequest(np.arange(5, dtype=np.int32), 150, temperature=0.0)
        generations = [engine.submit(request)]
        eventually(lambda: engine.metrics()["slots_busy"] == 1)
        generations += [engine.submit(request) for _ in range(2)]
        with pytest.raises(QueueFull, match="max_queue is 2"):
            engine.submit(request)
        engine.stop()
        failed = [g for g in generations if g.future.exception() is not None]
        assert failed
        assert all(isinstance(g.future.exception(), EngineStopped) for g in failed)


def test_bfloat16_is_as_deterministic():
    with running(replace(ENGINE, compute_dtype="bfloat16")) as engine:
        batch = requests(16)
        alone = [engine.submit(r).result(60) for r in batch]
        together = [g.result(60) for g in [engine.submit(r) for r in reversed(batch)]][::-1]
        assert all(map(same, alone, together))


def test_program_called_with_other_shapes_names_them(engine):
    with pytest.raises(ValueError, match="decode program"):
        engine._device._programs.decode(engine._device._params, {}, np.zeros((3, 9), np.int32))


def test_waiting_for_company_changes_no_bit(engine):
    batch = requests(24)
    alone = [engine.submit(r).result(60) for r in batch]
    with running(replace(ENGINE, gather_ms=20.0, gather_limit_ms=40.0)) as patient:
        first = patient.submit(replace(batch[0], max_tokens=100))
        eventually(lambda: patient.metrics()["slots_busy"] == 1)
        together = [g.result(60) for g in [patient.submit(r) for r in batch]]
        assert all(map(same, alone, together))
        patient.cancel(first)
        first.result(60)
        # 24 requests of up to 24 tokens in 8 slots: far fewer dispatches than one request after the other takes
        one_by_one = sum(-(-len(r.response_ids) // ENGINE.decode_steps) for r in alone)
        assert patient.metrics()["decode_dispatches_total"] < one_by_one / 2
