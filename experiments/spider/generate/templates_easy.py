"""Question templates of one table and one clause: count, select, where, aggregate, order, distinct."""

from __future__ import annotations

from experiments.spider.generate.scene import Candidate, Scene, Template

AGGREGATES = {
    "avg": ("average", "mean"),
    "max": ("maximum", "highest", "largest"),
    "min": ("minimum", "lowest", "smallest"),
    "sum": ("total", "sum of the"),
}
SELECTS = (
    "What is the {column} of {nouns} {words} ?",
    "Show the {column} of {nouns} {words} .",
    "List the {column} of all {nouns} {words} .",
    "Find the {column} of the {nouns} {words} .",
    "Give the {column} of {nouns} {words} .",
)
COUNTS = (
    "How many {nouns} are there {words} ?",
    "Count the {nouns} {words} .",
    "What is the number of {nouns} {words} ?",
    "Find the number of {nouns} {words} .",
)


def count_all(scene: Scene) -> Candidate:
    """How many rows."""
    table = scene.table()
    question = scene.say(*COUNTS, "How many {nouns} do we have ?", nouns=scene.nouns(table), words="")
    return Candidate(question, f"SELECT count(*) FROM {table.name}")


def select_all(scene: Scene) -> Candidate:
    """One column of all rows."""
    table = scene.table()
    column = scene.shown(table)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(table), words="")
    return Candidate(question, f"SELECT {column.name} FROM {table.name}")


def count_where(scene: Scene) -> Candidate:
    """How many rows meet a condition."""
    table = scene.table()
    condition = scene.condition(table)
    question = scene.say(*COUNTS, nouns=scene.nouns(table), words=condition.words)
    return Candidate(question, f"SELECT count(*) FROM {table.name} WHERE {condition.sql()}")


def select_where(scene: Scene) -> Candidate:
    """One column of the rows that meet a condition."""
    table = scene.table()
    condition = scene.condition(table)
    column = scene.shown(table, condition.column)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(table), words=condition.words)
    return Candidate(question, f"SELECT {column.name} FROM {table.name} WHERE {condition.sql()}")


def select_named(scene: Scene) -> Candidate:
    """One column of the row with a given name."""
    table = scene.table()
    label = scene.column(table, "label")
    column = scene.column(table, other_than=(label,))
    value = scene.draws.choice(scene.values(table, label))
    question = scene.say(
        "What is the {column} of the {noun} with {label} '{value}' ?",
        "Show the {column} of the {noun} whose {label} is '{value}' .",
        "Find the {column} of {noun} '{value}' .",
        "What {column} does {noun} '{value}' have ?",
        column=scene.phrase(column),
        noun=scene.noun(table),
        label=scene.phrase(label),
        value=value,
    )
    return Candidate(question, f"SELECT {column.name} FROM {table.name} WHERE {label.name} = '{value}'")


def aggregate(scene: Scene) -> Candidate:
    """An aggregate of a quantity, over all rows or those that meet a condition."""
    table = scene.table()
    column = scene.column(table, "quantity")
    function = scene.draws.choice(tuple(AGGREGATES))
    where = words = ""
    if scene.draws.chance(0.5):
        condition = scene.condition(table, column)
        where, words = f" WHERE {condition.sql()}", condition.words
    question = scene.say(
        "What is the {aggregate} {column} of {nouns} {words} ?",
        "Find the {aggregate} {column} of all {nouns} {words} .",
        "Show the {aggregate} {column} for {nouns} {words} .",
        aggregate=scene.draws.choice(AGGREGATES[function]),
        column=scene.phrase(column),
        nouns=scene.nouns(table),
        words=words,
    )
    return Candidate(question, f"SELECT {function}({column.name}) FROM {table.name}{where}")


def count_distinct(scene: Scene) -> Candidate:
    """How many different values."""
    table = scene.table()
    column = scene.column(table, "category", "quantity")
    question = scene.say(
        "How many different values of {column} do the {nouns} have ?",
        "Count the distinct values of {column} of {nouns} .",
        "What is the number of different values of {column} among {nouns} ?",
        column=scene.phrase(column),
        nouns=scene.nouns(table),
    )
    return Candidate(question, f"SELECT count(DISTINCT {column.name}) FROM {table.name}")


def select_distinct(scene: Scene) -> Candidate:
    """The different values."""
    table = scene.table()
    column = scene.column(table, "category")
    where = words = ""
    if scene.draws.chance(0.6):
        condition = scene.condition(table, column)
        where, words = f" WHERE {condition.sql()}", condition.words
    question = scene.say(
        "What is each different {column} of {nouns} {words} ?",
        "List every distinct {column} of {nouns} {words} .",
        "Show each different {column} of the {nouns} {words} .",
        column=scene.phrase(column),
        nouns=scene.nouns(table),
        words=words,
    )
    return Candidate(question, f"SELECT DISTINCT {column.name} FROM {table.name}{where}")


def select_ordered(scene: Scene) -> Candidate:
    """One column, sorted by another."""
    table = scene.table()
    order = scene.column(table, "quantity")
    column = scene.shown(table, order)
    down = scene.draws.chance(0.5)
    question = scene.say(
        "List the {column} of {nouns} sorted by {order} {direction} .",
        "What is the {column} of all {nouns} ordered by {order} {direction} ?",
        "Show the {column} of {nouns} in {way} order of {order} .",
        column=scene.phrase(column),
        nouns=scene.nouns(table),
        order=scene.phrase(order),
        direction="from high to low" if down else "from low to high",
        way="descending" if down else "ascending",
    )
    query = f"SELECT {column.name} FROM {table.name} ORDER BY {order.name} {'DESC' if down else 'ASC'}"
    return Candidate(question, query, f"SELECT {order.name} FROM {table.name}")


def groups_having(scene: Scene) -> Candidate:
    """The values that at least n rows share."""
    table = scene.table()
    column = scene.column(table, "category")
    n = 4 + scene.draws.index(10)
    operator, words = scene.draws.choice(((">", "more than"), (">=", "at least")))
    question = scene.say(
        "Which {column} is shared by {words} {n} {nouns} ?",
        "Find the {column} that {words} {n} {nouns} have .",
        "What is each {column} with {words} {n} {nouns} ?",
        column=scene.phrase(column),
        words=words,
        n=n,
        nouns=scene.nouns(table),
    )
    query = f"SELECT {column.name} FROM {table.name} GROUP BY {column.name} HAVING count(*) {operator} {n}"
    return Candidate(question, query)


EASY: dict[Template, int] = {
    count_all: 1,
    select_all: 2,
    count_where: 5,
    select_where: 7,
    select_named: 5,
    aggregate: 7,
    count_distinct: 1,
    select_distinct: 2,
    select_ordered: 3,
    groups_having: 3,
}
