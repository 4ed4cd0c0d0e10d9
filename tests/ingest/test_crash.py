"""What was acknowledged is there after SIGKILL, once: the server is a process of its own and is shot under load."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from lightning_jax import types
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import make_call, make_rollout
from tests.ingest.otlp import Exporter, make_request, make_span
from tests.ingest.processes import LONG_ONLY, ROOT, ServerProcess


class Load:
    """Clients that write calls, rewards and spans as fast as they can, and remember what was acknowledged."""

    def __init__(self, target: str, attempt: types.Attempt, first: int) -> None:
        self.calls: set[str] = set()
        self.rewards: set[str] = set()
        self.spans: set[tuple[int, int]] = set()
        self.failures: list[BaseException] = []  # whatever a writer met but for the server's end
        self._client = IngestClient(target, patience_s=0)
        self._exporter = Exporter(target)
        self._attempt, self._numbers = attempt, iter(range(first, first + 10**6))
        self._lock = threading.Lock()
        writers: tuple[Callable[[int], None], ...] = (self._call, self._reward, self._span)
        self._threads = [threading.Thread(target=self._write, args=(write,)) for write in writers * 2]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)
        self._client.close()
        self._exporter.close()

    def _write(self, write: Callable[[int], None]) -> None:
        while True:
            with self._lock:
                number = next(self._numbers)
            try:
                write(number)
            except StoreUnavailable:
                return
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    self.failures.append(error)
                return
            except BaseException as failure:  # in a thread nobody else would see it
                self.failures.append(failure)
                return

    def _call(self, number: int) -> None:
        call = make_call(self._attempt, number)
        assert self._client.record_calls([call]) == {}
        self.calls.add(call.call_id)

    def _reward(self, number: int) -> None:
        self._client.record_rewards([types.Reward(f"w{number}", "r", "r.1", 1.0)])
        self.rewards.add(f"w{number}")

    def _span(self, number: int) -> None:
        self._exporter.send(make_request(*(make_span(n, trace=number + 1) for n in (1, 2))), self._attempt.api_key)
        self.spans |= {(number + 1, 1), (number + 1, 2)}


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=LONG_ONLY)])
def test_acknowledged_is_there_once_after_sigkill(store_url: str, rounds: int) -> None:
    chance = random.Random(rounds)
    acknowledged = Load.__new__(Load)
    acknowledged.calls, acknowledged.rewards, acknowledged.spans = set(), set(), set()
    attempt: types.Attempt | None = None
    for number in range(rounds):
        with ServerProcess(store_url) as process:
            if attempt is None:
                with IngestClient(process.target) as client:
                    client.enqueue([make_rollout("r")])
                    (attempt,) = client.claim("w", 1, 600.0)
            load = Load(process.target, attempt, number * 10**6)
            time.sleep(0.2 + chance.random() * 0.6)
            process.end(signal.SIGKILL)
            load.join()
        assert load.failures == []
        acknowledged.calls |= load.calls
        acknowledged.rewards |= load.rewards
        acknowledged.spans |= load.spans
    assert attempt is not None
    assert acknowledged.calls
    assert acknowledged.rewards
    assert acknowledged.spans
    with Store(store_url) as store:
        # The attempt goes on where it was.
        assert store.complete(attempt.attempt_id, types.Outcome("succeeded")).result() == "sealed"
        (sealed,) = store.sealed_after(0)
    calls = [call.call_id for call in sealed.calls]
    rewards = [reward.reward_id for reward in sealed.rewards]
    spans = [(int.from_bytes(s.trace_id, "big"), int.from_bytes(s.span_id, "big")) for s in sealed.spans]
    for stored, expected in ((calls, acknowledged.calls), (rewards, acknowledged.rewards), (spans, acknowledged.spans)):
        assert len(stored) == len(set(stored))
        assert expected <= set(stored)


RUNNER = """
import sys, time
from lightning_jax.ingest.client import IngestClient
client = IngestClient(sys.argv[1])
(attempt,) = client.claim("doomed", 1, 1.0)
print(attempt.attempt_id, flush=True)
while True:
    client.heartbeat([attempt.attempt_id])
    time.sleep(0.2)
"""


def test_a_killed_runners_rollout_is_claimed_again_and_its_late_calls_stay_out(sqlite_url: str) -> None:
    with ServerProcess(sqlite_url) as process, IngestClient(process.target) as client:
        client.enqueue([make_rollout("r", max_attempts=2)])
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, process.target], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert runner.stdout is not None
        assert runner.stdout.readline().strip() == "r.1"
        first = types.Attempt(make_rollout("r"), "r.1", 1, "", "", 1.0)
        assert client.record_calls([make_call(first, 0)]) == {}
        time.sleep(1.5)  # longer than the lease: the heartbeats hold it
        assert client.claim("other", 1, 60.0) == []
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        runner.stdout.close()
        (second,) = client.claim("other", 1, 60.0, wait_s=20.0)
        assert second.attempt_id == "r.2"
        assert list(client.record_calls([make_call(first, 1)])) == ["r.1-c1"]
        assert client.record_calls([make_call(second, 0)]) == {}
        assert client.complete("r.2", types.Outcome("succeeded")) == "sealed"
        (sealed,) = client.sealed("learner", idle_s=0.5)
        assert [call.call_id for call in sealed.calls] == ["r.2-c0"]
