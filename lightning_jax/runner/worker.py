"""Attempts in flight: claimed by lease, run in threads, watched, reported once, and given up when the runner stops."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.ingest.client import IngestClient
from lightning_jax.runner.agents import Agent, CommandAgent
from lightning_jax.types import Attempt, Outcome

log = logging.getLogger("lightning_jax.runner")

MODEL_NAME = "policy"
CLAIM_WAIT_S = 0.5  # long-poll for new rollouts; bounds how late a stop or a time-out is seen
GATHER_S = 0.01  # attempts tend to end in flocks: one claim for those that end within this time
POLL_S = 0.05


@dataclass
class _Running:
    """An attempt in flight."""

    attempt: Attempt
    deadline: float
    done: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None  # that runs it, once one does


class Runner:
    """Keeps up to `concurrency` attempts going until stopped.

    Threads serve one attempt after another, so that what an agent keeps per thread (an HTTP client) is kept. They are
    daemons: a hung agent holds no process, and another thread takes its place. A stop ends all others.
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
        self._loops: list[threading.Thread] = []
        self._serving: set[threading.Thread] = set()  # all that run attempts or wait for some, but for those that hang
        self._idle = 0  # threads that wait for an attempt not yet handed out
        self._handed: queue.SimpleQueue[_Running | None] = queue.SimpleQueue()  # None: end

    def start(self) -> None:
        """Begin to claim and run, in the background."""
        for name, loop in (("claim", self._claim_loop), ("watch", self._watch_loop), ("beat", self._beat_loop)):
            thread = threading.Thread(target=loop, name=f"runner-{name}", daemon=True)
            thread.start()
            self._loops.append(thread)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop claiming; attempts in flight are reported as cancelled if they don't end within `timeout_s`.

        Programs of such attempts are killed; the thread of a callable that hangs ends when the callable does.
        """
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._loops:
            thread.join(max(0.1, deadline - time.monotonic()))
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._handed.put(None)
        for thread in list(self._serving):
            thread.join(max(0.01, deadline - time.monotonic()))
        with self._lock:
            left = list(self._running.values())
        for running in left:  # they hang
            self._report(running, Outcome("cancelled", reason="the runner was stopped"))
            self._abandon(running)

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

    def _serve(self, first: _Running | None) -> None:
        """The life of a thread: attempt after attempt, each in a context of its own."""
        thread, running = threading.current_thread(), first
        while running is not None:
            thread.name, running.thread = running.attempt.attempt_id, thread
            with self._lock:
                self._serving.add(thread)
            contextvars.Context().run(self._execute, running)
            with self._lock:
                if self._stopping.is_set():
                    return
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
        if not self._take(running):
            return  # timed out or ended earlier: its late result doesn't count
        try:
            self._client.complete(running.attempt.attempt_id, outcome)
        except Exception as error:  # the lease will expire and the rollout go to another worker
            log.warning("cannot report attempt %s: %s", running.attempt.attempt_id, error)
        self._forget(running)

    def _take(self, running: _Running) -> bool:
        """Decide that an attempt is over; False where that was decided before."""
        with self._lock:
            before = running.done.is_set()
            running.done.set()
        return not before

    def _forget(self, running: _Running) -> None:
        """Make room for another attempt."""
        with self._lock:
            self._running.pop(running.attempt.attempt_id, None)
        self._room.release()

    def _abandon(self, running: _Running) -> None:
        """Stop what can be stopped of an attempt that was reported without its agent."""
        with self._lock:
            if running.thread is not None:
                self._serving.discard(running.thread)
        if isinstance(self._agent, CommandAgent):
            self._agent.cancel(running.attempt.api_key)

    def _watch_loop(self) -> None:
        """Time-outs."""
        while not self._stopping.wait(POLL_S):
            now = time.monotonic()
            with self._lock:
                current = list(self._running.values())
            for running in current:
                if now > running.deadline and not running.done.is_set():
                    limit = running.attempt.rollout.timeout_s
                    self._report(running, Outcome("timeout", reason=f"no answer within {limit:g} s"))
                    self._abandon(running)

    def _beat_loop(self) -> None:
        """Heartbeats, in a thread of their own: while the server is away one may take long, and time-outs go on."""
        while not self._stopping.wait(self._lease_s / 3):
            with self._lock:
                current = dict(self._running)
            if not current:
                continue
            try:
                ended = self._client.heartbeat(list(current))
            except Exception as error:  # the next beat may get through before the lease ends
                log.warning("heartbeat failed: %s", error)
                continue
            for attempt_id in ended:
                self._drop(current[attempt_id])

    def _drop(self, running: _Running) -> None:
        """Stop an attempt that the service ended (cancelled, or its lease lapsed): nobody waits for its result."""
        if self._take(running):
            log.warning("attempt %s was ended by the service; its agent is stopped", running.attempt.attempt_id)
            self._forget(running)
            self._abandon(running)


def _json_object(output: Any) -> dict[str, Any]:
    """The agent's output as plain JSON data; ValueError where it isn't a mapping that JSON can hold."""
    if not isinstance(output, Mapping):
        raise ValueError(f"the agent returned {type(output).__name__}, not a mapping")
    plain: dict[str, Any] = json.loads(json.dumps(dict(output)))
    return plain
