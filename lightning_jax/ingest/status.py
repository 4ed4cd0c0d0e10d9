"""Errors of the store and of bad input as gRPC statuses, in one place, so that clients know what to retry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, StoreUnavailable, UnknownAttempt
from lightning_jax.ingest.pace import TooLate
from lightning_jax.ingest.retry_info import RETRY_DELAY_S, retry_trailers

_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (AttemptEnded, grpc.StatusCode.FAILED_PRECONDITION),
    (UnknownAttempt, grpc.StatusCode.NOT_FOUND),
    (IdentityConflict, grpc.StatusCode.ALREADY_EXISTS),
    (TooLate, grpc.StatusCode.DEADLINE_EXCEEDED),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)


@asynccontextmanager
async def answered(context: Any) -> AsyncIterator[None]:
    """Abort the RPC with the status of an error raised inside; an error that is no one's fault but ours goes on."""
    try:
        yield
    except StoreUnavailable as error:
        await come_back(context, str(error))
    except tuple(kind for kind, _ in _CODES) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        await context.abort(code, str(error))


async def come_back(context: Any, message: str) -> None:
    """Abort with UNAVAILABLE and the time after which to repeat the very same request."""
    code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, message, retry_trailers(code, message, RETRY_DELAY_S))
