"""How tool calls went, by what requests and spans show; a time-out is never a success."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax import types
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.tools import judged
from lightning_jax.assemble.trajectory import assemble
from tests.assemble.conftest import captured_spans, make_call, make_sealed, make_span

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]


def conversation(name: str, arguments: str, answer: str | None, *, responses: bool = False) -> list[types.Call]:
    """A call that uses a tool, and the call after it whose request shows how that went."""
    if responses:
        tools: list[Any] = [{"type": "function", "name": "search", "parameters": SCHEMA}]
        history: list[Any] = [{"type": "function_call", "call_id": "call_a_0", "name": name, "arguments": arguments}]
        if answer is not None:
            history.append({"type": "function_call_output", "call_id": "call_a_0", "output": answer})
        key = "input"
    else:
        tools, key = TOOLS, "messages"
        function = {"name": name, "arguments": arguments}
        history = [{"role": "assistant", "tool_calls": [{"id": "call_a_0", "type": "function", "function": function}]}]
        if answer is not None:
            history.append({"role": "tool", "tool_call_id": "call_a_0", "content": answer})
    start = [{"role": "user", "content": "hi"}]
    return [
        make_call("a", 0, finish_reason="tool_calls", request={key: start, "tools": tools}, agent_key="k"),
        make_call("b", 1, request={key: start + history, "tools": tools}, agent_key="k"),
    ]


def first_tool(
    calls: list[types.Call], spans: list[types.Span] | None = None, status: str = "succeeded"
) -> types.ToolUse:
    sealed = make_sealed(calls, spans or [])
    sealed = replace(sealed, outcome=types.Outcome(status))  # type: ignore[arg-type]
    (tool,) = assemble(sealed, AgentNaming()).trajectory.transitions[0].tools
    return tool


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "answer", "verdict", "code"),
    [
        ("search", '{"query": "x"}', "Paris", "ok", 0),
        ("search", '{"query": "x"}', "", "ok", 0),
        ("search", '{"query": "x"}', "A document that mentions a timeout and HTTP 500 in passing.", "ok", 0),
        ("search", '{"query": "x"}', '{"error_count": 0}', "ok", 0),
        ("search", '{"query": ', "whatever", "invalid_json", 0),
        ("search", '{"q": 1}', "whatever", "schema_mismatch", 0),
        ("search", '{"query": 3}', "whatever", "schema_mismatch", 0),
        ("serach", '{"query": "x"}', "whatever", "unknown_tool", 0),
        ("search", '{"query": "x"}', None, "unanswered", 0),
        ("search", '{"query": "x"}', "Error executing tool search: boom", "tool_error", 0),
        ("search", '{"query": "x"}', "An error occurred while running the tool. Please try again.", "tool_error", 0),
        ("search", '{"query": "x"}', "ValueError: no such table", "tool_error", 0),
        ("search", '{"query": "x"}', "external API HTTP 503 upstream unavailable", "http_error", 503),
        ("search", '{"query": "x"}', "HTTPError: 404 Client Error: Not Found", "http_error", 404),
        ("search", '{"query": "x"}', "external API HTTP 504 upstream timed out", "timeout", 504),
        ("search", '{"query": "x"}', "TimeoutError: read timed out", "timeout", 0),
        ("search", '{"query": "x"}', "The request timed out.", "timeout", 0),
    ],
)  # fmt: skip
def test_verdicts_by_the_wire(
    responses: bool, name: str, arguments: str, answer: str | None, verdict: str, code: int
) -> None:
    tool = first_tool(conversation(name, arguments, answer, responses=responses))
    assert (tool.verdict, tool.status_code, tool.name, tool.arguments) == (verdict, code, name, arguments)
    assert tool.tool_call_id == "call_a_0"


def test_a_tool_call_that_nobody_repeats_is_read_from_the_text() -> None:
    text = 'so\n<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    call = make_call("a", finish_reason="tool_calls", text=text, request={"tools": TOOLS})
    assert first_tool([call], status="crashed").verdict == "unanswered"
    for bare in (
        '{"name": "search", "arguments": {"query": "x"}}',
        '<|python_tag|>{"name": "search", "parameters": {}}',
    ):
        assert first_tool([replace(call, text=bare)], status="crashed").name == "search"
    # All that the policy server takes for calls: a list of them, fenced, wrapped.
    both = '```json\n[{"name": "search", "arguments": "{}"}, {"function": {"name": "f", "arguments": {}}}]\n```'
    (transition,) = assemble(make_sealed([replace(call, text=both)]), AgentNaming()).trajectory.transitions
    assert [tool.name for tool in transition.tools] == ["search", "f"]
    # The final answer of a run that ended well is a tool call nobody answers: unseen, so no success.
    assert first_tool([call]).verdict == "unknown"
    assert first_tool([replace(call, text="<tool_call>{nonsense}</tool_call>")]).verdict == "invalid_json"
    assert first_tool([replace(call, text=text.removesuffix("</tool_call>"))], status="crashed").name == "search"
    assert first_tool([replace(call, text=text[:50])]).verdict == "invalid_json"  # cut off
    assert first_tool([replace(call, text="no trace of it")]).verdict == "unknown"


def tool_span(number: int = 1, parent: int = 0, scope: str = "autogen-core", **attributes: str) -> types.Span:
    return make_span(scope, number, parent, **{
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.tool.call.id": "call_a_0",
        **attributes,
    })  # fmt: skip


def http_span(number: int, parent: int, code: str, trace: bytes = b"t" * 16) -> types.Span:
    attributes = {"http.url": "http://api.example/search", "http.status_code": code}
    return make_span("opentelemetry.instrumentation.requests", number, parent, trace, **attributes)


LOST = http_span(2, 0, "500", b"u" * 16)


@pytest.mark.parametrize(
    ("spans", "verdict", "code"),
    [
        ([tool_span()], "ok", 0),
        ([tool_span(**{"error.type": "ValueError"})], "tool_error", 0),
        ([tool_span(**{"error.type": "TimeoutError"})], "timeout", 0),
        ([tool_span(), http_span(2, 1, "200")], "ok", 0),
        ([tool_span(), http_span(2, 1, "404")], "http_error", 404),
        ([tool_span(), http_span(2, 1, "504")], "timeout", 504),
        # A request whose context was lost belongs to the one tool that ran meanwhile.
        ([replace(tool_span(), start_ns=5, end_ns=20), replace(LOST, start_ns=6, end_ns=9)], "http_error", 500),
        ([replace(tool_span(), start_ns=5, end_ns=20), replace(LOST, start_ns=6, end_ns=99)], "ok", 0),
    ],
)  # fmt: skip
def test_spans_overrule_an_answer_that_hides_the_error(spans: list[types.Span], verdict: str, code: int) -> None:
    tool = first_tool(conversation("search", '{"query": "x"}', "fine"), spans)
    assert (tool.verdict, tool.status_code) == (verdict, code)
    assert tool.latency_s is not None


def test_the_worse_of_two_layers_holds() -> None:
    calls = conversation("search", '{"query": "x"}', "TimeoutError: read timed out")
    assert first_tool(calls, [tool_span()]).verdict == "timeout"
    assert first_tool(conversation("search", '{"query": "x"}', None), [tool_span()]).verdict == "ok"
    wrong = conversation("search", '{"q": "x"}', "fine")
    assert first_tool(wrong, [tool_span(**{"error.type": "ReadTimeout"})]).verdict == "timeout"


def renamed(capture: str, old: str) -> list[types.Span]:
    """A capture whose server numbered its tool calls, with an id as ours hands out (same length: bytes stay valid)."""
    return [replace(span, body=span.body.replace(old.encode(), b"call_aa_0")) for span in captured_spans(capture)]


def replayed(name: str, arguments: Mapping[str, str], answer: str) -> list[types.Call]:
    calls = conversation(name, json.dumps(arguments), answer)
    text = (
        json.dumps([call.request for call in calls]).replace("call_a_0", "call_aa_0").replace('"search"', f'"{name}"')
    )
    first, second = json.loads(text.replace('"required": ["query"]', '"required": []'))
    return [replace(calls[0], call_id="aa", request=first), replace(calls[1], request=second)]


@pytest.mark.parametrize(
    ("capture", "old", "name", "arguments", "answer", "verdict", "code"),
    [
        # The model was told a fixed sentence; only the HTTP child says what happened.
        ("agents__oi_agents+requestsHTTPERR", "call_0924", "search", {"query": "6*7"},
         "An error occurred while running the tool. Please try again.", "http_error", 404),
        # The request lies in a trace of its own.
        ("langchain__oi_langchain+requestsHTTPERR", "call_0000", "run_sql", {"query": "6*7"}, "x", "http_error", 404),
        ("langchain__oi_langchainERR", "call_0000", "run_sql", {"query": "6*7"}, "x", "timeout", 504),
        # OpenInference calls it a success, AutoGen's own span does not.
        ("autogen__oi_autogenERR", "call_0144", "calculator", {"expression": "6*7"}, "fine", "timeout", 504),
    ],
)  # fmt: skip
def test_failures_of_real_frameworks_are_seen(
    capture: str, old: str, name: str, arguments: dict[str, str], answer: str, verdict: str, code: int
) -> None:
    tool = first_tool(replayed(name, arguments, answer), renamed(capture, old))
    assert (tool.verdict, tool.status_code) == (verdict, code)


def test_answers_are_read_once_however_long_the_conversation_grows() -> None:
    calls, messages = [], [{"role": "user", "content": "hi"}]
    for number in range(50):
        calls.append(
            make_call(f"c{number}", number, agent_key="k", request={"messages": list(messages), "tools": TOOLS})
        )
        function = {"name": "search", "arguments": '{"query": "x"}'}
        identity = f"call_c{number}_0"
        messages.append({"role": "assistant", "tool_calls": [{"id": identity, "function": function}]})  # type: ignore[dict-item]
        messages.append({"role": "tool", "tool_call_id": identity, "content": f"answer {number}"})
    transitions = assemble(make_sealed(calls), AgentNaming()).trajectory.transitions
    assert [len(t.tools) for t in transitions] == [1] * 49 + [0]
    assert {tool.verdict for t in transitions for tool in t.tools} == {"ok"}


@given(st.text(max_size=60), st.integers(0, 599))
def test_no_failure_is_ever_judged_a_success(message: str, code: int) -> None:
    assert judged(message, code).verdict in ("timeout", "http_error", "tool_error")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda x: st.lists(x) | st.dictionaries(
        st.sampled_from(
            ["role", "content", "tool_calls", "id", "function", "name", "arguments", "type", "call_id", "output",
             "tool_call_id", "parameters", "$ref", "properties"]
        ), x), max_leaves=12,
)  # fmt: skip


@given(JSON, JSON, JSON, st.text(max_size=20))
def test_no_request_harms_the_assembler(messages: Any, tools: Any, history: Any, text: str) -> None:
    written = f"<tool_call>{json.dumps(history)}</tool_call>{text}"
    calls = [
        make_call("a", 0, request={"messages": messages, "tools": tools}, text=written),
        make_call(
            "b", 1, request={"input": history, "tools": [{"function": tools}, tools]}, finish_reason="tool_calls"
        ),
    ]
    assert len(assemble(make_sealed(calls), AgentNaming()).trajectory.transitions) == 2
