"""The HTTP server in a thread of its own: an event loop that the engine's and the trainer's threads don't share."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import socket
import ssl
import threading
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.identity import check_exposure


class HttpServer:
    """Serves an ASGI app on host:port (0: any free port), by HTTPS where `settings` name a certificate.

    ValueError for a host that other machines can reach and settings without keys.
    """

    def __init__(
        self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0, settings: ServeConfig | None = None
    ) -> None:
        settings = settings or ServeConfig()
        check_exposure(host, settings)
        self._host = host
        self._port = port
        # Clients pool connections for a minute; a server that closes first makes them retry.
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=1,
            backlog=4096,
            ssl_certfile=settings.ssl_certfile or None,
            ssl_keyfile=settings.ssl_keyfile or None,
            ssl_ca_certs=settings.ssl_client_ca or None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if settings.ssl_client_ca else ssl.CERT_NONE,
        )
        try:
            config.load()
        except OSError as error:  # ssl's errors are OSErrors
            raise ValueError(
                f"TLS with ssl_certfile={settings.ssl_certfile!r}, ssl_keyfile={settings.ssl_keyfile!r}, "
                f"ssl_client_ca={settings.ssl_client_ca!r}: {error}"
            ) from error
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float = 30.0) -> int:
        """Listen and serve; returns the port. RuntimeError where the server does not come up."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self._port))
        listener.listen(4096)
        listener.setblocking(False)
        port: int = listener.getsockname()[1]
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listener, started), name="http", daemon=True)
        self._thread.start()
        if not started.wait(timeout_s):
            raise RuntimeError(f"the HTTP server on {self._host}:{port} did not start within {timeout_s} s")
        return port

    def stop(self) -> None:
        """Close the listener, give running requests a second, end the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def _serve(self, listener: socket.socket, started: threading.Event) -> None:
        async def run() -> None:
            serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.005)
            if self._server.started:
                started.set()
            await serving

        with listener, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (a third less time per request); None is asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
