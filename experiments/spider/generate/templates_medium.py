"""Question templates of two clauses: two columns, two conditions, groups, the first rows of an order, joins."""

from __future__ import annotations

from experiments.spider.generate.phrases import who
from experiments.spider.generate.scene import Candidate, NoFit, Scene, Template
from experiments.spider.generate.schema import Column, Table
from experiments.spider.generate.templates_easy import AGGREGATES, COUNTS, SELECTS


def two_columns(scene: Scene) -> Candidate:
    """Two columns of the rows that meet a condition (or of all)."""
    table = scene.table()
    first = scene.shown(table)
    where = words = ""
    known: tuple[Column, ...] = (first,)
    if scene.draws.chance(0.7):
        condition = scene.condition(table, first)
        where, words = f" WHERE {condition.sql()}", condition.words
        known = (first, condition.column)
    second = scene.column(table, other_than=known)
    columns = f"{scene.phrase(first)} and {scene.phrase(second)}"
    question = scene.say(*SELECTS, column=columns, nouns=scene.nouns(table), words=words)
    return Candidate(question, f"SELECT {first.name}, {second.name} FROM {table.name}{where}")


def two_conditions(scene: Scene) -> Candidate:
    """A column or the number of the rows that meet two conditions, or one of two."""
    table = scene.table()
    first = scene.condition(table)
    second = scene.condition(table, first.column)
    joint = scene.draws.weighted(("and", "or"), (0.75, 0.25))
    words = f"{first.words} {joint} {second.words}"
    where = f"WHERE {first.sql()} {joint.upper()} {second.sql()}"
    if scene.draws.chance(0.35):
        question = scene.say(*COUNTS, nouns=scene.nouns(table), words=words)
        return Candidate(question, f"SELECT count(*) FROM {table.name} {where}")
    column = scene.shown(table, first.column, second.column)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(table), words=words)
    return Candidate(question, f"SELECT {column.name} FROM {table.name} {where}")


def two_aggregates(scene: Scene) -> Candidate:
    """Two aggregates of one quantity."""
    table = scene.table()
    column = scene.column(table, "quantity")
    first, second = scene.draws.sample(tuple(AGGREGATES), 2)
    where = words = ""
    if scene.draws.chance(0.5):
        condition = scene.condition(table, column)
        where, words = f" WHERE {condition.sql()}", condition.words
    question = scene.say(
        "What are the {first} and {second} {column} of {nouns} {words} ?",
        "Find the {first} and the {second} {column} of all {nouns} {words} .",
        first=AGGREGATES[first][0],
        second=AGGREGATES[second][0],
        column=scene.phrase(column),
        nouns=scene.nouns(table),
        words=words,
    )
    return Candidate(question, f"SELECT {first}({column.name}), {second}({column.name}) FROM {table.name}{where}")


def count_groups(scene: Scene) -> Candidate:
    """The number of rows for each value."""
    table = scene.table()
    column = scene.column(table, "category")
    question = scene.say(
        "How many {nouns} are there for each {column} ?",
        "Show each {column} and the number of {nouns} .",
        "What is the number of {nouns} for every {column} ?",
        "Count the {nouns} by {column} .",
        nouns=scene.nouns(table),
        column=scene.phrase(column),
    )
    return Candidate(question, f"SELECT {column.name}, count(*) FROM {table.name} GROUP BY {column.name}")


def aggregate_groups(scene: Scene) -> Candidate:
    """An aggregate of a quantity for each value."""
    table = scene.table()
    column = scene.column(table, "category")
    quantity = scene.column(table, "quantity")
    function = scene.draws.choice(tuple(AGGREGATES))
    question = scene.say(
        "What is the {aggregate} {quantity} of {nouns} for each {column} ?",
        "Show each {column} and the {aggregate} {quantity} of its {nouns} .",
        "Find the {aggregate} {quantity} of {nouns} by {column} .",
        aggregate=scene.draws.choice(AGGREGATES[function]),
        quantity=scene.phrase(quantity),
        nouns=scene.nouns(table),
        column=scene.phrase(column),
    )
    query = f"SELECT {column.name}, {function}({quantity.name}) FROM {table.name} GROUP BY {column.name}"
    return Candidate(question, query)


def first_of_order(scene: Scene) -> Candidate:
    """The row, or the few rows, at one end of an order."""
    table = scene.table()
    order, direction, special = scene.superlative(table)
    column = scene.shown(table, order)
    n = scene.draws.weighted((1, 2, 3, 4, 5), (6, 1, 2, 1, 1))
    question = top_wording(scene, table, n, scene.phrase(column), order.name, direction, special, "")
    query = f"SELECT {column.name} FROM {table.name} ORDER BY {order.name} {direction} LIMIT {n}"
    probe = f"SELECT {order.name} FROM {table.name} ORDER BY 1 {direction} LIMIT {n + 1}"
    return Candidate(question, query, probe)


def top_wording(
    scene: Scene, table: Table, n: int, column: str, order: str, direction: str, special: str, words: str
) -> str:
    """ "What is the name of the oldest singer {words}?" and the like; `order` is the name of the column sorted by."""
    phrase = scene.phrase(next(known for known in table.columns if known.name == order))
    parts = {"column": column, "noun": scene.noun(table), "nouns": scene.nouns(table), "n": n, "words": words}
    extreme = "highest" if direction == "DESC" else "lowest"
    if special and scene.draws.chance(0.6):
        one = (
            "What is the {column} of the {special} {noun} {words} ?",
            "Find the {column} of the {special} {noun} {words} .",
        )
        many = (
            "Find the {column} of the {n} {special} {nouns} {words} .",
            "What {column} do the {n} {special} {nouns} {words} have ?",
        )
        return scene.say(*(one if n == 1 else many), special=special, **parts)
    one = (
        "What is the {column} of the {noun} {words} with the {extreme} {phrase} ?",
        "Show the {column} of the {noun} {words} that has the {extreme} {phrase} .",
    )
    many = (
        "Show the {column} of the {n} {nouns} {words} with the {extreme} {phrase} .",
        "List the {column} of the top {n} {nouns} {words} by {extreme} {phrase} .",
    )
    return scene.say(*(one if n == 1 else many), extreme=extreme, phrase=phrase, **parts)


def child_by_parent(scene: Scene) -> Candidate:
    """A column or the number of children whose parent meets a condition."""
    join = scene.join()
    condition = scene.condition(join.parent)
    parents = f"{join.link.by} {scene.nouns(join.parent)} {condition.words}"
    where = f"WHERE {condition.sql(join.name(join.parent, condition.column))}"
    nouns = scene.nouns(join.child)
    if scene.draws.chance(0.35):
        question = scene.say(*COUNTS, nouns=nouns, words=parents)
        return Candidate(question, f"SELECT count(*) FROM {join.from_child()} {where}")
    column = scene.shown(join.child)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=nouns, words=parents)
    return Candidate(question, f"SELECT {join.name(join.child, column)} FROM {join.from_child()} {where}")


def parent_by_child(scene: Scene) -> Candidate:
    """A column of the parents that have a child that meets a condition."""
    join = scene.join()
    condition = scene.condition(join.child)
    column = scene.shown(join.parent)
    children = f"{who(join.parent)} {join.link.has} {scene.nouns(join.child)} {condition.words}"
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(join.parent), words=children)
    where = f"WHERE {condition.sql(join.name(join.child, condition.column))}"
    return Candidate(question, f"SELECT {join.name(join.parent, column)} FROM {join.from_parent()} {where}")


def child_with_parent(scene: Scene) -> Candidate:
    """A column of each child beside a column of its parent."""
    join = scene.join()
    child, parent = scene.shown(join.child), scene.shown(join.parent)
    question = scene.say(
        "Show the {child} of each {noun} and the {parent} of its {other} .",
        "For each {noun} , list its {child} and the {parent} of its {other} .",
        child=scene.phrase(child),
        parent=scene.phrase(parent),
        noun=scene.noun(join.child),
        other=scene.noun(join.parent),
    )
    columns = f"{join.name(join.child, child)}, {join.name(join.parent, parent)}"
    return Candidate(question.replace(" ,", ","), f"SELECT {columns} FROM {join.from_child()}")


def count_children(scene: Scene) -> Candidate:
    """The number of children of each parent."""
    join = scene.join()
    labels = join.parent.kinds("label")
    if not labels:
        raise NoFit
    question = scene.say(
        "Show the {label} of each {noun} and the number of {children} .",
        "How many {children} are there for each {noun} ? Show the {label} too .",
        "For each {noun} , show the {label} and count the {children} .",
        label=scene.phrase(labels[0]),
        noun=scene.noun(join.parent),
        children=scene.nouns(join.child),
    )
    name = join.name(join.parent, labels[0])
    query = f"SELECT {name}, count(*) FROM {join.from_parent()} GROUP BY {name}"
    return Candidate(question.replace(" ,", ","), query)


def parents_with_many(scene: Scene) -> Candidate:
    """The parents with more than n children."""
    join = scene.join()
    labels = join.parent.kinds("label")
    if not labels:
        raise NoFit
    name = join.name(join.parent, labels[0])
    n = 1 + scene.draws.index(5)
    operator, words = scene.draws.choice(((">", "more than"), (">=", "at least")))
    question = scene.say(
        *SELECTS,
        column=scene.phrase(labels[0]),
        nouns=scene.nouns(join.parent),
        words=f"{who(join.parent)} {join.link.has} {words} {n} {scene.nouns(join.child)}",
    )
    query = f"SELECT {name} FROM {join.from_parent()} GROUP BY {name} HAVING count(*) {operator} {n}"
    return Candidate(question, query)


def aggregate_of_children(scene: Scene) -> Candidate:
    """An aggregate over the children whose parent meets a condition."""
    join = scene.join()
    column = scene.column(join.child, "quantity")
    condition = scene.condition(join.parent)
    function = scene.draws.choice(tuple(AGGREGATES))
    question = scene.say(
        "What is the {aggregate} {column} of {nouns} {words} ?",
        "Find the {aggregate} {column} of the {nouns} {words} .",
        aggregate=scene.draws.choice(AGGREGATES[function]),
        column=scene.phrase(column),
        nouns=scene.nouns(join.child),
        words=f"{join.link.by} {scene.nouns(join.parent)} {condition.words}",
    )
    where = f"WHERE {condition.sql(join.name(join.parent, condition.column))}"
    return Candidate(question, f"SELECT {function}({join.name(join.child, column)}) FROM {join.from_child()} {where}")


MEDIUM: dict[Template, int] = {
    two_columns: 5,
    two_conditions: 6,
    two_aggregates: 3,
    count_groups: 2,
    aggregate_groups: 3,
    first_of_order: 5,
    child_by_parent: 4,
    parent_by_child: 4,
    child_with_parent: 2,
    count_children: 2,
    parents_with_many: 3,
    aggregate_of_children: 3,
}
