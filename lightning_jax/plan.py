"""What fits: compiles the learner for a model and a mesh ahead of time and prints bytes per device.

    python -m lightning_jax.plan model=llama3_8b mesh=fsdp=16,tensor=4
    python -m lightning_jax.plan model=llama3_70b mesh=fsdp=32,tensor=8 optimizer=adamw8bit memory=80

Neither the devices nor the weights need to be there: the mesh is made of fake CPU devices and the arrays are abstract.
Figures are those of XLA's CPU compiler, which keeps some bfloat16 intermediates in float32: upper bounds for others.
remat=offload is not tried: that compiler leaves in the device's memory what others move to the host, and would show
the figures of dots. Where nothing but full fits, algo.remat=offload is worth a try on the device itself.

Arguments, all key=value:
    model      a preset of conf/model with sizes, or a Hugging Face directory
    mesh       a preset of conf/mesh, or axes: data=1,fsdp=16,tensor=4
    algo       preset of conf/algo (grpo)
    optimizer  adamw, adamw8bit, muon, adafactor; its other settings are the algorithm's
    tokens     T of a row (2048)            entries  loss entries of a row (a quarter of T)
    memory     GiB of a device (80)         all      true: every candidate, not only up to the first that fits
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_jax.configuration import check_name
from lightning_jax.presets import preset, presets_of

if TYPE_CHECKING:
    from lightning_jax.learner.footprint import Footprint

AXES = ("data", "fsdp", "tensor")
KEYS = ("model", "mesh", "algo", "optimizer", "tokens", "entries", "memory", "all")


@dataclass(frozen=True, slots=True)
class Question:
    """The command line, read."""

    model: str
    mesh: Mapping[str, int]
    algo: str = "grpo"
    optimizer: str | None = None
    tokens: int = 2048
    entries: int = 512
    memory: float = 80.0  # GiB
    all: bool = False

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())


def read(words: Sequence[str]) -> Question:
    """ValueError names what is wrong and the nearest right key."""
    values: dict[str, Any] = {}
    for word in words:
        key, found, value = word.partition("=")
        check_name(key, KEYS, "argument")
        if not found or not value:
            raise ValueError(f"argument {word!r} has no value; write {key}=...")
        values[key] = value
    for key in ("model", "mesh"):
        if key not in values:
            raise ValueError(f"{key}=... is missing")
    values["mesh"] = _mesh(values["mesh"])
    for key, kind in (("tokens", int), ("entries", int), ("memory", float)):
        if key in values:
            values[key] = _number(key, values[key], kind)
    values.setdefault("entries", values.get("tokens", 2048) // 4)
    values["all"] = values.get("all", "false").lower() in ("true", "1", "yes")
    return Question(**values)


def _mesh(text: str) -> dict[str, int]:
    if "=" not in text:
        return {axis: int(size) for axis, size in preset("mesh", text).items()}
    sizes = dict.fromkeys(AXES, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        check_name(axis, AXES, "axis of mesh")
        sizes[axis] = _number(axis, size, int)
    return sizes


def _number(key: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ValueError(f"{key}={text!r} must be a positive number")
    return number


def footprints(question: Question) -> list[Footprint]:
    """Candidates in order of preference, up to the first that fits (or all). Needs the devices, fake or real."""
    # jax counts its devices when it is imported, so everything that imports it waits until main() has set their number
    from lightning_jax.learner.config import AlgoConfig
    from lightning_jax.learner.footprint import GIB, candidates, footprint, may_save
    from lightning_jax.learner.optimizer import OptimizerConfig
    from lightning_jax.model.config import ModelConfig, Precision
    from lightning_jax.model.hf import read_config
    from lightning_jax.model.sharding import make_mesh

    if Path(question.model).is_dir():
        model, precision = read_config(question.model), Precision(compute="bfloat16")
    else:
        values = preset("model", question.model)
        sized = [name for name in presets_of("model") if "vocab_size" in preset("model", name).get("config", {})]
        if question.model not in sized:
            raise ValueError(f"model preset {question.model!r} has no sizes to plan with; those with sizes are {sized}")
        model, precision = ModelConfig.from_mapping(values["config"]), Precision(**values["precision"])
    chosen = preset("algo", question.algo)
    algo, optimizer = AlgoConfig.from_mapping(chosen), OptimizerConfig.from_mapping(chosen["optimizer"])
    if question.optimizer is not None:
        optimizer = replace(optimizer, name=question.optimizer)
    mesh = make_mesh(**question.mesh)
    unit = question.mesh["data"] * question.mesh["fsdp"]
    found: list[Footprint] = []
    hopeless: set[tuple[str, int]] = set()  # (remat, rows) that no smaller chunk can bring down to the limit
    limit = question.memory * GIB
    for candidate in candidates(question.tokens, question.entries, unit):
        kind = candidate.remat, candidate.rows
        if kind in hopeless and not question.all:
            continue
        found.append(footprint(model, algo, optimizer, precision, mesh, candidate))
        print(line(found[-1], limit), flush=True)
        if found[-1].peak <= limit and not question.all:
            break
        if found[-1].peak - may_save(candidate, model.vocab_size, mesh) > limit:
            hopeless.add(kind)
    return found


HEADER = " rows   T     N     chunk  remat      state   grads    temp  new params    peak GiB"


def line(f: Footprint, limit: float) -> str:
    """One line of the table; figures in GiB per device."""
    c = f.candidate
    state, gradients, temporary, new, peak = (
        x / 2**30 for x in (f.state, f.gradients, f.temporary, f.new_params, f.peak)
    )
    verdict = "fits" if f.peak <= limit else ""
    return (
        f"{c.rows:5d} {c.tokens:5d} {c.entries:5d} {c.logp_chunk:6d}  {c.remat:8s} {state:7.2f} {gradients:7.2f} "
        f"{temporary:7.2f} {new:9.2f} {peak:10.2f}  {verdict}"
    )


def main(words: Sequence[str]) -> int:
    """Print the table; 1 where nothing fits, 2 where the arguments are wrong."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        question = read(words)
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={question.devices}"
        mesh = " ".join(f"{axis}={size}" for axis, size in question.mesh.items())
        print(f"{question.model} · {question.devices} devices ({mesh}) · {question.memory:g} GiB each\n{HEADER}")
        found = footprints(question)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    fitting = [f for f in found if f.peak <= question.memory * 2**30]
    if not fitting:
        print("nothing fits: more devices along fsdp, optimizer=adamw8bit, algo=grpo_lora, or shorter rows")
        return 1
    best = fitting[0].candidate
    entries = best.entries / best.tokens
    print(
        f"take: batch.buckets=[{best.tokens}] batch.micro_batch_tokens={best.rows * best.tokens} "
        f"++batch.entries_per_token={entries:g} ++algo.logp_chunk={best.logp_chunk} algo.remat={best.remat}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
