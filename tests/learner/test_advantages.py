"""Advantages that the learner makes itself, against vectors of the reference implementations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_jax.credit import BaselineConfig, group_advantages
from lightning_jax.learner.advantages import Evaluation, token_advantages
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.gae import discounted_returns, explained_variance, gae, whiten
from tests.batch.examples import transition

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def runs(mask: np.ndarray) -> list[np.ndarray]:
    """Places of each stretch of trained tokens of a row: a call; what lies between is what the agent observed."""
    places = np.flatnonzero(mask)
    return [r for r in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if r.size]


class Calls:
    """Rows with interior masks taken apart into calls, rewards at the calls' last tokens."""

    def __init__(self, mask: Any, rewards: Any) -> None:
        mask, rewards = np.array(mask), np.array(rewards)
        self.places = [(row, run) for row in range(mask.shape[0]) for run in runs(mask[row])]
        self.transitions = [
            transition([1], [1] * run.size, rollout=f"r{row}", index=i, credit=float(rewards[row, run[-1]]))
            for i, (row, run) in enumerate(self.places)
        ]

    def take(self, values: Any) -> list[np.ndarray]:
        return [np.array(values)[row, run] for row, run in self.places]

    def give(self, pieces: list[np.ndarray], like: Any) -> np.ndarray:
        result = np.zeros(np.array(like).shape)
        for (row, run), piece in zip(self.places, pieces, strict=True):
            result[row, run] = piece
        return result


def test_turn_gae() -> None:
    cases = golden("turn_gae")["cases"]
    assert len(cases) == 5
    for case in cases:
        got = gae(*(np.array(case[k], float) for k in ("rewards", "discounts", "values_with_bootstrap")), case["lam"])
        np.testing.assert_allclose(got, case["advantages"], rtol=1e-9, atol=1e-12)


def test_discounted_returns() -> None:
    cases = [c for c in golden("rlax_losses")["cases"] if c["what"] == "discounted_returns"]
    assert len(cases) == 3
    for case in cases:
        np.testing.assert_allclose(discounted_returns(np.array(case["rewards"]), case["gamma"]), case["returns"])


@pytest.mark.parametrize("case", golden("gae_token")["cases"], ids=lambda c: f"{c['gamma']}-{c['lam']}")
def test_token_gae_passes_over_observations(case: dict[str, Any]) -> None:
    """Rewards at every token: a call of one token each, so that credits are the token rewards."""
    mask, rewards = np.array(case["response_mask"]), np.array(case["token_level_rewards"])
    places = [(row, np.array([t])) for row in range(mask.shape[0]) for t in np.flatnonzero(mask[row])]
    calls = Calls(mask, rewards)
    calls.places = places
    calls.transitions = [
        transition([1], [1], rollout=f"r{row}", index=i, credit=float(rewards[row, t[0]]))
        for i, (row, t) in enumerate(places)
    ]
    values = calls.take(case["values"])
    algo = AlgoConfig(advantage="token_gae", gamma=case["gamma"], lam=case["lam"], whiten_advantages=True)
    trained = np.ones(len(places), bool)
    found = token_advantages(calls.transitions, Evaluation(values, values=values), trained, algo, 0.0)
    got = calls.give(found.advantages, mask)
    np.testing.assert_allclose(got, np.array(case["advantages_whitened"]) * mask, rtol=1e-6, atol=1e-9)
    assert found.targets is not None
    np.testing.assert_allclose(calls.give(found.targets, mask), np.array(case["returns"]) * mask, rtol=1e-9, atol=1e-12)


def test_calls_of_one_token_and_whole_calls_give_the_same_token_gae() -> None:
    rng = np.random.default_rng(0)
    mask = np.array([[1, 1, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 1, 0]])
    calls = Calls(mask, rng.normal(size=mask.shape))
    values = rng.normal(size=mask.shape)
    algo = AlgoConfig(advantage="token_gae", gamma=0.9, lam=0.8)
    trained = np.ones(len(calls.places), bool)
    evaluation = Evaluation(calls.take(values), values=calls.take(values))
    found = calls.give(token_advantages(calls.transitions, evaluation, trained, algo, 0.0).advantages, mask)
    for row in range(2):
        places = np.flatnonzero(mask[row])
        rewards = np.zeros(places.size)
        for number, (r, run) in enumerate(calls.places):
            if r == row:
                rewards[np.flatnonzero(places == run[-1])] = calls.transitions[number].credit
        discounts = np.array([0.9] * (places.size - 1) + [0.0])
        want = gae(rewards, discounts, np.append(values[row, places], 0.0), 0.8)
        np.testing.assert_allclose(found[row, places], want)


@pytest.mark.parametrize("case", golden("reinforce_pp")["cases"], ids=lambda c: f"{c['variant']}-{c['gamma']}")
def test_reinforce_pp(case: dict[str, Any]) -> None:
    """One row is one episode there: its calls are joined. What is not reward at the last token is a penalty."""
    mask, rewards = np.array(case["response_mask"]) > 0, np.array(case["token_level_rewards"])
    rows = [rewards[row, mask[row]] for row in range(mask.shape[0])]
    calls = [transition([1], [1] * r.size, rollout=f"r{i}", credit=float(r[-1])) for i, r in enumerate(rows)]
    logp = [np.append(-r[:-1], 0.0) for r in rows]  # k1 = logp - 0
    evaluation = Evaluation(logp, ref_logp=[np.zeros_like(x) for x in logp])
    algo = AlgoConfig(advantage="return", gamma=case["gamma"], whiten_advantages=True, kl_coef=1.0, kl_in="reward")
    found = token_advantages(calls, evaluation, np.ones(len(calls), bool), algo, 1.0)
    for row, got in enumerate(found.advantages):
        np.testing.assert_allclose(got, np.array(case["advantages"])[row, mask[row]], rtol=1e-6, atol=1e-9)


def test_kl_in_reward() -> None:
    file = golden("kl_in_reward_and_controller")
    old, ref = np.array(file["old_log_prob"]), np.array(file["ref_log_prob"])
    cases = [c for c in file["cases"] if c["what"] == "compute_rewards"]
    assert len(cases) == 3
    for case in cases:
        scores = np.array(case["token_level_scores"])
        for row in range(old.shape[0]):
            # γ = 0: the return of a token is its reward
            algo = AlgoConfig(advantage="return", gamma=0.0, kl_coef=1.0, kl_in="reward")
            evaluation = Evaluation([old[row]], ref_logp=[ref[row]])
            calls = [transition([1], [1] * old.shape[1], credit=float(scores[row, -1]))]
            got = token_advantages(calls, evaluation, np.ones(1, bool), algo, case["kl_ratio"]).advantages[0]
            want = np.array(case["value"])[row] - np.append(scores[row, :-1], 0.0)
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def without_singletons(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A group of one keeps its raw reward there; here it has nothing to be compared with."""
    return [c for c in cases if all(c["index"].count(key) > 1 for key in c["index"])]


@pytest.mark.parametrize("case", without_singletons(golden("reinforce_pp_baseline")["cases"]), ids=lambda c: c["group"])
def test_group_mean_whitened_over_tokens(case: dict[str, Any]) -> None:
    """REINFORCE++-baseline: the group's mean by the credit stage, whitening over the update's tokens here."""
    centred = group_advantages(case["scores"], case["index"], BaselineConfig()).advantages
    calls = [
        transition([1], [1] * n, rollout=str(i), advantage=a)
        for i, (n, a) in enumerate(zip(case["lengths"], centred, strict=True))
    ]
    logp = [np.zeros(n) for n in case["lengths"]]
    algo = AlgoConfig(whiten_advantages=True)
    found = token_advantages(calls, Evaluation(logp), np.ones(len(calls), bool), algo, 0.0).advantages
    np.testing.assert_allclose([a[0] for a in found], case["advantage_per_sequence"], rtol=1e-5, atol=2e-5)


def test_turn_gae_does_not_reach_over_rollouts_nor_over_what_is_not_trained() -> None:
    calls = [transition([1], [1, 1], rollout="a", index=k, credit=c) for k, c in enumerate([0.0, 0.0, 1.0])]
    calls.append(transition([1], [1], rollout="b", credit=-1.0))
    values = [np.array([0.5, 7.0]), np.zeros(0), np.array([0.25, 7.0]), np.array([0.0])]
    logp = [np.zeros(v.size) for v in values]  # the second call isn't laid out: another agent's
    algo = AlgoConfig(advantage="turn_gae", gamma=0.9, lam=1.0)
    found = token_advantages(calls, Evaluation(logp, values=values), np.array([True, False, True, True]), algo, 0.0)
    assert found.targets is not None
    np.testing.assert_allclose([t[0] for t in found.targets if t.size], [0.9, 1.0, -1.0])  # λ = 1: discounted returns
    np.testing.assert_allclose(found.advantages[0], [0.4, 0.4])
    np.testing.assert_allclose(found.advantages[2], [0.75, 0.75])
    assert found.advantages[1].size == 0


@pytest.mark.parametrize("advantage", ["turn_gae", "token_gae"])
def test_what_untrained_calls_earned_counts_for_the_call_before_them(advantage: str) -> None:
    """Rewards 5, 1, 2, 4, 8, 16 of six calls: the first, third and fifth have no entries, the last fits no row."""
    calls = [transition([1], [1, 1], rollout="a", index=k, credit=c) for k, c in enumerate([5.0, 1, 2, 4, 8])]
    other = transition([1], [1, 1], rollout="b", credit=32.0)  # all of its own calls are laid out
    long = transition([1], [1, 1], rollout="a", index=5, credit=16.0)
    values = [np.zeros(n) for n in (0, 2, 0, 2, 0, 2)]
    algo = AlgoConfig(advantage=advantage, gamma=1.0, lam=1.0)
    trained = np.array([v.size > 0 for v in values])
    found = token_advantages([*calls, other], Evaluation(values, values=values), trained, algo, 0.0, left_out=[long])
    assert found.targets is not None
    assert [t.tolist() for t in found.targets] == [[], [31.0] * 2, [], [28.0] * 2, [], [32.0] * 2]


@pytest.mark.parametrize("advantage", ["credit", "return", "turn_gae", "token_gae"])
def test_agent_weights_multiply_advantages_after_whitening(advantage: str) -> None:
    """Whitened advantages don't know of the weights; what is left after them is the factor itself."""
    rng = np.random.default_rng(3)
    factors = [1.0, 0.25, -2.0, 0.0]
    plain, weighted = [], []
    for k, factor in enumerate(factors):
        a, c = rng.normal(size=2)
        one = transition([1], [1, 1], rollout="ab"[k // 2], index=k % 2, advantage=a, credit=c)
        plain.append(one)
        weighted.append(replace(one, advantage=a * factor, agent_factor=factor))
    values = [rng.normal(size=2) for _ in factors]
    trained = np.array([True, True, True, False])  # an agent of weight 0 is not
    algo = AlgoConfig(advantage=advantage, whiten_advantages=True)
    evaluation = Evaluation(values, values=values)
    want = token_advantages(plain, evaluation, trained, algo, 0.0).advantages
    got = token_advantages(weighted, evaluation, trained, algo, 0.0).advantages
    for a, b, factor in zip(got, want, factors, strict=True):
        assert np.abs(b).min() > 1e-3
        np.testing.assert_allclose(a, factor * b, rtol=1e-12, atol=1e-15)


def test_kl_penalty_of_a_turn_is_its_tokens_sum() -> None:
    calls = [transition([1], [1, 1], credit=1.0)]
    evaluation = Evaluation([np.array([-1.0, -2.0])], [np.array([-1.5, -2.25])], [np.zeros(2)])
    algo = AlgoConfig(advantage="turn_gae", kl_coef=0.1, kl_in="reward")
    found = token_advantages(calls, evaluation, np.ones(1, bool), algo, 0.1)
    np.testing.assert_allclose(found.advantages[0], 1.0 - 0.1 * 0.75)


def test_whitening() -> None:
    cases = [c for c in golden("whitening")["cases"] if c["shift_mean"]]
    assert len(cases) == 1
    for case in cases:
        mask = np.array(case["mask"]).reshape(-1) > 0
        got = whiten(np.array(case["values"]).reshape(-1), mask)
        np.testing.assert_allclose(got[mask], np.array(case["whitened"]).reshape(-1)[mask], rtol=1e-7)
        assert np.abs(got[mask]).max() > 0.5  # not zeros against zeros
    np.testing.assert_array_equal(whiten(np.ones(3), np.array([True, False, False])), 0)


def test_explained_variance() -> None:
    x = np.array([1.0, 2.0, 4.0, 100.0])
    assert explained_variance(x, x) == 1
    assert explained_variance(np.zeros(4), x) == pytest.approx(0)
