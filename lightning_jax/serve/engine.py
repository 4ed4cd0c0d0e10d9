"""The engine: continuous batching over fixed slots, by one thread that owns the device.

Every cycle seats waiting requests, prefills them (all of them first, because a decode costs the same for one slot as
for all), dispatches the next decode and only then reads the one before: the device never waits for Python. Where the
device is the processor that agents run on, a decode had better wait for company instead (`gather_ms`): it costs the
same for one sequence as for all, and the agents can use the time. What a request gets depends on the request and the
weights alone, so none of this scheduling can be seen in a result.

New weights: requests that arrive during `publish` wait, running ones finish with the version they began with, then
the engine flips between two dispatches.

Grammars: what a constrained sequence may draw next depends on its last token, which the host must see first; so while
one is decoding, dispatches are of one token and are read at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from lightning_jax.model.config import ModelConfig
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.delivery import Delivery
from lightning_jax.serve.device import Device
from lightning_jax.serve.generation import (
    EngineStopped,
    Generation,
    GenerationRequest,
    GenerationResult,
    PromptTooLong,
    QueueFull,
    TokenChunk,
    check_request,
)
from lightning_jax.serve.prefix import PrefixCache
from lightning_jax.serve.slots import Occupant, SlotTable

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineStopped",
    "GenerationRequest",
    "GenerationResult",
    "PromptTooLong",
    "QueueFull",
]
COUNTERS = (
    "prompt_tokens_total",
    "prefill_tokens_total",
    "prefix_tokens_copied_total",
    "prefill_dispatches_total",
    "decode_dispatches_total",
    "generated_tokens_total",
    "finished_stop_total",
    "finished_length_total",
    "finished_abort_total",
    "publishes_total",
)
logger = logging.getLogger(__name__)


class Engine:
    """Samples from one model. start → submit/publish/cancel from any thread → stop."""

    def __init__(self, model: ModelConfig, config: EngineConfig, eos_ids: tuple[int, ...] = ()) -> None:
        self.model = model
        self.config = config
        self.eos_ids = tuple(eos_ids)
        self._device = Device(model, config, self.eos_ids)
        self._prefix = PrefixCache(self._device.pool_size)
        self._slots = SlotTable(config, self._prefix)
        self._wake = threading.Condition()
        self._queue: deque[Generation] = deque()
        self._cancelled: list[Generation] = []
        self._publishing: tuple[Any, int, Future[None]] | None = None
        self._in_flight: tuple[Any, Any, list[Occupant]] | None = None  # the decode not yet read, and who was in it
        self._version = -1
        self._last_request = 0.0  # when a request came last, by the monotonic clock
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._dispatch_s = 0.0
        self._delivery = Delivery(self._device, self._slots, self.eos_ids, self._counts)

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self.config.max_length

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next request is sampled from; -1 before start."""
        return self._version

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._thread is not None and not self._stopping and self._failure is None

    def start(self, params: Any, version: int = 0, progress: Callable[[str], None] | None = None) -> None:
        """Compile for `params` (the stacked tree) and begin; `progress` gets a line after each program."""
        if self._thread is not None:
            raise ValueError("the engine was started before; publish() is how it gets new weights")
        self._device.start(params, progress)
        self._version = version
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, on_chunk: Callable[[TokenChunk], None] | None = None) -> Generation:
        """Queue a request. ValueError for parameters out of range, PromptTooLong, QueueFull, EngineStopped."""
        self.check(request)
        generation = Generation(request, on_chunk)
        with self._wake:
            self._check_room(1)
            self._queue.append(generation)
            self._last_request = time.monotonic()
            self._wake.notify()
        return generation

    def check(self, request: GenerationRequest) -> None:
        """Raise ValueError where the request cannot be served."""
        check_request(request, self.model.vocab_size, self.config.max_length, self.config.top_logprobs)

    def check_room(self, count: int) -> None:
        """Raise QueueFull where `count` more requests would not fit, EngineStopped where none are taken."""
        with self._wake:
            self._check_room(count)

    def cancel(self, generation: Generation) -> None:
        """Stop a generation: its result is what was sampled so far, finish_reason "abort". Ignored once finished."""
        with self._wake:
            self._cancelled.append(generation)
            self._wake.notify()

    def publish(self, params: Any, version: int, timeout_s: float | None = 600.0) -> None:
        """Flip to new weights between two requests; returns once new requests are sampled from them.

        The caller's arrays are copied and may be donated afterwards; with `share_weights` they are served themselves
        and must stay valid until the next version. ValueError where shapes differ from those at start; the old weights
        then go on serving.
        """
        flipped: Future[None] = Future()
        with self._wake:
            self._check_running()
            if self._publishing is not None:
                raise ValueError(
                    f"version {self._publishing[1]} is still being published; version {version} must wait for it"
                )
            self._publishing = (params, version, flipped)
            self._wake.notify()
        flipped.result(timeout_s)

    def stop(self) -> None:
        """End the thread; whatever is unfinished fails with EngineStopped."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def metrics(self) -> Mapping[str, float]:
        """Counters (…_total) and gauges, as plain numbers."""
        with self._wake:
            gauges = {
                "queue_depth": len(self._queue),
                "slots_busy": self._slots.busy,
                "slots": self.config.slots,
                "prefix_cache_chunks": len(self._prefix),
                "policy_version": self._version,
            }
            seconds = {"dispatch_seconds_total": self._dispatch_s, "device_wait_seconds_total": self._delivery.wait_s}
            return {**gauges, "prefix_evictions_total": self._prefix.evicted, **self._counts, **seconds}

    def _check_running(self) -> None:
        if not self.running:
            raise EngineStopped("the engine is not running") from self._failure

    def _check_room(self, count: int) -> None:
        self._check_running()
        if len(self._queue) + count > self.config.max_queue:
            raise QueueFull(
                f"{len(self._queue)} requests wait, {count} more come and max_queue is {self.config.max_queue}"
            )

    def _run(self) -> None:
        try:
            while self._cycle():
                pass
        except BaseException as error:  # whoever waits must hear of it
            logger.exception("the engine stopped on an error")
            self._failure = error
        self._fail_all()

    def _cycle(self) -> bool:
        """One round of scheduling; False when it is time to stop."""
        with self._wake:
            while not (self._stopping or self._queue or self._cancelled or self._publishing or self._slots.busy):
                self._wake.wait()
            self._gather()
            if self._stopping:
                return False
            cancelled, self._cancelled = self._cancelled, []
            for generation in cancelled:
                self._abort(generation)
            while self._queue and self._slots.free and self._publishing is None:
                occupant = self._slots.seat(self._queue.popleft(), self._version)
                self._counts["prompt_tokens_total"] += len(occupant.prefix) + 1
        self._flip_if_drained()
        self._prefill()
        self._decode()
        return True

    def _gather(self) -> None:
        """Wait, holding the lock, while requests come and go and slots are free."""
        quiet_s = self.config.gather_ms / 1e3
        latest = time.monotonic() + self.config.gather_limit_ms / 1e3
        while quiet_s and not (self._stopping or self._cancelled or self._publishing):
            latest_event = max(self._last_request, self._delivery.last_end)
            left_s = min(latest_event + quiet_s, latest) - time.monotonic()
            if left_s <= 0 or len(self._queue) >= self._slots.free:
                return
            self._wake.wait(left_s)

    def _prefill(self) -> None:
        for _ in range(self.config.prefills_per_decode):
            plan = self._slots.plan_prefill()
            if plan is None:
                return
            if plan.loads is not None:
                self._device.load(plan.loads)
            if plan.tokens is not None and plan.rows is not None:
                self._device.prefill(plan.tokens, plan.rows)
                self._counts["prefill_dispatches_total"] += 1
            self._counts["prefix_tokens_copied_total"] += plan.loaded
            self._counts["prefill_tokens_total"] += plan.computed

    def _decode(self) -> None:
        if any(o.decoding and o.matcher is not None for o in self._slots):
            self._read_back()
        decoding = [o for o in self._slots if o.decoding]
        before, self._in_flight = self._in_flight, None
        if decoding:
            began = time.perf_counter()
            masks = self._slots.masks(self._device.mask_words)
            self._in_flight = (*self._device.decode(self._slots.take_control(), masks), decoding)
            self._counts["decode_dispatches_total"] += 1
            self._dispatch_s += time.perf_counter() - began
            # With gathering: whoever is done must hear of it before we wait for his next request.
            if self.config.gather_ms or masks is not None:
                before, self._in_flight = self._in_flight, None
        if before is not None:
            self._delivery.deliver(*before)

    def _read_back(self) -> None:
        before, self._in_flight = self._in_flight, None
        if before is not None:
            self._delivery.deliver(*before)

    def _abort(self, generation: Generation) -> None:
        if generation.future.done():
            return
        for occupant in self._slots:
            if occupant.generation is generation:
                self._slots.vacate(occupant, stop=occupant.decoding)
                self._delivery.finish(occupant, "abort")
                return
        self._queue.remove(generation)
        nothing = GenerationResult(np.zeros(0, np.int32), np.zeros(0, np.float32), "abort", self._version)
        generation.future.set_result(nothing)

    def _flip_if_drained(self) -> None:
        if self._publishing is None or self._slots.busy:
            return
        params, version, flipped = self._publishing
        self._in_flight = None
        try:
            self._device.replace_params(params)
        except Exception as error:  # the publisher's fault and his to hear; the old weights stay
            flipped.set_exception(error)
        else:
            self._prefix.clear()
            self._version = version
            self._counts["publishes_total"] += 1
            flipped.set_result(None)
        with self._wake:
            self._publishing = None

    def _fail_all(self) -> None:
        with self._wake:
            self._stopping = True
            waiting = [*self._queue, *(o.generation for o in self._slots)]
            self._queue.clear()
            publishing, self._publishing = self._publishing, None
        error = EngineStopped(
            "the engine stopped" if self._failure is None else f"the engine failed: {self._failure!r}"
        )
        for generation in waiting:
            if not generation.future.done():
                generation.future.set_exception(error)
        if publishing is not None:
            publishing[2].set_exception(error)
