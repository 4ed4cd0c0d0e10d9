"""The loop: rollouts → trajectories → scores → credit → update → publish, step after step.

The rollouts of step s are sampled by version s, and version s+1 is published before step s+1 asks for any. With
`train.max_staleness=1` they are sampled while the update of step s-1 runs, by the version before it (`RolloutsAhead`);
a step after a checkpoint or a validation is not, so that a run resumed there goes the same way. Every choice is a
function of (config, seed, step): a run repeats bit for bit and resumes exactly.

So a checkpoint is the learner's state and the number of steps done, and nothing else: which tasks come next, every seed
and the version's number follow from it. What was consumed is the store's to know (an attempt that was acknowledged is
not sent again), and rollouts that a killed run left open are cancelled and made anew under ids of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_jax.credit.baseline import BaselineConfig
from lightning_jax.credit.config import CreditConfig
from lightning_jax.credit.score import score_transitions
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.learner.learner import Learner
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.rewards.compose import Composition, score
from lightning_jax.run import artifacts
from lightning_jax.run.ahead import RolloutsAhead, check_staleness
from lightning_jax.run.collect import Collector, make_rollouts
from lightning_jax.run.config import EvalConfig, TrainConfig
from lightning_jax.run.draws import Drawn, draw
from lightning_jax.run.evaluate import Evaluation, judge
from lightning_jax.run.metrics import MetricsWriter
from lightning_jax.run.progress import ProgressBoard
from lightning_jax.run.publisher import Publisher
from lightning_jax.run.study import Study
from lightning_jax.types import Rollout, SamplingDefaults, Score, Task, Trajectory


@dataclass
class Clock:
    """Seconds by activity within one step; for timings.jsonl only."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True)
class Loop:
    """A run's parts, wired. Nothing here changes but what the parts hold themselves."""

    folder: Path
    label: str  # prefix of rollout ids, unique to this start of the run
    seed: int
    train_config: TrainConfig
    eval_config: EvalConfig
    credit: CreditConfig
    baseline: BaselineConfig
    composition: Composition
    study: Study
    learner: Learner
    publisher: Publisher
    collector: Collector
    metrics: MetricsWriter
    board: ProgressBoard
    checkpoints: Checkpoints
    tasks: Mapping[str, Task]
    stopping: threading.Event = field(default_factory=threading.Event)  # set: end after the step in flight

    def run(self, state: Any, first_step: int) -> int:
        """Train from `first_step` (0-based) to the configured number of steps; returns the number of steps done."""
        config = self.train_config
        with self.board.line("train", config.steps) as line, RolloutsAhead(self.sample) as ahead:
            line.advance(first_step)
            for step in range(first_step, config.steps):
                try:
                    state, note = self.step(state, step, ahead)
                except (ConnectionError, StoreUnavailable):
                    if not self.stopping.is_set():
                        raise
                    self.save(state, step)  # whoever stopped the run closed the connection that it waited on
                    return step
                line.advance(note=note)
                done = step + 1
                validated: float | None = None
                if config.validate_every and done % config.validate_every == 0 and done < config.steps:
                    validated = self.evaluate(self.study.validation, step=done, split="validation").accuracy
                stopped = self.stopping.is_set()
                best = validated is not None and self.checkpoints.improves(validated)
                if best or done % config.checkpoint_every == 0 or done == config.steps or stopped:
                    self.save(state, done, validated)
                if stopped:
                    return done
        return max(first_step, config.steps)

    def step(self, state: Any, step: int, ahead: RolloutsAhead) -> tuple[Any, str]:
        """One optimiser step; returns the new state and a few words for the progress line."""
        clock, config = Clock(), self.train_config
        drawn = ahead.take(step)
        trajectories = drawn.trajectories
        clock.lap("rollout_s")
        if config.max_staleness and self._goes_on(step + 1):
            ahead.begin(step + 1)
        staleness = check_staleness(trajectories, self.publisher.version_of(step), config.max_staleness)
        scores = self.score(trajectories) if drawn.scores is None else drawn.scores
        clock.lap("reward_s")
        scored, credit_stats = score_transitions(
            trajectories, scores, self.credit, self.baseline, progress=step / max(1, config.steps)
        )
        scored = drawn.marked(scored)
        clock.lap("credit_s")
        state, learner_metrics = self.learner.update(state, drawn.trained(scored))
        clock.lap("update_s")
        ahead.settle()
        clock.lap("ahead_s")
        self.publisher.publish(self.learner.served(state), step + 1)
        clock.lap("publish_s")
        values = {**rollout_metrics(trajectories, staleness), **drawn.figures(), **credit_stats, **learner_metrics}
        self.metrics.metrics(step + 1, values)
        artifacts.write_rows(
            self.folder / "transitions", f"step-{step + 1:06d}", artifacts.transition_rows(trajectories, scores, scored)
        )
        clock.lap("write_s")
        self.metrics.timings(step + 1, {**clock.seconds, "calls": sum(len(t.transitions) for t in trajectories)})
        return state, f"reward {values['reward/mean']:.3f} right {values['reward/outcome_mean']:.3f}"

    def sample(self, step: int) -> Drawn:
        """The rollouts of `step`, by the weights now served."""
        config = self.train_config
        return draw(
            lambda tasks: self._rollouts(tasks, step),
            self.score,
            seed=self.seed,
            num_tasks=len(self.study.train),
            step=step,
            tasks_per_step=config.tasks_per_step,
            most=config.dynamic_sampling,
        )

    def _rollouts(self, tasks: Sequence[int], step: int) -> list[Trajectory]:
        """Trajectories of the training tasks with these indices."""
        config = self.train_config
        rollouts = make_rollouts(
            [self.study.train[i] for i in tasks],
            samples=config.samples_per_task,
            mode="train",
            step=step,
            run_seed=self.seed,
            label=self.label,
            sampling=SamplingDefaults(temperature=config.temperature, top_p=1.0, max_tokens=config.max_tokens),
            timeout_s=config.rollout_timeout_s,
            max_attempts=config.max_attempts,
        )
        return self._collect("rollouts", rollouts)

    def evaluate(self, tasks: Sequence[Task], *, step: int, split: str) -> Evaluation:
        """Let the agent solve `tasks` once each with the weights now served, and write what came of it."""
        config = self.eval_config
        rollouts = make_rollouts(
            tasks,
            samples=1,
            mode="eval",
            step=step,
            run_seed=self.seed,
            label=f"{self.label}-{split}",
            sampling=SamplingDefaults(temperature=config.temperature, top_p=1.0, max_tokens=config.max_tokens),
            timeout_s=config.rollout_timeout_s,
        )
        trajectories = self._collect(split, rollouts, keep=True)
        evaluation = judge(trajectories, self.tasks, self.score(trajectories), step=step, split=split)
        artifacts.write_rows(self.folder / "evaluations", f"{split}-{step:06d}", evaluation.rows(self.study.breakdown))
        prefix = "eval" if split == "test" else split
        self.metrics.metrics(step, {f"{prefix}/{self.study.metric}": evaluation.accuracy, f"{prefix}/n": len(tasks)})
        return evaluation

    def score(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """Composed rewards, in order."""
        return [score(self.tasks[t.task_id], t, self.composition, self.study.terms) for t in trajectories]

    def save(self, state: Any, step: int, score: float | None = None) -> None:
        """Checkpoint everything that resuming needs; `step` steps are done. The best by validation score is kept."""
        self.checkpoints.save(step, state, {"step": step}, score=score)

    def _goes_on(self, done: int) -> bool:
        """Whether after `done` steps the next follows at once: not at the end, nor where a run may be resumed."""
        config = self.train_config
        pauses = (config.checkpoint_every, config.validate_every)
        return done < config.steps and all(not every or done % every for every in pauses)

    def _collect(self, name: str, rollouts: Sequence[Rollout], *, keep: bool = False) -> list[Trajectory]:
        with self.board.line(name, len(rollouts), keep=keep) as line:
            calls = 0

            def on_result(trajectory: Trajectory) -> None:
                nonlocal calls
                calls += len(trajectory.transitions)
                line.advance(note=f"{calls} calls")

            return self.collector.collect(rollouts, on_result)


def rollout_metrics(trajectories: Sequence[Trajectory], staleness: int) -> dict[str, float]:
    """Figures of one step's rollouts as the agents made them; rewards are credit's to report."""
    calls = [t for trajectory in trajectories for t in trajectory.transitions]
    count = max(1, len(trajectories))
    return {
        "rollout/calls_mean": len(calls) / count,
        "rollout/staleness_max": float(staleness),
        "rollout/failed_fraction": sum(t.outcome.status != "succeeded" for t in trajectories) / count,
        "rollout/response_tokens_mean": _mean([len(c.response_ids) for c in calls]),
        "rollout/prompt_tokens_mean": _mean([len(c.prompt_ids) for c in calls]),
        "rollout/truncated_fraction": _mean([c.finish_reason == "length" for c in calls]),
        "rollout/constrained_fraction": _mean([c.kept_mass < 1.0 for c in calls]),
        "rollout/kept_mass": _mean([c.kept_mass for c in calls if c.kept_mass > 0.0]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0
