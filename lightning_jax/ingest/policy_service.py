"""PolicyService: new weights arrive in chunks and reach the policy server whole and verified, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import policy_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store

logger = logging.getLogger(__name__)
FORMAT = "safetensors"
IDLE_S = 10.0  # a look in between: another server on the same PostgreSQL may have published something
PolicyCallback = Callable[[types.PolicyVersion, bytes], None]


def content_digest(data: bytes | bytearray | memoryview) -> str:
    """Hex BLAKE2b-256 of an upload's bytes."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


class PolicyService:
    """Hands complete uploads to ``on_policy``, one at a time; it raises ValueError for weights it cannot take."""

    def __init__(self, store: Store, on_policy: PolicyCallback | None, closing: Callable[[], bool]) -> None:
        self._store = store
        self._closing = closing
        self._on_policy = on_policy
        self._lock = asyncio.Lock()
        self._current: types.PolicyVersion | None = None

    async def PublishPolicy(
        self, request_iterator: AsyncIterator[pb.PublishPolicyRequest], context: Any
    ) -> pb.PublishPolicyResponse:
        """Take one version. What this process has already taken is not read again."""
        async with answered(context):
            if self._on_policy is None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no policy server is attached to this process")
                return pb.PublishPolicyResponse()
            parts = aiter(request_iterator)
            first = await anext(parts, None)
            if first is None or first.WhichOneof("part") != "header":
                raise ValueError("the first message of an upload must be its header")
            header = first.header
            policy = convert.policy_of(header.policy)
            if header.format != FORMAT:
                raise ValueError(f"policy format is {header.format!r}; this server takes {FORMAT!r}")
            await asyncio.to_thread(self._store.check_policy, policy)
            if policy == self._current:
                return pb.PublishPolicyResponse(already_published=True)
            data = await _receive(parts, header)
            # Uploads may overlap, handing over may not; a stalled upload holds nobody up.
            async with self._lock:
                if policy == self._current:
                    return pb.PublishPolicyResponse(already_published=True)
                await asyncio.to_thread(self._on_policy, policy, data)
                await asyncio.wrap_future(self._store.record_policy(policy))
                self._current = policy
        logger.info("policy version %d (%d bytes, digest %s) is published", policy.version, len(data), policy.digest)
        return pb.PublishPolicyResponse()

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Any) -> pb.GetPolicyResponse:
        """Say which version was published last: to this process, or to those before it that had this store."""
        async with answered(context):
            latest = await self._latest()
        if latest is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no policy version was published to this server yet")
            return pb.GetPolicyResponse()
        return pb.GetPolicyResponse(policy=convert.policy_message(latest))

    async def WatchPolicy(self, request: pb.WatchPolicyRequest, context: Any) -> AsyncIterator[pb.WatchPolicyResponse]:
        """Send the last version, then each new one; a slow watcher may miss versions in between, never the last."""
        sent: types.PolicyVersion | None = None
        async with answered(context):
            while True:
                seen = self._store.policy_signal.count
                latest = await self._latest()
                if latest is not None and latest != sent:
                    sent = latest
                    yield pb.WatchPolicyResponse(policy=convert.policy_message(latest))
                if self._closing():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping; watch the next one")
                await self._store.policy_signal.changed(seen, IDLE_S)

    async def _latest(self) -> types.PolicyVersion | None:
        return await asyncio.to_thread(self._store.latest_policy)


async def _receive(parts: AsyncIterator[pb.PublishPolicyRequest], header: pb.PolicyHeader) -> bytes:
    """The announced bytes. Raises ValueError where size or digest do not match."""
    chunks: list[bytes] = []
    received = 0
    async for part in parts:
        received += len(part.chunk)
        if part.WhichOneof("part") != "chunk" or received > header.size_bytes:
            break
        chunks.append(part.chunk)
    data = b"".join(chunks)
    if received != header.size_bytes:
        raise ValueError(
            f"policy version {header.policy.version} announced {header.size_bytes} bytes and sent {received}; "
            f"publish it again"
        )
    digest = await asyncio.to_thread(content_digest, data)
    if digest != header.content_digest:
        raise ValueError(
            f"policy version {header.policy.version} arrived with content digest {digest}, announced was "
            f"{header.content_digest}; it was damaged on the way: publish it again"
        )
    return data
