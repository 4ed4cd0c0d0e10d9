"""/v1/completions in vLLM's dialect: a generation request as its JSON, and its events as tokens.

Every parameter that shapes the distribution is sent, because vLLM fills what is missing from the model's
generation_config.json. Token ids go in and come out (return_token_ids); texts are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax.serve.generation import Alternatives, GenerationRequest, TokenChunk
from lightning_jax.serve.vllm.server import VllmError
from lightning_jax.types import FinishReason

PATH = "/v1/completions"
LOWEST = -9999.0  # what vLLM writes for a log-prob of -inf
_ID = "token_id:"  # how return_tokens_as_token_ids spells a token
_NEEDED = "token ids are needed, as vLLM has them from 0.10.2 on (return_token_ids)"


def completion_request(request: GenerationRequest, model_name: str, eos_ids: Sequence[int]) -> dict[str, Any]:
    """The body of the call."""
    body = {
        "model": model_name,
        "prompt": request.prompt_ids.tolist(),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "stop_token_ids": list(eos_ids),
        "skip_special_tokens": False,
        "logprobs": request.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }
    if request.grammar is not None:
        body["structured_outputs"] = {"grammar": request.grammar.source}
    return body


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event told."""

    chunk: TokenChunk
    finish_reason: FinishReason | None


def read_event(event: Mapping[str, Any], request: GenerationRequest) -> Piece | None:
    """Tokens of one event, None for one without a choice; VllmError where token ids are missing or the prompt differs.

    The number of log-probs must be that of the tokens: a token without one could not be trained on.
    """
    choices = event.get("choices")
    if not choices:
        return None
    choice = choices[0]
    seen, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    if seen is not None and list(seen) != request.prompt_ids.tolist():
        raise VllmError(f"vLLM sampled from a prompt of {len(seen)} tokens, sent were {len(request.prompt_ids)} others")
    reason = choice.get("finish_reason")
    if ids is None:
        if choice.get("text"):
            raise VllmError(f"vLLM told text without token ids; {_NEEDED}")
        ids = []
    logprobs = choice.get("logprobs") or {}
    logps = logprobs.get("token_logprobs") or []
    if len(logps) != len(ids) or None in logps:
        raise VllmError(
            f"vLLM told {len(ids)} tokens and {len(logps)} log-probs {list(logps)[:4]}; each token needs one"
        )
    tops: list[Alternatives] = []
    if request.top_logprobs:
        tops = [_alternatives(told or {}, request.top_logprobs) for told in logprobs.get("top_logprobs") or []]
    if reason not in (None, "stop", "length", "abort"):
        raise VllmError(f"vLLM ended a completion with finish_reason {reason!r}")
    return Piece(TokenChunk(list(ids), [float(p) for p in logps], tops), reason)


def _alternatives(told: Mapping[str, float], wanted: int) -> Alternatives:
    """The likeliest `wanted`, falling; vLLM adds the token sampled where it is none of them, which is then left out."""
    found = [(int(name.removeprefix(_ID)), float(logp)) for name, logp in told.items() if logp > LOWEST]
    return sorted(found, key=lambda pair: -pair[1])[:wanted]
