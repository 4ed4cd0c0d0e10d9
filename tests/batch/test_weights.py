"""Aggregations against values of the reference implementations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightning_jax.batch.weights import AGGREGATIONS, token_weights
from lightning_jax.types import ScoredTransition
from tests.batch.examples import agent_calls, transition

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = {
    "token-mean": ("token-mean", 1.0),
    "seq-mean-token-sum": ("seq-mean-token-sum", 1.0),
    "seq-mean-token-mean": ("seq-mean-token-mean", 1.0),
    "seq-mean-token-sum-norm": ("constant", 7.0),
}


def rows(mask: np.ndarray) -> list[ScoredTransition]:
    return [
        transition([1], [1] * int(m.sum()) or [1], rollout=f"r{i}", loss_weight=float(m.sum() > 0))
        for i, m in enumerate(mask)
    ]


def weighted_sum(loss: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> float:
    return float((loss * mask * weights[:, None]).sum())


@pytest.mark.parametrize("variant", ["normal", "one_fully_masked_row"])
def test_aggregations_of_verl(variant: str) -> None:
    golden = json.loads((GOLDEN / "agg_loss.json").read_text())
    loss = np.array(golden["loss_mat"])
    mask = np.array(golden["mask_normal" if variant == "normal" else "mask_one_fully_masked_row"])
    checked = 0
    for case in golden["cases"]:
        if case["variant"] != variant or case["mode"] not in NAMES:
            continue
        name, constant = NAMES[case["mode"]]
        weights = token_weights(rows(mask), name, constant=case.get("loss_scale_factor", constant))
        assert weighted_sum(loss, mask, weights) == pytest.approx(
            case["value"], rel=1e-6
        )  # verl adds 1e-8 to denominators
        checked += 1
    assert checked == 5


def test_micro_batches_under_global_counts_add_up_to_the_whole() -> None:
    """Weights are handed out once for all six rows; rows 0-2 and 3-5 give the two recorded parts."""
    golden = json.loads((GOLDEN / "agg_loss.json").read_text())
    loss, mask = np.array(golden["loss_mat"]), np.array(golden["mask_normal"])
    cases = [case for case in golden["cases"] if case["variant"].startswith("micro_batches")]
    assert len(cases) == 3
    for case in cases:
        weights = token_weights(rows(mask), NAMES[case["mode"]][0])
        parts = [weighted_sum(loss[part], mask[part], weights[part]) for part in (slice(0, 3), slice(3, 6))]
        np.testing.assert_allclose(parts, case["parts"], rtol=1e-6)
        assert sum(parts) == pytest.approx(case["value"], rel=1e-6)


def test_per_rollout_mean_ignores_how_often_a_rollout_called() -> None:
    """One call of 6 tokens and three calls of 2 weigh the same, token for token."""
    one = [transition([1], [1] * 6, rollout="a")]
    three = [transition([1], [1] * 2, rollout="b", index=k) for k in range(3)]
    weights = token_weights([*one, *three], "per-rollout-mean")
    np.testing.assert_allclose(weights, 1 / (2 * 6))


def test_prompt_mean_weighs_tasks_equally() -> None:
    calls = [transition([1], [1] * n, task=t, rollout=f"{t}{n}") for t, n in [("x", 1), ("x", 3), ("y", 2)]]
    np.testing.assert_allclose(token_weights(calls, "prompt-mean"), [1 / 8, 1 / 8, 1 / 4])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_weights_do_not_depend_on_order(aggregation: str) -> None:
    calls = agent_calls(1)
    order = np.random.default_rng(0).permutation(len(calls))
    np.testing.assert_array_equal(
        token_weights(calls, aggregation)[order], token_weights([calls[i] for i in order], aggregation)
    )


def test_unselected_transitions_weigh_nothing_and_count_nowhere() -> None:
    calls = [transition([1], [1, 2], rollout="a"), transition([1], [1, 2], rollout="b", loss_weight=0.0)]
    for aggregation in AGGREGATIONS:
        weights = token_weights(calls, aggregation)
        assert weights[1] == 0
        np.testing.assert_allclose(weights[:1], token_weights(calls[:1], aggregation))
    with pytest.raises(ValueError, match="token_mean"):
        token_weights(calls, "token_mean")
