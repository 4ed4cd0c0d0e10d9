"""Server, worker and learner as three processes give the numbers of one process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.toy import command, config, run, start, training_lines

KEY = {"LJX_API_KEY": "sesame"}


@contextmanager
def running(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(words, log, **KEY)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(30) == 0, log.read_text()
        finally:
            process.kill()


def address(server: subprocess.Popen[str], log: Path) -> str:
    """host:port of ingestion, once the server says that it serves."""
    deadline = time.monotonic() + 120
    while (found := re.search(r"serving http://\S+/v1, ingestion on (\S+)", log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]


def test_three_processes(tmp_path: Path) -> None:
    steps = "train.steps=2"
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(config(steps)))
    server = [sys.executable, "-m", "lightning_jax.server", "--config", str(saved), "--port", "0", "--grpc-port", "0"]
    log = tmp_path / "server.log"
    with running([*server, "--folder", str(tmp_path / "server")], log) as process:
        target = address(process, log)
        worker = [sys.executable, "-m", "lightning_jax.runner", "--target", target, "--concurrency", "6"]
        with running([*worker, "--agent", "experiments.toy.agent:solve"], tmp_path / "worker.log"):
            remote = (steps, f"server.connect={target}", "runner=external")
            learner = start(command(tmp_path / "first", *remote), tmp_path / "learner.log", **KEY)
            assert learner.wait(120) == 0, (tmp_path / "learner.log").read_text()
            run(tmp_path / "second", *remote, admin_key=KEY["LJX_API_KEY"])  # versions go on where the first run ended
            with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
                run(tmp_path / "keyless", *remote)
    run(tmp_path / "alone", steps)
    expected = (tmp_path / "alone" / "metrics.jsonl").read_bytes()
    assert len(training_lines(tmp_path / "alone")) == 2
    assert (tmp_path / "first" / "metrics.jsonl").read_bytes() == expected
    assert (tmp_path / "second" / "metrics.jsonl").read_bytes() == expected
