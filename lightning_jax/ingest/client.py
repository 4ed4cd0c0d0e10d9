"""The gRPC client of learners and runners: blocking calls that outlive a restart of the server.

Every RPC is idempotent (ids are made here, not there), so UNAVAILABLE is retried until ``patience_s`` is over; other
statuses come back as exceptions that say what the server said.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import grpc

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import (
    call_pb2,
    call_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    transition_pb2,
    transition_pb2_grpc,
)
from lightning_jax.ingest import convert
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, StoreUnavailable, UnknownAttempt
from lightning_jax.ingest.policy_service import FORMAT, content_digest
from lightning_jax.ingest.rollouts import RolloutStatus
from lightning_jax.ingest.sealing import Disposition
from lightning_jax.ingest.tls import ClientTls

logger = logging.getLogger(__name__)
T = TypeVar("T")
CHUNK_BYTES = 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# A server that shuts down cancels what outlasts its grace.
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_ERRORS: dict[grpc.StatusCode, type[Exception]] = {
    grpc.StatusCode.FAILED_PRECONDITION: AttemptEnded,
    grpc.StatusCode.NOT_FOUND: UnknownAttempt,
    grpc.StatusCode.ALREADY_EXISTS: IdentityConflict,
    grpc.StatusCode.INVALID_ARGUMENT: ValueError,
    grpc.StatusCode.UNAUTHENTICATED: PermissionError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionError,
}


class IngestClient:
    """Connect to ``target`` (host:port, or https://host:port for TLS as LJX_TLS_CA and its like say, or as ``tls``).

    ``api_key`` is the admin key, one with scopes, or an attempt's token. Safe for many threads.

    A call takes at most ``timeout_s`` per try and ``patience_s`` over all tries; then StoreUnavailable is raised.
    """

    def __init__(
        self,
        target: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 60.0,
        patience_s: float = 60.0,
        tls: ClientTls | None = None,
    ) -> None:
        self.target = target
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._channel = open_channel(target, tls)
        self._rollouts = rollout_pb2_grpc.RolloutServiceStub(self._channel)
        self._calls = call_pb2_grpc.CallServiceStub(self._channel)
        self._rewards = reward_pb2_grpc.RewardServiceStub(self._channel)
        self._transitions = transition_pb2_grpc.TransitionServiceStub(self._channel)
        self._policies = policy_pb2_grpc.PolicyServiceStub(self._channel)

    def close(self) -> None:
        """Close the connection; streams end."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> IngestClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enqueue(self, batch: Sequence[types.Rollout]) -> int:
        """Queue rollouts in this order; returns how many were not known before."""
        request = rollout_pb2.EnqueueRolloutsRequest(rollouts=[convert.rollout_message(rollout) for rollout in batch])
        return int(self._call(self._rollouts.EnqueueRollouts, request).added)

    def claim(
        self, worker_id: str, limit: int, lease_s: float, wait_s: float = 0.0, *, rollout_ids: Sequence[str] = ()
    ) -> list[types.Attempt]:
        """Start attempts of up to ``limit`` rollouts (of ``rollout_ids``, if given), waiting up to ``wait_s``."""
        request = rollout_pb2.ClaimRolloutsRequest(
            worker_id=worker_id,
            max_rollouts=limit,
            lease_s=lease_s,
            wait_s=wait_s,
            claim_id=uuid.uuid4().hex,
            rollout_ids=rollout_ids,
        )
        response = self._call(self._rollouts.ClaimRollouts, request, extra_s=wait_s)
        return [convert.attempt_of(attempt) for attempt in response.attempts]

    def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        """Extend leases; returns the attempts that no longer run."""
        response = self._call(self._rollouts.Heartbeat, rollout_pb2.HeartbeatRequest(attempt_ids=attempt_ids))
        return list(response.ended_attempt_ids)

    def complete(self, attempt_id: str, outcome: types.Outcome) -> Disposition:
        """End an attempt: "sealed", "requeued" or "already_ended"."""
        request = rollout_pb2.CompleteAttemptRequest(attempt_id=attempt_id, outcome=convert.outcome_message(outcome))
        response = self._call(self._rollouts.CompleteAttempt, request)
        return cast(Disposition, convert.name_of(convert.DISPOSITIONS, response.disposition, "disposition"))

    def cancel(self, rollout_ids: Sequence[str], reason: str = "cancelled") -> int:
        """Seal rollouts as cancelled; returns how many were open."""
        request = rollout_pb2.CancelRolloutsRequest(rollout_ids=rollout_ids, reason=reason)
        return int(self._call(self._rollouts.CancelRollouts, request).cancelled)

    def rollout_statuses(self, rollout_ids: Sequence[str]) -> list[RolloutStatus]:
        """Where rollouts stand; unknown ids are left out."""
        response = self._call(self._rollouts.GetRollouts, rollout_pb2.GetRolloutsRequest(rollout_ids=rollout_ids))
        return [
            RolloutStatus(
                found.rollout_id,
                convert.name_of(convert.STATES, found.state, "state"),
                found.attempts,
                convert.name_of(convert.STATUSES, found.status, "status") if found.status else "",
            )
            for found in response.rollouts
        ]

    def record_calls(self, calls: Sequence[types.Call]) -> dict[str, str]:
        """Store calls; returns call_id -> reason of those that were refused. The others are durable."""
        request = call_pb2.RecordCallsRequest(calls=[convert.call_message(call) for call in calls])
        return {item.call_id: item.reason for item in self._call(self._calls.RecordCalls, request).rejected}

    def list_calls(self, attempt_id: str) -> list[types.Call]:
        """The calls stored of an attempt, by sequence."""
        response = self._call(self._calls.ListCalls, call_pb2.ListCallsRequest(attempt_id=attempt_id))
        return [convert.call_of(call) for call in response.calls]

    def record_rewards(self, rewards: Sequence[types.Reward]) -> int:
        """Store rewards, all or none; returns how many were not known before."""
        request = reward_pb2.RecordRewardsRequest(rewards=[convert.reward_message(reward) for reward in rewards])
        return int(self._call(self._rewards.RecordRewards, request).added)

    def sealed(
        self, consumer: str, cursor: int | None = None, *, idle_s: float | None = None
    ) -> Iterator[types.SealedAttempt]:
        """Sealed attempts beyond ``cursor`` (None: beyond what ``consumer`` acknowledged), for ever and in order.

        Reconnects where it left off. Ends when the client is closed or, with ``idle_s``, when nothing came for that
        long. Raises StoreUnavailable where the server stays away longer than the client's patience.
        """
        position = cursor
        away_since: float | None = None
        while not self._closed.is_set():
            request = transition_pb2.StreamTransitionsRequest(consumer=consumer, cursor=position)
            # The deadline stands for the idle time: a stream that lapses after it brought something is opened again.
            stream = self._transitions.StreamTransitions(request, metadata=self._metadata, timeout=idle_s)
            progressed = False
            try:
                for response in stream:
                    progressed, away_since = True, None
                    position = response.attempt.cursor
                    yield convert.sealed_of(response.attempt)
            except grpc.RpcError as error:
                code = error.code()
                if self._closed.is_set():
                    return
                if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                    if progressed:
                        continue
                    return
                away_since = away_since or time.monotonic()
                if code not in _AWAY or time.monotonic() - away_since > self._patience_s:
                    raise _error(error, self.target) from error
                logger.info(
                    "stream of sealed attempts broke after cursor %s, reconnecting: %s", position, error.details()
                )
                self._closed.wait(0.2 + 0.3 * random.random())
            finally:
                stream.cancel()

    def ack(self, consumer: str, cursor: int) -> int:
        """Note that everything up to ``cursor`` is consumed; returns the position held (never moves back)."""
        request = transition_pb2.AckTransitionsRequest(consumer=consumer, cursor=cursor)
        return int(self._call(self._transitions.AckTransitions, request).cursor)

    def publish_policy(self, policy: types.PolicyVersion, safetensors: bytes) -> bool:
        """Upload one version and wait until it is loaded; returns False where the server had it already."""
        header = policy_pb2.PolicyHeader(
            policy=convert.policy_message(policy),
            format=FORMAT,
            size_bytes=len(safetensors),
            content_digest=content_digest(safetensors),
        )

        def messages() -> Iterator[policy_pb2.PublishPolicyRequest]:
            yield policy_pb2.PublishPolicyRequest(header=header)
            view = memoryview(safetensors)
            for start in range(0, len(view), CHUNK_BYTES):
                yield policy_pb2.PublishPolicyRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))

        response = self._call(self._policies.PublishPolicy, messages, extra_s=600.0)
        return not response.already_published

    def get_policy(self) -> types.PolicyVersion | None:
        """The version published last to the server; None before the first."""
        try:
            return convert.policy_of(self._call(self._policies.GetPolicy, policy_pb2.GetPolicyRequest()).policy)
        except UnknownAttempt:
            return None

    def _call(self, method: Any, request: Any, *, extra_s: float = 0.0) -> Any:
        """Run one RPC, again while the server is away. ``request`` may be a function that makes a request iterator."""
        give_up = time.monotonic() + self._patience_s
        delay = 0.1
        while True:
            if self._closed.is_set():
                raise StoreUnavailable(f"the client of {self.target} is closed")
            try:
                message = request() if callable(request) else request
                return method(message, metadata=self._metadata, timeout=self._timeout_s + extra_s)
            except grpc.RpcError as error:
                if self._closed.is_set():
                    raise StoreUnavailable(f"the client of {self.target} was closed during a call") from error
                if error.code() not in _AWAY or time.monotonic() + delay > give_up:
                    raise _error(error, self.target) from error
                logger.debug("%s is away (%s), trying again", self.target, error.details())
            # Jitter keeps many runners from coming back in step.
            if self._closed.wait(delay * (0.5 + random.random())):
                raise StoreUnavailable(f"the client of {self.target} was closed during a retry")
            delay = min(2 * delay, 5.0)


def open_channel(target: str, tls: ClientTls | None = None) -> grpc.Channel:
    """A channel to host:port, or to https://host:port with TLS as given or as the environment says. ValueError."""
    scheme, _, rest = target.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ValueError(f"target is {target!r}; write host:port, or https://host:port for TLS")
    if scheme == "https" or tls is not None:
        credentials = (tls or ClientTls.from_environment()).credentials()
        return grpc.secure_channel(rest, credentials, options=_OPTIONS)
    return grpc.insecure_channel(rest, options=_OPTIONS)


def _error(error: grpc.RpcError, target: str) -> Exception:
    """The exception of this package for a gRPC status."""
    code, details = error.code(), error.details()
    kind: Callable[[str], Exception] = _ERRORS.get(code, StoreUnavailable)
    return kind(f"{details} ({target} answered {code.name})")
