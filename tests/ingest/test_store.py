"""The store alone: what it acknowledges it has, once, in order, and fenced."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax import types
from lightning_jax.ingest import convert
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, StoreUnavailable, UnknownAttempt
from lightning_jax.ingest.records import call_of, call_row
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.writer import Transaction
from tests.ingest.conftest import Clock, claim_one, make_call, make_rollout

DONE = types.Outcome("succeeded", {"answer": 42})
json_objects = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5),
)


def same_call(a: types.Call, b: types.Call) -> bool:
    arrays = ("prompt_ids", "response_ids", "rollout_logps")
    exact = all(
        getattr(a, name).dtype == getattr(b, name).dtype and getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in arrays
    )
    others = [name for name in a.__dataclass_fields__ if name not in arrays]
    return exact and all(getattr(a, name) == getattr(b, name) for name in others)


@st.composite
def calls(draw: st.DrawFn) -> types.Call:
    response = draw(st.lists(st.integers(0, 2**31 - 1), max_size=6))
    logps = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(response), max_size=len(response)))
    return types.Call(
        call_id=draw(st.text("abc123", min_size=1)),
        rollout_id="r",
        attempt_id="r.1",
        sequence=draw(st.integers(0, 1000)),
        prompt_ids=np.array(draw(st.lists(st.integers(0, 2**31 - 1), max_size=6)), dtype=np.int32),
        response_ids=np.array(response, dtype=np.int32),
        rollout_logps=np.array(logps, dtype=np.float32),
        sampling=types.SamplingParams(
            temperature=draw(st.floats(0, 2)),
            top_p=draw(st.floats(0, 1)),
            max_tokens=draw(st.integers(1, 4096)),
            seed=draw(st.integers(0, 2**32 - 1)),
            stop=tuple(draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=2))),
            kept_mass=draw(st.floats(0, 1)),
        ),
        policy_version=draw(st.integers(0, 2**40)),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls", "abort"])),
        agent_key=draw(st.text("abcdef", max_size=8)),
        started_ns=draw(st.integers(0, 2**62)),
        ended_ns=draw(st.integers(0, 2**62)),
        request=draw(json_objects),
        text=draw(st.text(st.characters(codec="utf-8"), max_size=20)),
    )


@given(calls())
def test_a_call_survives_row_and_wire_bit_for_bit(call: types.Call) -> None:
    assert same_call(call_of(call_row(call)), call)
    wire = convert.call_pb2.Call.FromString(convert.call_message(call).SerializeToString())
    assert same_call(convert.call_of(wire), call)


def test_sealed_attempt_holds_what_was_recorded_and_survives_the_wire(store: Store) -> None:
    attempt = claim_one(store)
    recorded = [make_call(attempt, number) for number in (1, 0)]
    for call in recorded:
        store.record_call(call).result()
    store.record_rewards([types.Reward("w1", "r", "", 0.5, {"exact": 1.0}, recorded[0].call_id)]).result()
    assert store.complete(attempt.attempt_id, DONE).result() == "sealed"
    (sealed,) = store.sealed_after(0)
    assert sealed.rollout == make_rollout("r")
    assert sealed.outcome == DONE
    assert [call.sequence for call in sealed.calls] == [0, 1]
    assert all(same_call(a, b) for a, b in zip(sealed.calls, recorded[::-1], strict=True))
    assert sealed.rewards == (types.Reward("w1", "r", "r.1", 0.5, {"exact": 1.0}, recorded[0].call_id),)
    wire = convert.transition_pb2.SealedAttempt.FromString(convert.sealed_message(sealed).SerializeToString())
    again = convert.sealed_of(wire)
    assert (again.cursor, again.rollout, again.outcome, again.rewards) == (
        sealed.cursor,
        sealed.rollout,
        sealed.outcome,
        sealed.rewards,
    )
    assert store.sealed_after(sealed.cursor) == []


def test_everything_is_idempotent(store: Store) -> None:
    batch = [make_rollout("a"), make_rollout("b")]
    assert store.enqueue_rollouts(batch).result() == 2
    assert store.enqueue_rollouts([*batch, make_rollout("c")]).result() == 1
    attempt = store.claim("w", 1, 30.0, "http://h").result()[0]
    for _ in range(2):
        store.record_call(make_call(attempt, 0)).result()
    reward = types.Reward("w1", "a", "a.1", 1.0)
    assert [store.record_rewards([reward]).result() for _ in range(2)] == [1, 0]
    assert store.complete("a.1", DONE).result() == "sealed"
    assert store.complete("a.1", types.Outcome("failed")).result() == "already_ended"
    # Repeated after the end: still acknowledged, since it is stored.
    store.record_call(make_call(attempt, 0)).result()
    assert store.record_rewards([reward]).result() == 0
    (sealed,) = store.sealed_after(0)
    assert (len(sealed.calls), len(sealed.rewards), sealed.outcome) == (1, 1, DONE)


def test_an_id_that_comes_again_with_other_content_is_refused(store: Store) -> None:
    attempt = claim_one(store)
    store.record_call(make_call(attempt, 0)).result()
    with pytest.raises(IdentityConflict, match=r"5 tokens .* 6"):
        store.record_call(make_call(attempt, 0, tokens=6)).result()
    other = types.Rollout("r", "another task", 0, "train", 1, {}, types.SamplingDefaults())
    with pytest.raises(IdentityConflict, match="another task"):
        store.enqueue_rollouts([other]).result()


def test_rollouts_are_claimed_in_order_each_once(store: Store) -> None:
    names = [f"r{number}" for number in range(7)]
    store.enqueue_rollouts([make_rollout(name) for name in names]).result()
    futures = [store.claim(f"w{number}", 2, 30.0, "http://h:1/") for number in range(5)]
    claimed = [attempt for future in futures for attempt in future.result()]
    assert [attempt.rollout.rollout_id for attempt in claimed] == names
    assert claimed[0].base_url == "http://h:1/rollout/r0/attempt/r0.1/v1"
    assert len({attempt.api_key for attempt in claimed}) == 7


def test_a_repeated_claim_returns_the_same_attempts_with_keys_that_work(store: Store) -> None:
    store.enqueue_rollouts([make_rollout("a"), make_rollout("b")]).result()
    lost = store.claim("w", 1, 30.0, "http://h", "claim-1").result()[0]
    again = store.claim("w", 1, 30.0, "http://h", "claim-1").result()[0]
    assert again.attempt_id == lost.attempt_id == "a.1"
    assert store.authorize(lost.api_key) is None
    grant = store.authorize(again.api_key)
    assert grant is not None
    assert grant.attempt_id == "a.1"


def test_a_lapsed_lease_gives_the_rollout_to_another_attempt_and_fences_the_first(store_url: str) -> None:
    clock = Clock()
    with Store(store_url, clock=clock) as store:
        first = claim_one(store, max_attempts=2)
        store.record_call(make_call(first, 0)).result()
        clock.advance(20)
        assert store.heartbeat([first.attempt_id, "nobody.1"]).result() == ["nobody.1"]
        clock.advance(20)
        assert store.claim("w2", 1, 30.0, "http://h").result() == []
        clock.advance(11)
        (second,) = store.claim("w2", 1, 30.0, "http://h").result()
        assert (second.attempt_id, second.number) == ("r.2", 2)
        with pytest.raises(AttemptEnded, match="lost"):
            store.record_call(make_call(first, 1)).result()
        assert store.complete(first.attempt_id, DONE).result() == "already_ended"
        store.record_call(make_call(second, 0)).result()
        clock.advance(31)
        # No attempt is left: the upkeep seals it by itself, with the calls of the last attempt only.
        (sealed,) = store.wait_sealed(0, 10.0)
        assert sealed.outcome.status == "lost"
        assert "'w2'" in sealed.outcome.reason
        assert [call.call_id for call in sealed.calls] == ["r.2-c0"]
        assert store.counts().quarantined == {("call", "late_call"): 1}


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed"])
def test_a_failure_is_retried_while_attempts_are_left(store: Store, status: types.AttemptStatus) -> None:
    attempt = claim_one(store, max_attempts=2)
    outcome = types.Outcome(status, {}, "tool broke")
    assert store.complete(attempt.attempt_id, outcome).result() == "requeued"
    assert store.sealed_after(0) == []
    (second,) = store.claim("w", 1, 30.0, "http://h").result()
    assert store.complete(second.attempt_id, outcome).result() == "sealed"
    assert store.sealed_after(0)[0].outcome == outcome
    assert [vars_of(status) for status in store.rollout_statuses(["r", "unknown"])] == [("r", "sealed", 2, status)]


def vars_of(status: object) -> tuple[object, ...]:
    return tuple(getattr(status, name) for name in ("rollout_id", "state", "attempts", "status"))


def test_cancel_seals_queued_and_running_rollouts(store: Store) -> None:
    attempt = claim_one(store, "a", max_attempts=3)
    store.record_call(make_call(attempt, 0)).result()
    store.enqueue_rollouts([make_rollout("b")]).result()
    assert store.cancel(["a", "b", "unknown"], "enough").result() == 2
    assert store.cancel(["a", "b"]).result() == 0
    sealed = store.sealed_after(0)
    assert [(s.attempt_id, s.outcome.status, len(s.calls)) for s in sealed] == [
        ("a.1", "cancelled", 1),
        ("", "cancelled", 0),
    ]
    assert store.heartbeat(["a.1"]).result() == ["a.1"]
    grant = store.authorize(attempt.api_key)
    assert grant is not None
    assert grant.status == "cancelled"


def test_late_rewards_and_spans_do_not_change_what_is_sealed(store: Store) -> None:
    attempt = claim_one(store)
    store.complete(attempt.attempt_id, DONE).result()
    before = store.sealed_after(0)
    with pytest.raises(AttemptEnded):
        store.record_rewards([types.Reward("late", "r", "", 1.0)]).result()
    span = types.Span(b"t" * 16, b"s" * 8, b"", "r", "r.1", "late", "scope", 1, 2, b"")
    assert store.record_spans([span, span]).result() == 1
    assert store.sealed_after(0) == before


def test_unknown_identities_are_refused(store: Store) -> None:
    attempt = claim_one(store)
    assert store.attempt_grant("r", "r.9") is None
    assert store.attempt_grant("other", attempt.attempt_id) is None
    assert store.authorize("ljx-made-up") is None
    assert store.authorize("\ud800") is None
    with pytest.raises(UnknownAttempt):
        store.complete("r.9", DONE).result()
    foreign = types.Reward("w", "unknown", "", 1.0)
    with pytest.raises(UnknownAttempt):
        store.record_rewards([foreign]).result()


def test_one_bad_operation_does_not_harm_its_group(store: Store) -> None:
    attempt = claim_one(store)

    def broken(transaction: object) -> None:
        raise ZeroDivisionError("a bug")

    good = [store.record_call(make_call(attempt, number)) for number in range(3)]
    bad = store._writer.submit(broken)
    late = store.record_call(make_call(attempt, 3))
    for future in (*good, late):
        future.result()
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert [call.sequence for call in store.list_calls(attempt.attempt_id)] == [0, 1, 2, 3]


def test_grants_and_leases_survive_a_restart_and_keys_are_not_on_disk(sqlite_url: str, tmp_path: Path) -> None:
    clock = Clock()
    with Store(sqlite_url, clock=clock) as store:
        attempt = claim_one(store)
    clock.advance(1000)  # the server was down for longer than the lease
    with Store(sqlite_url, clock=clock) as store:
        grant = store.authorize(attempt.api_key)
        assert grant is not None
        assert (grant.rollout, grant.attempt_id, grant.status) == (attempt.rollout, "r.1", "running")
        assert store.heartbeat(["r.1"]).result() == []
        store.record_call(make_call(attempt, 0)).result()
    secret = attempt.api_key.encode()
    assert all(secret not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/db"])
def test_unusable_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"store\.url"):
        Store(url)


def test_a_locked_database_is_unavailable_and_works_again_later(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_jax.ingest.database.BUSY_TIMEOUT_MS", 50)
    with Store(sqlite_url) as store:
        attempt = claim_one(store)
        blocker = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            store.record_call(make_call(attempt, 0)).result()
        blocker.execute("ROLLBACK")
        blocker.close()
        store.record_call(make_call(attempt, 0)).result()


def test_a_full_disk_is_unavailable_and_loses_nothing_acknowledged(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        attempt = claim_one(store)
        store.record_call(make_call(attempt, 0)).result()

        def limit(pages: str) -> Callable[[Transaction], None]:
            def apply(transaction: Transaction) -> None:
                used = transaction.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
                transaction.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages.format(used=used)}")

            return apply

        store._writer.submit(limit("{used}")).result()
        with pytest.raises(StoreUnavailable, match="full"):
            store.record_call(make_call(attempt, 1, tokens=100_000)).result()
        store._writer.submit(limit("1000000")).result()
        store.record_call(make_call(attempt, 1, tokens=100_000)).result()
        assert [len(call.response_ids) for call in store.list_calls(attempt.attempt_id)] == [5, 100_000]


def test_after_close_operations_are_refused_and_queued_ones_are_written(store_url: str) -> None:
    store = Store(store_url)
    attempt = claim_one(store)
    queued = [store.record_call(make_call(attempt, number)) for number in range(50)]
    store.close()
    assert all(future.exception() is None for future in queued)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.heartbeat([attempt.attempt_id]).result()


@pytest.mark.parametrize(
    "rollout",
    [
        types.Rollout("a/b", "t", 0, "train", 0, {}, types.SamplingDefaults()),
        types.Rollout("..", "t", 0, "train", 0, {}, types.SamplingDefaults()),
        types.Rollout("a", "t", 0, "train", 2**63, {}, types.SamplingDefaults()),
        types.Rollout("a", "t", 0, "train", 0, {"x": object()}, types.SamplingDefaults()),
        types.Rollout("a", "t", 0, "train", 0, {}, types.SamplingDefaults(), max_attempts=0),
    ],
)
def test_rollouts_that_cannot_run_are_refused_at_once(store: Store, rollout: types.Rollout) -> None:
    with pytest.raises(ValueError, match="rollout"):
        store.enqueue_rollouts([rollout])


def test_acknowledgements_never_move_back(store: Store) -> None:
    assert store.acked("learner") == 0
    assert [store.ack("learner", cursor).result() for cursor in (5, 3, 8)] == [5, 5, 8]
    assert store.acked("learner") == 8
    assert store.acked("other") == 0
