"""A worker as a process of its own, so that agents don't share the learner's interpreter lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def spawn(
    target: str, entry: str, *, concurrency: int, lease_s: float, arguments: Mapping[str, Any], api_key: str | None
) -> subprocess.Popen[bytes]:
    """Start a worker process that runs this module's command line against `target`."""
    command = [
        sys.executable, "-m", "lightning_jax.runner", "--target", target, "--agent", entry,
        "--concurrency", str(concurrency), "--lease-s", str(lease_s), "--arguments", json.dumps(dict(arguments)),
        "--parent", str(os.getpid()),
    ]  # fmt: skip
    environment = {**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1", "JAX_PLATFORMS": "cpu"}
    if api_key:
        environment["LJX_API_KEY"] = api_key
    return subprocess.Popen(command, env=environment)
