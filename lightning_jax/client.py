"""LightningClient: an agent's author's side. Clients for any framework, traces, rollouts with rewards.

    client = LightningClient("http://127.0.0.1:8000")
    with client.rollout({"question": "..."}) as rollout:
        llm = rollout.langchain()              # or rollout.openai(), or rollout.base_url and rollout.api_key
        answer = my_agent(llm)
        rollout.reward(judge(answer), brevity=0.3)

What happens between entering and leaving is one attempt: its calls are recorded with token ids and log-probs, its
reward with them; leaving by an exception makes it a failed attempt with that reason.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import urllib.request
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.rollouts import OWN
from lightning_jax.ingest.tls import ClientTls
from lightning_jax.run.randomness import derive
from lightning_jax.types import Attempt, Mode, Outcome, Reward, Rollout, SamplingDefaults, Task

log = logging.getLogger(__name__)

MODEL = "policy"
FLUSH_S = 5.0  # how long the end of a rollout waits for its spans to be sent


class LightningClient:
    """Connection to a LightningServer. `api_key`: the server's admin key, where it has one.

    An https:// endpoint is trusted as LJX_TLS_CA says (a PEM file; unset: the system's authorities).
    """

    def __init__(
        self, endpoint: str = "http://127.0.0.1:8000", api_key: str | None = None, *, grpc_target: str | None = None
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.api_key = api_key
        self._grpc_target = grpc_target
        self._ingest: IngestClient | None = None
        self._lock = threading.Lock()
        self._providers: list[Any] = []  # what trace() made

    @property
    def ingest(self) -> IngestClient:
        """The gRPC side; its address is asked of the endpoint's /healthcheck unless given."""
        with self._lock:
            if self._ingest is None:
                self._ingest = IngestClient(self._grpc_target or self._discover(), api_key=self.api_key)
            return self._ingest

    def openai(self, **options: Any) -> Any:
        """An `openai.OpenAI` client for calls outside of any rollout."""
        return _openai(f"{self.endpoint}/v1", self.api_key, options)

    def langchain(self, **options: Any) -> Any:
        """A LangChain `ChatOpenAI`, to be passed as `llm=`, for calls outside of any rollout."""
        return _langchain(f"{self.endpoint}/v1", self.api_key, options)

    def trace(self, service_name: str = "agent", api_key: str | None = None) -> Any:
        """Send this process's OpenTelemetry spans to the server; returns the tracer provider (shut it down to flush).

        One call sets up provider, batching and exporter; the end of each rollout sends what has gathered. `api_key`: an
        attempt's, where a process runs one attempt; spans of several are told apart by the response ids in them.
        ImportError says what to install.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanLimits, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ImportError(f"{error}; pip install 'lightning_jax[trace]'") from error
        key = api_key or self.api_key
        encrypted = self.ingest.target.startswith("https://")
        exporter = OTLPSpanExporter(
            endpoint=self.ingest.target,
            insecure=not encrypted,
            credentials=ClientTls.from_environment().credentials() if encrypted else None,
            headers={"authorization": f"Bearer {key}"} if key else None,
        )
        provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}),
            span_limits=SpanLimits(max_span_attributes=100_000),  # the default of 128 drops the oldest: response ids
        )
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500, max_export_batch_size=64))
        trace.set_tracer_provider(provider)
        self._providers.append(provider)
        return provider

    def rollout(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        sample: int = 0,
        mode: Mode = "train",
        temperature: float | None = None,
        seed: int = 0,
        lease_s: float = 600.0,
        wait_s: float = 60.0,
    ) -> RolloutContext:
        """A rollout to be run here, as a context manager.

        task: what the agent is to solve (a Task, or its input); None takes the next one a training server has queued,
        waiting up to `wait_s` (TimeoutError after that).
        """
        rollout = None
        if task is not None:
            known = task if isinstance(task, Task) else Task(_task_id(task), dict(task))
            rollout = Rollout(
                rollout_id=f"{OWN}{uuid.uuid4().hex}",
                task_id=known.task_id,
                sample=sample,
                mode=mode,
                seed=derive(seed, "client", known.task_id, sample),
                input=known.input,
                sampling=SamplingDefaults(temperature=temperature),
                timeout_s=lease_s,
            )
        return RolloutContext(self, rollout, lease_s=lease_s, wait_s=wait_s)

    @property
    def traced(self) -> bool:
        """Whether `trace` was called."""
        return bool(self._providers)

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Send the spans that `trace` has gathered so far; False where that takes longer, or some could not be sent."""
        results: list[bool] = []

        def flush() -> None:
            results.extend([bool(provider.force_flush(int(1000 * timeout_s))) for provider in self._providers])

        # In a thread: the SDK's batch processor heeds no time limit of its own.
        thread = threading.Thread(target=flush, name="flush-spans", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive() and all(results)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._ingest is not None:
                self._ingest.close()
                self._ingest = None

    def __enter__(self) -> LightningClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _discover(self) -> str:
        try:
            trusted = ClientTls.from_environment().context() if self.endpoint.startswith("https:") else None
            with urllib.request.urlopen(f"{self.endpoint}/healthcheck", timeout=10, context=trusted) as response:
                health = json.load(response)
        except OSError as error:
            raise ConnectionError(f"no LightningServer answers at {self.endpoint}: {error}") from error
        port = health.get("grpc_port")
        if not port:
            raise ConnectionError(f"the server at {self.endpoint} tells no gRPC port; give grpc_target='host:port'")
        host = urlsplit(self.endpoint).hostname or ""
        scheme = "https://" if health.get("grpc_tls") else ""
        return scheme + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class RolloutContext:
    """One attempt, while open. Attributes after entering: rollout_id, input, base_url, api_key."""

    def __init__(self, client: LightningClient, rollout: Rollout | None, *, lease_s: float, wait_s: float) -> None:
        self._client, self._rollout = client, rollout
        self._lease_s, self._wait_s = lease_s, wait_s
        self._attempt: Attempt | None = None
        self._output: Mapping[str, Any] = {}
        self._beats = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> RolloutContext:
        ingest = self._client.ingest
        worker = f"client-{uuid.uuid4().hex[:8]}"
        only: tuple[str, ...] = ()
        if self._rollout is not None:
            ingest.enqueue([self._rollout])
            only = (self._rollout.rollout_id,)
        attempts = ingest.claim(worker, 1, self._lease_s, self._wait_s, rollout_ids=only)
        if not attempts:
            raise TimeoutError(f"no rollout was to be had within {self._wait_s:g} s")
        self._attempt = attempts[0]
        threading.Thread(target=self._keep_lease, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What is sealed doesn't change: spans that come later could still name things, but not for the trainer.
        if self._client.traced and not self._client.flush():
            log.warning("not all spans of attempt %s were sent within %g s", self.attempt.attempt_id, FLUSH_S)
        self._beats.set()
        if error is None:
            outcome = Outcome("succeeded", output=dict(self._output))
        else:
            outcome = Outcome("crashed", output=dict(self._output), reason=f"{type(error).__name__}: {error}"[:2000])
        self._client.ingest.complete(self.attempt.attempt_id, outcome)

    @property
    def attempt(self) -> Attempt:
        """The claimed attempt; ValueError before entering."""
        if self._attempt is None:
            raise ValueError("enter the rollout first: `with client.rollout(...) as rollout:`")
        return self._attempt

    @property
    def rollout_id(self) -> str:
        """The rollout's id."""
        return self.attempt.rollout.rollout_id

    @property
    def input(self) -> Mapping[str, Any]:
        """What the agent is to solve."""
        return self.attempt.rollout.input

    @property
    def base_url(self) -> str:
        """Base URL for any OpenAI client: the attempt's path below the endpoint that this client reached."""
        return self._client.endpoint + urlsplit(self.attempt.base_url).path

    @property
    def api_key(self) -> str:
        """Key for any OpenAI client; bound to this attempt."""
        return self.attempt.api_key

    def openai(self, **options: Any) -> Any:
        """An `openai.OpenAI` client whose calls belong to this rollout."""
        return _openai(self.base_url, self.api_key, options)

    def langchain(self, **options: Any) -> Any:
        """A `ChatOpenAI` whose calls belong to this rollout."""
        return _langchain(self.base_url, self.api_key, options)

    def reward(self, value: float | None = None, **components: float) -> None:
        """Report the reward, named components, or both; durable when this returns."""
        reward = Reward(
            reward_id=uuid.uuid4().hex,
            rollout_id=self.rollout_id,
            attempt_id=self.attempt.attempt_id,
            value=None if value is None else float(value),
            components={name: float(v) for name, v in components.items()},
        )
        self._client.ingest.record_rewards([reward])

    def output(self, **values: Any) -> None:
        """What the agent came up with; reward terms of the trainer may read it."""
        self._output = {**self._output, **values}

    @property
    def ended(self) -> bool:
        """Whether the service has ended this attempt meanwhile (cancelled, or its lease lapsed): stop working on it."""
        return self._ended.is_set()

    def _keep_lease(self) -> None:
        while not self._beats.wait(self._lease_s / 3):
            try:
                ended = self._client.ingest.heartbeat([self.attempt.attempt_id])
            except Exception as error:  # the next beat may get through before the lease ends
                log.warning("heartbeat of attempt %s failed: %s", self.attempt.attempt_id, error)
                continue
            if ended:
                log.warning("attempt %s was ended by the service; what it does no longer counts", *ended)
                self._ended.set()
                return


def _task_id(task: Mapping[str, Any]) -> str:
    """Equal inputs are one task: their rollouts form a group."""
    return f"task-{derive(0, json.dumps(dict(task), sort_keys=True)):x}"


def _trusted(base_url: str) -> ssl.SSLContext | None:
    """Whom to trust instead of the HTTP library's authorities; None where nothing was said."""
    tls = ClientTls.from_environment()
    return tls.context() if base_url.startswith("https:") and tls.ca is not None else None


def _openai(base_url: str, api_key: str | None, options: Mapping[str, Any]) -> Any:
    import openai

    if trusted := _trusted(base_url):
        options = {"http_client": openai.DefaultHttpxClient(verify=trusted), **options}
    return openai.OpenAI(base_url=base_url, api_key=api_key or "none", **options)


def _langchain(base_url: str, api_key: str | None, options: Mapping[str, Any]) -> Any:
    try:
        from langchain_openai import ChatOpenAI
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'lightning_jax[agents]'") from error
    if trusted := _trusted(base_url):
        import openai

        options = {
            "http_client": openai.DefaultHttpxClient(verify=trusted),
            "http_async_client": openai.DefaultAsyncHttpxClient(verify=trusted),
            **options,
        }
    return ChatOpenAI(**{"model": MODEL, "base_url": base_url, "api_key": api_key or "none", **options})
