"""The learner's benchmark: this project against a PyTorch loop, interleaved, and its layouts against each other.

    python -m benchmarks.learner --rival-python /path/to/venv/bin/python      # a Python with torch and transformers
    python -m benchmarks.learner --layers 6 --repeats 3                       # fewer layers, no rival: minutes
    python -m benchmarks.learner --layers 1 --vocabulary 1024 --repeats 1 ... # does it run at all?
    python -m benchmarks.learner --device gpu --model qwen2_5_1_5b --dtype bfloat16 ...

Both sides load the same random weights; the first update of each must find the same loss, gradient norm and mean
|log π - log μ| (and entropy, with --rival-entropy), or the benchmark ends there. Then they take turns, and medians are
compared; the ratios of CPU seconds stand beside those of wall time, because on a shared machine they are the steadier
ones. A table goes to stderr; the last line on stdout is one JSON object. memory_vs_torch is our peak over the rival's
(lower is better), all other ratios are its time over ours (higher is better).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.child import Child

if TYPE_CHECKING:  # jax reads its environment when it is imported, so nothing of it comes before main() has set it
    from benchmarks.learner.ours import Ours
    from lightning_jax.model.config import ModelConfig

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # relative, of what both sides find at equal weights
HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", help="a Python with torch and transformers; none: only our side")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--vocabulary", type=int, help="of the model; default: as it is. To try the benchmark itself")
    parser.add_argument("--model", default="smollm2_135m", help="a preset of conf/model with sizes")
    parser.add_argument("--cases", default="independent,samples,turns")
    parser.add_argument("--dtype", default="float32", help="of our blocks' arithmetic and of the rival's model")
    parser.add_argument("--remat", default="dots")
    parser.add_argument("--attention", default="blocks", help="blocks, fused or dense")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--rival-checkpointing", action="store_true", help="gradient checkpointing, TRL's default")
    parser.add_argument("--rival-rows", type=int, help="rows that it computes at a time; default: 8, all where it can")
    parser.add_argument("--rival-entropy", action="store_true", help="let it report entropy too, as TRL does")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the rival on the CPU")
    parser.add_argument("--peak-flops", type=float, help="of the device, for the model FLOP utilisation")
    return parser.parse_args()


def start_rival(args: argparse.Namespace) -> Child:
    """PyTorch's side; `about` is its version."""
    setup = {
        "threads": args.threads, "device": "cuda" if args.device == "gpu" else "cpu", "dtype": args.dtype,
        "checkpointing": args.rival_checkpointing, "entropy": args.rival_entropy,
    }  # fmt: skip
    return Child(args.rival_python, HERE / "rival.py", setup)


def main() -> None:
    """Run the cases and print the table's figures."""
    args = arguments()
    if args.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # after the platform is set

    from benchmarks.learner.ours import weights
    from lightning_jax.model.config import ModelConfig
    from lightning_jax.model.hf import export_hf
    from lightning_jax.presets import preset

    model = ModelConfig.from_mapping(preset("model", args.model)["config"])
    if args.layers:
        model = replace(model, num_layers=args.layers)
    if args.vocabulary:
        model = replace(model, vocab_size=args.vocabulary)
    rival = start_rival(args) if args.rival_python else None
    figures: dict[str, Any] = {
        "model": args.model, "layers": model.num_layers, "vocabulary": model.vocab_size,
        "dtype": args.dtype, "remat": args.remat, "attention": args.attention,
        "rival_checkpointing": args.rival_checkpointing, "rival_rows": args.rival_rows,
        "repeats": args.repeats, "jax": jax.__version__, "python": sys.version.split()[0],
        "torch": rival.about["torch"] if rival else None, "device": jax.devices()[0].device_kind,
        "threads": args.threads, "recompiles": 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # both sides read the same files, and neither keeps the first weights in memory
        export_hf(weights(model), model, None, Path(folder) / "weights", dtype=args.dtype)
        for case in args.cases.split(","):
            figures |= run_case(case, model, Path(folder), rival, args, figures)
    if rival is not None:
        rival.close()
    print(table(figures), file=sys.stderr)
    print(json.dumps(figures | ratios(figures)))


def run_case(
    case: str, model: ModelConfig, folder: Path, rival: Child | None, args: argparse.Namespace, so_far: dict[str, Any]
) -> dict[str, Any]:
    """A workload's figures: first one update of each side at equal weights, whose results must agree, then turns.

    ValueError where the sides do not compute the same.
    """
    import jax
    import numpy as np

    from benchmarks.learner.ours import Ours, disagreement, median
    from benchmarks.learner.workload import WORKLOADS
    from lightning_jax.model.hf import load_hf

    workload = WORKLOADS[case](model.vocab_size)
    np.savez(folder / "batch.npz", **workload.padded())
    command = {"batch": str(folder / "batch.npz"), "rows": args.rival_rows or workload.rival_rows}
    figures: dict[str, Any] = {}
    sides = {name: Ours(model, workload, name, args.dtype, args.remat, args.attention) for name in workload.layouts}
    found = {}
    state: Any = None
    first: Any = load_hf(folder / "weights")[1]
    for number, (name, side) in enumerate(sides.items(), 1):
        state = None  # one at a time, and no weights that nobody needs: memory is measured
        state = side.learner.init(first)
        if number == len(sides):
            del first
        side.learner.warm_up(state)
        state, timing = side.update(state)
        found[name] = timing.found
    if rival is not None:
        rival.ask({"load": str(folder / "weights")})
        found["rival"] = rival.ask(command)
    reference = found["rival" if rival is not None else next(iter(sides))]
    for name in sides:
        differences = disagreement(found[name], reference)
        if rival is not None and not args.rival_entropy:
            del differences["entropy"]
        figures[f"{case}_{name}_disagreement"] = max(differences.values())
        if max(differences.values()) > TOLERANCE[args.dtype]:
            raise ValueError(f"{case}: {name} found {found[name]}, the reference {reference}: not the same computation")
    compiled = {name: side.learner.compiled for name, side in sides.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*sides, "rival")}
    for repeat in range(args.repeats):
        for name, side in sides.items():
            state, timing = side.update(state)
            times[name].append((timing.seconds, timing.cpu))
        if rival is not None and workload.rival_timed:
            answer = rival.ask(command)
            times["rival"].append((answer["seconds"], answer["cpu"]))
            figures[f"{case}_rival_peak_bytes"] = answer["peak"]
        print(f"{case} {repeat}: { ({n: round(t[-1][0], 2) for n, t in times.items() if t}) }", file=sys.stderr)
    for name, pairs in times.items():
        if pairs:
            figures[f"{case}_{name}_s"] = median([wall for wall, _ in pairs])
            figures[f"{case}_{name}_cpu_s"] = median([cpu for _, cpu in pairs])
            figures[f"{case}_{name}_tokens_per_s"] = workload.tokens / figures[f"{case}_{name}_s"]
    figures["recompiles"] = so_far["recompiles"] + sum(s.learner.compiled - compiled[n] for n, s in sides.items())
    stats = jax.local_devices()[0].memory_stats() if args.device == "gpu" else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures[f"{case}_peak_bytes"] = stats["peak_bytes_in_use"] if stats else peak  # of the process so far
    if case == "independent":
        figures |= shares(model, sides["rows"], state, figures["independent_rows_s"], args)
    return figures


def shares(model: ModelConfig, side: Ours, state: Any, seconds: float, args: argparse.Namespace) -> dict[str, float]:
    """What an update of independent rows is made of."""
    from benchmarks.learner.ours import gemm_rate, host_fraction, matmul_flops

    _, host = host_fraction(side, state)
    rate = gemm_rate(model, 8, 512, 256, args.dtype)
    # remat "dots" keeps the projections; the head's chunks are always computed again
    work = matmul_flops(model, 8, 512, 256, passes=4 if args.remat == "full" else 3, head_passes=4)
    figures = {
        "gemm_flops_per_s": rate,
        "matmul_flops": work,
        "gemm_fraction": work / seconds / rate,
        "host_fraction": host,
    }
    if args.peak_flops:
        figures["mfu"] = matmul_flops(model, 8, 512, 256, passes=3, head_passes=3) / seconds / args.peak_flops
    return figures


def table(figures: dict[str, Any]) -> str:
    """Markdown: one line per case and side."""
    lines = ["| case | side | s an update | CPU s | tokens/s | disagreement |", "|---|---|---|---|---|---|"]
    for key in [k for k in figures if k.endswith("_tokens_per_s")]:
        name = key.removesuffix("_tokens_per_s")
        case, side = name.split("_", 1)
        apart = figures.get(f"{name}_disagreement")
        lines.append(
            f"| {case} | {side} | {figures[f'{name}_s']:.2f} | {figures[f'{name}_cpu_s']:.2f} | {figures[key]:.0f} "
            f"| {'' if apart is None else f'{apart:.1e}'} |"
        )
    return "\n".join(lines)


def ratios(figures: dict[str, Any]) -> dict[str, float | None]:
    """Above 1: we are faster. A ratio whose sides did not both run is null."""

    def of(upper: str, lower: str) -> float | None:
        return figures[upper] / figures[lower] if upper in figures and lower in figures else None

    result: dict[str, float | None] = {}
    for suffix, unit in (("", "s"), ("_cpu", "cpu_s")):
        result |= {
            f"rows_vs_torch{suffix}": of(f"independent_rival_{unit}", f"independent_rows_{unit}"),
            f"trie_vs_torch{suffix}": of(f"samples_rival_{unit}", f"samples_trie_{unit}"),
            f"trie_vs_rows{suffix}": of(f"samples_rows_{unit}", f"samples_trie_{unit}"),
            f"trie_vs_concatenated{suffix}": of(f"turns_concatenated_{unit}", f"turns_trie_{unit}"),
            f"concatenated_vs_rows{suffix}": of(f"turns_rows_{unit}", f"turns_concatenated_{unit}"),
            f"turns_trie_vs_rows{suffix}": of(f"turns_rows_{unit}", f"turns_trie_{unit}"),
        }
    result["memory_vs_torch"] = of("independent_peak_bytes", "independent_rival_peak_bytes")
    return result


if __name__ == "__main__":
    main()
