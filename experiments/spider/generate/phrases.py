"""The English of the questions: nouns, plurals, conditions in words.

Each part has several wordings and the draw decides, so one query is asked for in many ways.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.spider.generate.draws import Draws
from experiments.spider.generate.schema import Column, Table

_IRREGULAR = {"person": "people", "level": "levels"}


def plural(phrase: str) -> str:
    """The plural of a noun phrase: "year of birth" -> "years of birth", "home country" -> "home countries"."""
    for joint in (" of ", " in ", " above "):
        head, found, tail = phrase.partition(joint)
        if found:
            return plural(head) + found + tail
    start, _, word = phrase.rpartition(" ")
    return f"{start} {_plural_word(word)}".strip()


def _plural_word(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith(("s", "sh", "ch", "x")):
        return word if word.endswith("s") and not word.endswith("ss") else word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def article(phrase: str) -> str:
    """The phrase behind "a" or "an"."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def literal(value: int | float | str) -> str:
    """A value as SQL and the questions both write it, so that it can be copied: texts stand in single quotes."""
    return f"'{value}'" if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Condition:
    """A comparison: SQL for WHERE (the column's name filled in later), and words that stand behind a plural noun."""

    column: Column
    test: str  # "= 'France'": what follows the column
    words: str  # "from 'France'"

    def sql(self, name: str | None = None) -> str:
        """The comparison, with the column called `name`."""
        return f"{name or self.column.name} {self.test}"


def same(column: Column, value: str, draws: Draws) -> Condition:
    """category = value."""
    text = literal(value)
    phrase = draws.mostly_first(column.phrases, 0.8)
    wordings = [f"whose {phrase} is {text}", f"with {phrase} {text}"]
    if column.where:
        wordings = [column.where.format(text), column.where.format(text), wordings[0]]
    return Condition(column, f"= {text}", draws.mostly_first(wordings))


def different(column: Column, value: str, draws: Draws) -> Condition:
    """category != value."""
    text = literal(value)
    phrase = draws.mostly_first(column.phrases, 0.8)
    wordings = [f"whose {phrase} is not {text}", f"with {article(phrase)} other than {text}"]
    if column.where:
        wordings.append("not " + column.where.format(text))
    return Condition(column, f"!= {text}", draws.mostly_first(wordings))


def greater(column: Column, value: int | float, draws: Draws) -> Condition:
    """quantity > value."""
    wordings = ["whose {p} is greater than {v}", "with {a} above {v}", "with {a} over {v}", "whose {p} exceeds {v}"]
    return _compare(column, ">", value, wordings, column.more, draws)


def smaller(column: Column, value: int | float, draws: Draws) -> Condition:
    """quantity < value."""
    wordings = [
        "whose {p} is less than {v}",
        "with {a} below {v}",
        "with {a} under {v}",
        "whose {p} is smaller than {v}",
    ]
    return _compare(column, "<", value, wordings, column.less, draws)


def at_least(column: Column, value: int | float, draws: Draws) -> Condition:
    """quantity >= value."""
    return _compare(column, ">=", value, ["whose {p} is at least {v}", "with {a} of {v} or more"], "", draws)


def at_most(column: Column, value: int | float, draws: Draws) -> Condition:
    """quantity <= value."""
    return _compare(column, "<=", value, ["whose {p} is at most {v}", "with {a} of {v} or less"], "", draws)


def equal(column: Column, value: int | float, draws: Draws) -> Condition:
    """quantity = value."""
    return _compare(column, "=", value, ["whose {p} is {v}", "with {a} of {v}", "with {a} equal to {v}"], "", draws)


def between(column: Column, low: int | float, high: int | float, draws: Draws) -> Condition:
    """quantity BETWEEN low AND high."""
    phrase = draws.mostly_first(column.phrases, 0.8)
    wordings = [f"with {article(phrase)} between {low} and {high}", f"whose {phrase} is between {low} and {high}"]
    return Condition(column, f"BETWEEN {low} AND {high}", draws.mostly_first(wordings))


def _compare(
    column: Column, operator: str, value: int | float, wordings: list[str], special: str, draws: Draws
) -> Condition:
    phrase = draws.mostly_first(column.phrases, 0.8)
    if special and draws.chance(0.5):
        return Condition(column, f"{operator} {value}", f"{special} {value}")
    words = draws.mostly_first(wordings).format(p=phrase, a=article(phrase), v=value)
    return Condition(column, f"{operator} {value}", words)


def who(table: Table) -> str:
    """The relative pronoun of a table's rows."""
    return "who" if table.person else "that"


def sentence(wording: str) -> str:
    """A wording as a sentence: first letter upper case, single spaces, no space before the final mark."""
    text = " ".join(wording.split()).replace(" ?", "?").replace(" .", ".")
    return text[0].upper() + text[1:]
