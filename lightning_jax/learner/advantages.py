"""Token advantages and value targets of one update, where the algorithm makes its own. Host code, float64.

Observations have no entries, so a chain of tokens runs from a call's last token to the next call's first, and no
discount is spent in between. Transitions that aren't laid out (unselected agents, calls cut at the token limit) are
part of the environment: what they earned counts for the call before.
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
    left_out: Sequence[ScoredTransition] = (),
) -> TokenAdvantages:
    """Advantages by `algo.advantage`, each times its agent's weight after whitening.

    transitions in canonical order; trained bool[K]: what the statistics look at. left_out: transitions that the batch
    could not take, for the rewards they carry.
    """
    penalties = _penalties(evaluation, kl_coef if algo.kl_in == "reward" else 0.0)
    targets: list[F64] | None = None
    figures: dict[str, float] = {}
    if algo.has_critic:
        rewards = _chained_rewards(transitions, evaluation, left_out)
        advantages, targets, figures = _by_critic(transitions, evaluation, rewards, penalties, trained, algo)
    elif algo.advantage == "return":
        rewards = np.array([s.credit for s in transitions])
        advantages = [
            discounted_returns(_token_rewards(reward, penalty), algo.gamma) if penalty.size else penalty
            for reward, penalty in zip(rewards, penalties, strict=True)
        ]
    else:
        pairs = zip(evaluation.logp, transitions, strict=True)
        advantages = [np.full(logp.size, s.advantage / (s.agent_factor or 1.0)) for logp, s in pairs]
    whitened = _whitened(advantages, trained, algo)
    weighted = [a * s.agent_factor for a, s in zip(whitened, transitions, strict=True)]
    return TokenAdvantages(weighted, targets, figures)


def _by_critic(
    transitions: Sequence[ScoredTransition],
    evaluation: Evaluation,
    rewards: F64,
    penalties: list[F64],
    trained: NDArray[np.bool_],
    algo: AlgoConfig,
) -> tuple[list[F64], list[F64], dict[str, float]]:
    """GAE along each rollout: advantages and value targets per transition, and figures of the critic."""
    values = evaluation.values
    if values is None:
        raise ValueError(f"advantage={algo.advantage!r} needs the critic's values of the batch")
    by_turn = algo.advantage == "turn_gae"
    advantages, targets = ([np.zeros(v.size) for v in values] for _ in range(2))
    for members in _rollouts(transitions, [k for k, v in enumerate(values) if v.size]):
        if by_turn:
            earned = np.array([rewards[k] - penalties[k].sum() for k in members])
            steps = [values[k][:1] for k in members]
        else:
            earned = np.concatenate([_token_rewards(rewards[k], penalties[k]) for k in members])
            steps = [values[k] for k in members]
        chain = np.concatenate(steps)
        found = episode_gae(earned, chain, algo.gamma, algo.lam)
        cuts = np.cumsum([s.size for s in steps])[:-1]
        for k, a, r in zip(members, np.split(found, cuts), np.split(found + chain, cuts), strict=True):
            advantages[k][:] = a
            targets[k][:] = r
    return advantages, targets, _critic_figures(values, targets, trained, by_turn)


def _chained_rewards(
    transitions: Sequence[ScoredTransition], evaluation: Evaluation, left_out: Sequence[ScoredTransition]
) -> F64:
    """f64[K]: each laid-out transition's reward, and those of the calls after it that aren't laid out.

    A call that is not trained (cut at the token limit, too long for a row, an agent of weight 0) is part of the
    environment, and what it earned is what the laid-out call before it led to. What came before a rollout's first
    laid-out call isn't the doing of any.
    """
    numbered = [*enumerate(transitions), *((-1, s) for s in left_out)]
    numbered.sort(key=lambda pair: (pair[1].rollout_id, pair[1].transition.index, pair[1].transition.call_id))
    rewards = np.zeros(len(transitions))
    receiver: dict[str, int] = {}
    for k, scored in numbered:
        if k >= 0 and evaluation.logp[k].size:
            receiver[scored.rollout_id] = k
        if scored.rollout_id in receiver:
            rewards[receiver[scored.rollout_id]] += scored.credit
    return rewards


def _penalties(evaluation: Evaluation, coef: float) -> list[F64]:
    """β·k1 per token: KL as part of the reward."""
    if not coef or evaluation.ref_logp is None:
        return [np.zeros_like(logp) for logp in evaluation.logp]
    pairs = zip(evaluation.logp, evaluation.ref_logp, strict=True)
    return [coef * (logp - ref) for logp, ref in pairs]


def _token_rewards(reward: float, penalty: F64) -> F64:
    """A transition's reward at its last token, less the penalties."""
    rewards = -penalty
    rewards[-1] += reward
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
