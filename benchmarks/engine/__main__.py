"""The engine's benchmark: throughput against transformers and llama.cpp, latency against memory, HTTP, agents' load.

    python -m benchmarks.engine --rival-python /path/to/venv/bin/python           # with torch and transformers
    python -m benchmarks.engine ... --llama-python ... --gguf smollm2-f32.gguf --gguf smollm2-q4_1.gguf   # xllamacpp
    python -m benchmarks.engine --layers 2 --vocabulary 512 --rows 4 --repeats 1  # tries the benchmark itself

Sides are warmed, take turns within a round, and medians of the rounds are compared; ratios of CPU seconds stand beside
those of wall time, because on a shared machine they are the steadier ones. Ours and transformers run the same weights.
The last line on stdout is one JSON object; what was not measured is null there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", help="a Python with torch and transformers; none: without them")
    parser.add_argument("--llama-python", help="a Python with xllamacpp, for --gguf")
    parser.add_argument("--weights", help="HF directory of the model; default: random weights of --model's shape")
    parser.add_argument("--gguf", action="append", default=[], help="file for llama.cpp, the float32 one first")
    parser.add_argument("--model", default="smollm2_135m", help="a preset of conf/model with sizes")
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--vocabulary", type=int, help="of the model; default: as it is")
    parser.add_argument("--rows", type=int, default=32, help="batch size, and slots")
    parser.add_argument("--new", type=int, default=64, help="tokens generated per prompt")
    parser.add_argument("--rollouts", type=int, default=64, help="of the agents' load")
    parser.add_argument("--requests", type=int, default=4000, help="of the HTTP measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the rivals")
    return parser.parse_args()


class Child:
    """A rival's process; one JSON line there, one back."""

    def __init__(self, python: str, script: str, setup: dict[str, Any]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA")}
        self._process = subprocess.Popen(
            [python, str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self.ask(setup)

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command; RuntimeError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rival ended with status {self._process.wait()}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def median(timings: list[dict[str, Any]], name: str) -> float:
    """Tokens per second of wall or CPU time, the median over rounds."""
    return statistics.median(t["tokens"] / t[name] for t in timings)


def throughput(
    args: argparse.Namespace, model: Any, params: Any, rivals: dict[str, Child], folder: Path
) -> dict[str, Any]:
    """Static batches with and without a shared prefix, every side in every round."""
    import numpy as np

    from benchmarks.engine import ours
    from benchmarks.engine.workload import batch
    from lightning_jax.serve.config import EngineConfig

    config = EngineConfig(
        slots=args.rows, max_length=320, prefill_chunk=64, prefill_rows=16, load_rows=64, decode_steps=8,
        prefix_cache_bytes=512 * 1024 * 1024, top_logprobs=0,
    )  # fmt: skip
    out: dict[str, Any] = {}
    with ours.running(model, params, config) as engine:
        for case, shared in (("shared", 192), ("unshared", 0)):
            timings: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", *rivals)}
            for number in range(args.repeats + 1):
                load = batch(
                    1000 * shared + number, model.vocab_size, rows=args.rows, prompt=256, shared=shared, new=args.new
                )
                np.save(folder / "prompts.npy", load.prompts)
                timings["ours"].append(asdict(ours.throughput(engine, load)))
                for name, child in rivals.items():
                    timings[name].append(child.ask({"prompts": str(folder / "prompts.npy"), "new": args.new}))
            kept = {name: rounds[1:] for name, rounds in timings.items()}  # the first round warms
            for name, rounds in kept.items():
                rates = {unit: median(rounds, unit) for unit in ("wall_s", "cpu_s")}
                out[f"{case}_{name}_tokens_per_s"] = rates["wall_s"]
                print(
                    f"{case:9} {name:14} {rates['wall_s']:9.1f} tokens/s {rates['cpu_s']:9.1f} tokens/CPU-s", flush=True
                )
                if name != "ours":
                    for unit, suffix in (("wall_s", ""), ("cpu_s", "_cpu")):
                        out[f"{case}_vs_{name}{suffix}"] = median(kept["ours"], unit) / rates[unit]
    return out


def latency(args: argparse.Namespace, model: Any, params: Any) -> dict[str, float]:
    """One sequence: ms per token against reading the weights once."""
    from benchmarks.engine import ours
    from benchmarks.engine.workload import batch
    from lightning_jax.serve.config import EngineConfig

    config = EngineConfig(slots=1, max_length=320, prefill_chunk=64, prefill_rows=4, decode_steps=8, top_logprobs=0)
    floors, tokens = [], []
    with ours.running(model, params, config) as engine:
        for number in range(args.repeats + 1):
            prompt = batch(number, model.vocab_size, rows=1, prompt=256, shared=0, new=0).prompts[0]
            tokens.append(ours.token_ms(engine, prompt, args.new))
            floors.append(1e3 * ours.weight_bytes(params) / ours.copy_bandwidth())
    token, floor = statistics.median(tokens[1:]), statistics.median(floors[1:])
    print(f"batch 1: {token:.2f} ms/token, reading the weights takes {floor:.2f} ms", flush=True)
    return {"token_ms": token, "latency_floor_ms": floor, "latency_floor_fraction": floor / token}


def agents(args: argparse.Namespace, model: Any, params: Any) -> dict[str, float]:
    """Rollouts of three calls with growing prompts."""
    from benchmarks.engine import ours, workload
    from lightning_jax.serve.config import EngineConfig

    config = EngineConfig(
        slots=args.rows, max_length=512, prefill_chunk=32, prefill_rows=16, load_rows=64, decode_steps=4,
        prefix_cache_bytes=1024 * 1024 * 1024, top_logprobs=0,
    )  # fmt: skip
    rounds = []
    with ours.running(model, params, config) as engine:
        for number in range(args.repeats + 1):
            load = workload.agents(
                number, model.vocab_size, rollouts=args.rollouts, calls=3, system=128, task=64, observation=24,
                new=min(64, args.new),
            )  # fmt: skip
            timing, shares = ours.agent_load(engine, load)
            rounds.append({"mixed_tokens_per_s": timing.tokens / timing.wall_s, **shares})
    told = {name: statistics.median(r[name] for r in rounds[1:]) for name in rounds[0]}
    print("agents' load: " + ", ".join(f"{name} {value:.2f}" for name, value in told.items()), flush=True)
    return told


def http(args: argparse.Namespace) -> dict[str, float]:
    """The app over an engine that answers at once."""
    from benchmarks.engine.front import measure

    rounds = [measure(args.requests, 64) for _ in range(args.repeats)]
    told = {f"http_{name}": statistics.median(r[name] for r in rounds) for name in rounds[0]}
    print("HTTP: " + ", ".join(f"{name} {value:.2f}" for name, value in told.items()), flush=True)
    return told


def main() -> None:
    """Measure everything and say it in one line."""
    args = arguments()
    import jax

    from lightning_jax.model.config import ModelConfig
    from lightning_jax.model.hf import export_hf, load_hf
    from lightning_jax.model.transformer import init_params
    from lightning_jax.presets import preset

    if args.weights:
        model, params = load_hf(args.weights)
    else:
        model = ModelConfig.from_mapping(preset("model", args.model)["config"])
        model = replace(
            model, num_layers=args.layers or model.num_layers, vocab_size=args.vocabulary or model.vocab_size
        )
        params = init_params(model, jax.random.key(0))
    rivals: dict[str, Child] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if args.rival_python:
            export_hf(params, model, None, folder / "hf")
            setup = {"directory": str(folder / "hf"), "threads": args.threads}
            rivals["transformers"] = Child(args.rival_python, "rival.py", setup)
        for number, file in enumerate(args.gguf if args.llama_python else []):
            setup = {"model": file, "threads": args.threads, "slots": args.rows, "length": 512}
            name = "llama_cpp" if number == 0 else f"llama_cpp_{Path(file).stem}"
            rivals[name] = Child(args.llama_python, "llama.py", setup)
        out: dict[str, Any] = throughput(args, model, params, rivals, folder)
        about = {name: child.about for name, child in rivals.items()}
        for child in rivals.values():
            child.close()
    out |= latency(args, model, params) | agents(args, model, params) | http(args)
    named = (
        "shared_vs_transformers", "unshared_vs_transformers", "vs_llama_cpp", "latency_floor_fraction", "http_cpu_ms",
        "http_p99_ms", "slot_occupancy", "prefix_hit_rate",
    )  # fmt: skip
    out["vs_llama_cpp"] = out.pop("shared_vs_llama_cpp", None)
    line = {**{name: out.get(name) for name in named}, **out, "versions": {"jax": jax.__version__, **about}}
    line |= {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(json.dumps(line, default=str))


if __name__ == "__main__":
    sys.exit(main())
