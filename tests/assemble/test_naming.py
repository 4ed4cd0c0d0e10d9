"""Which agent spoke: by prompt, by the spans of real frameworks, and never by a crash."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax import types
from lightning_jax.assemble.conventions import facts_of
from lightning_jax.assemble.joins import read_spans
from lightning_jax.assemble.naming import AgentNaming, speakers, system_prompt
from lightning_jax.assemble.trajectory import assemble
from tests.assemble.conftest import captured_spans, make_call, make_sealed, make_span

OI = "openinference.instrumentation.langchain"
GENAI = "opentelemetry.util.genai.handler"


def names(spans: list[types.Span], *calls: types.Call, naming: AgentNaming | None = None) -> list[str]:
    found = speakers(calls, read_spans(calls, spans), naming or AgentNaming())
    return [found[call.call_id].agent for call in calls]


@pytest.mark.parametrize(
    ("capture", "call_ids", "expected"),
    [
        ("agents__oi_agents", ["fake0121", "fake0122", "fake0123"], ["triage_agent", "search_agent", "search_agent"]),
        (
            "langgraph__oi_langchain",
            ["fake0113", "fake0114", "fake0115", "fake0116"],
            ["write_query", "check_query", "rewrite_query", "check_query"],
        ),
        ("langchain__oi_langchain", ["fake0100", "fake0101"], ["sql_agent", "sql_agent"]),
        # These name no agent: the call keeps the name it has without them.
        ("openai__openai_v2", ["fake0180"], ["key-fake0180"]),
        ("openai__openai_ol", ["fake0060"], ["key-fake0060"]),
        ("openai__oi_openai", ["fake0070"], ["key-fake0070"]),
    ],
)
def test_spans_of_real_frameworks_name_their_agents(capture: str, call_ids: list[str], expected: list[str]) -> None:
    calls = [make_call(call_id, number) for number, call_id in enumerate(call_ids)]
    spans = captured_spans(capture)
    assert names(spans, *calls) == expected
    assert names(spans[::-1], *calls) == expected
    assert names(spans, *calls, naming=AgentNaming(use_spans=False)) == [f"key-{call_id}" for call_id in call_ids]


@pytest.mark.parametrize(
    ("capture", "call_id"),
    [("openai__openai_v2", "fake0180"), ("openai__openai_ol", "fake0060"), ("openai__oi_openai", "fake0070")],
)
def test_every_dialect_yields_the_response_id(capture: str, call_id: str) -> None:
    (span,) = captured_spans(capture)
    facts = facts_of(span)
    assert facts is not None
    assert facts.call_ids | facts.output_ids == {call_id}
    assert facts.is_llm


def test_autogen_is_joined_by_tool_call_ids_and_spreads_to_the_same_agent() -> None:
    spans = captured_spans("autogen__oi_autogen")
    # The capture's server numbered tool calls call_0139; ours are call_{call_id}_{index}.
    renamed = []
    for span in spans:
        body = span.body.replace(b"call_0139", b"call_g9_0")
        renamed.append(replace(span, body=body))
    first, reflect = make_call("g9", 0, agent_key="k"), make_call("h1", 1, agent_key="k")
    other = make_call("i1", 2, agent_key="another")
    assert names(renamed, first, reflect, other) == ["calc_agent", "calc_agent", "another"]


def test_prompts_name_agents_in_order_and_spans_overrule_them() -> None:
    naming = AgentNaming.of({"writer": r"write\s+SQL", "any": ".", "never": "write"})
    assert names([], make_call("a"), naming=naming) == ["writer"]
    assert names([], make_call("a", request={"messages": []}), naming=naming) == ["key-a"]
    attributes = {"gen_ai.response.id": "chatcmpl-a", "gen_ai.agent.name": "sql_agent"}
    span = make_span(GENAI, 1, **attributes)
    assert names([span], make_call("a"), naming=naming) == ["sql_agent"]
    assert names([span], make_call("a"), naming=AgentNaming(naming.patterns, use_spans=False)) == ["writer"]
    with pytest.raises(ValueError, match=r"'x' has the pattern '\('"):
        AgentNaming.of({"x": "("})


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        ({"messages": [{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}]}, "S\nD"),
        ({"messages": [{"role": "system", "content": [{"type": "text", "text": "P"}, {"type": "image_url"}]}]}, "P"),
        ({"instructions": "I", "input": "hi"}, "I"),
        ({"instructions": None, "input": [{"role": "developer", "content": "D"}]}, "D"),
        ({"prompt": "P"}, ""),
        ({"messages": [None, 3, {"role": "system"}, {"role": "user", "content": "U"}]}, ""),
        ({"messages": "nonsense", "input": {"a": 1}}, ""),
    ],
)
def test_system_prompt_of_each_dialect(request_body: dict[str, object], expected: str) -> None:
    assert system_prompt(request_body) == expected


def test_a_span_inherits_from_its_nearest_ancestor_even_in_a_circle() -> None:
    llm = make_span(GENAI, 1, parent=2, **{"gen_ai.response.id": "chatcmpl-a"})
    middle = make_span(OI, 2, parent=3)
    agent = make_span(OI, 3, **{"agent.name": "planner"})
    root = make_span(OI, 4, **{"agent.name": "workflow"})
    assert names([llm, middle, agent, root], make_call("a")) == ["planner"]
    assert names([llm, make_span(OI, 2, parent=1)], make_call("a")) == ["key-a"]
    assert names([llm], make_call("a")) == ["key-a"]


def test_spans_that_disagree_or_speak_for_many_calls_are_not_followed() -> None:
    one = make_span(GENAI, 1, **{"gen_ai.response.id": "chatcmpl-a", "gen_ai.agent.name": "x"})
    two = make_span(GENAI, 2, **{"gen_ai.response.id": "resp_a", "gen_ai.agent.name": "y"})
    assert names([one, two], make_call("a")) == ["key-a"]
    assert names([one, one], make_call("a")) == ["x"]
    both = json.dumps({"outputs": [{"id": "chatcmpl-a"}, {"id": "chatcmpl-b"}]})
    wide = make_span(OI, 3, **{"openinference.span.kind": "LLM", "output.value": both, "agent.name": "z"})
    assert names([wide], make_call("a"), make_call("b")) == ["key-a", "key-b"]


def test_an_output_cut_off_by_an_attribute_limit_still_joins() -> None:
    attributes = {"openinference.span.kind": "LLM", "output.value": '{"id":"chatcmpl-a","choi', "agent.name": "cut"}
    assert names([make_span(OI, 1, **attributes)], make_call("a")) == ["cut"]


KEYS = (
    "gen_ai.response.id",
    "gen_ai.agent.name",
    "agent.name",
    "graph.node.id",
    "metadata",
    "output.value",
    "openinference.span.kind",
    "gen_ai.operation.name",
)
TEXTS = st.sampled_from(
    [
        "",
        "LLM",
        "chatcmpl-a",
        "chatcmpl-",
        "resp_b",
        "null",
        "[" * 5000,
        '{"langgraph_node": 3}',
        '{"id": ["chatcmpl-a"]}',
        '[{"id": "chatcmpl-a"}, {"id": "call_a_0"}]',
        '{"id": "chatcmpl-b"',
    ]
) | st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def soup_spans(draw: st.DrawFn) -> types.Span:
    span = make_span(
        draw(st.sampled_from([OI, GENAI, "autogen-core", "", "mystery"])),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 4)),
        draw(st.sampled_from([b"t" * 16, b"u" * 16])),
        **draw(st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=5)),
    )
    junk = draw(st.none() | st.binary(max_size=30))
    return span if junk is None else replace(span, body=junk)


@given(st.lists(soup_spans(), max_size=8))
def test_no_soup_of_spans_harms_the_tokens(spans: list[types.Span]) -> None:
    calls = [make_call("a", 0), make_call("b", 1)]
    trajectory = assemble(make_sealed(calls, spans), AgentNaming.of({"writer": "SQL"})).trajectory
    assert [t.call_id for t in trajectory.transitions] == ["a", "b"]
    assert all(t.agent for t in trajectory.transitions)
    assert trajectory.transitions[0].response_ids is calls[0].response_ids
