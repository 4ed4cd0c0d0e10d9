"""The soft overlong penalty against the values of two reference implementations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_jax.rewards import Composition
from lightning_jax.rewards.compose import total
from lightning_jax.rewards.terms import overlong
from lightning_jax.run.parts import read_parts
from lightning_jax.run.study import Study
from lightning_jax.types import Task
from tests.credit.samples import trajectory
from tests.e2e.toy import config

CASES = json.loads((Path(__file__).parents[1] / "golden" / "dapo_overlong.json").read_text())["cases"]
TASK = Task("t", {})


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['what']}-{c['length']}-{c['factor']}")
def test_penalty(case: dict[str, Any]) -> None:
    limit = case.get("max_response_length", case.get("max_new_tokens"))
    composition = Composition.from_mapping(
        {"outcome": "right", "terms": {"right": 1.0, "overlong": {"weight": case["factor"], "form": "penalty"}}}
    )
    one = trajectory(1)
    long = replace(one.transitions[0], response_ids=np.zeros(case["length"], np.int32))
    value = overlong(limit, case["buffer"])(TASK, replace(one, transitions=(long,)))
    assert total({"right": case["reward_in"], "overlong": value}, composition) == pytest.approx(
        case["reward_out"], abs=1e-6
    )


def test_a_buffer_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer=30 and max_tokens=20"):
        overlong(20, 30)


def test_every_run_has_the_term_with_its_own_limits() -> None:
    values = config("train.max_tokens=20", "train.overlong_buffer=10")
    terms = {"right": 1.0, "overlong": {"weight": 1.0, "form": "penalty"}}
    parts = read_parts({**values, "reward": {"outcome": "right", "terms": terms}})
    study = Study("s", "accuracy", "level", (), (), (), {"right": lambda task, one: 1.0})
    long = replace(trajectory(1).transitions[0], response_ids=np.zeros(15, np.int32))
    assert parts.complete(study).terms["overlong"](TASK, replace(trajectory(1), transitions=(long,))) == 0.5
    with pytest.raises(ValueError, match="right"):
        parts.complete(replace(study, terms={}))
