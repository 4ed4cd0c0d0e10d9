"""What a runner runs: a Python callable, or a program told about its task by environment variables only."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE, attempt_in
from lightning_jax.ingest.tls import ClientTls


class Agent(Protocol):
    """An agent as the runner calls it: what any OpenAI client needs, nothing of this package."""

    def __call__(self, task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        """Solve one task; the returned mapping must be JSON."""
        ...


def load_agent(entry: str, arguments: Mapping[str, Any] | None = None) -> Agent:
    """Import `package.module:function` and bind keyword arguments of the study's; ValueError says what is wrong."""
    module_name, _, name = entry.partition(":")
    if not name:
        raise ValueError(f"agent entry {entry!r} is not of the form package.module:function")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"agent entry {entry!r} cannot be loaded: {error}") from error
    bound = dict(arguments or {})

    def agent(task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        result: Mapping[str, Any] = function(task_input, base_url=base_url, api_key=api_key, model=model, **bound)
        return result

    return agent


class CommandAgent:
    """An agent that is a program: one process per attempt.

    It gets this process's environment but for the service's own keys (LJX_API_KEY and its like): an agent holds
    nothing but the key of its attempt. It finds its task as JSON in LJX_TASK, its endpoint in OPENAI_BASE_URL and
    OPENAI_API_KEY, and prints its output as one JSON object on its last line of stdout. ValueError where the command
    line is empty. Where LJX_TLS_CA names an authority, the program trusts it too: SSL_CERT_FILE for HTTPS, and
    OpenTelemetry's own variable.
    """

    def __init__(self, command: str, *, otlp_endpoint: str | None = None) -> None:
        self._words = shlex.split(command)
        if not self._words:
            raise ValueError("an agent program needs a command line, e.g. runner.command='python my_agent.py'")
        self._otlp_endpoint = otlp_endpoint
        self._authorities: tempfile._TemporaryFileWrapper[str] | None = None
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[str]] = {}  # by API key, which is one attempt's

    def __call__(self, task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> Mapping[str, Any]:
        """Run the program once."""
        process = subprocess.Popen(
            self._words,
            env=self._environment(task_input, base_url, api_key, model),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes[api_key] = process
        try:
            stdout, stderr = process.communicate()
        finally:
            del self._processes[api_key]
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}: {stderr.strip()[-400:]}")
        lines = stdout.strip().splitlines()
        result: Mapping[str, Any] = json.loads(lines[-1]) if lines else {}
        return result

    def cancel(self, api_key: str) -> None:
        """Kill the program of an attempt that ran out of time, and whatever it started."""
        process = self._processes.get(api_key)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _environment(self, task_input: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not _is_secret(name)},
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": api_key,
            "LJX_TASK": json.dumps(task_input),
            "LJX_MODEL": model,
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",  # the default of 128 drops the response id of long chats
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",  # small enough for any receiver, and little is lost with one
            "OTEL_RESOURCE_ATTRIBUTES": _resource(base_url),
        }
        tls = ClientTls.from_environment()
        if tls.ca is not None:
            environment["SSL_CERT_FILE"] = self._bundle(tls)
        if self._otlp_endpoint and self._otlp_endpoint.startswith("https:"):
            environment.update(
                {f"OTEL_EXPORTER_OTLP_{name}": str(path.resolve()) for name, path in tls.files().items()}
            )
        if self._otlp_endpoint:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._otlp_endpoint
            environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = "grpc"  # what listens there, whatever the SDK's default
            environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer {api_key}"
        return environment

    def _bundle(self, tls: ClientTls) -> str:
        """Path of a file with the system's authorities and ours; written once."""
        with self._lock:
            if self._authorities is None:
                file = tempfile.NamedTemporaryFile("w", suffix=".pem", prefix="ljx-ca-")  # noqa: SIM115  lives as we do
                file.write(tls.bundle())
                file.flush()
                self._authorities = file
            return self._authorities.name


def _is_secret(name: str) -> bool:
    """Whether an environment variable holds a key of the service; LJX_TLS_KEY is a path, and for clients."""
    return name.startswith("LJX_") and "KEY" in name and not name.startswith("LJX_TLS_")


def _resource(base_url: str) -> str:
    """OTEL_RESOURCE_ATTRIBUTES for the attempt of a base URL, beside those that are set already."""
    identity = attempt_in(base_url)
    known = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if identity is None:
        return known
    named = zip((ROLLOUT_ATTRIBUTE, ATTEMPT_ATTRIBUTE), identity, strict=True)
    own = ",".join(f"{name}={quote(value, safe='')}" for name, value in named)
    return f"{known},{own}" if known else own
