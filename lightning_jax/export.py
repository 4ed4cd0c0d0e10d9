"""A trained run as a Hugging Face directory: for transformers, for vLLM, to be served or to be trained further.

    python -m lightning_jax.export RUN_FOLDER OUT                    # the newest checkpoint
    python -m lightning_jax.export RUN_FOLDER OUT --step best        # the one of the best validation score
    python -m lightning_jax.export RUN_FOLDER OUT --step 80 --dtype bfloat16

Adapters are folded into the weights; a critic is left out. `python -m lightning_jax.server --model OUT` serves the
result, and `model=llama_hf model.path=OUT` trains it further.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lightning_jax.learner.learner import Learner
from lightning_jax.model.hf import export_hf
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.run.parts import config_hash, load_study, read_parts
from lightning_jax.run.policy import Policy, build_policy

DTYPES = ("float32", "bfloat16", "float16")


def export_run(folder: str | Path, target: str | Path, *, step: int | str = "latest", dtype: str = "float32") -> int:
    """Write the policy of a run's checkpoint to `target`; returns the checkpoint's step.

    step: a number, "latest" or "best". Works on one device, whatever mesh wrote the checkpoint.

    Raises:
        ValueError: no run there, no such checkpoint, or `target` is not empty.
    """
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there already and not an empty folder: name another")
    policy, chosen = trained_policy(Path(folder), step)
    export_hf(policy.params, policy.config, policy.tokenizer, target, dtype=dtype)
    return chosen


def trained_policy(folder: Path, step: int | str = "latest") -> tuple[Policy, int]:
    """(the policy of a run's checkpoint as it is served, the checkpoint's step); `export_run` says what is raised."""
    config = _config(folder)
    parts = read_parts(config)
    checkpoints = Checkpoints(folder / "checkpoints", config_hash=f"{config_hash(config)} seed {parts.seed}")
    chosen = _step(checkpoints, step, folder)
    corpus = () if config["model"].get("path") else load_study(config["task"]).corpus
    policy = build_policy(config["model"], corpus, parts.seed)
    learner = Learner(policy.config, parts.algo, parts.batch, parts.optimizer, precision=policy.precision)
    state, _ = checkpoints.restore(learner.init(policy.params), step=chosen)
    return replace(policy, params=learner.served(state)), chosen


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"no config.yaml in {folder}: name the folder of a run, which has one beside its checkpoints/")
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def _step(checkpoints: Checkpoints, wanted: int | str, folder: Path) -> int:
    steps = checkpoints.steps()
    if not steps:
        raise ValueError(f"{folder} has no complete checkpoint yet")
    if wanted == "latest":
        return steps[-1]
    if wanted == "best":
        best = checkpoints.best()
        if best is None:
            raise ValueError(
                f"no checkpoint of {folder} has a validation score (train.validate_every=N makes them): "
                f"use --step latest, or one of {steps}"
            )
        return best
    if str(wanted).isdecimal() and int(wanted) in steps:
        return int(wanted)
    raise ValueError(f"step {wanted} of {folder} is not kept; there are {steps}, latest and best")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="folder of a run: config.yaml and checkpoints/")
    parser.add_argument("out", help="folder to write; new or empty")
    parser.add_argument("--step", default="latest", help="of the checkpoint: a number, best or latest (the default)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the weights written (default: float32)")
    options = parser.parse_args(argv)
    try:
        step = export_run(options.run, options.out, step=options.step, dtype=options.dtype)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"step {step} of {options.run} is in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
