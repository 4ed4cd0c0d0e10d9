"""Which call an LLM span stands for, from the strongest evidence to the weakest, and never by guessing.

Order: response id; response id inside the output; tool-call ids of ours; the answer's text with the time window. W3C
trace context decides nothing. A URL that names another attempt rules a span out. Several spans of one call (nested
instrumentations) collapse: they all point to it. What cannot be joined is put aside with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_jax import types
from lightning_jax.assemble.conventions import facts_of
from lightning_jax.assemble.facts import SpanFacts
from lightning_jax.ingest.references import attempt_in

SpanId = tuple[bytes, bytes]  # trace id, span id
_SLACK_NS = 2_000_000_000  # clocks of agent and server differ by less, or the time says nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """The spans of one attempt, read and joined.

    Every span is in `spans` or in `quarantined`; in both are LLM spans that join no call: they still name agents to
    what lies below them.
    """

    spans: Mapping[SpanId, types.Span]  # in the order they started
    facts: Mapping[SpanId, SpanFacts]
    calls: Mapping[SpanId, str]  # call id of each LLM span
    quarantined: Mapping[
        SpanId, str
    ]  # reason: undecodable | duplicate | other_attempt | failed_call | no_call | ambiguous

    def by_call(self) -> dict[str, list[SpanId]]:
        """The spans that stand for each call."""
        found: dict[str, list[SpanId]] = {}
        for identity, call_id in self.calls.items():
            found.setdefault(call_id, []).append(identity)
        return found


def read_spans(calls: Sequence[types.Call], spans: Sequence[types.Span]) -> Reading:
    """Read and join the spans of an attempt. Linear in calls and spans; never raises for what an exporter sent."""
    kept: dict[SpanId, types.Span] = {}
    facts: dict[SpanId, SpanFacts] = {}
    quarantined: dict[SpanId, str] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        identity = (span.trace_id, span.span_id)
        if identity in kept:
            continue  # the same span once more, which a store never holds
        found = facts_of(span)
        if found is None:
            quarantined[identity] = "undecodable"
        elif _foreign(found.url, span.attempt_id):
            quarantined[identity] = "other_attempt"
        else:
            quarantined.pop(identity, None)
            kept[identity], facts[identity] = span, found
    joined, lost = _join(calls, kept, facts)
    return Reading(kept, facts, joined, quarantined | lost)


def _foreign(url: str, attempt_id: str) -> bool:
    named = attempt_in(url)
    return named is not None and bool(attempt_id) and named[1] != attempt_id


def _join(
    calls: Sequence[types.Call], spans: Mapping[SpanId, types.Span], facts: Mapping[SpanId, SpanFacts]
) -> tuple[dict[SpanId, str], dict[SpanId, str]]:
    """(span → call id, span → why it joins none) of the LLM spans."""
    known = {call.call_id for call in calls}
    joined: dict[SpanId, str] = {}
    lost: dict[SpanId, str] = {}
    waiting: list[SpanId] = []
    for identity, fact in facts.items():
        if not fact.is_llm:
            continue
        evidence = [ids & known for ids in (fact.call_ids, fact.output_ids, fact.tool_call_ids)]
        best = next((ids for ids in evidence if ids), frozenset[str]())
        if len(best) == 1:
            joined[identity] = next(iter(best))
        elif len(best) > 1:
            lost[identity] = "ambiguous"  # a span of several calls speaks for none of them
        elif fact.call_ids or fact.output_ids:
            lost[identity] = "no_call"  # it names a call, and that one is not here
        else:
            waiting.append(identity)
    _join_by_content(calls, spans, facts, waiting, joined, lost)
    return joined, lost


def _join_by_content(
    calls: Sequence[types.Call],
    spans: Mapping[SpanId, types.Span],
    facts: Mapping[SpanId, SpanFacts],
    waiting: Sequence[SpanId],
    joined: dict[SpanId, str],
    lost: dict[SpanId, str],
) -> None:
    """Join spans without ids to the call with the same answer; of several, the one whose time overlaps."""
    taken = set(joined.values())
    by_text: dict[str, list[types.Call]] = {}
    for call in calls if waiting else ():
        if call.call_id not in taken and call.text.strip():
            by_text.setdefault(call.text.strip(), []).append(call)
    for identity in waiting:
        fact, span = facts[identity], spans[identity]
        same = by_text.get(fact.content.strip(), []) if fact.content.strip() else []
        if len(same) > 1:
            same = [call for call in same if _overlap(call, span)]
        if len(same) == 1:
            joined[identity] = same[0].call_id
        else:
            lost[identity] = "failed_call" if fact.error else "ambiguous" if same else "no_call"


def _overlap(call: types.Call, span: types.Span) -> bool:
    return call.started_ns <= span.end_ns + _SLACK_NS and span.start_ns <= call.ended_ns + _SLACK_NS
