"""Question templates of three clauses or one subquery: scalar comparisons, IN and NOT IN, set operators."""

from __future__ import annotations

from experiments.spider.generate.phrases import who
from experiments.spider.generate.scene import Candidate, NoFit, Scene, Template
from experiments.spider.generate.templates_easy import AGGREGATES, COUNTS, SELECTS
from experiments.spider.generate.templates_medium import top_wording


def most_common(scene: Scene) -> Candidate:
    """The value that most (or fewest) rows share."""
    table = scene.table()
    column = scene.column(table, "category")
    direction, words = scene.draws.choice((("DESC", "most"), ("ASC", "fewest")))
    question = scene.say(
        "Which {column} has the {words} {nouns} ?",
        "What is the {column} that the {words} {nouns} have ?",
        "Find the {column} with the {words} {nouns} .",
        column=scene.phrase(column),
        words=words,
        nouns=scene.nouns(table),
    )
    query = f"SELECT {column.name} FROM {table.name} GROUP BY {column.name} ORDER BY count(*) {direction} LIMIT 1"
    probe = f"SELECT count(*) FROM {table.name} GROUP BY {column.name} ORDER BY 1 {direction} LIMIT 2"
    return Candidate(question, query, probe)


def first_of_some(scene: Scene) -> Candidate:
    """The row at one end of an order, out of those that meet a condition."""
    table = scene.table()
    order, direction, special = scene.superlative(table)
    condition = scene.condition(table, order)
    column = scene.shown(table, order, condition.column)
    question = top_wording(scene, table, 1, scene.phrase(column), order.name, direction, special, condition.words)
    where = f"FROM {table.name} WHERE {condition.sql()}"
    query = f"SELECT {column.name} {where} ORDER BY {order.name} {direction} LIMIT 1"
    return Candidate(question, query, f"SELECT {order.name} {where} ORDER BY 1 {direction} LIMIT 2")


def parent_of_first(scene: Scene) -> Candidate:
    """A column of the parent whose child stands at one end of an order."""
    join = scene.join()
    order, direction, special = scene.superlative(join.child)
    column = scene.shown(join.parent)
    extreme = "highest" if direction == "DESC" else "lowest"
    noun = scene.noun(join.child)
    end = f"the {special} {noun}" if special else f"the {noun} with the {extreme} {scene.phrase(order)}"
    question = scene.say(
        "What is the {column} of the {parent} {who} {has} {end} ?",
        "Find the {column} of the {parent} {who} {has} {end} .",
        column=scene.phrase(column),
        parent=scene.noun(join.parent),
        who=who(join.parent),
        has=join.link.has,
        end=end,
    )
    name = join.name(join.child, order)
    query = f"SELECT {join.name(join.parent, column)} FROM {join.from_parent()} ORDER BY {name} {direction} LIMIT 1"
    return Candidate(question, query, f"SELECT {order.name} FROM {join.child.name} ORDER BY 1 {direction} LIMIT 2")


def compared_to_average(scene: Scene) -> Candidate:
    """The rows, or their number, above or below the average."""
    table = scene.table()
    quantity = scene.column(table, "quantity")
    operator, words = scene.draws.choice(((">", "above"), ("<", "below")))
    compared = scene.draws.choice(
        ("with {phrase} {words} the average", "whose {phrase} is {words} the average", "with {words} average {phrase}")
    ).format(phrase=scene.phrase(quantity), words=words)
    where = f"{quantity.name} {operator} (SELECT avg({quantity.name}) FROM {table.name})"
    if scene.draws.chance(0.3):
        question = scene.say(*COUNTS, nouns=scene.nouns(table), words=compared)
        return Candidate(question, f"SELECT count(*) FROM {table.name} WHERE {where}")
    column = scene.shown(table, quantity)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(table), words=compared)
    return Candidate(question, f"SELECT {column.name} FROM {table.name} WHERE {where}")


def childless(scene: Scene) -> Candidate:
    """The parents, or their number, without any child."""
    join = scene.join()
    parents, children = scene.nouns(join.parent), scene.nouns(join.child)
    without = scene.draws.choice((f"without any {children}", f"{who(join.parent)} have no {children}"))
    where = f"{join.parent.key.name} NOT IN (SELECT {join.link.name} FROM {join.child.name})"
    if scene.draws.chance(0.3):
        question = scene.say(*COUNTS, nouns=parents, words=without)
        return Candidate(question, f"SELECT count(*) FROM {join.parent.name} WHERE {where}")
    column = scene.shown(join.parent)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=parents, words=without)
    return Candidate(question, f"SELECT {column.name} FROM {join.parent.name} WHERE {where}")


def without_such_child(scene: Scene) -> Candidate:
    """The parents without (or with) a child that meets a condition, by IN."""
    join = scene.join()
    condition = scene.condition(join.child)
    parents, children = scene.nouns(join.parent), scene.nouns(join.child)
    negated = scene.draws.chance(0.6)
    words = (
        f"{who(join.parent)} have no {children} {condition.words}"
        if negated
        else f"{who(join.parent)} {join.link.has} some {children} {condition.words}"
    )
    column = scene.shown(join.parent)
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=parents, words=words)
    inner = f"SELECT {join.link.name} FROM {join.child.name} WHERE {condition.sql()}"
    test = f"{join.parent.key.name} {'NOT IN' if negated else 'IN'} ({inner})"
    return Candidate(question, f"SELECT {column.name} FROM {join.parent.name} WHERE {test}")


def both_groups(scene: Scene) -> Candidate:
    """The values shared by rows that meet one condition and rows that meet another (or not the other)."""
    table = scene.table()
    column = scene.column(table, "category", "quantity")
    first = scene.condition(table, column)
    second = scene.condition(table, column)
    if first.test == second.test and first.column == second.column:
        raise NoFit
    operator = scene.draws.choice(("INTERSECT", "EXCEPT"))
    nouns = scene.nouns(table)
    wordings = (
        ("Which {column} is shared by {nouns} {first} and {nouns} {second} ?",
         "Find the {column} of both {nouns} {first} and {nouns} {second} .")
        if operator == "INTERSECT"
        else ("Which {column} do {nouns} {first} have but not {nouns} {second} ?",
              "Find the {column} of {nouns} {first} but not of {nouns} {second} .")
    )  # fmt: skip
    question = scene.say(*wordings, column=scene.phrase(column), nouns=nouns, first=first.words, second=second.words)
    halves = [f"SELECT {column.name} FROM {table.name} WHERE {part.sql()}" for part in (first, second)]
    return Candidate(question, f" {operator} ".join(halves))


def extreme_value(scene: Scene) -> Candidate:
    """A column of the rows that hold the maximum or minimum, by a scalar subquery."""
    table = scene.table()
    quantity = scene.column(table, "quantity")
    function = scene.draws.choice(("max", "min"))
    column = scene.shown(table, quantity)
    words = f"whose {scene.phrase(quantity)} equals the {AGGREGATES[function][0]}"
    question = scene.say(*SELECTS, column=scene.phrase(column), nouns=scene.nouns(table), words=words)
    where = f"{quantity.name} = (SELECT {function}({quantity.name}) FROM {table.name})"
    return Candidate(question, f"SELECT {column.name} FROM {table.name} WHERE {where}")


HARD: dict[Template, int] = {
    most_common: 2,
    first_of_some: 5,
    parent_of_first: 4,
    compared_to_average: 4,
    childless: 2,
    without_such_child: 5,
    both_groups: 4,
    extreme_value: 2,
}
