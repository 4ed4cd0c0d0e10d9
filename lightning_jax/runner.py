"""The worker that runs agents: claims rollouts by lease, hands each a base URL and a key, reports how it ended.

An agent is any callable `(task input, Endpoint) -> output dict`, or a command line told about its task by environment
variables only. One that raises, hangs or returns nonsense makes a failed attempt with a reason, never a dead worker.

    python -m lightning_jax.runner --target 127.0.0.1:50051 --agent experiments.spider.agent:solve --concurrency 16
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import importlib
import json
import logging
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.tls import ClientTls
from lightning_jax.types import Attempt, Outcome

log = logging.getLogger(__name__)

MODEL_NAME = "policy"
CLAIM_WAIT_S = 0.5  # long-poll for new rollouts; bounds how late a stop or a time-out is seen
GATHER_S = 0.01  # attempts tend to end in flocks: one claim for those that end within this time
POLL_S = 0.05


class Agent(Protocol):
    """An agent as the runner calls it: what any OpenAI client needs, nothing of this package."""

    def __call__(self, task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        """Solve one task; the returned mapping must be JSON."""
        ...


def load_agent(entry: str, arguments: Mapping[str, Any] | None = None) -> Agent:
    """Import `package.module:function` and bind keyword arguments of the study's; ValueError says what is wrong."""
    module_name, _, name = entry.partition(":")
    if not name:
        raise ValueError(f"agent entry {entry!r} is not of the form package.module:function")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"agent entry {entry!r} cannot be loaded: {error}") from error
    bound = dict(arguments or {})

    def agent(task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        result: Mapping[str, Any] = function(task_input, base_url=base_url, api_key=api_key, model=model, **bound)
        return result

    return agent


class CommandAgent:
    """An agent that is a program: one process per attempt.

    It finds its task as JSON in LJX_TASK, its endpoint in OPENAI_BASE_URL and OPENAI_API_KEY, and prints its output
    as one JSON object on its last line of stdout. ValueError where the command line is empty. Where LJX_TLS_CA names an
    authority, the program trusts it too: SSL_CERT_FILE for HTTPS, and OpenTelemetry's own variable.
    """

    def __init__(self, command: str, *, otlp_endpoint: str | None = None) -> None:
        self._words = shlex.split(command)
        if not self._words:
            raise ValueError("an agent program needs a command line, e.g. runner.command='python my_agent.py'")
        self._otlp_endpoint = otlp_endpoint
        self._authorities: tempfile._TemporaryFileWrapper[str] | None = None
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[str]] = {}  # by API key, which is one attempt's

    def __call__(self, task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        """Run the program once."""
        process = subprocess.Popen(
            self._words,
            env=self._environment(task_input, base_url, api_key, model),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes[api_key] = process
        try:
            stdout, stderr = process.communicate()
        finally:
            del self._processes[api_key]
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}: {stderr.strip()[-400:]}")
        lines = stdout.strip().splitlines()
        result: Mapping[str, Any] = json.loads(lines[-1]) if lines else {}
        return result

    def cancel(self, api_key: str) -> None:
        """Kill the program of an attempt that ran out of time, and whatever it started."""
        process = self._processes.get(api_key)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _environment(self, task_input: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, str]:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": api_key,
            "LJX_TASK": json.dumps(task_input),
            "LJX_MODEL": model,
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",  # the default of 128 drops the response id of long chats
            "OTEL_BSP_SCHEDULE_DELAY": "500",
        }
        tls = ClientTls.from_environment()
        if tls.ca is not None:
            environment["SSL_CERT_FILE"] = self._bundle(tls)
        if self._otlp_endpoint and self._otlp_endpoint.startswith("https:"):
            environment.update(
                {f"OTEL_EXPORTER_OTLP_{name}": str(path.resolve()) for name, path in tls.files().items()}
            )
        if self._otlp_endpoint:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._otlp_endpoint
            environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer {api_key}"
        return environment

    def _bundle(self, tls: ClientTls) -> str:
        """Path of a file with the system's authorities and ours; written once."""
        with self._lock:
            if self._authorities is None:
                file = tempfile.NamedTemporaryFile("w", suffix=".pem", prefix="ljx-ca-")  # noqa: SIM115  lives as we do
                file.write(tls.bundle())
                file.flush()
                self._authorities = file
            return self._authorities.name


@dataclass
class _Running:
    """An attempt in flight."""

    attempt: Attempt
    deadline: float
    done: threading.Event = field(default_factory=threading.Event)


class Runner:
    """Keeps up to `concurrency` attempts going until stopped.

    Threads serve one attempt after another, so that what an agent keeps per thread (an HTTP client) is kept. They are
    daemons: a hung agent holds no process, and another thread takes its place.
    """

    def __init__(self, client: IngestClient, agent: Agent, *, concurrency: int, lease_s: float = 60.0) -> None:
        if concurrency < 1:
            raise ValueError(f"runner concurrency {concurrency} must be at least 1")
        self._client, self._agent = client, agent
        self._concurrency, self._lease_s = concurrency, lease_s
        self._worker = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._room = threading.Semaphore(concurrency)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait for an attempt not yet handed out
        self._handed: queue.SimpleQueue[_Running] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to claim and run, in the background."""
        for name, loop in (("claim", self._claim_loop), ("watch", self._watch_loop)):
            thread = threading.Thread(target=loop, name=f"runner-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop claiming; attempts in flight are reported as cancelled if they don't end within `timeout_s`."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        with self._lock:
            left = list(self._running.values())
        for running in left:
            self._report(running, Outcome("cancelled", reason="the runner was stopped"))

    def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            if not self._room.acquire(timeout=CLAIM_WAIT_S):
                continue
            self._stopping.wait(GATHER_S)
            room = 1
            while room < self._concurrency and self._room.acquire(blocking=False):
                room += 1
            attempts: list[Attempt] = []
            try:
                attempts = self._client.claim(self._worker, room, self._lease_s, CLAIM_WAIT_S)
            except Exception as error:  # the service may be restarting: anything it says is temporary to a worker
                log.warning("cannot claim rollouts: %s; trying again", error)
                self._stopping.wait(CLAIM_WAIT_S)
            for _ in range(room - len(attempts)):
                self._room.release()
            for attempt in attempts:
                self._launch(attempt)

    def _launch(self, attempt: Attempt) -> None:
        running = _Running(attempt, time.monotonic() + attempt.rollout.timeout_s)
        with self._lock:
            self._running[attempt.attempt_id] = running
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._handed.put(running)
        else:
            threading.Thread(target=self._serve, args=(running,), daemon=True).start()

    def _serve(self, running: _Running) -> None:
        """The life of a thread: attempt after attempt, each in a context of its own."""
        while True:
            threading.current_thread().name = running.attempt.attempt_id
            contextvars.Context().run(self._execute, running)
            with self._lock:
                self._idle += 1
            running = self._handed.get()

    def _execute(self, running: _Running) -> None:
        attempt = running.attempt
        try:
            output = self._agent(
                dict(attempt.rollout.input), base_url=attempt.base_url, api_key=attempt.api_key, model=MODEL_NAME
            )
            outcome = Outcome("succeeded", output=_json_object(output))
        except Exception as error:  # whatever an agent raises is data about the agent
            outcome = Outcome("crashed", reason=f"{type(error).__name__}: {error}"[:2000])
        self._report(running, outcome)

    def _report(self, running: _Running, outcome: Outcome) -> None:
        with self._lock:
            if running.done.is_set():
                return  # timed out earlier: its late result doesn't count
            running.done.set()
        try:
            self._client.complete(running.attempt.attempt_id, outcome)
        except Exception as error:  # the lease will expire and the rollout go to another worker
            log.warning("cannot report attempt %s: %s", running.attempt.attempt_id, error)
        with self._lock:
            self._running.pop(running.attempt.attempt_id, None)
        self._room.release()

    def _watch_loop(self) -> None:
        """Time-outs and heartbeats."""
        next_beat = time.monotonic() + self._lease_s / 3
        while not self._stopping.wait(POLL_S):
            now = time.monotonic()
            with self._lock:
                current = list(self._running.values())
            for running in current:
                if now > running.deadline and not running.done.is_set():
                    limit = running.attempt.rollout.timeout_s
                    self._report(running, Outcome("timeout", reason=f"no answer within {limit:g} s"))
                    if isinstance(self._agent, CommandAgent):
                        self._agent.cancel(running.attempt.api_key)
            if now >= next_beat:
                next_beat = now + self._lease_s / 3
                if current:
                    try:
                        self._client.heartbeat([r.attempt.attempt_id for r in current])
                    except Exception as error:  # the next beat may get through before the lease ends
                        log.warning("heartbeat failed: %s", error)


def _json_object(output: Any) -> dict[str, Any]:
    """The agent's output as plain JSON data; ValueError where it isn't a mapping that JSON can hold."""
    if not isinstance(output, Mapping):
        raise ValueError(f"the agent returned {type(output).__name__}, not a mapping")
    plain: dict[str, Any] = json.loads(json.dumps(dict(output)))
    return plain


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lightning_jax.runner", description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="host:port of the ingestion service (gRPC)")
    parser.add_argument("--agent", help="package.module:function, called with the task input, base_url, api_key, model")
    parser.add_argument("--command", help="instead of --agent: a program, one process per attempt")
    parser.add_argument("--arguments", default="{}", help="JSON of further keyword arguments of the agent function")
    parser.add_argument("--concurrency", type=int, default=16, help="attempts at once (default %(default)s)")
    parser.add_argument(
        "--lease-s", type=float, default=60.0, help="seconds without a heartbeat before others take over"
    )
    parser.add_argument("--parent", type=int, default=0, help="end when this process is gone")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line; runs until a signal. The key of the service is taken from LJX_API_KEY."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", force=True)
    log.setLevel(logging.INFO)  # ours only: HTTP clients log every request
    if bool(options.agent) == bool(options.command):
        _parser().error("give exactly one of --agent and --command")
    agent: Agent = (
        CommandAgent(
            options.command,
            otlp_endpoint=options.target if "://" in options.target else f"http://{options.target}",
        )
        if options.command
        else load_agent(options.agent, json.loads(options.arguments))
    )
    client = IngestClient(options.target, api_key=os.environ.get("LJX_API_KEY"))
    runner = Runner(client, agent, concurrency=options.concurrency, lease_s=options.lease_s)
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    runner.start()
    while not ended.wait(0.5):
        if options.parent and os.getppid() != options.parent:
            log.info("the parent process is gone; stopping")
            break
    runner.stop(timeout_s=2.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
