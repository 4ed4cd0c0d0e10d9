"""Every seed of a run, derived from one number by name: never from the clock, arrival order or process state."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *parts: str | int) -> int:
    """A u63 seed from the run's seed and what it is for, e.g. `derive(seed, "rollout", step, task_id, sample)`."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *parts):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator(seed: int, *parts: str | int) -> np.random.Generator:
    """A numpy generator for host-side choices (order of tasks, demonstrations)."""
    return np.random.Generator(np.random.PCG64(derive(seed, *parts)))


def task_order(seed: int, num_tasks: int, step: int, tasks_per_step: int) -> list[int]:
    """Indices of the tasks of one step (0-based): epochs of shuffled tasks, no task twice in a step.

    A pure function of its arguments, so a resumed run needs no cursor but the step; what is left of an epoch when it
    doesn't fill a step is skipped. ValueError where a step asks for more tasks than there are.
    """
    if tasks_per_step > num_tasks:
        raise ValueError(
            f"train.tasks_per_step={tasks_per_step} but the study has {num_tasks} training tasks: lower the one, or "
            "check what limits the other (task.root, task.split, task.train_limit)"
        )
    epoch, slot = divmod(step, num_tasks // tasks_per_step)
    order = generator(seed, "task_order", epoch).permutation(num_tasks)
    return [int(i) for i in order[slot * tasks_per_step : (slot + 1) * tasks_per_step]]
