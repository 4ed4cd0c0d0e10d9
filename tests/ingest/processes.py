"""The ingestion server as a process of its own, to be stopped, drained and shot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

ROOT = Path(__file__).parents[2]
LONG_ONLY = pytest.mark.skipif(
    not os.environ.get("LIGHTNING_JAX_LONG_TESTS"), reason="takes a minute: set LIGHTNING_JAX_LONG_TESTS=1"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`python -m lightning_jax.ingest` over a store; `http` is the root of OTLP/HTTP, `target` the gRPC port."""

    def __init__(self, store_url: str, *options: str, port: int = 0, key: str = "") -> None:
        self._http_port = free_port()
        command = [sys.executable, "-m", "lightning_jax.ingest", "--store", store_url, "--port", str(port)]
        command += ["--http-port", str(self._http_port), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "LJX_API_KEY": key}
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline() or -1)
        assert self.port > 0, "the server did not start"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._http_port}"

    def peak_mib(self) -> float:
        """The most memory it ever had resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)
