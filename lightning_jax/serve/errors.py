"""Refusals as OpenAI clients know them: a status and `{"error": {message, type, param, code}}`.

Statuses are chosen by what the SDK does with them: it retries 408, 409, 429 and 5xx, and gives up at once on others;
so an ended attempt is 410, never 409.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI's clients turn into a typed exception."""
        return {"error": {"message": self.message, "type": _type(self.status), "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400 for a request that cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str) -> ApiError:
    """429 with a wait short enough that the client's two retries suffice."""
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": "1"})


# Errors of the sink by class name: serve knows no module of ingest, only what its sink may answer.
_SINK_STATUS = {"AttemptEnded": 410, "UnknownAttempt": 404, "StoreUnavailable": 503}


def from_sink(error: Exception, what: str = "the call could not be recorded") -> ApiError:
    """What a client is told when its call could not be stored, or something else failed that it can't mend."""
    status = _SINK_STATUS.get(type(error).__name__, 500)
    headers = {"retry-after": "1"} if status == 503 else None
    return ApiError(status, f"{what}: {error}", code=type(error).__name__, headers=headers)


def unforeseen(error: Exception) -> ApiError:
    """What a client is told of anything else that went wrong on its request: 503 where the store is away, else 500."""
    if type(error).__name__ in _SINK_STATUS:
        return from_sink(error, "the server cannot look this up now")
    return ApiError(500, f"the server failed on this request: {error!r}", code="internal_error")


def _type(status: int) -> str:
    if status in (401, 403):
        return "authentication_error" if status == 401 else "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
