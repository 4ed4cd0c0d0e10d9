"""Ingestion: spans and calls per server CPU-second, latency, health under a large push, assembling; against a rival.

    python -m benchmarks.ingest                                       # ours alone
    python -m benchmarks.ingest --rival /path/to/venv/bin/python      # and Agent Lightning 0.3.0's store
    python -m benchmarks.ingest --million                             # and reads of a store with 1,000,000 spans
    python -m benchmarks.ingest --soak 1800                           # instead: half an hour at half load

The rival's venv: Python 3.11, `pip install agentlightning==0.3.0`. Server and clients are processes of their own on
loopback; ours acknowledges after a commit to SQLite with synchronous=FULL, the rival keeps spans in memory. The last
line is one JSON object; its `took_s` says how long it all took (on an idle machine with two cores a few minutes; a soak
takes its seconds and one minute). What a soak stores stays below TMPDIR until it ends: about 1 KB a span.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.ingest_assemble import calls_per_s, read_of_a_million_ms
from benchmarks.ingest_clients import Load, Sent, run
from benchmarks.ingest_payloads import Stamped, calls, llm_spans, small_spans, stamped
from benchmarks.ingest_servers import AgentLightning, Ours, Server
from lightning_jax import types
from lightning_jax.ingest.client import IngestClient

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RECORD = "/lightning.v1.CallService/RecordCalls"
SMALL, LLM, CALLS = 128, 16, 32  # a request holds so many
Figures = dict[str, float]


def measure(server: Server, load: Load, per_request: int) -> Figures:
    """Throughput, throughput per CPU-second of the server, latency."""
    before = server.cpu_s()
    sent: Sent = run(load)
    used = max(server.cpu_s() - before, 1e-3)
    count = len(sent.latencies) * per_request
    return {
        "per_s": count / sent.seconds, "per_cpu_s": count / used,
        "p50_ms": sent.quantile(0.5), "p99_ms": sent.quantile(0.99),
    }  # fmt: skip


def take(requests: Iterator[bytes], count: int) -> list[bytes]:
    """So many of them."""
    return list(itertools.islice(requests, count))


def claim(target: str) -> types.Attempt:
    """A running attempt on our server."""
    with IngestClient(target) as client:
        name = f"benchmark-{time.time_ns()}"
        sampling = types.SamplingDefaults()
        client.enqueue([types.Rollout(name, "t", 0, "train", 0, {}, sampling, timeout_s=7200.0)])
        return client.claim("benchmark", 1, 7200.0, rollout_ids=[name])[0]


def health_ms(server: Server, push: Load | None) -> float:
    """The slowest answer of the health URL while a large request is pushed; None: for two seconds with no load."""
    pushing = threading.Thread(target=_push, args=(push,)) if push else threading.Timer(2.0, lambda: None)
    pushing.start()
    worst = 0.0
    while pushing.is_alive():
        begun = time.perf_counter()
        urllib.request.urlopen(server.health, timeout=60).read()
        worst = max(worst, time.perf_counter() - begun)
        time.sleep(0.005)
    return 1000 * worst


def _push(push: Load) -> None:
    try:
        run(push)
    except Exception as error:  # refused, as it should be
        sys.stderr.write(f"  push refused: {str(error)[:100]}\n")


def ours(scale: float) -> dict[str, Figures]:
    """Every profile on our server, 1, 8 and 64 clients."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, Ours(Path(folder)) as server:
        attempt = claim(server.target)
        key = {"authorization": f"Bearer {attempt.api_key}"}
        small, llm = stamped(small_spans(SMALL, {})), stamped(llm_spans(LLM, {}))
        packed = calls(CALLS, attempt.rollout.rollout_id, attempt.attempt_id)
        run(Load(server.target, EXPORT, 1, take(small, 20), key))  # warm
        for clients in (1, 8, 64):
            count = int(scale * (150 if clients == 1 else 400))
            grpc_small = Load(server.target, EXPORT, clients, take(small, count), key)
            found[f"small/grpc/{clients}"] = measure(server, grpc_small, SMALL)
            http_small = Load(f"{server.http}/v1/traces", "", clients, take(small, count), key)
            found[f"small/http/{clients}"] = measure(server, http_small, SMALL)
            grpc_llm = Load(server.target, EXPORT, clients, take(llm, count // 2), key)
            found[f"llm spans/grpc/{clients}"] = measure(server, grpc_llm, LLM)
            grpc_calls = Load(server.target, RECORD, clients, take(packed, count))
            found[f"llm calls/grpc/{clients}"] = measure(server, grpc_calls, CALLS)
        found["health/idle"] = {"ms": health_ms(server, None)}
        big = bytes(100 * 2**20)
        found["health/100 MB"] = {
            "grpc_ms": health_ms(server, Load(server.target, EXPORT, 1, [big], key)),
            "http_ms": health_ms(server, Load(f"{server.http}/v1/traces", "", 1, [big], key)),
        }
    return found


def rival(python: Path, scale: float) -> dict[str, Figures]:
    """The same spans on Agent Lightning's store, over OTLP/HTTP.

    A fresh attempt a request: its cost a span grows with the spans that an attempt has already.
    """
    found: dict[str, Figures] = {}
    with AgentLightning(python) as server:
        url = f"{server.http}/v1/traces"

        def fresh(make: Callable[[int, dict[str, str]], bytes], size: int, count: float) -> list[bytes]:
            return [next(stamped(make(size, server.attempt()), seed)) for seed in range(int(count * scale))]

        run(Load(url, "", 1, fresh(small_spans, SMALL, 10)))
        for clients in (1, 8):
            load = Load(url, "", clients, fresh(small_spans, SMALL, 150))
            found[f"small/http/{clients}"] = measure(server, load, SMALL)
            load = Load(url, "", clients, fresh(llm_spans, LLM, 60))
            found[f"llm spans/http/{clients}"] = measure(server, load, LLM)
        large = [next(stamped(llm_spans(1200, server.attempt())))]
        found["health/large"] = {"http_ms": health_ms(server, Load(url, "", 1, large)), "mb": len(large[0]) / 1e6}
    return found


def soak(seconds: float, scale: float) -> dict[str, float]:
    """Half load for a while: memory and latency after the first and after the last quarter, and how they grew."""
    with tempfile.TemporaryDirectory() as folder, Ours(Path(folder)) as server:
        attempt = claim(server.target)
        key = {"authorization": f"Bearer {attempt.api_key}"}
        template = small_spans(SMALL, {})

        def load(count: int, seed: int, rate: float = 0.0) -> Load:
            return Load(server.target, EXPORT, 8, Stamped(template, count, seed), key, rate)

        run(load(20, 1))  # warm
        rate = 0.5 * measure(server, load(int(scale * 800), 2), SMALL)["per_s"] / SMALL
        sys.stderr.write(f"soak of {seconds:g} s at {rate * SMALL:,.0f} spans/s\n")
        quarters: list[Figures] = []
        for quarter in range(4):
            sent = run(load(max(10, int(rate * seconds / 4)), 3 + quarter, rate))
            row = {"rss_mib": server.memory_mib(), "p50_ms": sent.quantile(0.5), "p99_ms": sent.quantile(0.99)}
            show("", {f"quarter {quarter + 1}": row})
            quarters.append(row)
    line = {"soak_s": seconds, "soak_spans_per_s": rate * SMALL}
    for name, value in quarters[0].items():
        line |= {f"soak_first_{name}": value, f"soak_last_{name}": quarters[-1][name]}
        line[f"soak_{name.partition('_')[0]}_growth"] = quarters[-1][name] / value - 1
    return line


def speed(python: Path | None, scale: float, million: bool) -> dict[str, Any]:
    """All profiles, ours and (`python`: that of its venv) the rival's; tables on stderr, what counts as one line."""
    mine = ours(scale)
    show("lightning_jax, SQLite FULL", mine)
    line: dict[str, Any] = {
        "small_spans_per_cpu_s": best(mine, "small/grpc"),
        "small_spans_http_per_cpu_s": best(mine, "small/http"),
        "llm_otlp_spans_per_cpu_s": best(mine, "llm spans/grpc"),
        "llm_spans_per_cpu_s": best(mine, "llm calls/grpc"),
        "p99_ms": mine["llm calls/grpc/1"]["p99_ms"],
        "health_idle_ms": mine["health/idle"]["ms"],
        "health_ms": max(mine["health/100 MB"].values()),
        "small_vs_agentlightning": None,
        "llm_vs_agentlightning": None,
    }
    if python:
        theirs = rival(python, scale)
        show("agentlightning 0.3.0, memory", theirs)
        small, llm = best(theirs, "small/http"), best(theirs, "llm spans/http")
        line["small_vs_agentlightning"] = line["small_spans_per_cpu_s"] / small
        line["llm_vs_agentlightning"] = line["llm_spans_per_cpu_s"] / llm
        line["llm_otlp_vs_agentlightning"] = line["llm_otlp_spans_per_cpu_s"] / llm
        line["agentlightning_health_ms"] = theirs["health/large"]["http_ms"]
    assembled = calls_per_s()
    show("assemble, calls per CPU-second", {"calls/s": assembled})
    line["transitions_calls_per_s"] = min(assembled.values())
    if million:
        line["read_of_a_million_ms"] = read_of_a_million_ms()
    return line


def best(figures: dict[str, Figures], profile: str) -> float:
    """The most per CPU-second that a profile reached, over its numbers of clients."""
    return max(row["per_cpu_s"] for name, row in figures.items() if name.rpartition("/")[0] == profile)


def show(title: str, figures: dict[str, Figures]) -> None:
    """A table on stderr, a row a scenario."""
    sys.stderr.write(f"{title}\n" if title else "")
    for name, row in figures.items():
        words = "  ".join(f"{key} {value:,.1f}" for key, value in row.items())
        sys.stderr.write(f"  {name:<22} {words}\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rival", type=Path, help="python of a venv with agentlightning==0.3.0")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer requests, default 1")
    parser.add_argument("--soak", type=float, default=0.0, help="instead of all else: so many seconds at half load")
    parser.add_argument("--million", action="store_true", help="time reads of a store with 1,000,000 spans")
    options = parser.parse_args()

    begun = time.monotonic()
    line = soak(options.soak, options.scale) if options.soak else speed(options.rival, options.scale, options.million)
    line["took_s"] = time.monotonic() - begun
    sys.stdout.write(json.dumps({key: None if v is None else round(v, 3) for key, v in line.items()}) + "\n")


if __name__ == "__main__":
    main()
