"""The servers under load, each a process of its own, and what they use: CPU seconds and memory by /proc."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request_json(url: str, body: Any = None) -> Any:
    """GET, or POST of a JSON body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Server:
    """A process and its children. `health`: the URL that answers once it serves."""

    def __init__(self, command: list[str], health: str, environment: dict[str, str] | None = None) -> None:
        self.health = health
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                request_json(health)
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[:4]} does not serve: {error}") from error
                time.sleep(0.2)

    def cpu_s(self) -> float:
        """User and system seconds of the process and its living children, so far."""
        return sum(self._stat(pid) for pid in self._tree())

    def memory_mib(self) -> float:
        """Resident memory of the process and its children."""
        total = 0
        for pid in self._tree():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        return total / 1024

    def _stat(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[place]) for place in (11, 12)) / TICKS

    def _tree(self) -> list[int]:
        found, waiting = [], [self._process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += [int(child) for child in children.read_text().split()]
        return found

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Ours(Server):
    """`python -m lightning_jax.ingest` over a fresh SQLite file, synchronous=FULL."""

    def __init__(self, folder: Path) -> None:
        http, self.port = free_port(), free_port()
        self.store_url = f"sqlite:///{folder / 'store.sqlite'}"
        self.target, self.http = f"127.0.0.1:{self.port}", f"http://127.0.0.1:{http}"
        command = [sys.executable, "-m", "lightning_jax.ingest", "--store", self.store_url]
        super().__init__([*command, "--port", str(self.port), "--http-port", str(http)], f"{self.http}/health")


class AgentLightning(Server):
    """`agl store` of Agent Lightning 0.3.0: OTLP/HTTP into memory, not durable. `python`: that of its own venv."""

    def __init__(self, python: Path) -> None:
        port = free_port()
        self.http = f"http://127.0.0.1:{port}"
        command = [str(python.parent / "agl"), "store", "--host", "127.0.0.1", "--port", str(port)]
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        super().__init__(command, f"{self.http}/v1/agl/health", environment)

    def attempt(self) -> dict[str, str]:
        """Resource attributes of a fresh attempt."""
        rollout = request_json(f"{self.http}/v1/agl/rollouts", {"input": {}})
        return {
            "agentlightning.rollout_id": rollout["rollout_id"],
            "agentlightning.attempt_id": rollout["attempt"]["attempt_id"],
        }
