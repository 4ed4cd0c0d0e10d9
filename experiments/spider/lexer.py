"""Cuts SQLite's SQL into tokens, so that nothing is ever looked for inside a literal or a comment.

Three users: the hardness rules, the removal of DISTINCT before two queries are compared, and the check that text
from a model is exactly one statement. Invariant: the texts of the tokens, joined, give the input back unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["space", "comment", "string", "quoted", "number", "word", "symbol"]

# Order matters: the first alternative that matches wins. An unclosed literal or comment runs to the end of the text.
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<string>[xX]?'(?:[^']|'')*(?:'|\Z))
    | (?P<quoted>"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z))
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<symbol><>|<=|>=|!=|==|\|\||<<|>>|.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of SQL text."""

    kind: Kind
    text: str  # as written

    def is_word(self, *words: str) -> bool:
        """Whether this is one of the (lower-case) bare words, whatever its case."""
        return self.kind == "word" and self.text.lower() in words

    def is_symbol(self, symbol: str) -> bool:
        """Whether this is the operator or punctuation mark `symbol`."""
        return self.kind == "symbol" and self.text == symbol


def tokenize(sql: str) -> list[Token]:
    """All tokens of `sql`, spaces and comments included; their texts joined give `sql` back."""
    return [Token(match.lastgroup, match.group()) for match in _TOKEN.finditer(sql)]  # type: ignore[arg-type]


def significant(sql: str) -> list[Token]:
    """The tokens of `sql` that mean something: no spaces, no comments."""
    return [token for token in tokenize(sql) if token.kind not in ("space", "comment")]


def remove_word(sql: str, word: str) -> str:
    """`sql` without any bare occurrence of the (lower-case) `word`; literals and quoted names are left alone."""
    return "".join(token.text for token in tokenize(sql) if not token.is_word(word))


def single_statement(sql: str) -> str:
    """The one statement in `sql`, without what follows its last meaningful token and without closing semicolons.

    Raises ValueError where there is no statement (empty, spaces, comments only) or more than one.
    """
    tokens = tokenize(sql)
    meaningful = [i for i, t in enumerate(tokens) if t.kind not in ("space", "comment") and not t.is_symbol(";")]
    if not meaningful:
        raise ValueError("the text holds no SQL statement: it is empty or only comments; write one SELECT")
    first, last = meaningful[0], meaningful[-1]
    if any(token.is_symbol(";") for token in tokens[first:last]):
        raise ValueError("the text holds more than one SQL statement; write exactly one SELECT")
    return "".join(token.text for token in tokens[first : last + 1])
