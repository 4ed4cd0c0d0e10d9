"""The share of valid tool calls, over verdicts of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from lightning_jax.rewards.terms import generic
from lightning_jax.types import Task, ToolUse, ToolVerdict
from tests.credit.samples import trajectory


@pytest.mark.parametrize(
    ("verdicts", "share"),
    [
        ([], 0.0),
        ([["ok"], ["ok", "ok"]], 1.0),
        ([["ok", "invalid_json"], []], 0.5),
        ([["unknown"]], 0.0),
        ([["unknown"], ["ok"]], 0.5),
        ([get_args(ToolVerdict)], 1 / len(get_args(ToolVerdict))),
    ],
)
def test_only_ok_counts(verdicts: list[list[ToolVerdict]], share: float) -> None:
    turns = trajectory(max(1, len(verdicts)))
    made = [tuple(ToolUse(f"call_a_{n}", "f", "{}", v) for n, v in enumerate(turn)) for turn in verdicts]
    calls = tuple(replace(t, tools=uses) for t, uses in zip(turns.transitions, made or [()], strict=True))
    assert generic(8)["valid_tool_calls"](Task("t", {}), replace(turns, transitions=calls)) == pytest.approx(share)
