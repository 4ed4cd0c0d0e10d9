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


def handed_out(*calls: tuple[str, str, str, types.ToolVerdict]) -> tuple[types.IssuedToolCall, ...]:
    return tuple(types.IssuedToolCall(*fields) for fields in calls)


def test_what_was_handed_out_is_judged_not_what_the_agent_repeats() -> None:
    """An agent mends arguments and leaves calls out; the policy wrote what it wrote."""
    first, second = conversation("search", '{"query": "mended"}', "fine")
    made = handed_out(
        ("call_a_0", "search", '{"query": ', "invalid_json"),
        ("call_a_1", "search", '{"query": "left out"}', "unanswered"),
        ("call_a_2", "search", "", "invalid_json"),
        ("", "", "{nonsense", "invalid_json"),
    )
    first = replace(first, tool_calls=made)
    transition = assemble(make_sealed([first, second]), AgentNaming()).trajectory.transitions[0]
    assert [(t.tool_call_id, t.arguments) for t in transition.tools] == [
        ("call_a_0", '{"query": '), ("call_a_1", '{"query": "left out"}'), ("call_a_2", ""), ("", "{nonsense")
    ]  # fmt: skip
    # Of the second nothing was seen while the agent went on: unknown, never a success.
    assert [t.verdict for t in transition.tools] == ["invalid_json", "unknown", "invalid_json", "invalid_json"]
    none = replace(first, tool_calls=(), text="<tool_call>shown, not made</tool_call>")
    assert assemble(make_sealed([none]), AgentNaming()).trajectory.transitions[0].tools == ()


SHOWN = "Calling tools:\n[{'id': 'call_a_0', 'type': 'function', 'function': {'name': 'search', 'arguments': %s}}]"


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Observation:\nParis", "ok"),
        ("Observation:\n", "ok"),
        ("Error:\nError executing tool 'search': TimeoutError: timed out", "timeout"),
        ("Call id: call_a_0\nError:\nNo such table: x\nNow let's retry: take care", "tool_error"),
        ("Something else", "unanswered"),
    ],
)
def test_agents_that_repeat_calls_as_text(recorded: bool, parts: bool, answer: str, verdict: str) -> None:
    def content(text: str) -> Any:
        return [{"type": "text", "text": text}] if parts else text

    first, second = conversation("search", '{"query": "x"}', None)
    start = [{"role": "user", "content": content("New task:\nfind it")}]
    history = [
        {"role": "assistant", "content": content(SHOWN % "{'query': 'x'}")},
        {"role": "user", "content": content(answer)},
    ]
    made = handed_out(("call_a_0", "search", '{"query": "x"}', "unanswered")) if recorded else None
    first = replace(first, tool_calls=made, request={"messages": start, "tools": TOOLS})
    second = replace(second, request={"messages": start + history, "tools": TOOLS})
    tool = first_tool([first, second])
    assert (tool.tool_call_id, tool.name, json.loads(tool.arguments)) == ("call_a_0", "search", {"query": "x"})
    assert tool.verdict == verdict


def test_a_call_without_a_trace_in_what_follows_is_unknown() -> None:
    first, second = conversation("search", '{"query": "x"}', None)
    first = replace(first, tool_calls=handed_out(("call_a_0", "search", '{"query": "x"}', "unanswered")))
    second = replace(second, request={"messages": [{"role": "user", "content": "I found Paris."}], "tools": TOOLS})
    assert first_tool([first, second]).verdict == "unknown"
    assert first_tool([first], status="crashed").verdict == "unanswered"


def test_a_retry_that_went_well_is_no_failure() -> None:
    failed, good = http_span(2, 1, "503"), replace(http_span(3, 1, "200"), start_ns=2, end_ns=3)
    calls = conversation("search", '{"query": "x"}', "fine")
    assert first_tool(calls, [tool_span(), failed, good]).verdict == "ok"
    assert first_tool(calls, [tool_span(), replace(good, start_ns=0), failed]).verdict == "http_error"


def test_calls_of_sub_agents_are_no_external_requests() -> None:
    """Whether they are known by the attempt's URL or, with nothing but a key, by the call made meanwhile."""

    def ask(number: int, url: str, code: str, start: int, end: int) -> types.Span:
        attributes = {"http.url": url, "http.status_code": code}
        span = make_span("opentelemetry.instrumentation.httpx", number, 1, **attributes)
        return replace(span, start_ns=start, end_ns=end)

    calls = conversation("search", '{"query": "x"}', "fine")  # the second call runs from 10 to 15
    tool = replace(tool_span(), start_ns=0, end_ns=50)
    refused = ask(2, "http://policy:8000/v1/chat/completions", "429", 1, 2)
    served = ask(3, "http://policy:8000/v1/chat/completions", "200", 5, 20)
    other = ask(4, "https://api.example/v1/chat/completions", "429", 1, 2)
    late = ask(5, "http://policy:8000/v1/responses", "503", 30, 31)
    assert first_tool(calls, [tool, refused, served, late]).verdict == "ok"
    assert first_tool(calls, [tool, other, served]).verdict == "http_error"
    path = "http://policy:8000/rollout/r/attempt/r.1/v1/chat/completions"
    assert first_tool(calls, [tool, ask(2, path, "503", 1, 2)]).verdict == "ok"


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
