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
    """Context manager: agents run while it is open. ValueError for settings that cannot work."""

    def __init__(
        self, config: RunnerConfig, agent: Mapping[str, Any] | Agent, target: str, api_key: str | None = None
    ) -> None:
        """agent: {entry, arguments} of one that can be imported, or one at hand, which runs in threads here."""
        check_name(config.kind, KINDS, "runner.kind")
        if isinstance(agent, Mapping):
            check_keys(agent, ("entry", "arguments"), "agent")
            if config.kind in ("threads", "processes") and "entry" not in agent:
                raise ValueError(f"runner.kind={config.kind!r} needs agent.entry (package.module:function)")
        elif config.kind != "threads":
            raise ValueError(f"runner.kind={config.kind!r} needs an agent by name (package.module:function)")
        self._config, self._agent, self._target, self._api_key = config, agent, target, api_key
        self._runner: Runner | None = None
        self._client: IngestClient | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        config = self._config
        if config.kind == "processes":
            self._processes = [self._spawn() for _ in range(config.processes)]
        elif config.kind != "external":
            self._client = IngestClient(self._target, api_key=self._api_key)
            self._runner = Runner(self._client, self._load(), concurrency=config.concurrency, lease_s=config.lease_s)
            self._runner.start()
        return self

    def _load(self) -> Agent:
        if self._config.kind == "subprocess":
            endpoint = self._target if "://" in self._target else f"http://{self._target}"
            return CommandAgent(self._config.command, otlp_endpoint=endpoint)
        if isinstance(self._agent, Mapping):
            return load_agent(str(self._agent["entry"]), dict(self._agent.get("arguments") or {}))
        return self._agent

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert isinstance(self._agent, Mapping)  # checked above
        config = self._config
        return spawn(
            self._target,
            str(self._agent["entry"]),
            concurrency=-(-config.concurrency // config.processes),
            lease_s=config.lease_s,
            arguments=dict(self._agent.get("arguments") or {}),
            api_key=self._api_key,
        )

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
