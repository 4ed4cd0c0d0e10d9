"""Parameters that would change what an answer means and are not honoured: refused, unless their value changes nothing.

OpenAI's own and those that vLLM and its kin add, which agents send as `extra_body`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lightning_jax.serve.errors import invalid

Harmless = Callable[[Any], bool]


def _off(value: Any) -> bool:
    """Not there, or switched off."""
    return value is None or value is False or value in ([], {}, "") or _is(0)(value)


def _is(*numbers: float) -> Harmless:
    """Not there, or one of these numbers; true and false are none."""
    return lambda value: (
        value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value in numbers)
    )


def _on(value: Any) -> bool:
    """Not there, or switched on."""
    return value is None or value is True


_PENALTY = "penalties would change the distribution that is trained"
_CUT = "log-probs would be those of a distribution cut otherwise than top_p and a grammar cut it; use top_p"
_GUIDED = "use response_format with a JSON schema, or tools"
_ENDS = "an answer ends where the model ends it, at a stop string, or at max_tokens"
_TEMPLATE = "the model's own chat template is used as it is"
_TEXT = "only text is generated"
_REFUSED: Mapping[str, tuple[Harmless, str]] = {
    "logit_bias": (_off, "tokens cannot be biased: log-probs would not be those of the policy"),
    "presence_penalty": (_off, _PENALTY),
    "frequency_penalty": (_off, _PENALTY),
    "repetition_penalty": (_is(1), _PENALTY),
    "length_penalty": (_is(1), _PENALTY),
    "top_k": (_is(0, -1), _CUT),
    "min_p": (_is(0), _CUT),
    "typical_p": (_is(0, 1), _CUT),
    "allowed_token_ids": (_off, _CUT),
    "bad_words": (_off, _CUT),
    "logits_processors": (_off, _CUT),
    "use_beam_search": (_off, "answers are sampled"),
    "best_of": (_is(1), "every sample is told; use n"),
    "echo": (_off, "the prompt is not part of the answer"),
    "suffix": (_off, "text is only continued"),
    "prompt_logprobs": (_off, "log-probs of prompts are not computed"),
    "min_tokens": (_is(0), _ENDS),
    "ignore_eos": (_off, _ENDS),
    "stop_token_ids": (_off, _ENDS),
    "include_stop_str_in_output": (_off, _ENDS),
    "guided_json": (_off, _GUIDED),
    "guided_regex": (_off, _GUIDED),
    "guided_choice": (_off, _GUIDED),
    "guided_grammar": (_off, _GUIDED),
    "structural_tag": (_off, _GUIDED),
    "structured_outputs": (_off, _GUIDED),
    "skip_special_tokens": (_on, "special tokens are no text; token ids come with return_token_ids"),
    "truncate_prompt_tokens": (_off, "prompts are never cut: what was sampled from is what is trained on"),
    "chat_template": (_off, _TEMPLATE),
    "chat_template_kwargs": (_off, _TEMPLATE),
    "documents": (_off, _TEMPLATE),
    "add_generation_prompt": (_on, _TEMPLATE),
    "continue_final_message": (_off, _TEMPLATE),
    "functions": (_off, "use tools"),
    "function_call": (_off, "use tools"),
    "modalities": (lambda v: v is None or v == ["text"], _TEXT),
    "audio": (_off, _TEXT),
    "prediction": (_off, "predicted outputs are not supported"),
    "web_search_options": (_off, "there is no web search"),
}


def check_supported(body: Mapping[str, Any]) -> None:
    """ApiError 400, naming it, for the first parameter with a value that would have to change the answer."""
    for name, value in body.items():
        if name in _REFUSED and not _REFUSED[name][0](value):
            shown = json.dumps(value)[:200]
            raise invalid(f"{name}={shown} is not supported: {_REFUSED[name][1]}", name, "unsupported_parameter")
