"""What the policy server tells Prometheus. The engine's numbers are read when asked for, not kept twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lightning_jax.serve.policy_engine import PolicyEngine


class CallCounts(Protocol):
    """Counts the chat service keeps."""

    recorded: int
    aborted: int


class ServerMetrics:
    """One registry per app, so that several servers of one process don't mix."""

    def __init__(self, engine: PolicyEngine, calls: CallCounts) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter("ljx_http_answers", "HTTP answers", ["endpoint", "status"], registry=self._registry)
        self._joins = Counter("ljx_http_retries_joined", "retries that got an earlier answer", registry=self._registry)
        self._registry.register(_EngineNumbers(engine, calls))

    def answered(self, endpoint: str, status: int) -> None:
        """Count an answer."""
        self._answers.labels(endpoint, str(status)).inc()

    def joined(self) -> None:
        """Count a retry that joined."""
        self._joins.inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)


class _EngineNumbers(Collector):
    def __init__(self, engine: PolicyEngine, calls: CallCounts) -> None:
        self._engine = engine
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        numbers = {
            **self._engine.metrics(),
            "calls_recorded_total": self._calls.recorded,
            "calls_aborted_total": self._calls.aborted,
        }
        for name, value in sorted(numbers.items()):
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"ljx_engine_{name}", name.removesuffix("_total").replace("_", " "), value=value)
