"""What was acknowledged is there after SIGKILL: the server is a process of its own and is shot while it writes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from lightning_jax import types
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import make_call, make_rollout

SERVER = """
import sys, time
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
server = IngestServer(Store(sys.argv[1]), http_root="http://127.0.0.1:9")
print(server.start(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("round_number", range(3))
def test_acknowledged_is_committed(store_url: str, round_number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVER, store_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    target = f"127.0.0.1:{process.stdout.readline().strip()}"
    acknowledged: list[str] = []
    with IngestClient(target, patience_s=0) as client:
        client.enqueue([make_rollout("r")])
        (attempt,) = client.claim("w", 1, 600.0)

        def write(worker: int) -> None:
            for number in range(10_000):
                call = make_call(attempt, worker * 10_000 + number)
                try:
                    assert client.record_calls([call]) == {}
                except StoreUnavailable:
                    return
                acknowledged.append(call.call_id)

        writers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
        for writer in writers:
            writer.start()
        time.sleep(0.5 + random.Random(round_number).random() / 2)
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join()
    process.wait()
    process.stdout.close()
    assert len(acknowledged) > 0
    with Store(store_url) as store:
        stored = {call.call_id for call in store.list_calls(attempt.attempt_id)}
        assert set(acknowledged) <= stored
        # The attempt goes on where it was.
        assert store.complete(attempt.attempt_id, types.Outcome("succeeded")).result() == "sealed"
