"""Token advantages and value targets of one update, where the algorithm makes its own. Host code, float64.

Observations have no entries, so a chain of tokens runs from a call's last token to the next call's first, and no
discount is spent in between. Transitions that aren't laid out (unselected agents) are part of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.gae import F64, discounted_returns, episode_gae, explained_variance, whiten
from lightning_jax.types import ScoredTransition


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the policy before the update says of K transitions: f64[R] each, empty where one isn't laid out."""

    logp: list[F64]  # π_old
    ref_logp: list[F64] | None = None
    values: list[F64] | None = None  # V at each entry's source


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """f64[R] per transition, empty where one isn't laid out."""

    advantages: list[F64]
    targets: list[F64] | None  # what V is trained towards; with turn_gae only the first of each counts
    figures: dict[str, float]


def token_advantages(
    transitions: Sequence[ScoredTransition],
    evaluation: Evaluation,
    trained: NDArray[np.bool_],
    algo: AlgoConfig,
    kl_coef: float,
) -> TokenAdvantages:
    """Advantages by `algo.advantage`. transitions in canonical order; trained bool[K]: what the statistics look at."""
    sizes = [logp.size for logp in evaluation.logp]
    laid = [k for k, size in enumerate(sizes) if size]
    penalties = _penalties(evaluation, kl_coef if algo.kl_in == "reward" else 0.0)
    advantages = [np.full(size, s.advantage) for size, s in zip(sizes, transitions, strict=True)]
    if algo.advantage == "return":
        for k in laid:
            advantages[k] = discounted_returns(_token_rewards(transitions[k], penalties[k]), algo.gamma)
    if not algo.has_critic:
        return TokenAdvantages(_whitened(advantages, trained, algo), None, {})
    values = evaluation.values
    if values is None:
        raise ValueError(f"advantage={algo.advantage!r} needs the critic's values of the batch")
    by_turn = algo.advantage == "turn_gae"
    targets = [np.zeros(size) for size in sizes]
    for members in _rollouts(transitions, laid):
        if by_turn:
            rewards = np.array([transitions[k].credit - penalties[k].sum() for k in members])
            steps = [values[k][:1] for k in members]
        else:
            rewards = np.concatenate([_token_rewards(transitions[k], penalties[k]) for k in members])
            steps = [values[k] for k in members]
        chain = np.concatenate(steps)
        found = episode_gae(rewards, chain, algo.gamma, algo.lam)
        cuts = np.cumsum([s.size for s in steps])[:-1]
        for k, a, r in zip(members, np.split(found, cuts), np.split(found + chain, cuts), strict=True):
            advantages[k][:] = a
            targets[k][:] = r
    figures = _critic_figures(values, targets, trained, by_turn)
    return TokenAdvantages(_whitened(advantages, trained, algo), targets, figures)


def _penalties(evaluation: Evaluation, coef: float) -> list[F64]:
    """β·k1 per token: KL as part of the reward."""
    if not coef or evaluation.ref_logp is None:
        return [np.zeros_like(logp) for logp in evaluation.logp]
    pairs = zip(evaluation.logp, evaluation.ref_logp, strict=True)
    return [coef * (logp - ref) for logp, ref in pairs]


def _token_rewards(scored: ScoredTransition, penalty: F64) -> F64:
    """The transition's reward at its last token, less the penalties."""
    rewards = -penalty
    rewards[-1] += scored.credit
    return rewards


def _rollouts(transitions: Sequence[ScoredTransition], laid: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of the laid-out transitions of each rollout, its calls in sequence."""
    members: list[int] = []
    for k in laid:
        if members and transitions[k].rollout_id != transitions[members[-1]].rollout_id:
            yield members
            members = []
        members.append(k)
    if members:
        yield members


def _whitened(advantages: list[F64], trained: NDArray[np.bool_], algo: AlgoConfig) -> list[F64]:
    if not algo.whiten_advantages:
        return advantages
    sizes = [a.size for a in advantages]
    if algo.advantage == "turn_gae":  # one advantage a transition, however long
        first = np.array([a[0] if a.size else 0.0 for a in advantages])
        return [np.full(size, a) for size, a in zip(sizes, whiten(first, trained), strict=True)]
    flat = whiten(np.concatenate(advantages), np.repeat(trained, sizes)) if advantages else np.zeros(0)
    return np.split(flat, np.cumsum(sizes)[:-1])


def _critic_figures(
    values: list[F64], targets: list[F64], trained: NDArray[np.bool_], by_turn: bool
) -> dict[str, float]:
    chosen = [k for k in np.flatnonzero(trained) if values[k].size]
    stop = 1 if by_turn else None
    v = np.concatenate([values[k][:stop] for k in chosen]) if chosen else np.zeros(0)
    r = np.concatenate([targets[k][:stop] for k in chosen]) if chosen else np.zeros(0)
    return {
        "learner/value_mean": float(v.mean()) if v.size else 0.0,
        "learner/value_target_mean": float(r.mean()) if r.size else 0.0,
        "learner/explained_variance": explained_variance(v, r),
    }
