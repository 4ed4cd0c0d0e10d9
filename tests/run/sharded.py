"""Program of test_policy, with eight fake devices: what lies where when a run begins."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lightning_jax.learner.learner import Learner
from lightning_jax.model.hf import export_hf
from lightning_jax.run.experiment import run_experiment
from lightning_jax.run.parts import load_study
from lightning_jax.run.policy import build_policy
from tests.e2e.toy import config

LARGE = 512  # elements: every matrix of the toy model has more, every norm fewer


class Begun(Exception):
    """The state is there; the rest of the run is not looked at."""


def check_split(params: dict[str, Any]) -> None:
    """No device holds a large array whole, neither one of `params` nor any other."""
    gc.collect()
    whole = [x.shape for x in jax.live_arrays() if x.size > LARGE and x.sharding.shard_shape(x.shape) == x.shape]
    assert not whole, whole
    assert sum(x.size > LARGE for x in jax.tree.leaves(params)) >= 8


def begin(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The parameters that a run begins with."""
    original, found = Learner.init, list[Any]()

    def init(self: Learner, params: Any) -> Any:
        check_split(params)
        state = original(self, params)
        check_split(state["params"])
        pairs = zip(jax.tree.leaves(params), jax.tree.leaves(state["params"]), strict=True)
        for given, taken in pairs:  # the same memory
            for a, b in zip(given.addressable_shards, taken.addressable_shards, strict=True):
                assert a.data.unsafe_buffer_pointer() == b.data.unsafe_buffer_pointer()
        found.append(jax.tree.map(np.asarray, params))
        raise Begun

    Learner.init = init  # type: ignore[method-assign]
    try:
        run_experiment(values, folder)
    except Begun:
        return dict(found[0])
    finally:
        Learner.init = original  # type: ignore[method-assign]
    raise AssertionError("the run never made a state")


def main(folder: Path) -> None:
    values = config("mesh.fsdp=8", "warmup.enabled=false", "algo.optimizer.learning_rate=1e-6")
    scratch = begin(values, folder / "scratch")
    policy = build_policy(values["model"], load_study(values["task"]).corpus, values["seed"])
    jax.tree.map(np.testing.assert_array_equal, scratch, policy.params)  # the mesh changes no value
    export_hf(policy.params, policy.config, policy.tokenizer, folder / "model")
    del policy
    loaded = begin({**values, "model": {"name": "saved", "path": str(folder / "model")}}, folder / "loaded")
    jax.tree.map(np.testing.assert_array_equal, scratch, loaded)
    print("SPLIT")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
