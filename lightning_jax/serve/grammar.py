"""Constrained decoding: JSON schemas and forced tool calls as grammars over a tokenizer's vocabulary (llguidance).

A grammar is compiled once per tokenizer and text; every response walks a copy of its own. Whitespace is fixed to what
`json.dumps` writes, so that a policy that knows nothing yet cannot fill its answer with blanks.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_jax.serve.errors import invalid

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CACHED = 256  # compiled grammars kept


class VocabularySource(Protocol):
    """What a constraint needs of a tokenizer."""

    @property
    def backend(self) -> Any:
        """The `tokenizers` object."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a response."""


class TokenMatcher:
    """Where one sequence stands in a grammar (`generation.Matcher`)."""

    def __init__(self, matcher: Any, eos_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos_ids = tuple(eos_ids)

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write the allowed tokens; only the end where the grammar is complete or gave up."""
        words[:] = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: len(words)]
        if self._matcher.is_error() or not words.any():
            words[:] = 0 if self._eos_ids else -1
            for token in self._eos_ids:
                words[token // 32] |= np.int32(np.uint32(1 << token % 32).view(np.int32))

    def accept(self, token: int) -> bool:
        """Take a token; False when nothing but the end can follow and the model has no end token."""
        alive = self._matcher.consume_token(token) and not self._matcher.is_error()
        return bool(self._eos_ids) or (alive and not self._matcher.is_stopped())


class TokenGrammar:
    """A compiled grammar (`generation.Grammar`)."""

    def __init__(self, prototype: Any, eos_ids: Sequence[int], source: str) -> None:
        self._prototype = prototype
        self.source = source
        self._eos_ids = tuple(eos_ids)

    def matcher(self) -> TokenMatcher:
        """A walk from the beginning."""
        return TokenMatcher(self._prototype.deep_copy(), self._eos_ids)


class Constrainer:
    """Compiles grammars for one tokenizer and a model's vocabulary size. Any thread."""

    def __init__(self, tokenizer: VocabularySource, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Any = None
        self._cache: OrderedDict[str, TokenGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, lark: str, param: str) -> TokenGrammar:
        """The grammar of a text in llguidance's Lark; ApiError 400 about `param` where it cannot be enforced."""
        from llguidance import LLMatcher

        with self._lock:
            found = self._cache.get(lark)
            if found is None:
                vocabulary = self._load(param)
                grammar = LLMatcher.grammar_from_lark(lark)
                matcher = LLMatcher(vocabulary, grammar, log_level=0)
                if matcher.is_error():
                    raise invalid(
                        f"{param} cannot be enforced: {matcher.get_error()[:500]}", param, "unsupported_schema"
                    )
                found = self._cache[lark] = TokenGrammar(matcher, self._tokenizer.eos_ids, lark)
            self._cache.move_to_end(lark)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
            return found

    def _load(self, param: str) -> Any:
        if self._vocabulary is None:
            from llguidance import LLTokenizer

            eos = list(self._tokenizer.eos_ids)
            try:
                self._vocabulary = LLTokenizer(
                    self._tokenizer.backend.to_str(), n_vocab=self._vocab_size, eos_token=eos or None
                )
            except Exception as error:  # the package raises its own kinds for tokenizers it cannot read
                raise invalid(
                    f"{param} needs constrained decoding, which this tokenizer does not allow: {error}", param
                ) from error
        return self._vocabulary


def literal(text: str) -> str:
    """A fixed text in a grammar."""
    return json.dumps(text)


def schema_rule(schema: Mapping[str, Any]) -> str:
    """A JSON value that fits a schema."""
    return "%json " + json.dumps({**schema, "x-guidance": LAYOUT})
