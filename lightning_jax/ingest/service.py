"""The ingestion server: all gRPC services over one store, on an event loop and thread of their own.

Invariant: it listens beyond loopback only with keys. A stop answers what is in flight before it closes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from types import MappingProxyType

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.routing import Route

from lightning_jax._proto.lightning.v1 import (
    call_pb2_grpc,
    policy_pb2_grpc,
    reward_pb2_grpc,
    rollout_pb2_grpc,
    transition_pb2_grpc,
)
from lightning_jax.ingest import trace_service
from lightning_jax.ingest.admission import Admissions, ReceiverLimits
from lightning_jax.ingest.auth import Authenticator, AuthInterceptor
from lightning_jax.ingest.call_service import CallService
from lightning_jax.ingest.intake import Intake
from lightning_jax.ingest.otlp_http import TraceRoutes
from lightning_jax.ingest.pace import Pace
from lightning_jax.ingest.policy_service import PolicyCallback, PolicyService
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES, SpanReceiver
from lightning_jax.ingest.reward_service import RewardService
from lightning_jax.ingest.rollout_service import RolloutService
from lightning_jax.ingest.rpc_limit import MAX_CONCURRENT_RPCS, RpcLimit
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.tls import ServerTls
from lightning_jax.ingest.trace_service import TraceService
from lightning_jax.ingest.transition_service import TransitionService
from lightning_jax.loopback import is_loopback

logger = logging.getLogger(__name__)
SERVICES = (
    "lightning.v1.RolloutService",
    "lightning.v1.CallService",
    "lightning.v1.RewardService",
    "lightning.v1.TransitionService",
    "lightning.v1.PolicyService",
    trace_service.SERVICE,
)
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not load balancing
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class IngestServer:
    """gRPC over ``store``. ``http_root`` (http://host:port, or a function that tells it) goes into claimed attempts.

    ``on_policy`` receives each published version with its safetensors bytes, in a worker thread; it may raise
    ValueError to refuse one. ``port`` 0 takes a free one. ``keys`` maps bearer keys to their scopes (see auth.SCOPES),
    ``limits`` bounds what waits for its commit (spans, calls, rewards), ``max_rpcs`` the RPCs that run at a
    time; ``tls`` encrypts (and, with a client CA, asks clients for certificates). Raises ValueError for a host beyond
    loopback without any key, RuntimeError for a taken port.
    """

    def __init__(
        self,
        store: Store,
        host: str = "127.0.0.1",
        port: int = 0,
        http_root: str | Callable[[], str] = "",
        admin_key: str | None = None,
        on_policy: PolicyCallback | None = None,
        *,
        keys: Mapping[str, Collection[str]] = MappingProxyType({}),
        limits: ReceiverLimits | None = None,
        tls: ServerTls | None = None,
        max_rpcs: int = MAX_CONCURRENT_RPCS,
    ) -> None:
        if not admin_key and not keys and not is_loopback(host):
            raise ValueError(
                f"ingest host is {host!r}, which other machines can reach, and there is no key: set an admin_key, or "
                f"keys with scopes, or listen on 127.0.0.1"
            )
        self._store = store
        self._host, self._port = host, port
        self._http_root: Callable[[], str] = http_root if callable(http_root) else lambda: http_root
        self._authenticator = Authenticator(store, admin_key, keys)
        admissions, pace = Admissions(limits or ReceiverLimits()), Pace()
        self._receiver = SpanReceiver(store, admissions, pace)
        self._intake = Intake(admissions, pace)
        self._on_policy = on_policy
        self._tls, self._max_rpcs = tls, max_rpcs
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._grace_s = 5.0
        self._closing = False

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def target(self) -> str:
        """What a client connects to (host:port)."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def http_routes(self) -> list[Route]:
        """OTLP/HTTP's routes, for the application that serves the HTTP port: same store, same keys, same bounds."""
        return TraceRoutes(self._receiver, self._authenticator, self._store).routes()

    def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError where the port is taken."""
        if self._thread is not None:
            raise RuntimeError("the ingest server was started before; make a new one to start again")
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="ingest-grpc", daemon=True)
        self._thread.start()
        self._port = started.result()
        logger.info("ingest listens on %s", self.target)
        return self._port

    def stop(self, grace: float = 5.0) -> None:
        """Refuse new RPCs, let those in flight end within ``grace`` seconds, and close. The store stays open."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None or not thread.is_alive():
            return
        self._grace_s = grace
        loop.call_soon_threadsafe(stopping.set)
        thread.join()

    def _run(self, started: Future[int]) -> None:
        try:
            asyncio.run(self._serve(started))
        except Exception as error:
            if started.done():
                logger.exception("the ingest server died")
            else:
                started.set_exception(error)

    async def _serve(self, started: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(
            interceptors=[RpcLimit(self._max_rpcs), AuthInterceptor(self._authenticator)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=2 * self._max_rpcs,  # for what RpcLimit can't see: messages still coming in
        )
        servicer = self._add_services(server)
        if self._tls is None:
            port = server.add_insecure_port(self.target)
        else:
            port = server.add_secure_port(self.target, self._tls.credentials())
        await server.start()
        for name in ("", *SERVICES):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        started.set_result(port)
        await self._stopping.wait()
        # Long polls and streams end by themselves once woken; their clients come back to the next server.
        self._closing = True
        self._store.claimable_signal.notify()
        self._store.sealed_signal.notify()
        self._store.policy_signal.notify()
        await servicer.enter_graceful_shutdown()
        await server.stop(self._grace_s)

    def _add_services(self, server: grpc.aio.Server) -> health.aio.HealthServicer:
        rollouts = RolloutService(self._store, self._http_root, lambda: self._closing)
        transitions = TransitionService(self._store, lambda: self._closing)
        policies = PolicyService(self._store, self._on_policy, lambda: self._closing)
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(rollouts, server)
        call_pb2_grpc.add_CallServiceServicer_to_server(CallService(self._store, self._intake), server)
        rewards = RewardService(self._store, self._authenticator, self._intake)
        reward_pb2_grpc.add_RewardServiceServicer_to_server(rewards, server)
        transition_pb2_grpc.add_TransitionServiceServicer_to_server(transitions, server)
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(policies, server)
        traces = TraceService(self._receiver, self._authenticator)
        server.add_generic_rpc_handlers((traces.handler(),))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return servicer
