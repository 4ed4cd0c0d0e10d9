"""The engine's benchmark: throughput against transformers and llama.cpp, latency against memory, HTTP, agents' load.

    python -m benchmarks.engine --rival-python PYTHON --llama-python PYTHON --weights smollm2-135m-instruct.gguf
    python -m benchmarks.engine --quick --rival-python PYTHON      # tries the benchmark itself; figures mean nothing

--rival-python has torch and transformers, --llama-python xllamacpp and numpy; what is not given is not measured. Ours
and the rivals run the same weights: of a .gguf file its values in float32, and for llama.cpp also the file as it is. As
many rounds are made as --seconds allows. The last line is one JSON object; what was not measured is null there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.child import Child
from benchmarks.engine import measures
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf import export_hf
from lightning_jax.model.pretrained import load_model
from lightning_jax.model.transformer import init_params
from lightning_jax.presets import preset

HERE = Path(__file__).parent
QUICK = {"layers": 2, "vocabulary": 512, "rows": 2, "new": 8, "rollouts": 2, "requests": 128, "repeats": 1}
BARS: Mapping[str, tuple[str, float]] = {
    "shared_vs_transformers": ("≥", 3.0),
    "unshared_vs_transformers": ("≥", 1.2),
    "vs_llama_cpp": ("≥", 2.0),
    "latency_floor_fraction": ("≥", 0.6),
    "http_cpu_ms": ("≤", 3.0),
    "http_p99_ms": ("≤", 50.0),
    "slot_occupancy": ("≥", 0.8),
}
NAMED = (*BARS, "prefix_hit_rate")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", help="a Python with torch and transformers; none: without them")
    parser.add_argument("--llama-python", help="a Python with xllamacpp and numpy; needs --weights of a .gguf file")
    parser.add_argument("--weights", help="HF directory or .gguf file; default: random weights of --model's shape")
    parser.add_argument("--model", default="smollm2_135m", help="a preset of conf/model with sizes")
    parser.add_argument("--layers", type=int, help="of a random model; default: all")
    parser.add_argument("--vocabulary", type=int, help="of a random model; default: as it is")
    parser.add_argument("--rows", type=int, default=32, help="batch size, and slots")
    parser.add_argument("--new", type=int, default=64, help="tokens generated per prompt")
    parser.add_argument("--rollouts", type=int, default=64, help="of the agents' load")
    parser.add_argument("--requests", type=int, default=4000, help="of the HTTP measurement")
    parser.add_argument("--repeats", type=int, default=5, help="rounds at most")
    parser.add_argument("--seconds", type=float, default=660, help="for all rounds; starting and compiling come on top")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the rivals")
    parser.add_argument("--quick", action="store_true", help=f"a tiny load: {QUICK}")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    if args.llama_python and not str(args.weights).endswith(".gguf"):
        parser.error(f"--llama-python needs --weights of a .gguf file, got {args.weights}")
    return args


def model_and_weights(args: argparse.Namespace) -> tuple[ModelConfig, Any]:
    """What all sides run."""
    if args.weights:
        loaded = load_model(args.weights)
        return loaded.config, loaded.params
    model = ModelConfig.from_mapping(preset("model", args.model)["config"])
    model = replace(model, num_layers=args.layers or model.num_layers, vocab_size=args.vocabulary or model.vocab_size)
    return model, init_params(model, jax.random.key(0))


def start_rivals(args: argparse.Namespace, model: ModelConfig, params: Any, folder: Path) -> dict[str, Child]:
    """By name: transformers, llama_cpp (float32) and llama_cpp_quantised."""
    rivals: dict[str, Child] = {}
    if args.rival_python:
        export_hf(params, model, None, folder / "hf")
        setup = {"directory": str(folder / "hf"), "threads": args.threads}
        rivals["transformers"] = Child(args.rival_python, HERE / "rival.py", setup)
    if args.llama_python:
        from benchmarks.engine.gguf_float32 import to_float32

        to_float32(Path(args.weights), folder / "float32.gguf")
        for name, file in (("llama_cpp", str(folder / "float32.gguf")), ("llama_cpp_quantised", args.weights)):
            setup = {"model": file, "threads": args.threads, "slots": args.rows, "length": 512}
            rivals[name] = Child(args.llama_python, HERE / "llama.py", setup)
    return rivals


def table(out: Mapping[str, Any]) -> str:
    """Figures beside their bars."""
    lines = [f"{'figure':28} {'value':>10}  bar"]
    for name in NAMED:
        value, (sign, bar) = out.get(name), BARS.get(name, ("", 0.0))
        verdict = ""
        if value is not None and sign:
            met = value >= bar if sign == "≥" else value <= bar
            verdict = f"{sign} {bar:g} {'met' if met else 'missed'}"
        lines.append(f"{name:28} {'not measured' if value is None else f'{value:10.3f}'}  {verdict}")
    return "\n".join(lines)


def main() -> None:
    """Measure everything and say it in one line."""
    args = arguments()
    load = os.getloadavg()[0]
    model, params = model_and_weights(args)
    with tempfile.TemporaryDirectory() as place:
        rivals = start_rivals(args, model, params, Path(place))
        out = measures.throughput(args, model, params, rivals, Path(place), 0.65 * args.seconds)
        about = {name: child.about for name, child in rivals.items()}
        for child in rivals.values():
            child.close()
    out |= measures.latency(args, model, params, 0.07 * args.seconds)
    out |= measures.agents(args, model, params, 0.2 * args.seconds)
    out |= measures.http(args, 0.08 * args.seconds)
    out["vs_llama_cpp"] = out.pop("shared_vs_llama_cpp", None)
    print(table(out))
    line = {**{name: out.get(name) for name in NAMED}, **out, "quick": args.quick, "weights": args.weights or "random"}
    line |= {"versions": {"jax": jax.__version__, **about}, "machine": platform.machine(), "cores": os.cpu_count()}
    print(json.dumps({**line, "load_at_start": load, "load_at_end": os.getloadavg()[0]}, default=str))


if __name__ == "__main__":
    sys.exit(main())
