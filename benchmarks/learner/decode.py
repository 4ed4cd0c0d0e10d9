"""Decode tokens/s of the engine against what reading the weights once per step would allow, and peak memory.

python -m benchmarks.learner.decode --model qwen2_5_1_5b            # random weights; one JSON line at the end
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.transformer import init_params
from lightning_jax.presets import preset
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.engine import Engine
from lightning_jax.serve.generation import GenerationRequest


def bandwidth(size: int) -> float:
    """Bytes per second of reading an array of `size` numbers, much larger than any cache."""
    x = jnp.ones(size, jnp.bfloat16)
    read = jax.jit(lambda y: jnp.sum(y, dtype=jnp.float32))
    jax.block_until_ready(read(x))
    started = time.perf_counter()
    for _ in range(10):
        jax.block_until_ready(read(x))
    return 10 * x.nbytes / (time.perf_counter() - started)


def main() -> None:
    """Decode with 1, 8 and 32 sequences at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2_5_1_5b")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--vocabulary", type=int, help="of the model; default: as it is. To try the script itself")
    parser.add_argument("--read", type=int, default=2**28, help="numbers read to measure the bandwidth")
    args = parser.parse_args()
    model = ModelConfig.from_mapping(preset("model", args.model)["config"])
    model = replace(model, num_layers=args.layers or model.num_layers, vocab_size=args.vocabulary or model.vocab_size)
    params = init_params(model, jax.random.key(0), dtype="bfloat16")
    weights = sum(x.nbytes for x in jax.tree.leaves(params))
    speed = bandwidth(args.read)
    figures: dict[str, object] = {
        "model": args.model, "weights_bytes": weights, "bandwidth_bytes_per_s": speed, "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    for count in (1, 8, 32):
        length = -(-(args.prompt + args.new) // 64) * 64
        engine = Engine(
            model,
            EngineConfig(slots=count, max_length=length, prefill_chunk=64, decode_steps=16, compute_dtype="bfloat16"),
        )
        engine.start(params)
        prompts = [rng.integers(1, model.vocab_size, args.prompt).astype(np.int32) for _ in range(count)]

        def run(tokens: int, prompts: list[np.ndarray] = prompts, engine: Engine = engine) -> float:
            started = time.perf_counter()
            running = [engine.submit(GenerationRequest(p, max_tokens=tokens, seed=i)) for i, p in enumerate(prompts)]
            for generation in running:
                generation.result(300)
            return time.perf_counter() - started

        run(args.new)
        short, long = run(1), run(args.new)
        rate = count * (args.new - 1) / (long - short)
        figures[f"decode_{count}_tokens_per_s"] = rate
        figures[f"decode_{count}_of_floor"] = rate / (count * speed / weights)
        engine.stop()
    stats = jax.local_devices()[0].memory_stats()
    figures["peak_bytes"] = stats["peak_bytes_in_use"] if stats else None
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
