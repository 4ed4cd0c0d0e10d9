"""Whose spans are these? From the strongest evidence to the weakest, and never by guessing.

Order: the bearer token of the export; resource attributes; per span, an attempt's URL or a stored call's response id;
last, the other spans of the same trace, where all that are placed agree. What stays unplaced is kept and put aside with
a reason. W3C trace context alone decides nothing: it is absent or separate in half of the agents' instrumentations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax import types
from lightning_jax.ingest.auth import Caller
from lightning_jax.ingest.convert import span_of
from lightning_jax.ingest.quarantine import Quarantine
from lightning_jax.ingest.references import RESPONSE_ID, attempt_in
from lightning_jax.ingest.spans import span_identity
from lightning_jax.ingest.store import Store

ROLLOUT_ATTRIBUTE = "ljx.rollout_id"
ATTEMPT_ATTRIBUTE = "ljx.attempt_id"
_URL_ATTRIBUTES = frozenset({"http.url", "url.full", "gen_ai.openai.api_base"})
Identity = tuple[str, str]  # rollout_id, attempt_id


@dataclass
class Placement:
    """What one export came to."""

    spans: list[types.Span] = field(default_factory=list)
    aside: list[Quarantine] = field(default_factory=list)
    rejected: int = 0  # spans without a usable identity of their own: these cannot be stored
    message: str = ""
    adoptions: dict[bytes, Identity] = field(default_factory=dict)  # traces whose earlier spans are now placed too


def span_count(request: ExportTraceServiceRequest) -> int:
    """How many spans a request holds."""
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def place(request: ExportTraceServiceRequest, caller: Caller, store: Store) -> Placement:
    """Place every span of a request. Reads the store, writes nothing."""
    result = Placement()
    named: dict[int, str] = {}  # index in result.spans -> attempt id that its resource names, not known yet
    unplaced: dict[int, tuple[Any, str]] = {}  # index in result.spans -> protobuf span, reason so far
    for resource_spans in request.resource_spans:
        identity, reason, attempt = _resource_identity(resource_spans.resource.attributes, caller, store)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                if not (_valid(span.trace_id, 16) and _valid(span.span_id, 8)):
                    _reject(result, span)
                    continue
                if identity is None:
                    unplaced[len(result.spans)] = (span, reason)
                    named[len(result.spans)] = attempt
                result.spans.append(span_of(span, scope_spans.scope.name, *(identity or ("", ""))))
    if unplaced:
        _place_by_span(result, unplaced, store)
        _place_by_trace(result, unplaced, store)
        for index, (_span, reason) in unplaced.items():
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


def _place_by_span(result: Placement, unplaced: dict[int, tuple[Any, str]], store: Store) -> None:
    """Place spans that carry an attempt's URL or the id of a stored call."""
    candidates: dict[int, list[str]] = {}
    for index, (span, _reason) in list(unplaced.items()):
        identity = _url_identity(span, store)
        if identity is not None:
            _settle(result, unplaced, index, identity)
        elif call_ids := list(_call_ids(span)):
            candidates[index] = call_ids
    known = store.call_identities(sorted({call_id for ids in candidates.values() for call_id in ids}))
    for index, call_ids in candidates.items():
        owners = {known[call_id] for call_id in call_ids if call_id in known}
        if len(owners) == 1:
            _settle(result, unplaced, index, owners.pop())


def _place_by_trace(result: Placement, unplaced: dict[int, tuple[Any, str]], store: Store) -> None:
    """Let placed spans speak for the rest of their trace, stored or in this request, where they agree."""
    traces = {result.spans[index].trace_id for index in unplaced} | {
        span.trace_id for span in result.spans if span.rollout_id
    }
    owners = store.trace_owners(sorted(traces))
    for span in result.spans:
        if span.rollout_id:
            owners.setdefault(span.trace_id, set()).add((span.rollout_id, span.attempt_id))
    agreed = {trace_id: next(iter(pairs)) for trace_id, pairs in owners.items() if len(pairs) == 1}
    for index in list(unplaced):
        trace_id = result.spans[index].trace_id
        if trace_id in agreed:
            _settle(result, unplaced, index, agreed[trace_id])
        elif len(owners.get(trace_id, ())) > 1:
            unplaced[index] = (unplaced[index][0], "ambiguous_trace")
    result.adoptions = agreed


def _settle(result: Placement, unplaced: dict[int, tuple[Any, str]], index: int, identity: Identity) -> None:
    result.spans[index] = replace(result.spans[index], rollout_id=identity[0], attempt_id=identity[1])
    del unplaced[index]


def _url_identity(span: Any, store: Store) -> Identity | None:
    for text in _texts(span.attributes, _URL_ATTRIBUTES):
        identity = attempt_in(text)
        if identity is not None and store.attempt_grant(*identity) is not None:
            return identity
    return None


def _call_ids(span: Any) -> Iterator[str]:
    for text in _texts(span.attributes, {"gen_ai.response.id", "output.value"}):
        # A model can write anything, but only ids of stored calls count, and those it never sees.
        for match in RESPONSE_ID.finditer(text):
            yield match[1]


def _texts(attributes: Any, keys: Iterable[str]) -> list[str]:
    return [item.value.string_value for item in attributes if item.key in keys]
