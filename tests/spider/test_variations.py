"""Variations of demonstrations: consistent over prompt and answer, deterministic, and never a lost reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.spider.demonstrations import Mix, demonstrations
from experiments.spider.generate import generate
from experiments.spider.layout import Layout, load
from experiments.spider.tasks import part
from experiments.spider.variations import singular

WRITE_ONLY = Mix(write=1, check_right=0, check_wrong=0, rewrite=0)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return load(generate(0, Path(tmp_path_factory.getbasetemp()) / "generated"))


def test_names_in_the_answer_stand_in_the_schema(layout: Layout) -> None:
    questions = part(layout, demonstrations=120, validation=0).demonstrations
    made = demonstrations(questions, layout, mix=WRITE_ONLY, variations=3)
    assert len(made) == 4 * len(questions)
    assert made == demonstrations(questions, layout, mix=WRITE_ONLY, variations=3)
    originals = made[::4]
    changed = sum(
        one.answer != original.answer for n, original in enumerate(originals) for one in made[4 * n + 1 : 4 * n + 4]
    )
    assert changed > 0.6 * 3 * len(questions)
    keywords = set(re.findall(r"\b[A-Z]+\b", " ".join(d.answer for d in originals)))
    for one in made:
        schema, question = str(one.messages[-1]["content"]).split("\n", 1)
        names = set(re.findall(r"[a-z_]\w*", re.sub(r"'[^']*'", "", one.answer)))
        functions = {"count", "sum", "avg", "min", "max"}
        assert names - functions <= set(re.findall(r"\w+", schema)) | keywords, one
        for value in re.findall(r"'([^']+)'", one.answer):
            assert f"'{value}'" in question, one


def test_singular() -> None:
    pairs = {"dishes": "dish", "branches": "branch", "singers": "singer", "cities": "city", "glass": "glass"}
    assert {plural: singular(plural) for plural in pairs} == pairs
