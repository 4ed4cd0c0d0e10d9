"""Bodies of OTLP/HTTP: read and unpacked within what was admitted, never beyond the limit; and refusals.

Invariant: no byte is held that an Admission does not count, but for one part of a body (64 KiB) that decides.
"""

from __future__ import annotations

import asyncio
import zlib

import grpc
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightning_jax.ingest.admission import Admission
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES

READ_S = 60.0  # a body that takes longer gives its place to others
LINGER_S = 3.0  # how long what a refused client still sends is read and dropped, so that it sees its answer
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_STEP = 1024 * 1024  # bytes unpacked at a time


class Refused(Exception):
    """A request that will never be taken as it is: its HTTP status, and the gRPC status that the answer's body names.

    ``unread``: more of it is to come than anybody wants to read, so that the connection must end.
    """

    def __init__(self, http: int, code: grpc.StatusCode, message: str, *, unread: bool = False) -> None:
        super().__init__(message)
        self.http, self.code, self.unread = http, code, unread


def announced(request: Request) -> int:
    """Bytes of the body as its headers announce them, 0 where they don't. Raises Refused for what nobody can take."""
    encoding = _encoding(request)
    if encoding not in ("", "identity", *_WINDOWS):
        message = f"content-encoding is {encoding!r}; send gzip, deflate or none"
        raise Refused(415, grpc.StatusCode.INVALID_ARGUMENT, message)
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdigit() else 0
    if size > MAX_REQUEST_BYTES:
        raise _too_large(f"{size} bytes")
    return size


async def read(request: Request, admission: Admission) -> bytes:
    """The unpacked body. ``admission`` holds what `announced` said; more is added as it comes.

    Raises Refused, ValueError where it is not what its encoding says, StoreUnavailable where there is no more room or
    the body does not come within READ_S.
    """
    parts, size, held = [], 0, announced(request)
    try:
        async with asyncio.timeout(READ_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_REQUEST_BYTES:
                    raise _too_large(f"more than {MAX_REQUEST_BYTES} bytes")
                if size > held:
                    admission.add("bytes", size - held)
                    held = size
                parts.append(part)
    except ClientDisconnect as error:
        raise Refused(499, grpc.StatusCode.CANCELLED, "the client left before its request was read") from error
    except TimeoutError as error:
        message = f"the body did not come within {READ_S:g} s ({size} bytes did); send less at a time"
        raise StoreUnavailable(message) from error
    packed, encoding = b"".join(parts), _encoding(request)
    if encoding not in _WINDOWS:
        return packed
    return await asyncio.to_thread(_unpacked, packed, _WINDOWS[encoding], admission)


def _encoding(request: Request) -> str:
    return request.headers.get("content-encoding", "identity").strip().lower()


def _unpacked(packed: bytes, window: int, admission: Admission) -> bytes:
    """Inflate step by step: a bomb costs what was admitted, no more."""
    inflater, pieces, size = zlib.decompressobj(window), [b""], 0
    try:
        while not inflater.eof and (packed or pieces[-1]):  # what a step leaves over may be output alone
            pieces.append(inflater.decompress(packed, _STEP))
            packed = inflater.unconsumed_tail
            size += len(pieces[-1])
            if size > MAX_REQUEST_BYTES:
                raise _too_large(f"more than {MAX_REQUEST_BYTES} bytes unpacked", unread=False)
            admission.add("bytes", len(pieces[-1]))
    except zlib.error as error:
        raise ValueError(f"the body is not what its content-encoding says: {error}") from error
    if not inflater.eof:
        raise ValueError("the compressed body ends too early")
    if inflater.unused_data:
        raise ValueError(f"{len(inflater.unused_data)} bytes follow the compressed body; send it as one stream")
    return b"".join(pieces)


def _too_large(what: str, *, unread: bool = True) -> Refused:
    message = f"the request has {what}, the limit is {MAX_REQUEST_BYTES}; send less"
    return Refused(413, grpc.StatusCode.RESOURCE_EXHAUSTED, message, unread=unread)


class LastAnswer(Response):
    """The last answer on its connection, given while the client may still be sending.

    Closing at once would reset the connection, and the client would see that instead of its answer. So what it sends
    is read and dropped for a while; nothing of it is kept.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, linger, close."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
