"""Queries that nearly are a given one: were one of them to give the same rows, a wrong answer would count as right.

With one database per question the rows must tell a query from its near misses, so a question whose near misses give
its answer is not asked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from experiments.spider.lexer import Token, significant

Rows = list[tuple[object, ...]]
_STRICTNESS = {">": ">=", ">=": ">", "<": "<=", "<=": "<"}
_AGGREGATES = ("sum", "avg", "min", "max")
_CLAUSES = ("group", "order", "limit", "intersect", "except", "union")


def near_misses(query: str) -> Iterator[str]:
    """`query` with a comparison made strict or not, the order turned, an aggregate exchanged, a condition left out."""
    tokens = significant(query)
    words = [token.text for token in tokens]
    for i, token in enumerate(tokens):
        if token.text in _STRICTNESS:
            yield " ".join([*words[:i], _STRICTNESS[token.text], *words[i + 1 :]])
        elif token.is_word("asc", "desc"):
            yield " ".join([*words[:i], "ASC" if token.is_word("desc") else "DESC", *words[i + 1 :]])
        elif token.is_word(*_AGGREGATES):
            for other in _AGGREGATES:
                if other != token.text.lower():
                    yield " ".join([*words[:i], other, *words[i + 1 :]])
        elif token.is_word("where"):
            end = _end(tokens, i)
            yield " ".join(words[:i] + words[end:])
            joints = [j for j in range(i, end) if tokens[j].is_word("and", "or")]
            if len(joints) == 1 and not any(token.is_word("between") for token in tokens[i:end]):
                yield " ".join(words[: joints[0]] + words[end:])
                yield " ".join(words[: i + 1] + words[joints[0] + 1 :])


def _end(tokens: list[Token], start: int) -> int:
    """Where the clause that begins at `start` ends."""
    depth = 0
    for i in range(start + 1, len(tokens)):
        depth += tokens[i].is_symbol("(") - tokens[i].is_symbol(")")
        if depth < 0 or (depth == 0 and tokens[i].is_word(*_CLAUSES)):
            return i
    return len(tokens)


def indistinct(connection: sqlite3.Connection, query: str, rows: Rows) -> bool:
    """Whether a near miss of `query` gives its `rows` too: in their order where it has one, else as a bag."""
    ordered = "ORDER BY" in query
    answer = rows if ordered else sorted(rows, key=repr)
    for miss in near_misses(query):
        theirs = connection.execute(miss).fetchall()
        if (theirs if ordered else sorted(theirs, key=repr)) == answer:
            return True
    return False
