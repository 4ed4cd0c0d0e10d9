"""What a generated database is made of: tables, columns, and the English by which people speak of them.

A domain is data only. The English sits beside the schema, because a column such as `hire_year` is asked for as
"year of hire", and a comparison on `age` as "older than 30".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["key", "link", "label", "category", "quantity"]


@dataclass(frozen=True)
class Column:
    """One column: `kind` says what its values are for, the phrases how a question names it."""

    name: str
    kind: Kind
    type: Literal["INTEGER", "REAL", "TEXT"]
    phrases: tuple[str, ...]  # noun phrases in the singular, the plainest first
    values: tuple[str, ...] = ()  # TEXT: what a row may hold
    low: float = 0  # numbers: low, low + step, ..., high
    high: float = 0
    step: float = 1
    more: str = ""  # "older than": a comparison in words
    less: str = ""
    most: str = ""  # "oldest": a superlative in words
    least: str = ""
    where: str = ""  # "from {}": a category in words
    target: str = ""  # link: the table it points to
    has: str = ""  # link, seen from the parent: "gave" (singers who gave concerts)
    by: str = ""  # link, seen from the child: "given by" (concerts given by singers)


@dataclass(frozen=True)
class Table:
    """One table; `nouns` are (singular, plural) pairs, the plainest first."""

    name: str
    nouns: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    rows: int
    person: bool = False  # "who" or "that"

    @property
    def key(self) -> Column:
        """The primary key, always the first column."""
        return self.columns[0]

    def kinds(self, *kinds: Kind) -> tuple[Column, ...]:
        """The columns of the given kinds, in order of the schema."""
        return tuple(column for column in self.columns if column.kind in kinds)


@dataclass(frozen=True)
class Domain:
    """One database: parents stand before the tables that link to them."""

    name: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(table for table in self.tables if table.name == name)


def key(name: str) -> Column:
    """A primary key 1, 2, 3..."""
    return Column(name, "key", "INTEGER", (name.replace("_", " "),))


def link(name: str, target: str, has: str, by: str) -> Column:
    """A foreign key to the table `target`."""
    return Column(name, "link", "INTEGER", (name.replace("_", " "),), target=target, has=has, by=by)


def label(name: str, values: tuple[str, ...], *phrases: str) -> Column:
    """A text that is different in every row: a name, a title."""
    return Column(name, "label", "TEXT", (name.replace("_", " "), *phrases), values=values)


def category(name: str, values: tuple[str, ...], *phrases: str, where: str = "") -> Column:
    """A text that many rows share."""
    return Column(name, "category", "TEXT", (name.replace("_", " "), *phrases), values=values, where=where)


_PARTICIPLES = frozenset(("born", "founded", "hired", "joined", "opened", "published", "released"))


def said(name: str) -> str:
    """A column's name as a noun phrase; a column such as `founded` holds a year."""
    return f"year {name}" if name in _PARTICIPLES else name.replace("_", " ")


def integer(
    name: str,
    low: int,
    high: int,
    step: int,
    *phrases: str,
    more: str = "",
    less: str = "",
    most: str = "",
    least: str = "",
) -> Column:
    """A whole number out of low, low + step, ..., high."""
    names = (said(name), *phrases)
    return Column(
        name, "quantity", "INTEGER", names, low=low, high=high, step=step, more=more, less=less, most=most, least=least
    )


def real(
    name: str,
    low: float,
    high: float,
    *phrases: str,
    more: str = "",
    less: str = "",
    most: str = "",
    least: str = "",
) -> Column:
    """A number with one decimal."""
    names = (name.replace("_", " "), *phrases)
    return Column(
        name, "quantity", "REAL", names, low=low, high=high, step=0.1, more=more, less=less, most=most, least=least
    )
