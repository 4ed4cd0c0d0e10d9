"""Demonstrations for the supervised warm-up: the agent's own conversations with the answers that it should have got.

Invariant: the messages are those that `experiments.spider.agent` would send in the same state, its real execution
results included, so warm-up and rollouts give a tokenizer the same text. Only the questions handed in are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from experiments.spider import agent
from experiments.spider.corruption import corrupted, spaced
from experiments.spider.evaluator import execution_match
from experiments.spider.generate.draws import Draws
from experiments.spider.layout import Layout, Question
from experiments.spider.lexer import significant
from experiments.spider.tasks import compact_schema, task
from experiments.spider.variations import pools, vary
from lightning_jax.run.study import Demonstration

_TRIES = 12  # corruptions drawn before a question is left without a wrong query
_ROLES = {"system": "system", "human": "user"}


@dataclass(frozen=True, slots=True)
class Mix:
    """How many demonstrations of each role a question gets on average; a fraction is a chance."""

    write: float = 1.0
    check_right: float = 0.5
    check_wrong: float = 0.5
    rewrite: float = 0.5
    keep: float = 0.0  # rewrites of a right query that the check rejected: the same query again

    def __post_init__(self) -> None:
        for role in (field.name for field in fields(self)):
            if getattr(self, role) < 0:
                raise ValueError(f"mix.{role} is {getattr(self, role)}: a number of demonstrations cannot be negative")


def demonstrations(
    questions: Sequence[Question],
    layout: Layout,
    *,
    prompts: str = "short",
    mix: Mix | None = None,
    seed: int = 0,
    variations: int = 0,
    texts: Sequence[Question] = (),
) -> list[Demonstration]:
    """Demonstrations of the roles write, check and rewrite for the questions, whose gold queries are given away.

    variations: so many variations (see `variations.py`) of each follow it; their names and values come from the
    databases and wordings of `texts`, by default the questions themselves.

    Deterministic in (questions, layout, prompts, mix, seed); another question in the list changes nothing of the others
    but the values that their wrong queries draw from.
    """
    mix = mix or Mix()
    literals = _literals(questions)
    result: list[Demonstration] = []
    known = pools(layout, texts or questions) if variations else None
    for question in questions:
        draws = Draws(seed, "demonstrations", question.db_id, question.question)
        found = _of_question(question, layout, literals[question.db_id], prompts, mix, draws)
        result += found
        if known is not None:
            schema = layout.schemas[question.db_id]
            result += [vary(one, question, schema, known, draws) for one in found for _ in range(variations)]
    return result


def _of_question(
    question: Question, layout: Layout, literals: Sequence[str], prompts: str, mix: Mix, draws: Draws
) -> list[Demonstration]:
    schema = layout.schemas[question.db_id]
    start = task(question, layout, compact_schema(schema)).input
    gold = spaced(question.query)

    def demonstrate(role: str, answer: str, query: str = "") -> Demonstration:
        result = agent.run_query(start["db_path"], query, prompts) if query else ""
        state = agent.State(question=start["question"], schema=start["schema"], query=query, result=result)
        sent = agent.messages(prompts, role, state)
        messages = tuple({"role": _ROLES[m.type], "content": m.content} for m in sent)
        return Demonstration(messages, _worded(answer, prompts), role)

    found = [demonstrate("write", gold) for _ in range(_count(mix.write, draws))]
    found += [demonstrate("check", agent.RIGHT, gold) for _ in range(_count(mix.check_right, draws))]
    found += [demonstrate("rewrite", gold, gold) for _ in range(_count(mix.keep, draws))]
    for role, answer, average in (("check", agent.WRONG, mix.check_wrong), ("rewrite", gold, mix.rewrite)):
        for _ in range(_count(average, draws)):
            wrong = _wrong_query(
                question, layout, literals, draws, runs_on=start["db_path"] if role == "check" else None
            )
            if wrong is not None:
                found.append(demonstrate(role, answer, wrong))
    return found


def _worded(answer: str, prompts: str) -> str:
    """The answer in the form that the prompts ask for: bare, or a code block and a sentence before the verdict."""
    if prompts != "full":
        return answer
    if answer in (agent.RIGHT, agent.WRONG):
        return f"The query {'answers' if answer == agent.RIGHT else 'does not answer'} the question.\n{answer}"
    return f"```sql\n{answer}\n```"


def _wrong_query(
    question: Question, layout: Layout, literals: Sequence[str], draws: Draws, *, runs_on: str | None
) -> str | None:
    """A plausible query whose result differs from the gold query's, or None where none was found.

    runs_on: a database on which it must run, because the agent has no failed query checked.
    """
    databases = layout.databases(question.db_id)
    for _ in range(_TRIES):
        wrong = corrupted(question.query, layout.schemas[question.db_id], literals, draws)
        if not wrong or execution_match(databases, question.query, wrong).match:
            continue
        if runs_on is None or not agent.run_query(runs_on, wrong).startswith(agent.ERROR):
            return wrong
    return None


def _literals(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Per database the values that the questions' queries hold, sorted."""
    found: dict[str, set[str]] = {}
    for question in questions:
        values = (token.text for token in significant(question.query) if token.kind in ("number", "string"))
        found.setdefault(question.db_id, set()).update(values)
    return {db_id: sorted(values) for db_id, values in found.items()}


def _count(average: float, draws: Draws) -> int:
    whole = int(average)
    return whole + draws.chance(average - whole)
