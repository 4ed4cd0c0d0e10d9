"""Which tasks a step draws, which groups it keeps, and what the learner sees of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.credit.baseline import BaselineConfig
from lightning_jax.credit.config import CreditConfig
from lightning_jax.credit.score import score_transitions
from lightning_jax.run.config import TrainConfig
from lightning_jax.run.draws import Drawn, draw, further_tasks, uninformative
from lightning_jax.run.randomness import task_order
from lightning_jax.types import Score, Trajectory
from tests.batch.examples import agent_calls
from tests.credit.samples import scored, trajectory
from tests.learner.small import learner, params

SAMPLES = 2


def group(task: int) -> list[Trajectory]:
    return [trajectory(1, rollout_id=f"{task}-{k}", task_id=str(task)) for k in range(SAMPLES)]


class World:
    """Tasks of which the hard ones are never solved, the others by every second sample."""

    def __init__(self, hard: frozenset[int]) -> None:
        self.hard, self.asked = hard, list[list[int]]()

    def sample(self, tasks: Sequence[int]) -> list[Trajectory]:
        self.asked.append(list(tasks))
        return [one for task in tasks for one in group(task)]

    def judge(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """Shaped rewards differ in every group."""
        solved = [int(t.task_id) not in self.hard and t.rollout_id.endswith("0") for t in trajectories]
        return [scored(0.3 + number, outcome=float(s)) for number, s in enumerate(solved)]

    def draw(self, *, num_tasks: int, tasks_per_step: int, most: int, step: int = 0) -> Drawn:
        return draw(
            self.sample, self.judge, seed=3, num_tasks=num_tasks, step=step, tasks_per_step=tasks_per_step, most=most
        )


@given(
    num_tasks=st.integers(1, 12),
    tasks_per_step=st.integers(1, 12),
    hard=st.frozensets(st.integers(0, 11)),
    most=st.integers(1, 5),
    step=st.integers(0, 9),
)
def test_draws_go_on_until_enough_groups_are_there(
    num_tasks: int, tasks_per_step: int, hard: frozenset[int], most: int, step: int
) -> None:
    tasks_per_step = min(tasks_per_step, num_tasks)
    world = World(hard)
    found = world.draw(num_tasks=num_tasks, tasks_per_step=tasks_per_step, most=most, step=step)
    asked = [task for tasks in world.asked for task in tasks]
    assert len(asked) == len(set(asked))  # none twice
    assert world.asked[0] == task_order(3, num_tasks, step, tasks_per_step)  # as without
    assert [t.task_id for t in found.trajectories] == [str(task) for task in asked for _ in range(SAMPLES)]
    kept = [task for task in asked if task not in hard]
    assert found.left_out == {str(task) for task in asked if task in hard}
    assert len(kept) <= tasks_per_step  # none in vain
    assert len(world.asked) == found.draws <= most
    if len(kept) < tasks_per_step:
        assert found.draws == most or len(asked) == num_tasks
    assert found.figures() == {
        "draws/count": found.draws,
        "draws/groups": len(asked),
        "draws/groups_kept": len(kept),
        "draws/groups_left_out": len(asked) - len(kept),
    }


def test_the_same_seed_step_and_outcomes_draw_the_same() -> None:
    worlds = [World(frozenset({0, 1, 2, 5})) for _ in range(3)]
    for world, step in zip(worlds, (4, 4, 5), strict=True):
        world.draw(num_tasks=12, tasks_per_step=6, most=4, step=step)
    assert worlds[0].asked == worlds[1].asked != worlds[2].asked
    assert len(worlds[0].asked) > 1
    assert further_tasks(3, 12, 4, 1, 2, worlds[0].asked[0]) == worlds[0].asked[1][:2]
    assert further_tasks(3, 50, 4, 1, 9, []) != further_tasks(3, 50, 4, 2, 9, [])


def test_off_nothing_is_judged_and_nothing_left_out() -> None:
    def never(trajectories: Sequence[Trajectory]) -> list[Score]:
        raise AssertionError(trajectories)

    world = World(frozenset({0, 1}))
    found = draw(world.sample, never, seed=3, num_tasks=4, step=0, tasks_per_step=4, most=0)
    assert (found.scores, found.left_out, found.figures()) == (None, None, {})
    transitions, _ = score_transitions(
        found.trajectories, world.judge(found.trajectories), CreditConfig(), BaselineConfig()
    )
    assert found.trained(found.marked(transitions)) == transitions


def test_lost_samples_are_no_comparison() -> None:
    trajectories = [*group(0), *group(1), *group(2)]
    valid = [True, True, True, False, False, False]
    scores = [scored(float(n % 2), valid=v) for n, v in enumerate(valid)]
    assert uninformative(trajectories, scores) == {"1", "2"}


@pytest.mark.parametrize("aggregation", ["token-mean", "per-rollout-mean", "prompt-mean", "seq-mean-token-mean"])
def test_the_update_is_that_of_the_kept_groups_alone(aggregation: str) -> None:
    """The groups left out change neither the gradient nor its denominators."""
    every = agent_calls(7, tasks=4)
    tasks = sorted({s.task_id for s in every})
    drawn = Drawn((), (), frozenset(tasks[:2]))
    alone = [s for s in every if s.task_id in tasks[2:]]
    assert 0 < len(alone) < len(every)
    small = learner(aggregation=aggregation)
    marked = drawn.marked(every)
    assert [s.loss_weight for s in marked] == [0.0 if s.task_id in tasks[:2] else s.loss_weight for s in every]
    first, figures = small.update(small.init(params()), drawn.trained(marked))
    second, expected = small.update(small.init(params()), alone)
    assert figures == expected
    for a, b in zip(_leaves(first), _leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    _, whole = small.update(
        small.init(params()), [s if s.task_id in tasks[2:] else replace(s, advantage=0.0) for s in every]
    )
    assert whole["learner/grad_norm"] != pytest.approx(expected["learner/grad_norm"], rel=1e-3)  # had they stayed


def test_nothing_left_changes_nothing() -> None:
    every = agent_calls(7, tasks=2)
    small = learner()
    state = small.init(params())
    before = _leaves(state)
    drawn = Drawn((), (), frozenset(s.task_id for s in every))
    after, metrics = small.update(state, drawn.trained(every))
    for a, b in zip(before, _leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics["learner/steps_count"] == 0


def test_settings_that_could_keep_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="samples_per_task=1 would leave every group out"):
        TrainConfig(dynamic_sampling=3, samples_per_task=1)
    with pytest.raises(ValueError, match="dynamic_sampling=-1"):
        TrainConfig(dynamic_sampling=-1)


def _leaves(state: dict[str, Any]) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(state["params"])]
