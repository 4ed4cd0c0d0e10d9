"""Plausible wrong queries: what a model that nearly got it right would write.

A check that has only seen right queries learns to say yes. Each corruption changes one thing of a right query (a
column, a condition, an aggregate, a comparison, a value, the order, the syntax) and may turn out harmless: whether the
result is wrong is for the caller to find out by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.spider.generate.draws import Draws
from experiments.spider.layout import Schema
from experiments.spider.lexer import Token, significant

_AGGREGATES = ("count", "sum", "avg", "min", "max")
_COMPARISONS = ("=", "!=", ">", "<", ">=", "<=")
_CLAUSE_ENDS = ("group", "order", "limit", "having", "intersect", "except", "union")
Corruption = Callable[[list[str], list[Token], Schema, Sequence[str], Draws], list[str] | None]


def corrupted(query: str, schema: Schema, literals: Sequence[str], draws: Draws) -> str | None:
    """`query` with one mistake in it, its tokens parted by spaces; None where the mistake drawn has no place in it.

    literals: values that occur in queries on the same database, to be mistaken for the right one.
    """
    tokens = significant(query)
    mistake = draws.weighted(MISTAKES, WEIGHTS)
    words = mistake([token.text for token in tokens], tokens, schema, literals, draws)
    return None if words is None or words == [token.text for token in tokens] else " ".join(words)


def spaced(query: str) -> str:
    """`query` with one space between its tokens: to most tokenizers ` name` and `name` are two different tokens."""
    return " ".join(token.text for token in significant(query))


def _swap(
    words: list[str], places: Sequence[int], others: Callable[[str], Sequence[str]], draws: Draws
) -> list[str] | None:
    """`words` with one of the places changed to another of its alternatives."""
    if not places:
        return None
    place = draws.choice(places)
    choices = [other for other in others(words[place]) if other.lower() != words[place].lower()]
    if not choices:
        return None
    return [*words[:place], draws.choice(choices), *words[place + 1 :]]


def _column(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """Another column, mostly of the same table."""
    tables = {name.lower(): table for table in schema.tables for name in schema.columns[table]}
    places = [i for i, token in enumerate(tokens) if token.kind == "word" and token.text.lower() in tables]

    def others(word: str) -> Sequence[str]:
        table = tables[word.lower()] if draws.chance(0.75) else draws.choice(schema.tables)
        return schema.columns[table]

    return _swap(words, places, others, draws)


def _aggregate(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """Another aggregate."""
    places = [
        i for i, token in enumerate(tokens[:-2]) if token.is_word(*_AGGREGATES) and tokens[i + 2].text not in ("*",)
    ]
    return _swap(words, places, lambda _: _AGGREGATES, draws)


def _comparison(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """Another comparison, not in a join."""
    places = [
        i
        for i, token in enumerate(tokens[:-1])
        if token.text in _COMPARISONS and (tokens[i + 1].kind in ("number", "string") or tokens[i + 1].is_symbol("("))
    ]
    return _swap(words, places, lambda word: ("=", "!=") if word in ("=", "!=") else _COMPARISONS[2:], draws)


def _value(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """Another value of the same kind."""
    places = [i for i, token in enumerate(tokens) if token.kind in ("number", "string")]
    return _swap(words, places, lambda word: [v for v in literals if v.startswith("'") == word.startswith("'")], draws)


def _condition(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """One condition left out: the whole WHERE, or what stands behind its AND."""
    wheres = [i for i, token in enumerate(tokens) if token.is_word("where")]
    if not wheres:
        return None
    start = draws.choice(wheres)
    depth, ends = 0, []
    for i in range(start + 1, len(tokens)):
        depth += tokens[i].is_symbol("(") - tokens[i].is_symbol(")")
        if depth < 0 or (depth == 0 and tokens[i].is_word(*_CLAUSE_ENDS)):
            ends = [i]
            break
    end = ends[0] if ends else len(tokens)
    between = any(token.is_word("between") for token in tokens[start:end])
    joints = [] if between else [i for i in range(start, end) if tokens[i].is_word("and", "or")]
    if joints and draws.chance(0.7):
        start = joints[0]
    return words[:start] + words[end:]


def _order(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """The other direction."""
    places = [i for i, token in enumerate(tokens) if token.is_word("asc", "desc")]
    return _swap(words, places, lambda _: ("ASC", "DESC"), draws)


def _syntax(
    words: list[str], tokens: list[Token], schema: Schema, literals: Sequence[str], draws: Draws
) -> list[str] | None:
    """One token missing or twice."""
    place = draws.index(len(words))
    return words[:place] + words[place + 1 :] if draws.chance(0.6) else words[: place + 1] + words[place:]


MISTAKES: tuple[Corruption, ...] = (_column, _aggregate, _comparison, _value, _condition, _order, _syntax)
WEIGHTS = (6.0, 3.0, 3.0, 2.0, 3.0, 2.0, 2.0)
