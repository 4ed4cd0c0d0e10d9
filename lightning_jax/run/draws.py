"""The tasks of one step, and with dynamic sampling further ones, until enough groups have something to teach.

A group whose samples all have one outcome compares nothing. With `train.dynamic_sampling` (DAPO, Yu et al. 2025, arXiv
2503.14476) it leaves the batch, and so the loss's denominators, and further tasks are drawn for it. It is the outcome
that decides, not the shaped reward: else a term for length would bring a group back in which nothing was solved.

Invariant: what is drawn is a function of (seed, step, draw) and of the outcomes before, never of arrival; so a run
repeats bit for bit, and resumes with no cursor but its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lightning_jax.credit.baseline import BaselineConfig, group_advantages
from lightning_jax.run.randomness import generator, task_order
from lightning_jax.types import Score, ScoredTransition, Trajectory

Sample = Callable[[Sequence[int]], list[Trajectory]]
Judge = Callable[[Sequence[Trajectory]], list[Score]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's rollouts, those of every draw, in the order drawn."""

    trajectories: Sequence[Trajectory]
    scores: Sequence[Score] | None = None  # None: nothing had to be known of them yet
    left_out: frozenset[str] | None = None  # tasks whose groups aren't trained on; None without dynamic sampling
    draws: int = 1

    def marked(self, scored: Sequence[ScoredTransition]) -> list[ScoredTransition]:
        """`scored` with loss weight 0 in the groups left out."""
        out = self.left_out or frozenset()
        return [replace(s, loss_weight=0.0) if s.task_id in out else s for s in scored]

    def trained(self, scored: Sequence[ScoredTransition]) -> list[ScoredTransition]:
        """`scored` without the groups left out: they take up no place in a mini-batch, either."""
        return [s for s in scored if s.task_id not in (self.left_out or ())]

    def figures(self) -> dict[str, float]:
        """Groups drawn, kept and left out; nothing without dynamic sampling."""
        if self.left_out is None:
            return {}
        groups = len({t.task_id for t in self.trajectories})
        return {
            "draws/count": float(self.draws),
            "draws/groups": float(groups),
            "draws/groups_kept": float(groups - len(self.left_out)),
            "draws/groups_left_out": float(len(self.left_out)),
        }


def uninformative(trajectories: Sequence[Trajectory], scores: Sequence[Score]) -> frozenset[str]:
    """Tasks whose valid samples all have one outcome, or are fewer than two."""
    groups = group_advantages(
        [score.total for score in scores],
        [one.task_id for one in trajectories],
        BaselineConfig(),
        valid=[score.valid for score in scores],
        outcomes=[score.outcome for score in scores],
    ).groups
    return frozenset(group.key for group in groups if group.valid < 2 or group.constant_outcome)


def further_tasks(seed: int, num_tasks: int, step: int, draw: int, count: int, drawn: Sequence[int]) -> list[int]:
    """Indices of up to `count` tasks of a later draw of a step (draw 0 is `task_order`'s) that it has not drawn yet."""
    order = generator(seed, "further_tasks", step, draw).permutation(num_tasks)
    return [int(i) for i in order if i not in drawn][:count]


def draw(
    sample: Sample, judge: Judge, *, seed: int, num_tasks: int, step: int, tasks_per_step: int, most: int
) -> Drawn:
    """The rollouts of `step`.

    sample: indices of tasks → their groups' trajectories, by the weights now served. judge: their scores.
    most: draws at most; 0: one, and no group is left out. A later draw has as many tasks as groups are missing, so that
    none is sampled in vain. What is missing after the last, or when there are no more tasks, stays missing.
    """
    drawn = task_order(seed, num_tasks, step, tasks_per_step)
    trajectories = sample(drawn)
    if most == 0:
        return Drawn(trajectories)
    scores = judge(trajectories)
    left_out = uninformative(trajectories, scores)
    draws = 1
    while draws < most and (missing := tasks_per_step - len(drawn) + len(left_out)):
        tasks = further_tasks(seed, num_tasks, step, draws, missing, drawn)
        if not tasks:
            break
        new = sample(tasks)
        of_new = judge(new)
        drawn += tasks
        trajectories, scores = [*trajectories, *new], [*scores, *of_new]
        left_out |= uninformative(new, of_new)
        draws += 1
    return Drawn(trajectories, scores, left_out, draws)
