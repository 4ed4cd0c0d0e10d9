"""Who runs the agents of a run: threads here, worker processes, a program per attempt, or somebody elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from lightning_jax.configuration import check_keys, check_name
from lightning_jax.ingest.client import IngestClient
from lightning_jax.run.config import RunnerConfig
from lightning_jax.runner import Agent, CommandAgent, Runner, load_agent, spawn

KINDS = ("threads", "processes", "subprocess", "external")


class Workers:
    """Context manager: agents run while it is open. ValueError for settings that cannot work, before anything starts."""

    def __init__(self, config: RunnerConfig, agent: Mapping[str, Any], target: str, api_key: str | None = None) -> None:
        check_name(config.kind, KINDS, "runner.kind")
        check_keys(agent, ("entry", "arguments"), "agent")
        self._config, self._agent, self._target, self._api_key = config, agent, target, api_key
        self._runner: Runner | None = None
        self._client: IngestClient | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        config, arguments = self._config, dict(self._agent.get("arguments") or {})
        if config.kind == "processes":
            share = -(-config.concurrency // config.processes)
            self._processes = [
                spawn(
                    self._target, str(self._agent["entry"]), concurrency=share, lease_s=config.lease_s,
                    arguments=arguments, api_key=self._api_key,
                )
                for _ in range(config.processes)
            ]  # fmt: skip
        elif config.kind in ("threads", "subprocess"):
            agent: Agent
            if config.kind == "threads":
                agent = load_agent(str(self._agent["entry"]), arguments)
            else:
                agent = CommandAgent(config.command, otlp_endpoint=f"http://{self._target}")
            self._client = IngestClient(self._target, api_key=self._api_key)
            self._runner = Runner(self._client, agent, concurrency=config.concurrency, lease_s=config.lease_s)
            self._runner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.stop()
        if self._client is not None:
            self._client.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
