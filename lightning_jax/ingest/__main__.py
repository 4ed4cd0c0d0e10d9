"""Ingestion without a policy server: a durable trace collector, or one more front of a shared PostgreSQL store.

    python -m lightning_jax.ingest --store sqlite:///traces.sqlite --port 4317 --http-port 4318

The admin key is taken from LJX_API_KEY. SIGTERM and SIGINT drain: health turns NOT_SERVING, what is in flight is
committed and answered, then the process ends.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lightning_jax.garbage import spare_what_is_there
from lightning_jax.ingest.auth import read_keys
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.tls import ServerTls

log = logging.getLogger("lightning_jax.ingest")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.ingest", description=str(__doc__).partition("\n")[0],
        epilog="The admin key is taken from LJX_API_KEY.",
    )  # fmt: skip
    parser.add_argument("--store", required=True, help="SQLAlchemy URL, e.g. sqlite:///traces.sqlite")
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need LJX_API_KEY")
    parser.add_argument("--port", type=int, default=4317, help="OTLP/gRPC and lightning.v1, default %(default)s")
    parser.add_argument("--http-port", type=int, help="OTLP/HTTP; none unless given")
    parser.add_argument("--http-root", default="", help="root of the policy server's URL, for rollouts claimed here")
    parser.add_argument("--keys", help="YAML file: bearer key -> list of scopes")
    parser.add_argument("--tls-certificate", help="PEM chain; with --tls-key both ports speak TLS")
    parser.add_argument("--tls-key")
    parser.add_argument("--tls-client-ca", help="PEM; only clients with a certificate of this CA get in, on both ports")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds to drain, default %(default)s")
    return parser


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _http(server: IngestServer, host: str, port: int, tls: ServerTls | None) -> tuple[uvicorn.Server, threading.Thread]:
    app = Starlette(routes=[Route("/health", _health), *server.http_routes()])
    config = uvicorn.Config(
        app, host=host, port=port, lifespan="off", access_log=False, log_config=None, ws="none",
        **({} if tls is None else tls.uvicorn()),
    )  # fmt: skip
    front = uvicorn.Server(config)
    thread = threading.Thread(target=front.run, name="ingest-http", daemon=True)
    thread.start()
    return front, thread


def main(argv: list[str] | None = None) -> int:
    """The command line; prints the gRPC port, then serves until SIGINT or SIGTERM."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    log.setLevel(logging.INFO)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        keys = read_keys(options.keys)
        tls = ServerTls.of(options.tls_certificate, options.tls_key, options.tls_client_ca)
        with Store(options.store) as store:
            server = IngestServer(
                store, options.host, options.port, options.http_root, os.environ.get("LJX_API_KEY") or None,
                keys=keys, tls=tls,
            )  # fmt: skip
            sys.stdout.write(f"{server.start()}\n")
            sys.stdout.flush()
            front = _http(server, options.host, options.http_port, tls) if options.http_port is not None else None
            spare_what_is_there()
            ended.wait()
            log.info("draining")
            if front is not None:
                front[0].should_exit = True
                front[1].join(options.grace)
            server.stop(options.grace)
    except (ValueError, OSError, RuntimeError) as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
