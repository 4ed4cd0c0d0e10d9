"""The toy agent with the habits of real ones: late, hung, broken."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from experiments.toy.agent import solve

RELEASE = threading.Event()  # lets hung agents go when a test is over


def unpunctual(task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """Sleeps before and after, by the clock's seed, so that no two runs finish in one order."""
    clock = random.Random(time.time_ns())
    time.sleep(clock.uniform(0, 0.1))
    result = solve(task_input, base_url=base_url, api_key=api_key, model=model)
    time.sleep(clock.uniform(0, 0.1))
    return result


def unreliable(task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """Hangs, crashes, returns nonsense or works, as the task says."""
    kind = task_input["kind"]
    result = solve(task_input, base_url=base_url, api_key=api_key, model=model)
    if kind == "hangs":
        RELEASE.wait(60)
    if kind == "crashes":
        raise KeyError("the agent is broken")
    if kind == "nonsense":
        return result["answers"]
    return result
