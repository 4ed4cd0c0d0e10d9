"""Settings of a vLLM server as the engine: frozen, plain data, checked when built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_jax.configuration import check_name, from_mapping
from lightning_jax.serve.vllm.handover import METHODS


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """Where the server is, and how it gets new weights. ValueError for what cannot work."""

    url: str = ""  # root of the server, without /v1: http://host:8000
    folder: str = ""  # weights are written here; the server must see it by the same absolute path
    handover: str = "reload"  # reload | sleep | disk: how the server takes new weights (see `handover.py`)
    model_name: str = ""  # as the server lists it; "": the first it lists
    api_key_env: str = "LJX_VLLM_API_KEY"  # environment variable that holds the server's key; unset or empty: no key
    dtype: str = "bfloat16"  # of the files
    max_length: int = 0  # prompt and answer together, in tokens; 0: what the server says
    top_logprobs: int = 20  # alternatives told at most; the server's --max-logprobs must be as much
    max_requests: int = 256  # at the server at once; more wait here
    max_queue: int = 4096  # waiting requests; more are refused
    silence_s: float = 120.0  # a request fails where the server says nothing for so long
    handover_timeout_s: float = 600.0  # of each step of handing weights over

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(
                f"engine.url={self.url!r} must be the root of a vLLM server, such as http://127.0.0.1:8001"
            )
        if not Path(self.folder).is_absolute():
            raise ValueError(
                f"engine.folder={self.folder!r} must be an absolute path that this process can write and the vLLM "
                "server can read: weights are handed over through it"
            )
        check_name(self.handover, METHODS, "engine.handover")
        check_name(self.dtype, ("float32", "bfloat16", "float16"), "engine.dtype")
        for name in ("max_requests", "max_queue"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine.{name}={getattr(self, name)} must be at least 1")
        for name in ("max_length", "top_logprobs"):
            if getattr(self, name) < 0:
                raise ValueError(f"engine.{name}={getattr(self, name)} must be at least 0")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> VllmConfig:
        """Build from plain data (YAML); ValueError names unknown keys."""
        return from_mapping(cls, values, where="engine")
