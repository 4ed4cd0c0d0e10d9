"""Programs of test_meshes: run with eight fake devices, or as one of two processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lightning_jax.batch import empty_micro_batch
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.placement import fetch
from lightning_jax.learner.state import abstract_params
from lightning_jax.learner.trainable import split
from lightning_jax.model.sharding import DEFAULT_RULES, make_mesh
from lightning_jax.publish.checkpoint import Checkpoints
from tests.batch.examples import agent_calls
from tests.learner.small import BATCH, MODEL, learner, params

EVERYTHING: dict[str, Any] = {"advantage": "turn_gae", "kl_coef": 0.01, "entropy_coef": 0.01, "mini_batches": 2}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# AdamW with so large an eps moves parameters in proportion to their gradients (by .001 to .04 here). With a small one
# its first steps are ±rate whatever the gradient is, and where that is almost 0 not even the sign need agree
RATE, EPS = 0.1, 1.0
ATOL = 2e-6  # measured: 1.2e-7, the last bit of values around 1
FIGURES = ("loss", "policy_loss", "grad_norm", "kl_max_nat", "value_loss")


def small(mesh: Any, **algo: Any) -> Learner:
    return learner(replace(BATCH, short_rows=False), mesh=mesh, learning_rate=RATE, grad_clip=None, eps=EPS, **algo)


def check_trained(found: Any, expected: Any) -> None:
    """Trained parameters agree to ATOL, and every leaf was changed by far more than that."""

    def same(path: Any, a: Any, b: Any, before: Any) -> None:
        name = jax.tree_util.keystr(path)
        assert np.abs(b - before).max() > 100 * ATOL, name
        np.testing.assert_allclose(a, b, rtol=0, atol=ATOL, err_msg=name)

    before = {**params(), **{k: jax.tree.map(np.zeros_like, v) for k, v in expected.items() if k == "value"}}
    jax.tree_util.tree_map_with_path(same, found, expected, before)


def check_layout(state: dict[str, Any], one: Learner) -> None:
    """Parameters, moments and reference lie as the rules say, everything else on every device."""
    infos = abstract_params(MODEL, one.algo)
    adam = state["opt_state"][1][0]
    for tree in (state["params"], adam.mu, adam.nu):
        jax.tree.map(lambda x, info: check(x, DEFAULT_RULES.spec(info.axes)), tree, infos)
    for name, leaf in state.get("reference", {}).items():
        jax.tree.map(lambda x, info: check(x, DEFAULT_RULES.spec(info.axes)), leaf, infos[name])
    for leaf in (adam.count, state["step"], state["updates"], *jax.tree.leaves(state.get("kl", {}))):
        assert leaf.is_fully_replicated


def check(x: jax.Array, spec: Any) -> None:
    wanted = jax.sharding.NamedSharding(x.sharding.mesh, spec)
    assert x.sharding.is_equivalent_to(wanted, x.ndim), (x.sharding, wanted)


def communicates(one: Learner, state: dict[str, Any]) -> bool:
    """Whether the compiled gradient program exchanges anything between devices."""
    programs = one._programs
    with jax.set_mesh(one.mesh):
        trained, held = split(state["params"], one.algo)
        batch = one._prepare.blank(empty_micro_batch(*one.shapes[0]))
        lowered = programs.policy.lower(trained, held, programs.zeros(trained), batch, one._scalars(state))
    text = lowered.compile().as_text()
    return any(word in text for word in COLLECTIVES)


def eight_devices(folder: Path) -> None:
    """Several meshes give the figures, gradients and parameters of one device; a checkpoint moves between them."""
    calls, results = agent_calls(19), []
    cube = make_mesh(data=2, fsdp=2, tensor=2)
    for mesh, attention in ((make_mesh(), "blocks"), (make_mesh(fsdp=8), "blocks"), (cube, "fused"), (cube, "blocks")):
        one = small(mesh, **EVERYTHING, attention=attention)
        state, metrics = one.update(one.init(params()), calls)
        check_layout(state, one)
        assert communicates(one, state) == (mesh.size > 1)  # sharding costs one device nothing
        moments = jax.device_get(state["opt_state"][1][0].mu)
        results.append(([metrics[f"learner/{name}"] for name in FIGURES], moments, jax.device_get(state["params"])))
    for figures, moments, trained in results[1:]:
        np.testing.assert_allclose(figures, results[0][0], rtol=2e-4, atol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), moments, results[0][1])
        check_trained(trained, results[0][2])
    Checkpoints(folder).save(1, state, {})
    other = small(make_mesh(data=4, tensor=2), **EVERYTHING)
    moved, _ = Checkpoints(folder).restore(other.init(params(seed=1)))
    check_layout(moved, other)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(moved))
    print("EQUAL")


def two_processes(folder: Path, rank: int, port: int) -> None:
    """The learner's loop over two processes; afterwards process 0 writes what came of it."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    assert jax.device_count() == 2 > jax.local_device_count()
    one = small(make_mesh(fsdp=2))
    state = one.init(params())
    state, _ = one.update(state, agent_calls(0))
    Checkpoints(folder / "checkpoints", config_hash="h").save(1, state, {"step": 1})
    ahead, _ = one.update(state, agent_calls(1))
    restored, data = Checkpoints(folder / "checkpoints", config_hash="h").restore(one.init(params(seed=1)))
    assert data == {"step": 1}
    check_layout(restored, one)
    again, metrics = one.update(restored, agent_calls(1))
    first, second = (jax.tree.map(fetch, s["params"]) for s in (ahead, again))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    if rank == 0:
        flat = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_flatten_with_path(first)[0]}
        np.savez(folder / "after.npz", grad_norm=metrics["learner/grad_norm"], **flat)
    print("EQUAL")


if __name__ == "__main__":
    if sys.argv[1] == "eight":
        eight_devices(Path(sys.argv[2]))
    else:
        two_processes(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
