"""The learner's benchmark: this project against a PyTorch loop, interleaved, and its layouts against each other.

    python -m benchmarks.learner --rival-python /path/to/venv/bin/python      # a Python with torch and transformers
    python -m benchmarks.learner --layers 6 --repeats 3                       # fewer layers, no rival: minutes
    python -m benchmarks.learner --device gpu --model qwen2_5_1_5b --dtype bfloat16 ...

Both sides are warmed, take turns, and medians are compared; the ratios of CPU seconds stand beside those of wall time,
because on a shared machine they are the steadier ones. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
    parser.add_argument("--rival-python", help="a Python with torch and transformers; none: only our side")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--vocabulary", type=int, help="of the model; default: as it is. To try the benchmark itself")
    parser.add_argument("--model", default="smollm2_135m", help="a preset of conf/model with sizes")
    parser.add_argument("--cases", default="independent,samples,turns")
    parser.add_argument("--dtype", default="float32", help="of our blocks' arithmetic and of the rival's model")
    parser.add_argument("--remat", default="full")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the rival on the CPU")
    parser.add_argument("--peak-flops", type=float, help="of the device, for the model FLOP utilisation")
    return parser.parse_args()


class Rival:
    """The other process; one JSON line there, one back."""

    def __init__(self, python: str, sizes: dict[str, Any], args: argparse.Namespace) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA")}
        self._process = subprocess.Popen(
            [python, str(HERE / "rival.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        device = "cuda" if args.device == "gpu" else "cpu"
        self.version = self.ask({"sizes": sizes, "threads": args.threads, "device": device, "dtype": args.dtype})[
            "torch"
        ]

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command; RuntimeError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rival ended with {self._process.wait()}: see its messages above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Run the cases and print the table's figures."""
    args = arguments()
    if args.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # after the platform is set
    import numpy as np

    from benchmarks.learner.ours import Ours, gemm_rate, host_fraction, matmul_flops, median, weights
    from benchmarks.learner.workload import WORKLOADS
    from lightning_jax.model.config import ModelConfig
    from lightning_jax.presets import preset

    model = ModelConfig.from_mapping(preset("model", args.model)["config"])
    if args.layers:
        model = replace(model, num_layers=args.layers)
    if args.vocabulary:
        model = replace(model, vocab_size=args.vocabulary)
    params = weights(model)
    rival = Rival(args.rival_python, asdict(model), args) if args.rival_python else None
    figures: dict[str, Any] = {
        "model": args.model, "layers": model.num_layers, "vocabulary": model.vocab_size,
        "dtype": args.dtype, "remat": args.remat,
        "repeats": args.repeats, "jax": jax.__version__, "python": sys.version.split()[0],
        "torch": rival.version if rival else None, "device": jax.devices()[0].device_kind, "threads": args.threads,
    }  # fmt: skip
    recompiled = 0
    for case in args.cases.split(","):
        workload = WORKLOADS[case](model.vocab_size)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "batch.npz"
            np.savez(path, **workload.padded())
            command = {"batch": str(path), "rows": workload.rival_rows}
            sides = {name: Ours(model, workload, name, args.dtype, args.remat) for name in workload.layouts}
            for side in sides.values():
                side.start(params)
            compiled = {name: side.learner.compiled for name, side in sides.items()}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*sides, "rival")}
            for repeat in range(args.repeats + 1):  # the first one warms both sides
                for name, side in sides.items():
                    timing = side.update()
                    if repeat:
                        times[name].append((timing.seconds, timing.cpu))
                if rival is not None:
                    answer = rival.ask(command)
                    if repeat:
                        times["rival"].append((answer["seconds"], answer["cpu"]))
                    figures[f"{case}_rival_peak_bytes"] = answer["peak"]
                print(f"{case} {repeat}: { ({n: round(t[-1][0], 2) for n, t in times.items() if t}) }", file=sys.stderr)
            for name, pairs in times.items():
                if pairs:
                    figures[f"{case}_{name}_s"] = median([wall for wall, _ in pairs])
                    figures[f"{case}_{name}_cpu_s"] = median([cpu for _, cpu in pairs])
            recompiled += sum(side.learner.compiled - compiled[name] for name, side in sides.items())
            if case == "independent":
                stats = jax.local_devices()[0].memory_stats() if args.device == "gpu" else None
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                figures["independent_peak_bytes"] = stats["peak_bytes_in_use"] if stats else peak
                rate = gemm_rate(model, 8, 512, 256, args.dtype)
                # remat "dots" keeps the projections; the head's chunks are always computed again
                work = matmul_flops(model, 8, 512, 256, passes=4 if args.remat == "full" else 3, head_passes=4)
                figures |= {"gemm_flops_per_s": rate, "matmul_flops": work}
                figures["gemm_fraction"] = work / figures["independent_rows_s"] / rate
                figures["host_fraction"] = host_fraction(sides["rows"])
                if args.peak_flops:
                    useful = matmul_flops(model, 8, 512, 256, passes=3, head_passes=3)
                    figures["mfu"] = useful / figures["independent_rows_s"] / args.peak_flops
            for side in sides.values():
                side.stop()
    if rival is not None:
        rival.stop()
    figures["recompiles"] = recompiled
    print(json.dumps(figures | ratios(figures)))


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
