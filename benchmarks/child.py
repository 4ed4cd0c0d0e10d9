"""A rival in a process of its own, with a Python of its own: one JSON line there, one back."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Child:
    """Started with its script's setup; `about` is what it says of itself."""

    def __init__(self, python: str, script: Path, setup: dict[str, Any]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA")}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        self.about = self.ask(setup)

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command; RuntimeError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rival ended with status {self._process.wait()}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.communicate()
