"""Hands new weights to whoever serves them."""

from __future__ import annotations

from typing import Any, Protocol

from lightning_jax.ingest.client import IngestClient
from lightning_jax.publish.version import params_digest, safetensors_bytes
from lightning_jax.run.service import Service
from lightning_jax.types import PolicyVersion


class Publisher(Protocol):
    """Where versions go."""

    def publish(self, params: Any, version: int) -> None:
        """Returns when calls admitted from now on are answered by this version."""
        ...

    def version_of(self, step: int) -> int:
        """The number that calls carry which were answered by the weights after `step` steps."""
        ...


class LocalPublisher:
    """An engine in this process: the weights are handed over as they are."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def publish(self, params: Any, version: int) -> None:
        """Flip the engine."""
        self._service.publish(params, version)

    def version_of(self, step: int) -> int:
        """Versions are steps."""
        return step


class RemotePublisher:
    """A server in another process or on another host: the weights travel as safetensors over gRPC, digest checked.

    A server that outlives several runs has versions already; this run's are counted on from the last one.
    """

    def __init__(self, client: IngestClient) -> None:
        self._client = client
        last = client.get_policy()
        self._first = 0 if last is None else last.version + 1

    def publish(self, params: Any, version: int) -> None:
        """Upload; returns after the server has flipped."""
        policy = PolicyVersion(version=self._first + version, digest=params_digest(params), step=version)
        self._client.publish_policy(policy, safetensors_bytes(params))

    def version_of(self, step: int) -> int:
        """Counted on from what the server had."""
        return self._first + step
