"""How the policy's tool calls went: a verdict from the record and the requests, and a second layer from spans.

Layer one needs no OpenTelemetry: the tool is among those offered, its arguments, as the server handed them out, are
JSON that fits its schema, the next request answers it, and the answer is no error sentence. Layer two sees what
frameworks hide from the model: a tool span's error, and HTTP statuses of the external API below it. A time-out, seen by
either, is never a valid answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax import types
from lightning_jax.assemble.joins import Reading, SpanId
from lightning_jax.assemble.tool_evidence import Replay, replays, tool_schemas, written
from lightning_jax.ingest.references import attempt_in
from lightning_jax.tool_verdicts import judged_call

# An answer that begins like an error: frameworks' own sentences, exceptions by name, HTTP failures.
_ERROR = re.compile(
    r"\s*(?:an error occurred while running the tool|error(?:\b(?: executing tool| invoking tool)?)[^\w]|"
    r"traceback \(most recent|(?:[\w.]+\.)?\w*(?:error|exception|timeout)\b\s*[:(]|"
    r"(?:external )?(?:api )?http(?:/[\d.]+)?[ :]+[45]\d\d|tool .{1,80} not found|.{0,80}\btimed out\b\s*\.?\s*$)",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r"time[d]?[ _-]?out|\b(?:504|408)\b", re.IGNORECASE)
_HTTP = re.compile(
    r"(?:http(?:/[\d.]+)?|status(?: code)?)[ :=]+([45]\d\d)\b|\b([45]\d\d) (?:client|server) error", re.IGNORECASE
)
_LLM_PATH = re.compile(r"/v1/(?:chat/completions|completions|responses|models)/?(?:[?#]|$)")
_TIMEOUT_CODES = (408, 504, 598, 599)
# Worst first: of two layers' verdicts the one that comes earlier here holds.
_SEVERITY: tuple[types.ToolVerdict, ...] = (
    "timeout", "http_error", "invalid_json", "unknown_tool", "schema_mismatch", "tool_error", "unanswered", "unknown",
    "ok",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: types.ToolVerdict
    status_code: int = 0
    detail: str = ""
    latency_s: float | None = None


def tool_uses(
    calls: Sequence[types.Call], reading: Reading, outcome: types.Outcome
) -> dict[str, tuple[types.ToolUse, ...]]:
    """The tool calls of each call that made any, by call id."""
    found = replays(calls)
    spans = _ToolSpans(reading, calls)
    last = calls[-1].call_id if calls else ""
    newest = {call.agent_key: call.call_id for call in calls}
    uses = {}
    for call in calls:
        seen = _made(call, found.get(call.call_id, {}))
        if seen:
            ended_well = call.call_id == last and outcome.status == "succeeded"
            # Where the agent spoke on without a trace of the call, nobody can say whether it was answered.
            hidden = newest[call.agent_key] != call.call_id
            schemas = tool_schemas(call.request)
            uses[call.call_id] = tuple(
                _use(replay, call, schemas, spans, unseen=ended_well or (hidden and not replay.repeated))
                for replay in seen
            )
    return uses


def _made(call: types.Call, found: Mapping[str, Replay]) -> list[Replay]:
    """The tool calls of a call: all that it handed out, where that is recorded; else what requests or its text show."""
    if call.tool_calls is not None:
        return [
            found.get(one.tool_call_id) or Replay("", one.name, one.arguments, verdict=one.verdict)
            for one in call.tool_calls
        ]
    seen = list(found.values())
    if not seen and (call.finish_reason == "tool_calls" or "<tool_call>" in call.text):
        seen = [Replay(f"call_{call.call_id}_{n}", *use) for n, use in enumerate(written(call))]
        seen = seen or [Replay("", "", "")]
    return seen


def _use(
    replay: Replay, call: types.Call, schemas: Mapping[str, Any] | None, spans: _ToolSpans, *, unseen: bool
) -> types.ToolUse:
    wire = _by_wire(replay, schemas, unseen)
    seen = spans.take(replay, call)
    findings = [wire, *([seen] if seen is not None else [])]
    if seen is not None and seen.verdict == "ok" and wire.verdict in ("unanswered", "unknown"):
        findings = [seen]  # the span saw the tool end well; what became of its answer is the agent's affair
    worst = min(findings, key=lambda finding: _SEVERITY.index(finding.verdict))
    return types.ToolUse(
        tool_call_id=replay.tool_call_id,
        name=replay.name,
        arguments=replay.arguments,
        verdict=worst.verdict,
        status_code=next((f.status_code for f in (worst, *findings) if f.status_code), 0),
        detail=worst.detail[:300],
        latency_s=seen.latency_s if seen is not None else None,
    )


def _by_wire(replay: Replay, schemas: Mapping[str, Any] | None, unseen: bool) -> _Finding:
    """Layer one. unseen: that no answer was seen says nothing, as of a call that ends the agent well."""
    verdict, detail = judged_call(replay.name, replay.arguments, schemas)
    if (known := replay.verdict if replay.verdict != "unanswered" else verdict) != "unanswered":
        return _Finding(known, detail=detail)
    if replay.answer is None:
        return _Finding("unknown" if unseen else "unanswered")
    return judged(replay.answer) if _ERROR.match(replay.answer) else _Finding("ok")


def judged(message: str, code: int = 0) -> _Finding:
    """A failure by its words and HTTP status: time-out, HTTP error or plain error."""
    match = _HTTP.search(message)
    code = code or (int(match[1] or match[2]) if match else 0)
    if code in _TIMEOUT_CODES or _TIMEOUT.search(message):
        return _Finding("timeout", code, message)
    return _Finding("http_error" if code >= 400 else "tool_error", code, message)


class _ToolSpans:
    """Layer two: the tool spans of an attempt, each given to one tool call at most."""

    def __init__(self, reading: Reading, calls: Sequence[types.Call]) -> None:
        self._reading = reading
        self._own_hosts = _own_hosts(reading, calls)
        self._by_id: dict[str, list[SpanId]] = {}
        self._by_name: dict[str, list[SpanId]] = {}
        for identity, facts in reading.facts.items():
            if facts.kind != "tool":
                continue
            if facts.tool_call_id:
                self._by_id.setdefault(facts.tool_call_id, []).append(identity)
            else:
                self._by_name.setdefault(facts.tool, []).append(identity)
        self._requests = self._external_requests()

    def take(self, replay: Replay, call: types.Call) -> _Finding | None:
        """What the spans of a tool call say; None where there are none. By id, else the next span of that tool."""
        found = list(self._by_id.get(replay.tool_call_id, ()))
        waiting = self._by_name.get(replay.name, [])
        for position, identity in enumerate(waiting):
            # Spans are in the order they started: the first of this tool with these arguments is the one.
            if self._same(identity, replay) and self._reading.spans[identity].end_ns >= call.started_ns:
                found.append(waiting.pop(position))
                break
        findings = [self._finding(identity) for identity in found]
        return min(findings, key=lambda finding: _SEVERITY.index(finding.verdict)) if findings else None

    def _same(self, identity: SpanId, replay: Replay) -> bool:
        shown = self._reading.facts[identity].arguments
        return not shown or not replay.arguments or _bare(shown) in _bare(replay.arguments) or (
            _bare(replay.arguments) in _bare(shown)
        )  # fmt: skip

    def _finding(self, identity: SpanId) -> _Finding:
        facts, span = self._reading.facts[identity], self._reading.spans[identity]
        latency = max(0, span.end_ns - span.start_ns) / 1e9
        # By the last request to each address: what a retry made good is no failure.
        requests = list({url: (code, error) for url, code, error in self._requests.get(identity, [])}.values())
        code = facts.status_code or next((code for code, _ in requests if code >= 400), 0)
        failed = next((error for _, error in requests if error), "")
        if facts.error or code >= 400 or failed:
            finding = judged(facts.error or failed, code)
            if code < 400 and failed and _TIMEOUT.search(failed):
                finding = judged(failed, 0)
            return _Finding(finding.verdict, finding.status_code, finding.detail, latency)
        if facts.result and _ERROR.match(facts.result):
            finding = judged(facts.result)
            return _Finding(finding.verdict, finding.status_code, finding.detail, latency)
        return _Finding("ok", latency_s=latency)

    def _external_requests(self) -> dict[SpanId, list[tuple[str, int, str]]]:
        """Tool span → (URL, status, error) of the HTTP requests below it, in the order they were made.

        Several frameworks lose the context: a request in a trace of its own belongs to the one tool that ran meanwhile.
        """
        reading = self._reading
        tools = [identity for identity, facts in reading.facts.items() if facts.kind == "tool"]
        found: dict[SpanId, list[tuple[str, int, str]]] = {}
        above: dict[SpanId, SpanId | None] = {}
        for identity, facts in reading.facts.items() if tools else ():
            if facts.kind != "http" or self._is_own(facts.url):
                continue
            owner = self._tool_above(identity, above)
            if owner is None and not reading.spans[identity].parent_id:
                request = reading.spans[identity]
                meanwhile = [
                    tool for tool in tools
                    if reading.spans[tool].start_ns <= request.start_ns and request.end_ns <= reading.spans[tool].end_ns
                ]  # fmt: skip
                owner = meanwhile[0] if len(meanwhile) == 1 else None
            if owner is not None:
                address = facts.url or identity[1].hex()  # of one that tells no address nothing is a retry
                found.setdefault(owner, []).append((address, facts.status_code, facts.error))
        return found

    def _is_own(self, url: str) -> bool:
        """Whether a request went to the policy server: a sub-agent's call is no external API's failure."""
        return attempt_in(url) is not None or (_LLM_PATH.search(url) is not None and _host(url) in self._own_hosts)

    def _tool_above(self, start: SpanId, above: dict[SpanId, SpanId | None]) -> SpanId | None:
        """The nearest tool span among a span's ancestors; remembered, so that chains are walked once."""
        path: list[SpanId] = []
        on_path: set[SpanId] = set()
        identity = start
        owner: SpanId | None = None
        while identity in self._reading.facts and identity not in on_path:
            if identity in above:
                owner = above[identity]
                break
            if self._reading.facts[identity].kind == "tool":
                owner = identity
                break
            path.append(identity)
            on_path.add(identity)
            identity = (identity[0], self._reading.spans[identity].parent_id)
        for below in path:
            above[below] = owner
        return owner


def _own_hosts(reading: Reading, calls: Sequence[types.Call]) -> set[str]:
    """Where the policy server is reached: by an attempt's URL, or by a request during which it made one of the calls.

    Agents with nothing but a key ask a bare /v1 there, as they would ask any other server of OpenAI's API.
    """
    hosts = set()
    for identity, facts in reading.facts.items():
        span = reading.spans[identity]
        if facts.kind != "http" or not facts.url:
            continue
        if attempt_in(facts.url) is not None or (
            _LLM_PATH.search(facts.url) is not None
            and any(span.start_ns <= call.started_ns and call.ended_ns <= span.end_ns for call in calls)
        ):
            hosts.add(_host(facts.url))
    return hosts


def _host(url: str) -> str:
    return url.partition("//")[2].partition("/")[0]


def _bare(text: str) -> str:
    return re.sub(r"[\s\"'\\]", "", text)
