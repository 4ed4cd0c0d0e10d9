"""This project's engine under the workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.engine.workload import AgentLoad, Batch
from lightning_jax.model.config import ModelConfig
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.engine import Engine, GenerationRequest


@dataclass(frozen=True)
class Timing:
    """One run: wall and CPU seconds, tokens generated."""

    wall_s: float
    cpu_s: float
    tokens: int


@contextmanager
def running(model: ModelConfig, params: Any, config: EngineConfig) -> Iterator[Engine]:
    """A started engine without end tokens, so that every answer has its full length."""
    engine = Engine(model, config)
    engine.start(params)
    try:
        yield engine
    finally:
        engine.stop()


def timed(work: Callable[[], int]) -> Timing:
    """Time a function that returns how many tokens it got."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu, tokens)


def throughput(engine: Engine, batch: Batch) -> Timing:
    """All prompts at once, sampled at temperature 1."""

    def work() -> int:
        requests = [GenerationRequest(row, batch.new, seed=i) for i, row in enumerate(batch.prompts)]
        return sum(len(g.result().response_ids) for g in [engine.submit(r) for r in requests])

    return timed(work)


def token_ms(engine: Engine, prompt: np.ndarray[Any, Any], new: int) -> float:
    """Milliseconds a token of one sequence alone: a long answer less a short one, so that the prefill cancels."""
    short = max(1, new // 4)
    long_s = throughput(engine, Batch(prompt[None], new)).wall_s
    return 1e3 * (long_s - throughput(engine, Batch(prompt[None], short)).wall_s) / (new - short)


def agent_load(engine: Engine, load: AgentLoad) -> tuple[Timing, dict[str, float]]:
    """All rollouts at once; also the occupancy of slots and the share of prompt tokens found in the prefix cache."""
    before = dict(engine.metrics())

    def rollout(number: int) -> int:
        prompt, tokens = load.first[number], 0
        for call in range(load.observations.shape[1] + 1):
            answer = engine.submit(GenerationRequest(prompt, load.new, seed=number)).result().response_ids
            tokens += len(answer)
            if call < load.observations.shape[1]:
                prompt = np.concatenate([prompt, answer, load.observations[number, call]])
        return tokens

    with ThreadPoolExecutor(len(load.first)) as pool:
        timing = timed(lambda: sum(pool.map(rollout, range(len(load.first)))))
    got = {name: value - before[name] for name, value in engine.metrics().items() if name.endswith("_total")}
    steps = got["decode_dispatches_total"] * engine.config.decode_steps * engine.config.slots
    return timing, {
        "slot_occupancy": got["generated_tokens_total"] / steps,
        "prefix_hit_rate": got["prefix_tokens_copied_total"] / got["prompt_tokens_total"],
    }


def weight_bytes(params: Any) -> int:
    """What one decode step has to read: tied embeddings once, untied ones as the head only."""
    total = sum(leaf.size for leaf in jax.tree.leaves(params)) * 4
    return total - (params["embed"].size * 4 if "head" in params else 0)


def copy_bandwidth(mebibytes: int = 256, repeats: int = 7) -> float:
    """Bytes per second of a copy by all cores, read and written: the best of some."""
    x = jnp.zeros((mebibytes, 1024 * 256), jnp.float32)
    copy = jax.jit(lambda a: a + 1.0)
    copy(x).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        copy(x).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * x.nbytes / best
