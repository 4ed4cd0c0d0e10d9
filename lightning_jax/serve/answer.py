"""One answer on its way: n generations, their text, and their records.

An answer lives apart from the connections that wait for it: a retry can join it, and a disconnect does not end it.
Order that must hold: sampled → recorded in the sink, durably → the end is told to whoever waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.serve.errors import ApiError, busy, from_sink
from lightning_jax.serve.generation import (
    Alternatives,
    EngineStopped,
    Generation,
    GenerationRequest,
    GenerationResult,
    QueueFull,
    TokenChunk,
)
from lightning_jax.serve.policy_engine import PolicyEngine
from lightning_jax.serve.text import ResponseText
from lightning_jax.serve.tools import ToolCall, ToolReader
from lightning_jax.types import Call, FinishReason

logger = logging.getLogger(__name__)
Record = Callable[["Choice", GenerationResult, FinishReason], Call | None]
Save = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Delta:
    """Something new of one choice: content, calls of tools and the tokens behind them, or the end."""

    index: int
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    tops: list[Alternatives] = field(default_factory=list)  # as many as ids, where asked for
    finish_reason: FinishReason | None = None


@dataclass(slots=True, eq=False)
class Choice:
    """One of the n samples."""

    index: int
    call_id: str
    sequence: int
    seed: int
    request: GenerationRequest
    text: ResponseText
    reader: ToolReader | None = None  # where tools may be called
    generation: Generation | None = None
    content: str = ""  # the text that is no call
    policy_version: int = -1
    finish_reason: FinishReason | None = None
    tops: list[Alternatives] = field(default_factory=list)  # of text.ids, where asked for; may be ahead of them
    told: int = 0  # tokens already part of a delta


class Answer:
    """The answer to one request. Created and used on one event loop; `run` is its life."""

    def __init__(
        self,
        engine: PolicyEngine,
        call_id: str,
        choices: Sequence[Choice],
        prompt_tokens: int,
        *,
        stream: bool,
        grace_s: float,
        note: Callable[[bool], None] | None = None,
    ) -> None:
        """note: told True once the answer is delivered, False where it ended and nobody waits for it (any more)."""
        self._engine = engine
        self.call_id = call_id
        self.choices = list(choices)
        self.prompt_tokens = prompt_tokens
        self.started_ns = time.time_ns()
        self.deltas: list[Delta] = []
        self.error: ApiError | None = None
        self.done = False
        self.delivered = False
        self.waiters = 0
        self._stream = stream
        self._grace_s = grace_s
        self._note = note or (lambda _: None)
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._attached = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def created(self) -> int:
        """Unix time in seconds."""
        return self.started_ns // 10**9

    @property
    def failed(self) -> bool:
        """Ended in an error, or was given up because nobody came back for it."""
        return self.error is not None or self._abandoned.is_set()

    def attach(self) -> None:
        """Another connection waits."""
        self.waiters += 1
        self._attached.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def detach(self, *, delivered: bool) -> None:
        """A connection got everything, or is gone."""
        self.waiters -= 1
        if delivered and not self.delivered:
            self.delivered = True
            self._note(True)
        if self.waiters == 0:
            self._attached.clear()
            if not self.done:
                self._timer = self._loop.call_later(self._grace_s, self._abandoned.set)
            elif not self.delivered:
                self._note(False)

    async def changed(self) -> None:
        """Wait until there are new deltas, or the end."""
        await asyncio.shield(self._changed)

    def start(self) -> None:
        """Submit every choice; ApiError where the engine takes no more, with nothing left running."""
        try:
            for choice in self.choices:
                choice.generation = self._engine.submit(choice.request, self._listener(choice))
        except QueueFull as error:
            self._withdraw()
            raise busy(str(error)) from error
        except EngineStopped as error:
            self._withdraw()
            raise ApiError(503, str(error), headers={"retry-after": "1"}) from error

    def recall(self, started_ns: int, *, delivered: bool) -> None:
        """In place of `start` and `run`, where the choices are filled from a record: the end is there already."""
        self.started_ns, self.done, self.delivered = started_ns, True, delivered
        for choice in self.choices:
            calls = choice.reader.calls if choice.reader is not None else []
            ids, logps = choice.text.ids.tolist(), choice.text.logps.tolist()
            self.deltas.append(Delta(choice.index, choice.content, calls, ids, logps, [], choice.finish_reason))
            choice.told = len(ids)

    async def run(self, record: Record, save: Save) -> None:
        """From sampling to the end; never raises: what goes wrong becomes `error`."""
        try:
            results = await self._sampled()
            await self._claimed()
            await asyncio.gather(
                *(
                    self._settle(choice, result, record, save)
                    for choice, result in zip(self.choices, results, strict=True)
                )
            )
        except ApiError as error:
            self.error = error
        except EngineStopped as error:
            self.error = ApiError(503, str(error), headers={"retry-after": "1"})
        except Exception as error:  # told to the client and logged; the server goes on
            logger.exception("answer %s failed", self.call_id)
            self.error = ApiError(500, f"the server failed on this request: {error!r}")
        finally:
            self.done = True
            for choice in self.choices:
                choice.generation = None  # a retry needs the answer alone
            if self._timer is not None:
                self._timer.cancel()
            if self.error is not None or self.waiters == 0:
                self._note(False)
            self._tell()

    async def _sampled(self) -> list[GenerationResult]:
        """Wait for all choices; cancel them when nobody has waited for the grace time."""
        waits = [asyncio.wrap_future(c.generation.future) for c in self.choices if c.generation is not None]
        everything = asyncio.gather(*waits)
        given_up = asyncio.ensure_future(self._abandoned.wait())
        try:
            waits_for: set[asyncio.Future[Any]] = {everything, given_up}
            await asyncio.wait(waits_for, return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                self._withdraw()
            return list(await everything)
        finally:
            given_up.cancel()

    async def _claimed(self) -> None:
        """A finished sample that nobody waits for stays open for the grace time: a retry makes it count."""
        while self.waiters == 0 and not self._abandoned.is_set():
            waits = [asyncio.ensure_future(self._attached.wait()), asyncio.ensure_future(self._abandoned.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _settle(self, choice: Choice, result: GenerationResult, record: Record, save: Save) -> None:
        known = len(choice.text.ids)
        if not choice.text.stopped:
            choice.text.feed(result.response_ids[known:].tolist(), result.rollout_logps[known:].tolist())
        choice.tops = result.tops
        text = choice.text.take(final=True)
        calls: list[ToolCall] = []
        if choice.reader is not None:
            text, calls = choice.reader.finish(text)
        reason: FinishReason = "stop" if choice.text.stopped else result.finish_reason
        if reason == "stop" and choice.reader is not None and choice.reader.calls:
            reason = "tool_calls"
        choice.policy_version = result.policy_version
        if self._abandoned.is_set():
            reason = "abort"  # the agent never saw it
        call = record(choice, result, reason)
        if call is not None:
            try:
                await save(call)
            except Exception as error:  # the sink's own classes; each has its status
                raise from_sink(error) from error
        choice.finish_reason = reason
        self._emit(choice, text, calls, reason)

    def _listener(self, choice: Choice) -> Callable[[TokenChunk], None] | None:
        if not self._stream and not choice.text.has_stops:
            return None

        def hand_over(chunk: TokenChunk) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._feed, choice, chunk)

        return hand_over

    def _feed(self, choice: Choice, chunk: TokenChunk) -> None:
        if choice.text.stopped or choice.finish_reason is not None:
            return
        choice.text.feed(chunk.ids, chunk.logps)
        choice.tops += chunk.tops
        if choice.text.stopped and choice.generation is not None:
            self._engine.cancel(choice.generation)
        if self._stream and (new := choice.text.take()):
            calls: list[ToolCall] = []
            if choice.reader is not None:
                new, calls = choice.reader.feed(new)
            if new or calls:
                self._emit(choice, new, calls, None)

    def _emit(self, choice: Choice, text: str, calls: list[ToolCall], reason: FinishReason | None) -> None:
        begin, end = choice.told, len(choice.text.ids)
        choice.told = end
        choice.content += text
        if self._stream:  # nobody else reads them, and an answer is kept for a while
            ids, logps = choice.text.ids[begin:].tolist(), choice.text.logps[begin:].tolist()
            self.deltas.append(Delta(choice.index, text, calls, ids, logps, choice.tops[begin:end], reason))
        self._tell()

    def _tell(self) -> None:
        self._changed.set_result(None)
        self._changed = self._loop.create_future()

    def _withdraw(self) -> None:
        for choice in self.choices:
            if choice.generation is not None:
                self._engine.cancel(choice.generation)
