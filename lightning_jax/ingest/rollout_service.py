"""RolloutService: the queue of rollouts over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import rollout_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store

MAX_WAIT_S = 60.0
MAX_CLAIM = 1024


class RolloutService:
    """``http_root`` tells, at claim time, where agents find the policy server (http://host:port).

    ``closing`` says whether the server is about to stop, so that nobody waits for it.
    """

    def __init__(self, store: Store, http_root: Callable[[], str], closing: Callable[[], bool]) -> None:
        self._store = store
        self._closing = closing
        self._http_root = http_root

    async def EnqueueRollouts(self, request: pb.EnqueueRolloutsRequest, context: Any) -> pb.EnqueueRolloutsResponse:
        """Queue rollouts."""
        async with answered(context):
            batch = [convert.rollout_of(message) for message in request.rollouts]
            added = await asyncio.wrap_future(self._store.enqueue_rollouts(batch))
        return pb.EnqueueRolloutsResponse(added=added)

    async def ClaimRollouts(self, request: pb.ClaimRolloutsRequest, context: Any) -> pb.ClaimRolloutsResponse:
        """Start attempts; with nothing queued, wait."""
        attempts: list[types.Attempt] = []
        async with answered(context):
            deadline = time.monotonic() + min(request.wait_s, MAX_WAIT_S)
            while True:
                seen = self._store.claimable_signal.count
                attempts = await asyncio.wrap_future(
                    self._store.claim(
                        request.worker_id,
                        min(request.max_rollouts, MAX_CLAIM),
                        request.lease_s,
                        self._http_root(),
                        request.claim_id,
                        list(request.rollout_ids),
                    )
                )
                left = deadline - time.monotonic()
                if (
                    attempts
                    or left <= 0
                    or self._closing()
                    or not await self._store.claimable_signal.changed(seen, left)
                ):
                    break
        return pb.ClaimRolloutsResponse(attempts=[convert.attempt_message(attempt) for attempt in attempts])

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        """Extend leases."""
        async with answered(context):
            ended = await asyncio.wrap_future(self._store.heartbeat(request.attempt_ids))
        return pb.HeartbeatResponse(ended_attempt_ids=ended)

    async def CompleteAttempt(self, request: pb.CompleteAttemptRequest, context: Any) -> pb.CompleteAttemptResponse:
        """End an attempt."""
        async with answered(context):
            outcome = convert.outcome_of(request.outcome)
            disposition = await asyncio.wrap_future(self._store.complete(request.attempt_id, outcome))
        return pb.CompleteAttemptResponse(disposition=convert.DISPOSITIONS[disposition])

    async def CancelRollouts(self, request: pb.CancelRolloutsRequest, context: Any) -> pb.CancelRolloutsResponse:
        """Seal rollouts as cancelled."""
        async with answered(context):
            cancelled = await asyncio.wrap_future(self._store.cancel(request.rollout_ids, request.reason))
        return pb.CancelRolloutsResponse(cancelled=cancelled)

    async def GetRollouts(self, request: pb.GetRolloutsRequest, context: Any) -> pb.GetRolloutsResponse:
        """Say where rollouts stand."""
        async with answered(context):
            found = await asyncio.to_thread(self._store.rollout_statuses, list(request.rollout_ids))
        return pb.GetRolloutsResponse(rollouts=[convert.progress_message(status) for status in found])
