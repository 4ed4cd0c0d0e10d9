"""Spider's hardness of a query (easy, medium, hard, extra), from its text alone.

The levels are those of Yu et al., "Spider" (EMNLP 2018), as the data set's evaluation counts them; its results are
reported by level, so the counting here keeps the published evaluation's habits, the odd ones too:

* components 1: WHERE, GROUP BY, ORDER BY, LIMIT, one per joined table, OR, LIKE;
* components 2: subqueries in conditions, and one for UNION / INTERSECT / EXCEPT, however many follow;
* others: more than one aggregate, selected column, WHERE condition, GROUP BY column.

Odd habits: a NOT before an operator and an AND/OR in HAVING count as aggregates, the aggregates inside WHERE and HAVING
do not; a subquery in FROM is no component; ORDER BY and LIMIT behind a set operator belong to the right-hand query; an
OR behind a column (`a = b.c OR ...`) and what follows it are overlooked. Only the outermost query is counted. No schema
is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.spider.lexer import Token, significant

LEVELS = ("easy", "medium", "hard", "extra")
_AGGREGATES = ("max", "min", "count", "sum", "avg")
_SET_OPERATORS = ("union", "intersect", "except")
_CLAUSES = ("select", "from", "where", "group", "having", "order", "limit")

Tokens = Sequence[Token]


@dataclass(frozen=True, slots=True)
class Components:
    """The three counts that decide the level."""

    first: int  # clauses, joins, OR, LIKE
    second: int  # subqueries in conditions and set operators
    others: int  # 0..4: more than one aggregate, column, condition, grouping


@dataclass(frozen=True, slots=True)
class _Condition:
    """One comparison of a WHERE, HAVING or ON clause."""

    negated: bool
    like: bool
    subqueries: int


@dataclass(frozen=True, slots=True)
class _Conditions:
    """A whole clause: n comparisons joined by n-1 connectors."""

    units: tuple[_Condition, ...] = ()
    connectors: tuple[str, ...] = ()


def hardness(sql: str) -> str:
    """The level of `sql`: "easy", "medium", "hard" or "extra". Raises ValueError where `sql` is no SELECT."""
    counts = components(sql)
    if counts.second == 0:
        return _flat_level(counts)
    return "hard" if counts.first <= 1 and counts.others == 0 and counts.second == 1 else "extra"


def _flat_level(counts: Components) -> str:
    """The level of a query with neither subquery nor set operator."""
    first, others = counts.first, counts.others
    if first <= 1 and others == 0:
        return "easy"
    if (first <= 1 and others <= 2) or (first <= 2 and others <= 1):
        return "medium"
    if (first <= 2 and others > 2) or (first == 3 and others <= 2):
        return "hard"
    return "extra"


def components(sql: str) -> Components:
    """The component counts of `sql`'s outermost query. Raises ValueError where `sql` is no SELECT."""
    tokens = [token for token in significant(sql) if not token.is_symbol(";")]
    if not tokens or not tokens[0].is_word("select"):
        raise ValueError(f"hardness is defined for a query that begins with SELECT, got {sql[:80]!r}")
    head = _split(tokens, _SET_OPERATORS)[0]
    clauses = _clauses(head)
    where, having = _conditions(clauses.get("where", ())), _conditions(clauses.get("having", ()))
    joins, on = _joins(clauses.get("from", ()))
    return Components(
        first=sum(name in clauses for name in ("where", "group", "order", "limit"))
        + joins
        + sum(part.connectors.count("or") for part in (on, where, having))
        + sum(unit.like for part in (on, where, having) for unit in part.units),
        second=sum(unit.subqueries for part in (on, where, having) for unit in part.units) + (len(head) < len(tokens)),
        others=_others(clauses, where, having),
    )


def _others(clauses: dict[str, Tokens], where: _Conditions, having: _Conditions) -> int:
    columns = _split(clauses["select"], (",",))
    grouped = _split(clauses["group"], (",",)) if "group" in clauses else []
    aggregates = (
        sum(_is_aggregate(column) for column in columns)
        + sum(_is_aggregate(column) for column in grouped)
        + sum(unit.negated for unit in where.units)
        + sum(unit.negated for unit in having.units)
        + len(having.connectors)
        + _count_calls(clauses.get("order", ()))
    )
    return (aggregates > 1) + (len(columns) > 1) + (len(where.units) > 1) + (len(grouped) > 1)


def _clauses(query: Tokens) -> dict[str, Tokens]:
    """Clause name -> its tokens, keywords (and SELECT's DISTINCT, GROUP's and ORDER's BY) taken off."""
    clauses: dict[str, Tokens] = {}
    name, start = "", 0
    for i in [*(i for i in _outer(query) if query[i].is_word(*_CLAUSES)), len(query)]:
        if name:
            body = query[start:i]
            if body and body[0].is_word("by", "distinct"):
                body = body[1:]
            clauses.setdefault(name, body)
        if i < len(query):
            name, start = query[i].text.lower(), i + 1
    return clauses


def _joins(body: Tokens) -> tuple[int, _Conditions]:
    """How many tables are joined to the first one, and all ON conditions as one clause joined by AND."""
    units: list[_Condition] = []
    connectors: list[str] = []
    parts = _split(body, ("join", ","))
    for part in parts:
        marks = [i for i in _outer(part) if part[i].is_word("on")]
        if not marks:
            continue
        # INNER, LEFT ... before the next JOIN close this part; they are no condition.
        on = _conditions([t for t in part[marks[0] + 1 :] if not t.is_word("inner", "left", "outer", "cross")])
        connectors += (["and"] if units else []) + list(on.connectors)
        units += on.units
    return len(parts) - 1, _Conditions(tuple(units), tuple(connectors))


def _conditions(body: Tokens) -> _Conditions:
    """The comparisons of a clause, groups in parentheses opened up."""
    if not body:
        return _Conditions()
    units: list[_Condition] = []
    connectors: list[str] = []
    start, end, between = 0, 0, False
    for i in [*_outer(body), len(body)]:
        if i < len(body) and body[i].is_word("between"):
            between = True
        if i < len(body) and not body[i].is_word("and", "or"):
            continue
        if between and i < len(body) and body[i].is_word("and"):  # BETWEEN x AND y: this AND joins nothing
            between = False
            continue
        if i < len(body) and body[i].is_word("or") and i and body[i - 1].kind == "word":
            end = end or i  # the published parser drops what follows a column on the right, up to the next AND
            continue
        inner = _condition(body[start : end or i])
        units += inner.units
        connectors += inner.connectors
        if i < len(body):
            connectors.append(body[i].text.lower())
        start, end, between = i + 1, 0, False
    return _Conditions(tuple(units), tuple(connectors))


def _condition(part: Tokens) -> _Conditions:
    """One comparison, or the comparisons of a group in parentheses."""
    inner = part[1:] if part and part[0].is_word("not") else part
    wrapped = len(inner) > 2 and inner[0].is_symbol("(") and _closing(inner, 0) == len(inner) - 1
    if wrapped and not inner[1].is_word("select"):
        return _conditions(inner[1:-1])
    outer = _outer(part)
    negated = any(part[i].is_word("not") and not (i and part[i - 1].is_word("is")) for i in outer)
    subqueries = sum(part[i].is_symbol("(") and part[i + 1].is_word("select") for i in outer if i + 1 < len(part))
    like = any(part[i].is_word("like") for i in outer)
    return _Conditions((_Condition(negated, like, subqueries),))


def _is_aggregate(column: Tokens) -> bool:
    return len(column) > 1 and column[0].is_word(*_AGGREGATES) and column[1].is_symbol("(")


def _count_calls(body: Tokens) -> int:
    """How many aggregate calls stand in `body` outside parentheses."""
    return sum(_is_aggregate(body[i:]) for i in _outer(body))


def _split(tokens: Tokens, separators: tuple[str, ...]) -> list[Tokens]:
    """`tokens` cut at the separators (words or one-character symbols) that stand outside parentheses."""
    marks = [i for i in _outer(tokens) if tokens[i].is_word(*separators) or tokens[i].text in separators]
    edges = [-1, *marks, len(tokens)]
    return [tokens[a + 1 : b] for a, b in itertools.pairwise(edges)]


def _outer(tokens: Tokens) -> list[int]:
    """Positions of the tokens outside parentheses; an opening one counts as outside, its closing one as inside."""
    positions, depth = [], 0
    for i, token in enumerate(tokens):
        if depth == 0:
            positions.append(i)
        if token.is_symbol("("):
            depth += 1
        elif token.is_symbol(")"):
            depth = max(0, depth - 1)
    return positions


def _closing(tokens: Tokens, opening: int) -> int:
    """Position of the parenthesis that closes the one at `opening`; len(tokens) where there is none."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += tokens[i].is_symbol("(") - tokens[i].is_symbol(")")
        if depth == 0:
            return i
    return len(tokens)
