"""What goes into the engine and what comes out. Token ids only: text, templates and stop strings are not its affair."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_jax.types import FinishReason, FloatArray, IntArray

Alternatives = list[tuple[int, float]]
"""The likeliest tokens at one place, falling, with their log-probs under the distribution sampled."""


class QueueFull(RuntimeError):
    """More requests wait than the engine's max_queue; come back soon."""


class EngineStopped(RuntimeError):
    """The engine is not running: never started, stopped, or ended by an error (its cause)."""


class PromptTooLong(ValueError):
    """The prompt leaves no room for one token within max_length."""


class Matcher(Protocol):
    """Where one sequence stands in a grammar."""

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write which tokens may come next: i32[W], 32 tokens a word, the lowest bit first; at least one is set."""

    def accept(self, token: int) -> bool:
        """Take the token drawn; False when nothing can follow it."""


class Grammar(Protocol):
    """What a response must be."""

    @property
    def source(self) -> str:
        """Its text, in llguidance's Lark."""

    def matcher(self) -> Matcher:
        """A new one, at the beginning of the response."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to sample. The result is a pure function of these fields and the weights."""

    prompt_ids: IntArray  # i32[P], P ≥ 1
    max_tokens: int  # ≥ 1; capped by what fits in max_length
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # in (0, 1]
    seed: int = 0  # u32
    want_stream: bool = False  # tokens can be had while they come, through `Generation.chunks`
    top_logprobs: int = 0  # how many of the likeliest tokens to tell at each place
    grammar: Grammar | None = None  # only tokens it allows are drawn, from the distribution renormalised over them


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Some tokens of a running generation, in order."""

    ids: list[int]
    logps: list[float]
    tops: list[Alternatives] = field(default_factory=list)  # as many as ids, where asked for


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished (or aborted) sequence."""

    response_ids: IntArray  # i32[R], the end token included where it was sampled
    rollout_logps: FloatArray  # f32[R], under the distribution sampled
    finish_reason: FinishReason  # stop | length | abort
    policy_version: int  # one version for the whole sequence
    kept_mass: float = 1.0  # mean over tokens of what grammar and top_p left of the policy's distribution; 0: not told
    tops: list[Alternatives] = field(default_factory=list)  # as many as response_ids, where asked for


def check_request(request: GenerationRequest, vocab_size: int, max_length: int, top_limit: int) -> None:
    """Raise PromptTooLong or ValueError where no engine of these sizes can serve the request."""
    length, limit = len(request.prompt_ids), max_length
    if length < 1:
        raise ValueError("the prompt is empty: there is nothing to continue")
    if length >= limit:
        raise PromptTooLong(f"the prompt has {length} tokens; max_length is {limit}, prompt and answer together")
    low, high = int(np.min(request.prompt_ids)), int(np.max(request.prompt_ids))
    if low < 0 or high >= vocab_size:
        raise ValueError(f"prompt ids span {low}..{high}; the model's vocabulary has {vocab_size} tokens")
    if not 0 <= request.top_logprobs <= top_limit:
        raise ValueError(f"top_logprobs is {request.top_logprobs}; the engine was compiled for at most {top_limit}")
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens is {request.max_tokens}; it must be at least 1")
    if not 0.0 <= request.temperature <= 100.0 or not 0.0 < request.top_p <= 1.0:
        raise ValueError(
            f"temperature is {request.temperature} and top_p {request.top_p}; they must lie in [0, 100] and (0, 1]"
        )


class Generation:
    """A handle on a submitted request. `on_chunk` runs in the engine's thread and must only hand over."""

    def __init__(self, request: GenerationRequest, on_chunk: Callable[[TokenChunk], None] | None = None) -> None:
        self.request = request
        self.future: Future[GenerationResult] = Future()
        self.future.set_running_or_notify_cancel()
        self._on_chunk = on_chunk
        self._queue: queue.SimpleQueue[TokenChunk | None] | None = queue.SimpleQueue() if request.want_stream else None
        if self._queue is not None:
            self.future.add_done_callback(lambda _: self._put_end())

    def result(self, timeout_s: float | None = None) -> GenerationResult:
        """Wait for the end; raises EngineStopped where the engine went away."""
        return self.future.result(timeout_s)

    def chunks(self) -> Iterator[TokenChunk]:
        """Tokens as they come, until the end. Only for requests with want_stream, and only once."""
        if self._queue is None:
            raise ValueError("chunks() needs a request with want_stream=True")
        while (chunk := self._queue.get()) is not None:
            yield chunk

    def push(self, chunk: TokenChunk) -> None:
        """Hand tokens on (the engine calls this)."""
        if self._queue is not None:
            self._queue.put(chunk)
        if self._on_chunk is not None:
            self._on_chunk(chunk)

    @property
    def streams(self) -> bool:
        """Whether anybody wants tokens before the end."""
        return self._queue is not None or self._on_chunk is not None

    def _put_end(self) -> None:
        assert self._queue is not None
        self._queue.put(None)
