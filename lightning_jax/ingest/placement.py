"""Whose spans are these? From the strongest evidence to the weakest, and never by guessing.

Order: the bearer token of the export, which is a capability; per span, the response id of a stored call, one inside an
output, a tool-call id, an attempt's URL; the resource's attributes (a process may run several attempts); last, the
other spans of the same trace, where all that are placed agree. What stays unplaced is kept and put aside with a reason.
W3C trace context alone decides nothing: it is absent or separate in half of the agents' instrumentations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax import types
from lightning_jax.ingest.auth import Caller
from lightning_jax.ingest.convert import span_of
from lightning_jax.ingest.evidence import Evidence, evidence_of
from lightning_jax.ingest.quarantine import Quarantine
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE, attempt_in
from lightning_jax.ingest.spans import span_identity
from lightning_jax.ingest.store import Store

Identity = tuple[str, str]  # rollout_id, attempt_id


@dataclass
class Placement:
    """What one export came to."""

    spans: list[types.Span] = field(default_factory=list)
    aside: list[Quarantine] = field(default_factory=list)
    rejected: int = 0  # spans without a usable identity of their own: these cannot be stored
    message: str = ""


def span_count(request: ExportTraceServiceRequest) -> int:
    """How many spans a request holds."""
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def place(request: ExportTraceServiceRequest, caller: Caller, store: Store) -> Placement:
    """Place every span of a request. Reads the store, writes nothing."""
    result = Placement()
    named: dict[int, str] = {}  # index in result.spans -> attempt id that its resource names, not known yet
    unplaced: dict[int, str] = {}  # index in result.spans -> reason so far
    shown: dict[int, Evidence] = {}  # index in result.spans -> what the span shows
    for resource_spans in request.resource_spans:
        identity, reason, attempt = _resource_identity(resource_spans.resource.attributes, caller, store)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                if not (_valid(span.trace_id, 16) and _valid(span.span_id, 8)):
                    _reject(result, span)
                    continue
                index = len(result.spans)
                result.spans.append(span_of(span, scope_spans.scope.name, *(identity or ("", ""))))
                if identity is None:
                    unplaced[index], named[index] = reason, attempt
                if caller.grant is None and (evidence := evidence_of(span, result.spans[index].body)) is not None:
                    shown[index] = evidence
    if shown:
        _place_by_span(result, shown, unplaced, store)
    if unplaced:
        _place_by_trace(result, unplaced, store)
    for index, reason in unplaced.items():
        lost = result.spans[index]
        identity_text = span_identity(lost.trace_id, lost.span_id)
        detail = f"{lost.scope} {lost.name}"
        result.aside.append(Quarantine("span", identity_text, reason, detail, named.get(index, "")))
    return result


def _resource_identity(attributes: Any, caller: Caller, store: Store) -> tuple[Identity | None, str, str]:
    """The identity of all spans of a resource, or None, why, and the attempt that is named but not known yet."""
    if caller.grant is not None:
        return (caller.grant.rollout.rollout_id, caller.grant.attempt_id), "", ""
    named = {item.key: item.value.string_value for item in attributes}
    rollout_id, attempt_id = named.get(ROLLOUT_ATTRIBUTE, ""), named.get(ATTEMPT_ATTRIBUTE, "")
    if not rollout_id and not attempt_id:
        return None, "no_identity", ""
    if store.attempt_grant(rollout_id, attempt_id) is None:
        return None, "unknown_attempt", attempt_id
    return (rollout_id, attempt_id), "", ""


def _valid(identity: bytes, size: int) -> bool:
    return len(identity) == size and any(identity)


def _reject(result: Placement, span: Any) -> None:
    result.rejected += 1
    result.message = (
        f"{result.rejected} spans had a trace_id or span_id that is zero or not of 16 and 8 bytes, "
        f"the last named {span.name[:80]!r}"
    )
    result.aside.append(Quarantine("span", span_identity(span.trace_id, span.span_id), "bad_id", span.name))


def _place_by_span(result: Placement, shown: Mapping[int, Evidence], unplaced: dict[int, str], store: Store) -> None:
    """Place spans by what they show, whatever their resource says."""
    call_ids = {call_id for evidence in shown.values() for rung in evidence.rungs for call_id in rung}
    known = store.call_identities(sorted(call_ids)) if call_ids else {}
    for index, evidence in shown.items():
        identity = _by_call(evidence, known) or _by_url(evidence, store)
        if identity is not None:
            _settle(result, unplaced, index, identity)


def _by_call(evidence: Evidence, known: Mapping[str, Identity]) -> Identity | None:
    """The attempt of the calls on the first rung that names stored ones; None where those are of several attempts."""
    for rung in evidence.rungs:
        owners = {known[call_id] for call_id in rung if call_id in known}
        if owners:
            return owners.pop() if len(owners) == 1 else None
    return None


def _by_url(evidence: Evidence, store: Store) -> Identity | None:
    for url in evidence.urls:
        identity = attempt_in(url)
        if identity is not None and store.attempt_grant(*identity) is not None:
            return identity
    return None


def _place_by_trace(result: Placement, unplaced: dict[int, str], store: Store) -> None:
    """Let placed spans speak for the rest of their trace, stored or in this request, where they agree.

    Spans stored earlier follow when these are (see `spans.adopt`).
    """
    traces = {result.spans[index].trace_id for index in unplaced}
    owners = store.trace_owners(sorted(traces))
    for span in result.spans:
        if span.rollout_id and span.trace_id in traces:
            owners.setdefault(span.trace_id, set()).add((span.rollout_id, span.attempt_id))
    for index in list(unplaced):
        pairs = owners.get(result.spans[index].trace_id, set())
        if len(pairs) == 1:
            _settle(result, unplaced, index, next(iter(pairs)))
        elif pairs:
            unplaced[index] = "ambiguous_trace"


def _settle(result: Placement, unplaced: dict[int, str], index: int, identity: Identity) -> None:
    result.spans[index] = replace(result.spans[index], rollout_id=identity[0], attempt_id=identity[1])
    unplaced.pop(index, None)
