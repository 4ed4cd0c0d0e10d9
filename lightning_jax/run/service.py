"""The server side of the circle as one object: store, ingestion (gRPC), engine, policy server (HTTP).

Used by the loop for a run in one process, by `LightningServer`, and by `python -m lightning_jax.server`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_jax.ingest.admission import ReceiverLimits
from lightning_jax.ingest.rpc_limit import MAX_CONCURRENT_RPCS
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.tls import ServerTls
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.publish.version import params_digest, params_from_safetensors
from lightning_jax.serve.app import create_app
from lightning_jax.serve.config import EngineConfig, ServeConfig
from lightning_jax.serve.engines import build_engine
from lightning_jax.serve.http import HttpServer
from lightning_jax.serve.keys import SCOPES, ApiKey
from lightning_jax.serve.request_log import RequestLog
from lightning_jax.serve.vllm.config import VllmConfig
from lightning_jax.types import PolicyVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a started service listens."""

    http: str  # http://host:port, https:// with TLS
    grpc: str  # host:port, https://host:port with TLS


class Service:
    """Everything an agent and a learner talk to. Start once, stop once."""

    def __init__(
        self,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        store_url: str,
        engine: EngineConfig | VllmConfig,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        advertise: str | None = None,
        admin_key: str | None = None,
        serve: Mapping[str, Any] | None = None,
        keys: Mapping[str, Collection[str]] | None = None,
        tls: ServerTls | None = None,
        limits: ReceiverLimits | None = None,
        max_rpcs: int = MAX_CONCURRENT_RPCS,
        log_folder: Path | None = None,
    ) -> None:
        """advertise: host name in the base URLs handed to agents. ValueError for a host that others can reach without
        any key; with an `admin_key`, calls that belong to no rollout need it too, or one of `keys` (bearer key ->
        scopes) with the scope infer. serve: settings of `ServeConfig`. limits, max_rpcs: of ingestion. tls holds for
        HTTP and gRPC; its client CA for gRPC only, as few agents' HTTP clients have certificates: `serve` has
        ssl_client_ca for those that do. log_folder: where lightning_server.log goes; None writes none.
        """
        self.store = Store(store_url)
        self.engine = build_engine(model_config, engine, tokenizer.eos_ids)
        self._host, self._advertise = host, advertise
        front = _front(serve or {}, admin_key, keys or {}, tls)
        self._log = RequestLog(log_folder) if log_folder is not None else None
        app = create_app(self.engine, tokenizer, self.store, front, grpc_port=lambda: self._grpc_port, log=self._log)
        self._drain: Callable[[], None] = app.state.drain
        self._http = HttpServer(app, host=host, port=http_port, settings=front)
        self._ingest = IngestServer(
            self.store,
            host=host,
            port=grpc_port,
            http_root=self.http_root,
            admin_key=admin_key,
            on_policy=self._receive,
            keys={
                **(keys or {}),
                **{key.secret: sorted(key.scopes) for key in front.keys if key.secret not in (keys or {})},
            },
            limits=limits,
            max_rpcs=max_rpcs,
            tls=tls,
        )
        app.router.routes.extend(self._ingest.http_routes())  # OTLP/HTTP on the policy server's port
        self._tls = tls is not None
        self._http_port = 0
        self._grpc_port = 0

    def start(self, params: Any, version: int = 0, progress: Callable[[str], None] | None = None) -> Addresses:
        """Compile and serve `params` as `version`; version 0 exists before the first rollout."""
        self.engine.start(params, version, progress=progress)
        self._http_port = self._http.start()
        self._grpc_port = self._ingest.start()
        return self.addresses

    @property
    def addresses(self) -> Addresses:
        """Where to reach it, once started."""
        return Addresses(
            http=self.http_root(), grpc=f"{'https://' if self._tls else ''}{self._reachable()}:{self._grpc_port}"
        )

    def http_root(self) -> str:
        """Root of the base URLs that attempts are handed."""
        return f"http{'s' if self._tls else ''}://{self._reachable()}:{self._http_port}"

    def publish(self, params: Any, version: int) -> None:
        """Flip the engine to new weights between calls; requests wait meanwhile."""
        self.engine.publish(params, version)

    def stop(self) -> None:
        """Drain and close, outside in."""
        self._ingest.stop(grace=1.0)
        self._http.stop()
        self._drain()
        self.engine.stop()
        self.store.close()
        if self._log is not None:
            self._log.close()

    def _receive(self, version: PolicyVersion, safetensors: bytes) -> None:
        """Weights uploaded by a learner in another process. ValueError where they are not those that were announced."""
        params = params_from_safetensors(safetensors)
        digest = params_digest(params)
        if digest != version.digest:
            raise ValueError(
                f"policy version {version.version} was announced with parameter digest {version.digest}, what came "
                f"has {digest}: announce what params_digest says of the weights sent"
            )
        self.engine.publish(params, version.version)
        log.info("policy version %d received (%d bytes)", version.version, len(safetensors))

    def _reachable(self) -> str:
        if self._advertise is not None:
            return self._advertise
        host = "127.0.0.1" if self._host in ("0.0.0.0", "::") else self._host
        return f"[{host}]" if ":" in host else host


def _front(
    serve: Mapping[str, Any], admin_key: str | None, keys: Mapping[str, Collection[str]], tls: ServerTls | None
) -> ServeConfig:
    """The HTTP front's settings: what is given, with the keys and the certificate that it shares with ingestion."""
    shown = {} if tls is None else {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    anonymous = serve.get("anonymous")
    settings = ServeConfig.from_mapping({**serve, **shown})
    shared = [
        ApiKey.unnamed(key, known) for key, scopes in keys.items() if (known := [s for s in scopes if s in SCOPES])
    ]
    every = (*settings.keys, *shared)
    guarded = bool(admin_key) or any(key.allows("infer") for key in every)
    return replace(
        settings,
        admin_key=admin_key or settings.admin_key,
        anonymous=not guarded if anonymous is None else bool(anonymous),
        keys=every,
    )


def sqlite_url(folder: Path) -> str:
    """URL of the default store in a run folder."""
    return f"sqlite:///{folder / 'store.sqlite'}"
