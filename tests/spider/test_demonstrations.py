"""Demonstrations: right answers, wrong queries that are wrong, and the very messages that the agent sends."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from experiments.spider import agent
from experiments.spider.corruption import corrupted, spaced
from experiments.spider.demonstrations import Mix, demonstrations
from experiments.spider.evaluator import execution_match
from experiments.spider.generate import generate
from experiments.spider.generate.draws import Draws
from experiments.spider.layout import Layout, load
from experiments.spider.tasks import part, tasks


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return load(generate(0, tmp_path_factory.getbasetemp() / "generated"))


def test_the_mix_decides_the_roles(layout: Layout) -> None:
    questions = part(layout, demonstrations=200, validation=0).demonstrations
    made = demonstrations(questions, layout, mix=Mix(write=1, check_right=0.5, check_wrong=1, rewrite=0))
    count = collections.Counter((d.role, d.answer if d.role == "check" else "") for d in made)
    assert count["write", ""] == 200
    assert count["rewrite", ""] == 0
    assert 70 < count["check", "CORRECT"] < 130
    assert 185 <= count["check", "WRONG"] <= 200
    assert made == demonstrations(questions, layout, mix=Mix(write=1, check_right=0.5, check_wrong=1, rewrite=0))
    with pytest.raises(ValueError, match=r"mix\.rewrite is -1"):
        Mix(rewrite=-1)


@pytest.mark.parametrize("prompts", ["short", "full"])
def test_each_demonstration_is_true_and_is_what_the_agent_sends(layout: Layout, prompts: str) -> None:
    questions = part(layout, demonstrations=40, validation=0).demonstrations
    inputs = {task.input["question"]: task for task in tasks(questions, layout)}
    made = demonstrations(questions, layout, prompts=prompts, mix=Mix(1, 1, 1, 1, keep=1))
    assert {demonstration.role for demonstration in made} == {"write", "check", "rewrite"}
    for demonstration in made:
        system, user = (str(message["content"]) for message in demonstration.messages)
        assert system == agent.prompt(prompts, f"{demonstration.role}.system")
        question = next(text for text in inputs if text in user)
        task = inputs[question]
        gold, databases = task.reference["query"], [Path(p) for p in task.reference["databases"]]
        if demonstration.role != "check":
            assert execution_match(databases, gold, agent.read_query(demonstration.answer)).match
        if demonstration.role != "write":
            assert ("error: " in user) or ("row" in user)
        if demonstration.role == "check":
            # the demonstrated query is the one piece of the prompt that runs as the question's answer or does not
            state = agent.State(**task.input, query=spaced(gold), result="")  # type: ignore[typeddict-item]
            state["result"] = agent.run_query(task.input["db_path"], spaced(gold), prompts)
            right = str(agent.messages(prompts, "check", state)[1].content)
            assert (user == right) == (agent.read_verdict(demonstration.answer) == "CORRECT")


def test_corruptions_change_one_thing_and_keep_tokens_apart(layout: Layout) -> None:
    schema = layout.schemas["concerts"]
    query = "SELECT name FROM singer WHERE age > 30 AND country = 'France' ORDER BY age DESC LIMIT 1"
    found = {corrupted(query, schema, ["30", "50", "'Japan'"], Draws(i)) for i in range(400)} - {None}
    assert "SELECT name FROM singer WHERE age > 50 AND country = 'France' ORDER BY age DESC LIMIT 1" in found
    assert "SELECT name FROM singer WHERE age > 30 ORDER BY age DESC LIMIT 1" in found
    assert "SELECT name FROM singer ORDER BY age DESC LIMIT 1" in found
    assert "SELECT name FROM singer WHERE age > 30 AND country = 'France' ORDER BY age ASC LIMIT 1" in found
    assert "SELECT name FROM singer WHERE age > 30 AND country = 'Japan' ORDER BY age DESC LIMIT 1" in found
    assert "SELECT country FROM singer WHERE age > 30 AND country = 'France' ORDER BY age DESC LIMIT 1" in found
    assert spaced(query) not in found


def test_spacing_keeps_the_meaning(layout: Layout) -> None:
    for question in layout.dev[:150]:
        assert execution_match(layout.databases(question.db_id), question.query, spaced(question.query)).match
