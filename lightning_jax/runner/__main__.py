"""The worker's command line.

    python -m lightning_jax.runner --target 127.0.0.1:50051 --agent experiments.spider.agent:solve --concurrency 16

The key of the service is taken from LJX_API_KEY.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading

from lightning_jax.ingest.client import IngestClient
from lightning_jax.runner.agents import Agent, CommandAgent, load_agent
from lightning_jax.runner.worker import Runner

log = logging.getLogger("lightning_jax.runner")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.runner", description="Run agents: claim rollouts by lease."
    )
    parser.add_argument("--target", required=True, help="host:port of the ingestion service (gRPC)")
    parser.add_argument("--agent", help="package.module:function, called with the task input, base_url, api_key, model")
    parser.add_argument("--command", help="instead of --agent: a program, one process per attempt")
    parser.add_argument("--arguments", default="{}", help="JSON of further keyword arguments of the agent function")
    parser.add_argument("--concurrency", type=int, default=16, help="attempts at once (default %(default)s)")
    parser.add_argument(
        "--lease-s", type=float, default=60.0, help="seconds without a heartbeat before others take over"
    )
    parser.add_argument("--parent", type=int, default=0, help="end when this process is gone")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line; runs until a signal."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", force=True)
    log.setLevel(logging.INFO)  # ours only: HTTP clients log every request
    if bool(options.agent) == bool(options.command):
        _parser().error("give exactly one of --agent and --command")
    agent: Agent = (
        CommandAgent(
            options.command,
            otlp_endpoint=options.target if "://" in options.target else f"http://{options.target}",
        )
        if options.command
        else load_agent(options.agent, json.loads(options.arguments))
    )
    client = IngestClient(options.target, api_key=os.environ.pop("LJX_API_KEY", None))  # agents have no use for it
    runner = Runner(client, agent, concurrency=options.concurrency, lease_s=options.lease_s)
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    runner.start()
    while not ended.wait(0.5):
        if options.parent and os.getppid() != options.parent:
            log.info("the parent process is gone; stopping")
            break
    runner.stop(timeout_s=2.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
