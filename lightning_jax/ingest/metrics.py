"""What ingestion tells Prometheus: spans taken and refused since start, and what was put aside, by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lightning_jax.ingest.receiver import SpanReceiver
from lightning_jax.ingest.store import Store

# By whoever builds trajectories in this process. Of another process's learner its own metrics tell.
ASSEMBLED = Counter(
    "ljx_assemble_quarantined", "calls, rewards and spans left out of trajectories", ["kind", "reason"], registry=None
)


def count_assembled(reasons: Mapping[tuple[str, str], int]) -> None:
    """Count what a trajectory left out, by (kind, reason)."""
    for (kind, reason), number in reasons.items():
        ASSEMBLED.labels(kind, reason).inc(number)


class IngestMetrics(Collector):
    """One registry of its own, so that several servers of one process don't mix. Read when asked for."""

    def __init__(self, receiver: SpanReceiver, store: Store) -> None:
        self._receiver, self._store = receiver, store
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        counters = self._receiver.counters()
        for name, help_ in (
            ("spans_stored", "spans acknowledged, repeated ones included"),
            ("spans_rejected", "spans without a usable identity"),
            ("exports_throttled", "exports told to come back"),
        ):
            yield CounterMetricFamily(f"ljx_ingest_{name}", help_, value=counters[name])
        for what, help_ in (
            ("requests", "exports being read or waiting for their commit"),
            ("spans", "spans that wait for their commit"),
            ("bytes", "bytes of exports being read or waiting for their commit"),
        ):
            yield GaugeMetricFamily(f"ljx_ingest_{what}_pending", help_, value=counters[f"pending_{what}"])
        aside = GaugeMetricFamily("ljx_ingest_quarantined", "put aside and not placed since", labels=["kind", "reason"])
        for (kind, reason), count in self._store.quarantined().items():
            aside.add_metric([kind, reason], count)
        yield aside
        yield from ASSEMBLED.collect()
