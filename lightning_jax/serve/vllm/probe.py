"""What a vLLM server must be before it is trusted: asked at start, because later the figures would just be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_jax.serve.generation import GenerationRequest
from lightning_jax.serve.vllm.completion import PATH, completion_request, read_event
from lightning_jax.serve.vllm.server import VllmServer

FLAT = 1e-3  # two likeliest tokens closer than this tell nothing


@dataclass(frozen=True, slots=True)
class Served:
    """A model that the server lists."""

    name: str
    max_length: int


def describe(server: VllmServer, wanted: str) -> Served:
    """The model called `wanted`, or the first; ValueError where the server lists none of that name."""
    listed: list[dict[str, Any]] = (server.call("GET", "/v1/models") or {}).get("data") or []
    names = [str(model.get("id")) for model in listed]
    if not listed or (wanted and wanted not in names):
        raise ValueError(f"engine.model_name={wanted!r}: the vLLM server at {server.url} lists {names}")
    found = listed[names.index(wanted) if wanted else 0]
    length = found.get("max_model_len")
    if not isinstance(length, int):
        raise ValueError(f"the server at {server.url} tells no max_model_len of {found.get('id')!r}: is it vLLM?")
    return Served(str(found["id"]), length)


def check_log_probs(server: VllmServer, model_name: str, vocab_size: int) -> None:
    """ValueError where the server's log-probs are not those of the distribution it samples from.

    Between temperatures 0.5 and 2 the gap of the two likeliest tokens must shrink to a quarter; it stays where vLLM
    tells log-probs from before the temperature, as it does unless told otherwise.
    """
    cold, warm = (_gap(server, model_name, vocab_size, temperature) for temperature in (0.5, 2.0))
    if cold > FLAT and warm > cold / 2:
        raise ValueError(
            f"the vLLM server at {server.url} tells log-probs of the untempered distribution (the two likeliest tokens "
            f"are {cold:.4f} apart at temperature 0.5 and {warm:.4f} at 2): start it with "
            "--logprobs-mode processed_logprobs"
        )


def _gap(server: VllmServer, model_name: str, vocab_size: int, temperature: float) -> float:
    prompt = np.arange(min(8, vocab_size), dtype=np.int32)
    request = GenerationRequest(prompt, 1, temperature, top_logprobs=2)
    told = [read_event(event, request) for event in server.events(PATH, completion_request(request, model_name, ()))]
    tops = [top for piece in told if piece is not None for top in piece.chunk.tops]
    if tops and len(tops[0]) == 2:
        (_, first), (_, second) = tops[0]
        return first - second
    raise ValueError(f"the vLLM server at {server.url} told no alternatives where two were asked for (--max-logprobs)")
