"""Which call a span stands for: every dialect, every rung of the ladder, and a reason for what joins nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax import types
from lightning_jax.assemble.conventions import facts_of, reader_of
from lightning_jax.assemble.dialects import gen_ai, http, open_inference, pydantic_ai, traceloop
from lightning_jax.assemble.facts import SpanFacts
from lightning_jax.assemble.joins import Reading, read_spans
from lightning_jax.assemble.naming import AgentNaming, speakers
from lightning_jax.assemble.trajectory import assemble
from tests.assemble.conftest import captured_spans, make_call, make_sealed, make_span
from tests.assemble.test_naming import soup_spans

OI = "openinference.instrumentation.openai"
GENAI = "opentelemetry.util.genai.handler"
OLLMETRY = "opentelemetry.instrumentation.openai.v1"


def facts(span: types.Span) -> SpanFacts:
    found = facts_of(span)
    assert found is not None
    return found


def joined(reading: Reading) -> dict[int, str]:
    return {int.from_bytes(span_id, "big"): call_id for (_, span_id), call_id in reading.calls.items()}


def reasons(reading: Reading) -> dict[int, str]:
    return {int.from_bytes(span_id, "big"): reason for (_, span_id), reason in reading.quarantined.items()}


@pytest.mark.parametrize(
    ("scope", "reader"),
    [
        ("openinference.instrumentation.langchain", open_inference),
        ("opentelemetry.util.genai.handler", gen_ai),
        ("opentelemetry.instrumentation.openai_v2", gen_ai),
        ("opentelemetry.instrumentation.openai.v1", traceloop),
        ("opentelemetry.instrumentation.langchain", traceloop),
        ("traceloop.tracer", traceloop),
        ("pydantic-ai", pydantic_ai),
        ("autogen-core", gen_ai),
        ("opentelemetry.instrumentation.httpx", http),
        ("opentelemetry.instrumentation.requests", http),
    ],
)
def test_a_scope_decides_the_dialect(scope: str, reader: object) -> None:
    assert reader_of(scope) is reader


PARTS = '[{"role":"assistant","parts":[{"type":"text","content":"42"},{"type":"tool_call","id":"call_a_0"}]}]'


def test_old_and_new_names_of_gen_ai_say_the_same() -> None:
    common = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "chatcmpl-a"}
    new = make_span(GENAI, 1, **common, **{
        "gen_ai.usage.input_tokens": "11", "gen_ai.usage.output_tokens": "5",
        "gen_ai.output.messages": PARTS,
    })  # fmt: skip
    old = make_span(OLLMETRY, 2, **common, **{
        "gen_ai.usage.prompt_tokens": "11", "gen_ai.usage.completion_tokens": "5",
        "gen_ai.completion.0.content": "42", "gen_ai.completion.0.tool_calls.0.id": "call_a_0",
    })  # fmt: skip
    expected = SpanFacts(
        kind="llm", call_ids=frozenset("a"), tool_call_ids=frozenset("a"), content="42",
        prompt_tokens=11, completion_tokens=5,
    )  # fmt: skip
    assert facts(new) == facts(old) == expected


def test_tool_spans_of_each_dialect_say_the_same() -> None:
    spans = [
        make_span("autogen-core", 1, **{
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "gen_ai.tool.call.id": "call_a_0",
            "gen_ai.tool.call.arguments": "{}", "gen_ai.tool.call.result": "2",
        }),
        make_span("pydantic-ai", 2, **{
            "gen_ai.tool.name": "add", "gen_ai.tool.call.id": "call_a_0", "tool_arguments": "{}", "tool_response": "2",
        }),
        make_span(OI, 3, **{
            "openinference.span.kind": "TOOL", "tool.name": "add", "tool_call.id": "call_a_0", "input.value": "{}",
            "output.value": "2",
        }),
        make_span("traceloop.tracer", 4, **{
            "traceloop.span.kind": "tool", "traceloop.entity.name": "add", "traceloop.entity.input": "{}",
            "traceloop.entity.output": "2", "gen_ai.tool.call.id": "call_a_0",
        }),
    ]  # fmt: skip
    expected = SpanFacts(kind="tool", tool="add", tool_call_id="call_a_0", arguments="{}", result="2")
    assert [facts(span) for span in spans] == [expected] * 4


def test_real_captures_yield_tokens_errors_and_statuses() -> None:
    (chat,) = captured_spans("openai__openai_v2")
    assert (facts(chat).prompt_tokens, facts(chat).completion_tokens) == (11, 5)
    for capture in ("langchain__oi_langchain+requestsHTTPERR", "agents__oi_agents+requestsHTTPERR"):
        requests = [facts(span) for span in captured_spans(capture) if span.scope.endswith(".requests")]
        assert [(found.kind, found.status_code) for found in requests] == [("http", 404)]
    tool = next(s for s in captured_spans("langchain__oi_langchainERR") if s.name == "run_sql")
    assert facts(tool).error.startswith("TimeoutError: external API HTTP 504")
    core = next(s for s in captured_spans("autogen__oi_autogenERR") if s.name.startswith("execute_tool"))
    assert (facts(core).tool, facts(core).error[:12]) == ("calculator", "TimeoutError")
    failed = [facts(span) for span in captured_spans("llm_error__openai_v2")]
    assert all(found.is_llm for found in failed)
    assert any(found.error for found in failed)


def test_the_ladder_from_proof_to_content() -> None:
    calls = [make_call(name, number, text=f"answer {name}") for number, name in enumerate("abcdefg")]
    blob = json.dumps({"id": "resp_b", "output": []})
    tool = json.dumps({"content": [{"id": "call_c_0", "arguments": "{}"}]})
    spans = [
        make_span(GENAI, 1, **{"gen_ai.response.id": "chatcmpl-a", "gen_ai.operation.name": "chat"}),
        make_span(OI, 2, **{"openinference.span.kind": "LLM", "output.value": blob}),
        make_span(OI, 3, **{"openinference.span.kind": "LLM", "output.value": tool}),
        make_span(OI, 4, **{"openinference.span.kind": "LLM", "llm.output_messages.0.message.content": " answer d\n"}),
        # A response id is followed even where weaker evidence points elsewhere.
        make_span("mystery", 5, **{
            "gen_ai.response.id": "chatcmpl-e", "openinference.span.kind": "LLM", "output.value": blob,
        }),
        # No call of that id is here, whatever its text says.
        make_span(GENAI, 6, **{"gen_ai.response.id": "chatcmpl-x", "gen_ai.completion.0.content": "answer f"}),
        make_span(OI, 7, **{"openinference.span.kind": "LLM", "output.value": "who knows"}),
        make_span(OI, 8, **{"openinference.span.kind": "CHAIN", "output.value": blob}),
    ]  # fmt: skip
    reading = read_spans(calls, spans)
    assert joined(reading) == {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}
    assert reasons(reading) == {6: "no_call", 7: "no_call"}


def test_equal_answers_are_told_apart_by_time_or_not_at_all() -> None:
    second = 10**9
    calls = [
        make_call(name, number, text="ok", started_ns=100 * number * second, ended_ns=(100 * number + 5) * second)
        for number, name in enumerate("ab")
    ]
    attributes = {"openinference.span.kind": "LLM", "llm.output_messages.0.message.content": "ok"}
    inside = replace(make_span(OI, 1, **attributes), start_ns=101 * second, end_ns=104 * second)
    skewed = replace(make_span(OI, 2, **attributes), start_ns=9000 * second, end_ns=9001 * second)
    reading = read_spans(calls, [inside, skewed])
    assert joined(reading) == {1: "b"}
    assert reasons(reading) == {2: "no_call"}
    # With one candidate only, the agent's clock does not matter.
    assert joined(read_spans(calls[:1], [skewed])) == {2: "a"}


def test_nested_spans_of_one_call_collapse_and_share_the_name() -> None:
    agent = make_span(GENAI, 1, **{"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"})
    outer = make_span(OLLMETRY, 2, parent=1, **{"gen_ai.response.id": "chatcmpl-a"})
    inner = make_span(OI, 3, parent=2, **{"openinference.span.kind": "LLM", "output.value": '{"id":"chatcmpl-a"}'})
    call = make_call("a")
    reading = read_spans([call], [inner, outer, agent])
    assert reading.by_call() == {"a": [(inner.trace_id, inner.span_id), (outer.trace_id, outer.span_id)]}
    trajectory = assemble(make_sealed([call], [inner, outer, agent]), AgentNaming()).trajectory
    assert [(t.call_id, t.agent) for t in trajectory.transitions] == [("a", "planner")]


def test_a_span_whose_url_names_another_attempt_is_put_aside() -> None:
    url = "http://h/rollout/r/attempt/r.2/v1/chat/completions"
    spans = [
        make_span("opentelemetry.instrumentation.httpx", 1, **{"http.url": url}),
        make_span("opentelemetry.instrumentation.httpx", 2, **{"url.full": url.replace("r.2", "r.1")}),
    ]
    reading = read_spans([make_call("a")], spans)
    assert reasons(reading) == {1: "other_attempt"}
    assert len(reading.spans) == 1


def test_a_failed_request_is_told_from_a_lost_one() -> None:
    failed = make_span(OI, 1, **{"openinference.span.kind": "LLM", "error.type": "x"})
    body = failed.body + b"\x7a\x02\x18\x02"  # Span.status.code = ERROR
    reading = read_spans([], [replace(failed, body=body), make_span(OI, 2, **{"openinference.span.kind": "LLM"})])
    assert reasons(reading) == {1: "failed_call", 2: "no_call"}


def test_sub_agents_keep_their_order_and_parents() -> None:
    def agent(number: int, name: str, parent: int = 0) -> types.Span:
        return make_span(GENAI, number, parent, **{"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name})

    def llm(number: int, parent: int, call: str) -> types.Span:
        return make_span(GENAI, number, parent, **{"gen_ai.response.id": f"chatcmpl-{call}"})

    spans = [
        agent(1, "boss"), agent(2, "left", 1), agent(3, "right", 1), agent(4, "helper", 3),
        llm(10, 1, "a"), llm(11, 2, "b"), llm(12, 4, "c"), llm(13, 3, "d"), llm(14, 1, "e"),
    ]  # fmt: skip
    calls = [make_call(name, number) for number, name in enumerate("abcde")]
    trajectory = assemble(make_sealed(calls, spans[::-1]), AgentNaming()).trajectory
    assert [(t.call_id, t.agent, t.parents) for t in trajectory.transitions] == [
        ("a", "boss", ()),
        ("b", "left", ("boss",)),
        ("c", "helper", ("right", "boss")),
        ("d", "right", ("boss",)),
        ("e", "boss", ()),
    ]


def test_langchain_keeps_agent_and_node_apart() -> None:
    calls = [make_call("fake0100"), make_call("fake0101", 1)]
    found = speakers(calls, read_spans(calls, captured_spans("langchain__oi_langchain")), AgentNaming())
    assert {(speaker.agent, speaker.node) for speaker in found.values()} == {("sql_agent", "model")}


def test_a_chain_nested_five_thousand_deep_is_walked_once() -> None:
    depth = 5000
    spans = [make_span(GENAI, n, n - 1 if n > 1 else 0, **{"gen_ai.agent.name": f"a{n}"}) for n in range(1, depth + 1)]
    calls = [make_call(f"c{n}", n) for n in range(200)]
    spans += [
        make_span(GENAI, 10_000 + n, depth - n, **{"gen_ai.response.id": f"chatcmpl-c{n}"}) for n in range(len(calls))
    ]
    trajectory = assemble(make_sealed(calls, spans), AgentNaming()).trajectory
    assert [t.agent for t in trajectory.transitions] == [f"a{depth - n}" for n in range(len(calls))]
    assert trajectory.transitions[0].parents[:2] == ("a4999", "a4998")


@given(st.lists(soup_spans(), max_size=8), st.integers(0, 3))
def test_every_span_is_placed_or_put_aside(spans: list[types.Span], count: int) -> None:
    calls = [make_call(name, number) for number, name in enumerate("abc"[:count])]
    assembled = assemble(make_sealed(calls, spans), AgentNaming())
    reading = assembled.reading
    came_in = {(span.trace_id, span.span_id) for span in spans}
    assert set(reading.spans) | set(reading.quarantined) == came_in
    told = {item.identity for item in assembled.quarantined if item.kind == "span"}
    assert told == {f"{trace.hex()}/{span.hex()}" for trace, span in reading.quarantined}
    for identity, fact in reading.facts.items():
        assert (identity in reading.calls) + (identity in reading.quarantined) == (1 if fact.is_llm else 0)
    assert set(reading.calls.values()) <= {call.call_id for call in calls}
