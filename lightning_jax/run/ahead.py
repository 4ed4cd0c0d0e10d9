"""Rollouts of the next step, sampled while this one's update runs: one version behind, never more.

What is under way is awaited before new weights are published, so which version samples which call does not depend on
how fast anything is: a run that samples ahead repeats bit for bit, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from lightning_jax.run.draws import Drawn
from lightning_jax.types import Trajectory

Sample = Callable[[int], Drawn]


class RolloutsAhead:
    """Samples one step at a time, in the caller's thread or in one of its own. A context manager."""

    def __init__(self, sample: Sample) -> None:
        """sample: step (0-based) → its rollouts, by the weights served at the time."""
        self._sample = sample
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rollouts-ahead")
        self._begun: dict[int, Future[Drawn]] = {}

    def begin(self, step: int) -> None:
        """Start sampling `step` now; `take` will find it."""
        self._begun[step] = self._pool.submit(self._sample, step)

    def settle(self) -> None:
        """Wait until nothing is being sampled; raises what the sampling raised."""
        for future in self._begun.values():
            future.result()

    def take(self, step: int) -> Drawn:
        """The rollouts of `step`: those begun before, else sampled now."""
        begun = self._begun.pop(step, None)
        return begun.result() if begun is not None else self._sample(step)

    def __enter__(self) -> RolloutsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=error is None, cancel_futures=True)


def check_staleness(trajectories: Sequence[Trajectory], version: int, allowed: int) -> int:
    """By how many versions the oldest call is behind `version`; RuntimeError where that is more than `allowed`."""
    oldest = min((c.policy_version for t in trajectories for c in t.transitions), default=version)
    if version - oldest > allowed:
        raise RuntimeError(
            f"a call was sampled by version {oldest}, {version - oldest} behind version {version} that is trained now, "
            f"but train.max_staleness={allowed}: does another run publish to this server?"
        )
    return version - oldest
