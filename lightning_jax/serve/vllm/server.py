"""HTTP to a vLLM server: JSON calls, and completions as a stream of events that another thread can end."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit


class VllmError(RuntimeError):
    """The server could not be reached, went silent, or refused. `status` is that of its answer; 0 where none came."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class VllmServer:
    """One connection per call; any thread. The key never appears in an error."""

    def __init__(self, url: str, api_key: str = "", silence_s: float = 120.0) -> None:
        self.url = url.rstrip("/")
        self._parts = urlsplit(self.url)
        self._headers = {"content-type": "application/json", "connection": "close"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._silence_s = silence_s

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0) -> Any:
        """The JSON of the answer, None where it is empty; VllmError for anything but a 2xx."""
        connection = self._open(timeout_s)
        try:
            connection.request(method, self._parts.path + path, _encoded(body), self._headers)
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise VllmError(f"{method} {self.url}{path} failed: {error!r}") from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise VllmError(f"{method} {self.url}{path}: {response.status} {_reason(raw)}", response.status)
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError as error:
            raise VllmError(f"{method} {self.url}{path} answered no JSON: {raw[:200]!r}") from error

    def events(self, path: str, body: Mapping[str, Any]) -> Events:
        """Begin a streamed call."""
        connection = self._open(self._silence_s)
        try:
            connection.request("POST", self._parts.path + path, _encoded(body), self._headers)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise VllmError(f"POST {self.url}{path} failed: {error!r}") from error
        assert connection.sock is not None
        return Events(connection, connection.sock, f"POST {self.url}{path}")

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=timeout_s)


class Events:
    """The server-sent events of one answer, as parsed JSON, up to [DONE]. `abort` may come from another thread."""

    def __init__(self, connection: http.client.HTTPConnection, sock: socket.socket, what: str) -> None:
        self._connection, self._socket, self._what = connection, sock, what

    def __iter__(self) -> Iterator[Any]:
        try:
            response = self._connection.getresponse()
            if response.status != 200:
                raise VllmError(f"{self._what}: {response.status} {_reason(response.read())}", response.status)
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise VllmError(f"{self._what}: {json.dumps(event['error'])[:500]}")
                yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise VllmError(f"{self._what} broke: {error!r}") from error
        raise VllmError(f"{self._what} ended without [DONE]")

    def abort(self) -> None:
        """End the call, from any thread: the server sees the disconnect and stops sampling; iterating fails."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection, from the thread that iterated."""
        self.abort()
        self._connection.close()


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def _reason(raw: bytes) -> str:
    """What an error body says, in short."""
    try:
        body = json.loads(raw)
        told = body.get("error", body.get("detail", body.get("message", body)))
        return str(told["message"] if isinstance(told, dict) and "message" in told else told)[:500]
    except (ValueError, AttributeError):
        return raw[:200].decode("utf-8", "replace")
