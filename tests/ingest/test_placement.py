"""Whose a span is: every rung of the evidence, in order, and adoption whichever span of a trace comes first."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from lightning_jax import types
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call
from tests.ingest.otlp import Exporter, make_request, make_span

DONE = types.Outcome("succeeded")
RUNGS = ("response", "output", "tool", "url", "resource")


def attempts_with_a_call_each(store: Store) -> dict[str, types.Attempt]:
    """An attempt for each rung, named by it."""
    found = {name: claim_one(store, name) for name in RUNGS}
    for attempt in found.values():
        store.record_call(make_call(attempt, 0)).result()
    return found


def shown(rung: str, attempt: types.Attempt) -> dict[str, str]:
    """The attribute of a span that speaks for an attempt on one rung."""
    call = f"{attempt.attempt_id}-c0"
    return {
        "response": {"gen_ai.response.id": f"chatcmpl-{call}"},
        "output": {"output.value": json.dumps({"id": f"resp_{call}"})},
        "tool": {"gen_ai.tool.call.id": f"call_{call}_0"},
        "url": {"url.full": f"{attempt.base_url}/chat/completions"},
    }[rung]


def owner(store: Store, trace: int) -> set[tuple[str, str]]:
    identity = trace.to_bytes(16, "big")
    return store.trace_owners([identity]).get(identity, set())


def test_each_rung_places_and_an_earlier_one_beats_all_later(exporter: Exporter, store: Store) -> None:
    attempts = attempts_with_a_call_each(store)
    resource = {ROLLOUT_ATTRIBUTE: "resource", ATTEMPT_ATTRIBUTE: "resource.1"}
    for start, rung in enumerate(RUNGS):
        attributes: dict[str, str] = {}
        for name in RUNGS[start:-1]:
            attributes |= shown(name, attempts[name])
        exporter.send(make_request(make_span(1, trace=start + 1, **attributes), resource=resource))
        assert owner(store, start + 1) == {(rung, f"{rung}.1")}
    assert store.counts().quarantined == {}


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.tool.call.id": "call_r.1-c0_3"},
        {"tool_call.id": "call_r.1-c0_0"},
        {"gen_ai.completion.0.tool_calls.0.id": "call_r.1-c0_12"},
        {"llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_r.1-c0_0"},
        {"output.value": '{"tool_calls": [{"id": "call_r.1-c0_1", "type": "function"}]}'},
        {"gen_ai.output.messages": '[{"parts": [{"type": "tool_call", "id": "call_r.1-c0_1"}]}]'},
    ],
)
def test_a_tool_call_id_alone_places_a_span(exporter: Exporter, store: Store, attributes: dict[str, str]) -> None:
    attempt = claim_one(store)
    store.record_call(make_call(attempt, 0)).result()
    exporter.send(make_request(make_span(1, **attributes)))
    assert owner(store, 1) == {("r", "r.1")}


def test_ids_that_nobody_handed_out_place_nothing(exporter: Exporter, store: Store) -> None:
    claim_one(store)
    invented = {"output.value": "chatcmpl-r.1-c0 call_r.1-c0_0", "gen_ai.tool.call.id": "call_r.1-c7_0"}
    exporter.send(make_request(make_span(1, **invented)))
    assert owner(store, 1) == set()
    assert store.counts().quarantined == {("span", "no_identity"): 1}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_trace_is_whole_whichever_of_its_spans_comes_first(
    exporter: Exporter, store: Store, order: tuple[int, ...]
) -> None:
    attempt = claim_one(store)
    batches = (
        ([make_span(1), make_span(2)], ""),  # nobody can place these by themselves
        ([make_span(3)], attempt.api_key),  # wholly placed by its key
        ([make_span(4)], ""),
    )
    for index in order:
        spans, key = batches[index]
        exporter.send(make_request(*spans), key)
    assert store.counts().quarantined == {}
    store.complete(attempt.attempt_id, DONE).result()
    (sealed,) = store.sealed_after(0)
    assert sorted(span.name for span in sealed.spans) == ["span 1", "span 2", "span 3", "span 4"]


def test_what_a_late_span_adopts_does_not_change_what_was_sealed(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    exporter.send(make_request(make_span(1)))
    exporter.send(make_request(make_span(2, trace=2)), attempt.api_key)
    store.complete(attempt.attempt_id, DONE).result()
    (before,) = store.sealed_after(0)
    exporter.send(make_request(make_span(3)), attempt.api_key)
    assert owner(store, 1) == {("r", "r.1")}
    assert store.counts().quarantined == {}
    assert store.counts().spans == 3
    assert store.sealed_after(0) == [before]


def test_a_trace_that_two_attempts_share_adopts_nothing_afterwards(exporter: Exporter, store: Store) -> None:
    first, second = claim_one(store, "a"), claim_one(store, "b")
    exporter.send(make_request(make_span(1)), first.api_key)
    exporter.send(make_request(make_span(2)), second.api_key)
    exporter.send(make_request(make_span(3)))
    exporter.send(make_request(make_span(4)), first.api_key)
    assert store.counts().quarantined == {("span", "ambiguous_trace"): 1}


def test_a_claim_that_places_an_early_span_places_its_trace(exporter: Exporter, store: Store) -> None:
    resource = {ROLLOUT_ATTRIBUTE: "r", ATTEMPT_ATTRIBUTE: "r.1"}
    exporter.send(make_request(make_span(1)))
    exporter.send(make_request(make_span(2), resource=resource))
    claim_one(store)
    assert store.counts().quarantined == {}
    assert owner(store, 1) == {("r", "r.1")}
