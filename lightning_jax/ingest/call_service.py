"""CallService: calls that a policy server outside this process sampled. Admins only: a call is training data."""

from __future__ import annotations

import asyncio
from typing import Any

from lightning_jax._proto.lightning.v1 import call_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.intake import Intake
from lightning_jax.ingest.records import call_row
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store


class CallService:
    """Records and lists calls."""

    def __init__(self, store: Store, intake: Intake) -> None:
        self._store, self._intake = store, intake

    async def RecordCalls(self, request: pb.RecordCallsRequest, context: Any) -> pb.RecordCallsResponse:
        """Store calls, each on its own: a late or malformed one is answered as rejected, the others are stored."""
        rejected: dict[str, str] = {}
        async with answered(context):
            with self._intake.place(request, context):
                batch = await asyncio.to_thread(_readable, request, rejected)
                refused = await asyncio.wrap_future(self._store.record_call_rows(batch))
            rejected |= {call_id: str(refusal) for call_id, refusal in refused.items()}
        return pb.RecordCallsResponse(
            rejected=[pb.RejectedCall(call_id=call_id, reason=reason) for call_id, reason in rejected.items()]
        )

    async def ListCalls(self, request: pb.ListCallsRequest, context: Any) -> pb.ListCallsResponse:
        """Return the calls of an attempt."""
        async with answered(context):
            messages = await asyncio.to_thread(self._listed, request.attempt_id)
        return pb.ListCallsResponse(calls=messages)

    def _listed(self, attempt_id: str) -> list[pb.Call]:
        """In a thread: thousands of calls would hold up the event loop, and with it everybody's health checks."""
        return [convert.call_message(call) for call in self._store.list_calls(attempt_id)]


def _readable(request: pb.RecordCallsRequest, rejected: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of the calls that can be stored; why the others cannot goes to `rejected`, by call id."""
    batch = []
    for message in request.calls:
        try:
            batch.append(call_row(convert.call_of(message)))
        except ValueError as error:
            rejected[message.call_id] = str(error)
    return batch
