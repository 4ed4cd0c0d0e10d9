"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` model.

GGUF stores vocabulary, merges and the *name* of the pre-tokenizer; the pre-tokenizer itself is known by that name
only, so a name that isn't known is an error, not a guess: a wrong split gives ids the model never saw. Host code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lightning_jax.model.tokenizer import Tokenizer

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # of GGUF's token types, those that need no merges

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What the metadata says about the tokenizer (tokenizer.ggml.*)."""

    model: str  # "gpt2" is byte-level BPE
    pre: str  # name of the pre-tokenizer
    tokens: Sequence[str]  # by id
    types: Sequence[int]  # by id
    merges: Sequence[str]  # "left right", best first
    ids: Mapping[str, int] = field(default_factory=dict)  # bos, eos, eot, unknown, padding → id
    chat_template: str | None = None


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """Tokenizer with the ids of the GGUF; ValueError where its kind or pre-tokenizer is not known."""
    if vocabulary.model != "gpt2":
        raise ValueError(
            f"GGUF tokenizer {vocabulary.model!r} is not supported, only 'gpt2' (byte-level BPE); "
            "load the model's HF directory instead"
        )
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    backend = Backend(
        models.BPE(
            vocab={token: number for number, token in enumerate(vocabulary.tokens)},
            merges=pairs,
            ignore_merges=vocabulary.pre == "llama-bpe",
        )
    )
    backend.pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    if vocabulary.pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (UNKNOWN, CONTROL):
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config: dict[str, Any] = {
        role: vocabulary.tokens[vocabulary.ids[key]] for key, role in names.items() if key in vocabulary.ids
    }
    return Tokenizer(
        backend,
        config=config,
        chat_templates={"default": vocabulary.chat_template} if vocabulary.chat_template else {},
        eos_ids=[vocabulary.ids[key] for key in ("eos", "eot") if key in vocabulary.ids],
    )


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

    def split(pattern: str) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level])

    known = {
        "gpt-2": gpt2,
        "default": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "llama-bpe": split(LLAMA3_WORDS),
        "qwen2": split(QWEN2_WORDS),
    }
    if name not in known:
        raise ValueError(
            f"GGUF pre-tokenizer {name!r} is not known, only {sorted(known)}; load the model's HF directory instead"
        )
    return known[name]
