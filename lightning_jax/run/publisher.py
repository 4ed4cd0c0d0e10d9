"""Hands new weights to whoever serves them."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.policies import LOCAL
from lightning_jax.publish.version import params_digest, safetensors_bytes
from lightning_jax.run.service import Service
from lightning_jax.types import PolicyVersion

log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Where versions go."""

    def publish(self, params: Any, version: int) -> None:
        """Returns when calls admitted from now on are answered by this version."""
        ...

    def version_of(self, step: int) -> int:
        """The number that calls carry which were answered by the weights after `step` steps."""
        ...


class LocalPublisher:
    """An engine in this process: the weights are handed over as they are, and the store notes which are served.

    They are not hashed (gigabytes a step, of what never left the process): their version's digest is LOCAL.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._note(service.engine.policy_version)

    def publish(self, params: Any, version: int) -> None:
        """Flip the engine, then note it."""
        self._service.publish(params, version)
        self._note(version)

    def version_of(self, step: int) -> int:
        """Versions are steps."""
        return step

    def _note(self, version: int) -> None:
        try:
            self._service.store.record_policy(PolicyVersion(version, LOCAL, version)).result()
        except StoreUnavailable as error:  # calls carry their version anyway; no reason to end a run
            log.warning("policy version %d is served but not noted: %s", version, error)


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
