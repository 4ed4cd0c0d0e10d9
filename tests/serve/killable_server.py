"""A policy server over a store, as a process to be killed: `python -m tests.serve.killable_server STORE PORT [hold]`.

With `hold` a call becomes durable and its answer never leaves: the process stays between commit and last byte.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future

import jax

from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.http import HttpServer
from lightning_jax.types import Call
from tests.serve.conftest import byte_tokenizer, running


class Held(Store):
    """Commits calls, and says so to nobody."""

    def record_call(self, call: Call) -> Future[None]:
        super().record_call(call).result()
        return Future()


def main() -> None:
    url, port, hold = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["hold"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with running() as engine, (Held if hold else Store)(url) as store:
        http = HttpServer(create_app(engine, byte_tokenizer(), store, ServeConfig()), port=port)
        root = f"http://127.0.0.1:{http.start()}"
        ingest = IngestServer(store, http_root=root)
        print(root, ingest.start(), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
