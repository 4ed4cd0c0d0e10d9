"""What the policy server needs of an engine: the one in this process (`engine.Engine`), or another server (vLLM)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lightning_jax.model.config import ModelConfig
from lightning_jax.serve.generation import Generation, GenerationRequest, TokenChunk


class PolicyEngine(Protocol):
    """Samples from one model. start → submit/publish/cancel from any thread → stop."""

    @property
    def model(self) -> ModelConfig:
        """What is sampled from."""

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together, at most."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next request is sampled from; -1 before start."""

    @property
    def running(self) -> bool:
        """Whether requests are taken."""

    def start(self, params: Any, version: int = 0, progress: Callable[[str], None] | None = None) -> None:
        """Serve `params` (the stacked tree); `progress` gets a line after each act."""

    def submit(self, request: GenerationRequest, on_chunk: Callable[[TokenChunk], None] | None = None) -> Generation:
        """Queue a request. ValueError for parameters out of range, PromptTooLong, QueueFull, EngineStopped."""

    def check(self, request: GenerationRequest) -> None:
        """Raise ValueError where the request cannot be served."""

    def check_room(self, count: int) -> None:
        """Raise QueueFull where `count` more requests would not fit, EngineStopped where none are taken."""

    def cancel(self, generation: Generation) -> None:
        """Stop a generation: its result is what was sampled so far, finish_reason "abort". Ignored once finished."""

    def publish(self, params: Any, version: int, timeout_s: float | None = 600.0) -> None:
        """Flip to new weights between two requests; returns once new requests are sampled from them."""

    def stop(self) -> None:
        """Whatever is unfinished fails with EngineStopped."""

    def metrics(self) -> Mapping[str, float]:
        """Counters (…_total) and gauges, as plain numbers."""
