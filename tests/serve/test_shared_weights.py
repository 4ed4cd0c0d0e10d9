"""An engine that serves the learner's own arrays: the same answers, and not one more copy of the weights."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from lightning_jax.batch import BatchConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.serve.engine import Engine
from lightning_jax.types import ScoredTransition, Transition
from tests.serve.conftest import ENGINE, MODEL, policy, requests, running

SHARED = replace(ENGINE, share_weights=True)


def answers(engine: Engine) -> list[tuple[list[int], bytes]]:
    results = [g.result(60) for g in [engine.submit(r) for r in requests(16)]]
    return [(r.response_ids.tolist(), r.rollout_logps.tobytes()) for r in results]


def addresses(tree) -> set[int]:
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)}


def test_shared_and_copied_weights_answer_alike() -> None:
    with running(ENGINE) as copied, running(SHARED) as shared:
        assert answers(copied) == answers(shared)


def test_training_goes_on_beside_an_engine_that_shares() -> None:
    learner = Learner(MODEL, AlgoConfig(), BatchConfig(buckets=(64,)), OptimizerConfig(learning_rate=1e-2))
    state = learner.init(policy(0))
    call = Transition("c", 0, "a", np.arange(9, dtype=np.int32), np.arange(5, dtype=np.int32),
                      np.full(5, -5.0, np.float32), 1.0, 0, "stop")  # fmt: skip
    engine = Engine(MODEL, SHARED)
    engine.start(learner.served(state))
    try:
        assert addresses(engine._device._params) == addresses(state["params"])
        first = answers(engine)
        for version in (1, 2):
            state, _ = learner.update(state, [ScoredTransition(call, "t", "r", 1.0, 1.0, 1.0)])
            assert answers(engine) == first  # the old version, untouched by the update
            engine.publish(learner.served(state), version)
            assert addresses(engine._device._params) == addresses(state["params"])
            second = answers(engine)
            assert second != first
            first = second
    finally:
        engine.stop()


def test_another_dtype_takes_a_copy() -> None:
    with running(replace(SHARED, compute_dtype="bfloat16")) as engine:
        assert {leaf.dtype.name for leaf in jax.tree.leaves(engine._device._params)} == {"bfloat16"}
        assert len(answers(engine)) == 16
