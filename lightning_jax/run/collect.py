"""Rollouts out, trajectories back: the loop's side of the rollout queue and the transition stream.

Results come in any order and more than once; `collect` hands them on in the order asked for, each once. That order,
not the order of arrival, is what training sees, so agents may interleave as they like.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.metrics import count_assembled
from lightning_jax.run.randomness import derive
from lightning_jax.types import Mode, Rollout, SamplingDefaults, SealedAttempt, Task, Trajectory


def make_rollouts(
    tasks: Sequence[Task],
    *,
    samples: int,
    mode: Mode,
    step: int,
    run_seed: int,
    label: str,
    sampling: SamplingDefaults,
    timeout_s: float,
    max_attempts: int = 1,
) -> list[Rollout]:
    """`samples` rollouts of every task, grouped by task.

    `label` makes ids unique within a store (run, incarnation, split); it never enters a seed, so a resumed run samples
    the same. The place of a task in the list does not enter either: its id does.
    """
    return [
        Rollout(
            rollout_id=f"{label}-{step}-{_url_safe(task.task_id)}-{sample}",
            task_id=task.task_id,
            sample=sample,
            mode=mode,
            seed=derive(run_seed, "rollout", mode, step, task.task_id, sample),
            input=task.input,
            sampling=sampling,
            step=step,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
        )
        for task in tasks
        for sample in range(samples)
    ]


def _url_safe(task_id: str) -> str:
    """A task's id as part of a URL: as it is where it can be, else what can be kept of it and a hash."""
    safe = re.sub(r"[^A-Za-z0-9._~:@+=-]", "_", task_id)[:100]
    return safe if safe == task_id else f"{safe}-{derive(0, task_id):x}"


class Collector:
    """One consumer of the transition stream."""

    def __init__(self, client: IngestClient, naming: AgentNaming, *, consumer: str = "learner") -> None:
        """consumer: whose acknowledged position the stream starts after; what lies before was never waited for."""
        self._client, self._naming, self._consumer = client, naming, consumer
        self.cursor: int | None = None  # last position seen; None before the first
        self.quarantined: dict[str, int] = {}  # reason → count, since start
        self._stream: Iterator[SealedAttempt] | None = None
        self._lock = threading.Lock()

    def collect(
        self, rollouts: Sequence[Rollout], on_result: Callable[[Trajectory], None] = lambda _: None
    ) -> list[Trajectory]:
        """Enqueue rollouts, wait until all are sealed, return their trajectories in the order given."""
        with self._lock:
            waiting: Mapping[str, Rollout] = {r.rollout_id: r for r in rollouts}
            if len(waiting) != len(rollouts):
                raise ValueError("two rollouts share an id; give each run of a store its own label")
            self._client.enqueue(list(rollouts))
            found: dict[str, Trajectory] = {}
            while len(found) < len(waiting):
                sealed = self._next()
                self.cursor = sealed.cursor
                name = sealed.rollout.rollout_id
                if name in waiting and name not in found:
                    found[name] = self._assemble(sealed)
                    on_result(found[name])
            if self.cursor is not None:
                self._client.ack(self._consumer, self.cursor)
            return [found[r.rollout_id] for r in rollouts]

    def _next(self) -> SealedAttempt:
        if self._stream is None:
            self._stream = iter(self._client.sealed(self._consumer, self.cursor))
        try:
            return next(self._stream)
        except StopIteration:
            raise ConnectionError("the transition stream ended: was the server stopped?") from None

    def _assemble(self, sealed: SealedAttempt) -> Trajectory:
        assembled = assemble(sealed, self._naming)
        count_assembled(assembled.reasons())
        for item in assembled.quarantined:
            self.quarantined[item.reason] = self.quarantined.get(item.reason, 0) + 1
        return assembled.trajectory
