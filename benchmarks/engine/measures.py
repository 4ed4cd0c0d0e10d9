"""The four measurements. Each side is warmed with a small load, then sides take turns; medians over rounds."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Child
from benchmarks.engine import front, ours, workload
from lightning_jax.serve.config import EngineConfig

CASES = (("shared", 192), ("unshared", 0))  # name, shared tokens of a prompt's 256
WARM_ROWS, WARM_NEW = 2, 4


def rounds(limit: int, seconds: float) -> Iterator[int]:
    """0, 1, ... up to `limit`, or as many as fit into `seconds`, but one at least."""
    began = last = time.perf_counter()
    longest = 0.0
    for number in range(limit):
        yield number
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if now - began + longest > seconds:
            return


def rate(timings: list[dict[str, Any]], unit: str) -> float:
    """Tokens per second of wall or CPU time, the median over rounds."""
    return statistics.median(t["tokens"] / t[unit] for t in timings)


def throughput(
    args: Namespace, model: Any, params: Any, rivals: Mapping[str, Child], folder: Path, seconds: float
) -> dict[str, Any]:
    """Static batches with and without a shared prefix; llama.cpp, which knows prefixes too, with one."""
    config = EngineConfig(
        slots=args.rows, max_length=320, prefill_chunk=64, prefill_rows=16, load_rows=64, decode_steps=8,
        cache_block=320, prefix_cache_bytes=512 * 1024 * 1024, top_logprobs=0,
    )  # fmt: skip
    timings: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def turn(engine: Any, seed: int, rows: int, new: int, shared: int) -> dict[str, dict[str, Any]]:
        load = workload.batch(seed, model.vocab_size, rows=rows, prompt=256, shared=shared, new=new)
        np.save(folder / "prompts.npy", load.prompts)
        sides = {name: child for name, child in rivals.items() if shared or "llama" not in name}
        command = {"prompts": str(folder / "prompts.npy"), "new": new}
        told = {"ours": asdict(ours.throughput(engine, load))}
        return {**told, **{name: child.ask(command) for name, child in sides.items()}}

    with ours.running(model, params, config) as engine:
        for _, shared in CASES:
            turn(engine, 999 + shared, min(WARM_ROWS, args.rows), WARM_NEW, shared)
        for number in rounds(args.repeats, seconds):
            for case, shared in CASES:
                for name, timing in turn(engine, 1000 * shared + number, args.rows, args.new, shared).items():
                    timings.setdefault((case, name), []).append(timing)
    out: dict[str, Any] = {"throughput_rounds": number + 1}
    for (case, name), kept in timings.items():
        wall, cpu = rate(kept, "wall_s"), rate(kept, "cpu_s")
        out[f"{case}_{name}_tokens_per_s"] = wall
        print(f"{case:9} {name:24} {wall:9.1f} tokens/s {cpu:9.1f} tokens/CPU-s", flush=True)
        if name != "ours":
            mine = timings[case, "ours"]
            out[f"{case}_vs_{name}"] = rate(mine, "wall_s") / wall
            out[f"{case}_vs_{name}_cpu"] = rate(mine, "cpu_s") / cpu
    return out


def latency(args: Namespace, model: Any, params: Any, seconds: float) -> dict[str, float]:
    """One sequence: ms per token against reading the weights once."""
    config = EngineConfig(slots=1, max_length=320, prefill_chunk=64, prefill_rows=4, decode_steps=8, top_logprobs=0)
    floors, tokens = [], []

    def prompt(seed: int) -> Any:
        return workload.batch(seed, model.vocab_size, rows=1, prompt=256, shared=0, new=0).prompts[0]

    with ours.running(model, params, config) as engine:
        ours.token_ms(engine, prompt(99), WARM_NEW)
        for number in rounds(args.repeats, seconds):
            tokens.append(ours.token_ms(engine, prompt(number), args.new))
            floors.append(1e3 * ours.weight_bytes(params) / ours.copy_bandwidth())
    token, floor = statistics.median(tokens), statistics.median(floors)
    return {"token_ms": token, "latency_floor_ms": floor, "latency_floor_fraction": floor / token}


def agents(args: Namespace, model: Any, params: Any, seconds: float) -> dict[str, float]:
    """Rollouts of three calls with growing prompts."""
    config = EngineConfig(
        slots=args.rows, max_length=512, prefill_chunk=32, prefill_rows=16, load_rows=64, decode_steps=4,
        prefix_cache_bytes=1024 * 1024 * 1024, top_logprobs=0,
    )  # fmt: skip

    def load(seed: int, rollouts: int, new: int) -> workload.AgentLoad:
        return workload.agents(
            seed, model.vocab_size, rollouts=rollouts, calls=3, system=128, task=64, observation=24, new=new
        )

    told = []
    with ours.running(model, params, config) as engine:
        ours.agent_load(engine, load(99, WARM_ROWS, WARM_NEW))
        for number in rounds(args.repeats, seconds):
            timing, shares = ours.agent_load(engine, load(number, args.rollouts, min(64, args.new)))
            told.append({"mixed_tokens_per_s": timing.tokens / timing.wall_s, **shares})
    return {name: statistics.median(r[name] for r in told) for name in told[0]}


def http(args: Namespace, seconds: float) -> dict[str, float]:
    """The app over an engine that answers at once: as much as it can take, then half of that."""
    told = []
    for _ in rounds(args.repeats, seconds):
        full = front.measure(args.requests, 64)
        half = front.measure(args.requests, 64, rate=full["requests_per_s"] / 2)
        told.append({**full, **{f"half_load_{name}": half[name] for name in ("p50_ms", "p99_ms")}})
    return {f"http_{name}": statistics.median(r[name] for r in told) for name in told[0]}
