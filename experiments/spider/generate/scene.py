"""What a question template draws from: one database, its rows and a stream of draws.

A template asks the scene for tables, columns and conditions and returns a candidate, or raises `NoFit` where the
database lacks what it needs. Values in conditions are values that occur, so that `>` and `>=` give different answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.spider.generate import phrases
from experiments.spider.generate.draws import Draws
from experiments.spider.generate.phrases import Condition
from experiments.spider.generate.rows import Row
from experiments.spider.generate.schema import Column, Domain, Kind, Table


class NoFit(Exception):
    """The template has no use for this database or these draws: draw again."""


@dataclass(frozen=True)
class Candidate:
    """A question with its query; `order` is a query for the values it sorts by, which must not tie."""

    question: str
    query: str
    order: str = ""


@dataclass(frozen=True)
class Join:
    """A parent and a child table joined over the child's foreign key."""

    parent: Table
    child: Table
    link: Column

    @property
    def on(self) -> str:
        """The join condition."""
        return f"{self.parent.name}.{self.parent.key.name} = {self.child.name}.{self.link.name}"

    def from_parent(self) -> str:
        """FROM clause, the parent first."""
        return f"{self.parent.name} JOIN {self.child.name} ON {self.on}"

    def from_child(self) -> str:
        """FROM clause, the child first."""
        return f"{self.child.name} JOIN {self.parent.name} ON {self.on}"

    def name(self, table: Table, column: Column) -> str:
        """The column's name, qualified where both tables have one of that name."""
        other = self.child if table is self.parent else self.parent
        clash = any(column.name == theirs.name for theirs in other.columns)
        return f"{table.name}.{column.name}" if clash else column.name


@dataclass(frozen=True)
class Scene:
    """A database and a stream of draws; the methods draw what templates need."""

    domain: Domain
    rows: dict[str, list[Row]]
    draws: Draws

    def table(self) -> Table:
        """Any table."""
        return self.draws.choice(self.domain.tables)

    def join(self) -> Join:
        """Any pair of tables with a foreign key between them."""
        joins = [
            Join(self.domain.table(link.target), child, link)
            for child in self.domain.tables
            for link in child.kinds("link")
        ]
        return self.draws.choice(joins)

    def column(self, table: Table, *kinds: Kind, other_than: tuple[Column, ...] = ()) -> Column:
        """A column of the kinds given (any but keys where none is), none of `other_than`."""
        wanted = kinds or ("label", "category", "quantity")
        fitting = [column for column in table.kinds(*wanted) if column not in other_than]
        if not fitting:
            raise NoFit
        return self.draws.choice(fitting)

    def shown(self, table: Table, *other_than: Column) -> Column:
        """A column to select: the label in half of the cases."""
        labels = [column for column in table.kinds("label") if column not in other_than]
        if labels and self.draws.chance(0.5):
            return labels[0]
        return self.column(table, other_than=other_than)

    def values(self, table: Table, column: Column) -> list[int | float | str]:
        """The distinct values of a column, sorted."""
        at = table.columns.index(column)
        return sorted({row[at] for row in self.rows[table.name]})

    def condition(
        self, table: Table, *other_than: Column, kinds: tuple[Kind, ...] = ("category", "quantity")
    ) -> Condition:
        """A condition on one column of the table that leaves some rows in and some out."""
        column = self.column(table, *kinds, other_than=other_than)
        values = self.values(table, column)
        if column.kind == "category":
            equal = self.draws.weighted((phrases.same, phrases.different), (0.85, 0.15))
            return equal(column, str(self.draws.choice(values)), self.draws)
        inner = values[len(values) // 8 : -max(1, len(values) // 8)]
        if len(inner) < 3:
            raise NoFit
        kind = self.draws.weighted(("greater", "smaller", "least", "most", "equal", "between"), (6, 6, 2, 2, 2, 2))
        if kind == "between":
            low, high = sorted(self.draws.sample(inner, 2))
            return phrases.between(column, low, high, self.draws)  # type: ignore[arg-type]
        build = {
            "greater": phrases.greater,
            "smaller": phrases.smaller,
            "least": phrases.at_least,
            "most": phrases.at_most,
            "equal": phrases.equal,
        }[kind]
        return build(column, self.draws.choice(inner), self.draws)  # type: ignore[arg-type]

    def noun(self, table: Table) -> str:
        """The table's rows in the singular."""
        return self.draws.mostly_first(table.nouns, 0.8)[0]

    def nouns(self, table: Table) -> str:
        """The table's rows in the plural."""
        return self.draws.mostly_first(table.nouns, 0.8)[1]

    def phrase(self, column: Column) -> str:
        """The column in the singular."""
        return self.draws.mostly_first(column.phrases, 0.8)

    def say(self, *wordings: str, **parts: object) -> str:
        """One of the wordings as a sentence, its {slots} filled."""
        return phrases.sentence(self.draws.mostly_first(wordings, 0.5).format(**parts))

    def superlative(self, table: Table) -> tuple[Column, str, str]:
        """A quantity to sort by, the direction, and words before a noun or "" where only the phrase will do."""
        column = self.column(table, "quantity")
        down = self.draws.chance(0.6)
        return column, "DESC" if down else "ASC", column.most if down else column.least


Template = Callable[[Scene], Candidate]
"""One kind of question. May raise NoFit."""
