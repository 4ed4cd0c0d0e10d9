"""CallService: calls that a policy server outside this process sampled. Admins only: a call is training data."""

from __future__ import annotations

import asyncio
from typing import Any

from lightning_jax._proto.lightning.v1 import call_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.errors import StoreRefusal
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store


class CallService:
    """Records and lists calls."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def RecordCalls(self, request: pb.RecordCallsRequest, context: Any) -> pb.RecordCallsResponse:
        """Store calls, each on its own: a late or malformed one is answered as rejected, the others are stored."""
        rejected: list[pb.RejectedCall] = []
        futures = []
        async with answered(context):
            for message in request.calls:
                try:
                    futures.append((message.call_id, self._store.record_call(convert.call_of(message))))
                except ValueError as error:
                    rejected.append(pb.RejectedCall(call_id=message.call_id, reason=str(error)))
            for call_id, future in futures:
                try:
                    await asyncio.wrap_future(future)
                except StoreRefusal as refusal:
                    rejected.append(pb.RejectedCall(call_id=call_id, reason=str(refusal)))
        return pb.RecordCallsResponse(rejected=rejected)

    async def ListCalls(self, request: pb.ListCallsRequest, context: Any) -> pb.ListCallsResponse:
        """Return the calls of an attempt."""
        async with answered(context):
            calls = await asyncio.to_thread(self._store.list_calls, request.attempt_id)
        return pb.ListCallsResponse(calls=[convert.call_message(call) for call in calls])
