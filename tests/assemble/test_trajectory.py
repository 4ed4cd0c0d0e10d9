"""Calls to transitions: token-exact, in order, and everything left out has a reason."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax import types
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import Quarantined, assemble
from tests.assemble.conftest import make_call, make_sealed

NO_NAMES = AgentNaming()


def test_a_transition_is_the_call_untouched() -> None:
    calls = [
        make_call("b", 1),
        make_call("a", 0, finish_reason="length", sampling=types.SamplingParams(0.0, 1.0, 4, 7)),
    ]
    assembled = assemble(make_sealed(calls), NO_NAMES)
    trajectory = assembled.trajectory
    assert assembled.quarantined == ()
    assert (trajectory.rollout_id, trajectory.task_id, trajectory.sample, trajectory.step) == ("r", "t", 2, 5)
    assert (trajectory.mode, trajectory.outcome.output) == ("eval", {"answer": 1})
    first, second = trajectory.transitions
    assert [(t.call_id, t.index, t.agent) for t in (first, second)] == [("a", 0, "key-a"), ("b", 1, "key-b")]
    assert (first.temperature, first.finish_reason, first.policy_version) == (0.0, "length", 3)
    # The very arrays: nothing had a chance to change a token.
    assert second.prompt_ids is calls[0].prompt_ids
    assert second.response_ids is calls[0].response_ids
    assert second.rollout_logps is calls[0].rollout_logps


def test_what_cannot_be_trained_on_is_left_out_with_a_reason() -> None:
    nothing = np.zeros(0, np.int32)
    calls = [
        make_call("good", 0),
        make_call("aborted", 1, finish_reason="abort"),
        make_call("superseded", 1, superseded_by="good"),
        make_call("undelivered", 1, delivered_ns=-1),
        make_call("empty", 2, response_ids=nothing, rollout_logps=nothing.astype(np.float32)),
        make_call("promptless", 3, prompt_ids=nothing),
        make_call("shapes", 4, rollout_logps=np.zeros(3, np.float32)),
        make_call("nan", 5, rollout_logps=np.array([0.0, math.nan], np.float32)),
        make_call("good", 6),
        make_call("last", 7),
    ]
    assembled = assemble(make_sealed(calls), NO_NAMES)
    assert [(t.call_id, t.index) for t in assembled.trajectory.transitions] == [("good", 0), ("last", 1)]
    assert {(item.identity, item.reason) for item in assembled.quarantined} == {
        ("aborted", "aborted"),
        ("superseded", "superseded"),
        ("undelivered", "undelivered"),
        ("empty", "empty"),
        ("promptless", "empty"),
        ("shapes", "shapes"),
        ("nan", "not_finite"),
        ("good", "duplicate"),
    }
    assert assembled.reasons()[("call", "empty")] == 2


def test_a_call_that_a_later_request_shows_was_delivered_whatever_its_mark_says() -> None:
    """A server that ends by force may not have noted its last deliveries."""
    lost = make_call("a", 0, delivered_ns=-1, text="Paris it is.", request_key="x")
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Paris it is."}]
    tool = {"role": "assistant", "tool_calls": [{"id": "call_a_0", "function": {"name": "f", "arguments": "{}"}}]}
    for message in (history[1], tool, {"type": "function_call_output", "call_id": "call_a_0", "output": "x"}):
        later = make_call("b", 1, request={"messages": [history[0], message]}, request_key="y")
        assert len(assemble(make_sealed([lost, later]), NO_NAMES).trajectory.transitions) == 2
    other = make_call("b", 1, request={"messages": history[:1]})
    assert len(assemble(make_sealed([lost, other]), NO_NAMES).trajectory.transitions) == 1
    twice = make_call(
        "c", 1, text="Paris it is.", request_key="x"
    )  # the same request sampled again: words prove nothing
    said = make_call("b", 2, request={"messages": history})
    assert len(assemble(make_sealed([lost, twice, said]), NO_NAMES).trajectory.transitions) == 2


def test_an_attempt_without_calls_is_a_trajectory_without_transitions() -> None:
    assert assemble(make_sealed([]), NO_NAMES).trajectory.transitions == ()


def test_rewards_go_to_their_call_or_to_the_rollout() -> None:
    rewards = [
        types.Reward("1", "r", "r.1", 0.25, {}, "a"),
        types.Reward("2", "r", "r.1", None, {"tool": -1.0, "format": 0.5}, "chatcmpl-a"),
        types.Reward("3", "r", "r.1", 1.0, {"exact": 1.0}),
        types.Reward("4", "r", "r.1", 2.0),
        types.Reward("5", "r", "r.1", None, {"latency": 0.1}),
        types.Reward("6", "r", "r.1", 1.0, {}, "unknown"),
        types.Reward("7", "r", "r.1", math.nan),
        types.Reward("8", "r", "r.1", 1.0, {"x": math.inf}, "a"),
        types.Reward("9", "r", "r.1", 4.0, {}, "resp_b"),
        types.Reward("10", "r", "r.1", 8.0, {}, "cmpl-b"),
    ]
    assembled = assemble(make_sealed([make_call("a", 0), make_call("b", 1)], rewards=rewards), NO_NAMES)
    assert [t.reward for t in assembled.trajectory.transitions] == [-0.25, 12.0]
    assert assembled.trajectory.reported == {"exact": 1.0, "reward": 2.0, "latency": 0.1}
    assert assembled.quarantined == (
        Quarantined("reward", "6", "unknown_call"),
        Quarantined("reward", "7", "not_finite"),
        Quarantined("reward", "8", "not_finite"),
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 3),
            st.sampled_from(["stop", "length", "tool_calls", "abort"]),
        ),
        max_size=12,
    )
)
def test_every_call_is_a_transition_or_quarantined(shapes: list[tuple[str, int, int, int, types.FinishReason]]) -> None:
    calls = [
        make_call(
            name,
            number,
            prompt_ids=np.ones(prompt, np.int32),
            response_ids=np.ones(response, np.int32),
            rollout_logps=np.zeros(logps, np.float32),
            finish_reason=finish,
        )
        for number, (name, prompt, response, logps, finish) in enumerate(shapes)
    ]
    assembled = assemble(make_sealed(calls[::-1]), NO_NAMES)
    transitions = assembled.trajectory.transitions
    assert Counter(call.call_id for call in calls) == Counter(t.call_id for t in transitions) + Counter(
        item.identity for item in assembled.quarantined
    )
    assert [t.index for t in transitions] == list(range(len(transitions)))
    assert all(t.response_ids.shape == t.rollout_logps.shape and t.response_ids.size > 0 for t in transitions)
