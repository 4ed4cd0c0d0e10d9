"""Question templates that combine what the hard ones have: joins with groups and orders, subqueries with more."""

from __future__ import annotations

from experiments.spider.generate.phrases import who
from experiments.spider.generate.scene import Candidate, NoFit, Scene, Template
from experiments.spider.generate.templates_easy import SELECTS
from experiments.spider.generate.templates_medium import top_wording


def parent_with_most(scene: Scene) -> Candidate:
    """The parent with the most (or fewest) children."""
    join = scene.join()
    labels = join.parent.kinds("label")
    if not labels:
        raise NoFit
    name = join.name(join.parent, labels[0])
    direction, words = scene.draws.choice((("DESC", "most"), ("ASC", "fewest")))
    where = said = ""
    if scene.draws.chance(0.5):
        condition = scene.condition(join.child)
        where, said = f" WHERE {condition.sql(join.name(join.child, condition.column))}", condition.words
    question = scene.say(
        "What is the {column} of the {parent} {who} {has} the {words} {children} {said} ?",
        "Find the {column} of the {parent} with the {words} {children} {said} .",
        "Which {parent} {has} the {words} {children} {said} ? Show the {column} .",
        column=scene.phrase(labels[0]),
        parent=scene.noun(join.parent),
        who=who(join.parent),
        has=join.link.has,
        words=words,
        children=scene.nouns(join.child),
        said=said,
    )
    body = f"FROM {join.from_parent()}{where} GROUP BY {name} ORDER BY count(*) {direction}"
    probe = f"SELECT count(*) FROM {join.from_parent()}{where} GROUP BY {name} ORDER BY 1 {direction} LIMIT 2"
    return Candidate(question, f"SELECT {name} {body} LIMIT 1", probe)


def first_child_of_some(scene: Scene) -> Candidate:
    """The child at one end of an order, out of those whose parent meets a condition."""
    join = scene.join()
    order, direction, special = scene.superlative(join.child)
    condition = scene.condition(join.parent)
    column = scene.shown(join.child, order)
    words = f"{join.link.by} {scene.nouns(join.parent)} {condition.words}"
    question = top_wording(scene, join.child, 1, scene.phrase(column), order.name, direction, special, words)
    name = join.name(join.child, order)
    body = f"FROM {join.from_child()} WHERE {condition.sql(join.name(join.parent, condition.column))}"
    query = f"SELECT {join.name(join.child, column)} {body} ORDER BY {name} {direction} LIMIT 1"
    return Candidate(question, query, f"SELECT {name} {body} ORDER BY 1 {direction} LIMIT 2")


def two_columns_compared(scene: Scene) -> Candidate:
    """Two columns of the rows above or below the average."""
    table = scene.table()
    quantity = scene.column(table, "quantity")
    first = scene.shown(table, quantity)
    second = scene.column(table, other_than=(first, quantity))
    operator, words = scene.draws.choice(((">", "above"), ("<", "below")))
    compared = scene.draws.choice(("with {phrase} {words} the average", "whose {phrase} is {words} the average"))
    question = scene.say(
        *SELECTS,
        column=f"{scene.phrase(first)} and {scene.phrase(second)}",
        nouns=scene.nouns(table),
        words=compared.format(phrase=scene.phrase(quantity), words=words),
    )
    where = f"{quantity.name} {operator} (SELECT avg({quantity.name}) FROM {table.name})"
    return Candidate(question, f"SELECT {first.name}, {second.name} FROM {table.name} WHERE {where}")


def compared_and_condition(scene: Scene) -> Candidate:
    """Rows that meet a condition and lie above or below the average of all."""
    table = scene.table()
    quantity = scene.column(table, "quantity")
    condition = scene.condition(table, quantity)
    column = scene.shown(table, quantity, condition.column)
    operator, words = scene.draws.choice(((">", "above"), ("<", "below")))
    question = scene.say(
        *SELECTS,
        column=scene.phrase(column),
        nouns=scene.nouns(table),
        words=f"{condition.words} and with {scene.phrase(quantity)} {words} the average",
    )
    where = f"{condition.sql()} AND {quantity.name} {operator} (SELECT avg({quantity.name}) FROM {table.name})"
    return Candidate(question, f"SELECT {column.name} FROM {table.name} WHERE {where}")


def parent_condition_without_child(scene: Scene) -> Candidate:
    """Parents that meet a condition and have no (such) child."""
    join = scene.join()
    condition = scene.condition(join.parent)
    column = scene.shown(join.parent, condition.column)
    inner, said = f"SELECT {join.link.name} FROM {join.child.name}", ""
    if scene.draws.chance(0.4):
        such = scene.condition(join.child)
        inner, said = f"{inner} WHERE {such.sql()}", such.words
    question = scene.say(
        *SELECTS,
        column=scene.phrase(column),
        nouns=scene.nouns(join.parent),
        words=f"{condition.words} {who(join.parent)} have no {scene.nouns(join.child)} {said}",
    )
    where = f"{condition.sql()} AND {join.parent.key.name} NOT IN ({inner})"
    return Candidate(question, f"SELECT {column.name} FROM {join.parent.name} WHERE {where}")


def childless_ordered(scene: Scene) -> Candidate:
    """Parents without children, sorted."""
    join = scene.join()
    order = scene.column(join.parent, "quantity")
    column = scene.shown(join.parent, order)
    direction, words = scene.draws.choice((("DESC", "from high to low"), ("ASC", "from low to high")))
    question = scene.say(
        "List the {column} of {parents} without any {children} sorted by {order} {words} .",
        "What is the {column} of {parents} {who} have no {children} , ordered by {order} {words} ?",
        column=scene.phrase(column),
        parents=scene.nouns(join.parent),
        who=who(join.parent),
        children=scene.nouns(join.child),
        order=scene.phrase(order),
        words=words,
    )
    where = (
        f"FROM {join.parent.name} WHERE {join.parent.key.name} NOT IN (SELECT {join.link.name} FROM {join.child.name})"
    )
    query = f"SELECT {column.name} {where} ORDER BY {order.name} {direction}"
    return Candidate(question.replace(" ,", ","), query, f"SELECT {order.name} {where}")


def parents_of_both(scene: Scene) -> Candidate:
    """Parents that have children of both kinds, or of one kind but not the other."""
    join = scene.join()
    column = scene.column(join.parent, "label")
    first, second = scene.condition(join.child), scene.condition(join.child)
    if first.test == second.test and first.column == second.column:
        raise NoFit
    operator, joint = scene.draws.choice((("INTERSECT", "and also"), ("EXCEPT", "but no")))
    children = scene.nouns(join.child)
    question = scene.say(
        *SELECTS,
        column=scene.phrase(column),
        nouns=scene.nouns(join.parent),
        words=f"{who(join.parent)} {join.link.has} {children} {first.words} {joint} {children} {second.words}",
    )
    name = join.name(join.parent, column)
    halves = [
        f"SELECT {name} FROM {join.from_parent()} WHERE {part.sql(join.name(join.child, part.column))}"
        for part in (first, second)
    ]
    return Candidate(question, f" {operator} ".join(halves))


EXTRA: dict[Template, int] = {
    parent_with_most: 5,
    first_child_of_some: 5,
    two_columns_compared: 4,
    compared_and_condition: 4,
    parent_condition_without_child: 4,
    childless_ordered: 2,
    parents_of_both: 2,
}
