"""A vLLM server behind the engine's contract: agents, calls and training see no difference in kind.

What differs: sampling happens elsewhere, so that a result is as repeatable as that server makes it (its batch-invariant
mode); and what a grammar left of the policy's distribution is not told, so `kept_mass` is 0 there: not known.

New weights: requests wait, running ones finish with the version they began with, the directory is written meanwhile,
then the server takes it and the requests go on.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf import export_hf
from lightning_jax.serve.device import check_same
from lightning_jax.serve.generation import (
    Alternatives,
    EngineStopped,
    Generation,
    GenerationRequest,
    GenerationResult,
    QueueFull,
    TokenChunk,
    check_request,
)
from lightning_jax.serve.vllm.completion import PATH, completion_request, read_event
from lightning_jax.serve.vllm.config import VllmConfig
from lightning_jax.serve.vllm.handover import hand_over
from lightning_jax.serve.vllm.probe import check_log_probs, describe
from lightning_jax.serve.vllm.server import Events, VllmError, VllmServer
from lightning_jax.types import FinishReason

COUNTERS = (
    "prompt_tokens_total",
    "generated_tokens_total",
    "finished_stop_total",
    "finished_length_total",
    "finished_abort_total",
    "finished_failed_total",
    "publishes_total",
)
KEPT_VERSIONS = 2  # directories: the one that is served and the one before
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """A request from its submission to its end."""

    generation: Generation
    begun: bool = False  # a thread has sent it, or is about to
    events: Events | None = None  # while the server works on it
    cancelled: bool = False
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    tops: list[Alternatives] = field(default_factory=list)


class VllmEngine:
    """Samples by asking a vLLM server (`policy_engine.PolicyEngine`). One model, one server, any thread."""

    def __init__(self, model: ModelConfig, config: VllmConfig, eos_ids: tuple[int, ...] = ()) -> None:
        self.model = model
        self.config = config
        self.eos_ids = tuple(eos_ids)
        self.max_length = config.max_length or model.max_position
        self._server = VllmServer(config.url, os.environ.get(config.api_key_env, ""), config.silence_s)
        self._model_name = config.model_name
        self._pool = ThreadPoolExecutor(config.max_requests, thread_name_prefix="vllm")
        self._state = threading.Condition()
        self._running: dict[Generation, _Running] = {}
        self._active = 0  # requests that the server works on
        self._publishing = False
        self._version = -1
        self._shapes: Any = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next request is sampled from; -1 before start."""
        return self._version

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._version >= 0 and not self._stopping and self._failure is None

    def start(self, params: Any, version: int = 0, progress: Callable[[str], None] | None = None) -> None:
        """Hand `params` over and begin.

        ValueError where the server is of another kind than is needed: it doesn't list the model, tells no token ids, or
        tells log-probs of another distribution than it samples from. VllmError where it cannot be reached.
        """
        if self._version >= 0:
            raise ValueError("the engine was started before; publish() is how it gets new weights")
        served = describe(self._server, self._model_name)
        self._model_name = served.name
        self.max_length = min(self.config.max_length or served.max_length, served.max_length)
        if progress is not None:
            progress(f"vLLM at {self._server.url} serves {served.name!r}, {served.max_length} tokens")
        self._shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        self._hand_over(params, version)
        check_log_probs(self._server, self._model_name, self.model.vocab_size)
        self._version = version
        if progress is not None:
            progress(f"vLLM took version {version} by {self.config.handover}")

    def submit(self, request: GenerationRequest, on_chunk: Callable[[TokenChunk], None] | None = None) -> Generation:
        """Queue a request. ValueError for parameters out of range, PromptTooLong, QueueFull, EngineStopped."""
        self.check(request)
        generation = Generation(request, on_chunk)
        with self._state:
            self._check_room(1)
            running = self._running[generation] = _Running(generation)
            self._pool.submit(self._serve, running)
        return generation

    def check(self, request: GenerationRequest) -> None:
        """Raise ValueError where the request cannot be served."""
        check_request(request, self.model.vocab_size, self.max_length, self.config.top_logprobs)

    def check_room(self, count: int) -> None:
        """Raise QueueFull where `count` more requests would not fit, EngineStopped where none are taken."""
        with self._state:
            self._check_room(count)

    def cancel(self, generation: Generation) -> None:
        """Stop a generation: its result is what was sampled so far, finish_reason "abort". Ignored once finished."""
        with self._state:
            running = self._running.get(generation)
            if running is None:
                return
            running.cancelled = True
            events = running.events
            if not running.begun:
                self._forget(running, "abort")
        if events is not None:
            events.abort()
        elif not running.begun:
            generation.future.set_result(self._result(running, "abort", self._version))

    def publish(self, params: Any, version: int, timeout_s: float | None = 600.0) -> None:
        """Flip to new weights between two requests; returns once new requests are sampled from them.

        ValueError where shapes differ from those at start, TimeoutError where running requests don't end in time; the
        old weights then go on serving. VllmError where the server did not take them: what it samples from is then
        unknown, and no request is taken until a later publish succeeds.
        """
        if self._version < 0 or self._stopping:
            raise EngineStopped("the engine is not running") from self._failure
        check_same(self._shapes, params)
        with self._state:
            if self._publishing:
                raise ValueError(f"another version is still being published; version {version} must wait for it")
            self._publishing = True
        try:
            directory = self._write(params, version)
            with self._state:
                if not self._state.wait_for(lambda: self._active == 0, timeout_s):
                    raise TimeoutError(f"{self._active} requests did not end within {timeout_s} s")
            try:
                self._take(directory, version)
            except VllmError as error:
                self._failure = error
                raise
            self._failure = None
            self._version = version
            self._counts["publishes_total"] += 1
        finally:
            with self._state:
                self._publishing = False
                self._state.notify_all()

    def stop(self) -> None:
        """Whatever is unfinished fails with EngineStopped."""
        with self._state:
            self._stopping = True
            events = [r.events for r in self._running.values() if r.events is not None]
            self._state.notify_all()
        for each in events:
            each.abort()
        self._pool.shutdown()

    def metrics(self) -> Mapping[str, float]:
        """Counters (…_total) and gauges, as plain numbers."""
        with self._state:
            gauges = {
                "queue_depth": len(self._running) - self._active,
                "slots_busy": self._active,
                "slots": self.config.max_requests,
                "policy_version": self._version,
            }
            return {**gauges, **self._counts}

    def _check_room(self, count: int) -> None:
        if not self.running:
            raise EngineStopped("the engine is not running") from self._failure
        if len(self._running) + count > self.config.max_requests + self.config.max_queue:
            waiting = len(self._running) - self._active
            raise QueueFull(f"{waiting} requests wait, {count} more come and max_queue is {self.config.max_queue}")

    def _hand_over(self, params: Any, version: int) -> None:
        self._take(self._write(params, version), version)

    def _write(self, params: Any, version: int) -> Path:
        directory = Path(self.config.folder) / f"version-{version}"
        export_hf(params, self.model, None, directory, dtype=self.config.dtype)
        return directory

    def _take(self, directory: Path, version: int) -> None:
        hand_over(self._server, self.config.handover, str(directory), version, self.config.handover_timeout_s)
        written = sorted(directory.parent.glob("version-*"), key=lambda path: path.stat().st_mtime)
        for old in written[:-KEPT_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)

    def _serve(self, running: _Running) -> None:
        """The life of a request, in a thread of the pool."""
        generation = running.generation
        with self._state:
            self._state.wait_for(lambda: not self._publishing or running.cancelled or self._stopping)
            if running.cancelled:  # `cancel` has told it
                return
            version, running.begun = self._version, True
            self._active += 1
        reason: FinishReason = "abort"
        error: BaseException | None = None
        try:
            if not self.running:
                raise VllmError(f"the engine is not running: {self._failure or 'it was stopped'}")
            reason = self._stream(running)
        except VllmError as failure:
            error = self._told(failure)
        except Exception as failure:  # the request's, not the thread's
            logger.exception("a request to vLLM failed")
            error = failure
        with self._state:
            self._active -= 1
            self._forget(running, "failed" if error is not None else reason)
        if error is not None:
            generation.future.set_exception(error)
        else:
            generation.future.set_result(self._result(running, reason, version))

    def _forget(self, running: _Running, end: str) -> None:
        del self._running[running.generation]
        self._counts[f"finished_{end}_total"] += 1
        self._counts["prompt_tokens_total"] += len(running.generation.request.prompt_ids)
        self._counts["generated_tokens_total"] += len(running.ids)
        self._state.notify_all()

    def _stream(self, running: _Running) -> FinishReason:
        request = running.generation.request
        events = self._server.events(PATH, completion_request(request, self._model_name, self.eos_ids))
        with self._state:
            running.events = events
            gone = running.cancelled or self._stopping
        reason: FinishReason | None = None
        try:
            if gone:
                return "abort"
            for event in events:
                piece = read_event(event, request)
                if piece is None:
                    continue
                running.ids += piece.chunk.ids
                running.logps += piece.chunk.logps
                running.tops += piece.chunk.tops
                reason = piece.finish_reason or reason
                if piece.chunk.ids and running.generation.streams:
                    running.generation.push(piece.chunk)
        except VllmError:
            if running.cancelled:  # our own doing
                return "abort"
            raise
        finally:
            events.close()
        if reason is None:
            raise VllmError("vLLM ended a completion without a finish_reason")
        return reason

    def _told(self, failure: VllmError) -> BaseException:
        """What whoever waits hears: to come back (EngineStopped) where it was not the request's fault."""
        if self._stopping:
            return EngineStopped("the engine stopped")
        if 400 <= failure.status < 500:
            return failure
        logger.warning("vLLM: %s", failure)
        stopped = EngineStopped(str(failure))
        stopped.__cause__ = failure
        return stopped

    @staticmethod
    def _result(running: _Running, reason: FinishReason, version: int) -> GenerationResult:
        request = running.generation.request
        whole = request.grammar is None and (request.top_p >= 1.0 or request.temperature == 0.0)
        return GenerationResult(
            np.asarray(running.ids, np.int32),
            np.asarray(running.logps, np.float32),
            reason,
            version,
            1.0 if whole else 0.0,
            running.tops,
        )
