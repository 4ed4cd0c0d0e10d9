"""Everything is saved, exactly, or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.publish.version import params_digest, params_from_safetensors, policy_version, safetensors_bytes
from tests.batch.examples import agent_calls
from tests.learner.small import learner, params


def test_resuming_equals_going_on_bit_for_bit(tmp_path: Path) -> None:
    """2N updates = N updates, checkpoint, a new learner, N updates; with moments, counters and the KL coefficient."""
    algo = {"advantage": "turn_gae", "mini_batches": 2, "kl_coef": 0.1, "kl_control": "adaptive", "kl_horizon": 10.0}
    small = learner(**algo)
    state = small.init(params())
    for seed in range(2):
        state, _ = small.update(state, agent_calls(seed, tasks=2))
    Checkpoints(tmp_path, config_hash="h").save(2, state, {"cursor": 7, "ledger": ["a", "b"]})
    saved = jax.device_get(state)
    for seed in range(2, 4):
        state, metrics = small.update(state, agent_calls(seed, tasks=2))

    fresh = small.init(params(seed=1))
    restored, data = Checkpoints(tmp_path, config_hash="h").restore(fresh)
    assert data == {"cursor": 7, "ledger": ["a", "b"]}
    assert jax.tree.structure(restored) == jax.tree.structure(fresh)
    jax.tree.map(np.testing.assert_array_equal, saved, jax.device_get(restored))
    compiled = small.compiled
    for seed in range(2, 4):
        restored, again = small.update(restored, agent_calls(seed, tasks=2))
    assert small.compiled == compiled  # placed as the original was
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(restored))
    assert metrics == again


def tiny_state(value: float) -> dict[str, object]:
    return {"w": jnp.full((3,), value), "step": jnp.int32(value)}


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for step, score in [(1, 0.1), (2, 0.9), (3, 0.3), (4, 0.2), (5, None)]:
        checkpoints.save(step, tiny_state(step), {"step": step}, score=score)
    assert checkpoints.steps() == [2, 4, 5]
    assert (checkpoints.latest(), checkpoints.best()) == (5, 2)
    assert [checkpoints.improves(score) for score in (0.8, 0.9, 0.95)] == [False, False, True]
    assert Checkpoints(tmp_path / "none").improves(0.0)
    state, data = checkpoints.restore(tiny_state(0), step=2)
    assert (data["step"], float(state["w"][0])) == (2, 2.0)
    checkpoints.save(5, tiny_state(50), {"step": 5})  # done again after a rollback
    assert float(checkpoints.restore(tiny_state(0))[0]["w"][0]) == 50.0


def test_another_configuration_or_tree_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, config_hash="old").save(1, tiny_state(1), {})
    other = Checkpoints(tmp_path, config_hash="new")
    with pytest.raises(ValueError, match=r"'old'.*'new'.*allow_changed_config=true"):
        other.restore(tiny_state(0))
    assert float(other.restore(tiny_state(0), allow_changed_config=True)[0]["w"][0]) == 1.0
    with pytest.raises(ValueError, match=r"'v': saved nothing, wanted float32\[2\]"):
        other.restore({**tiny_state(0), "v": jnp.zeros(2)}, allow_changed_config=True)
    with pytest.raises(ValueError, match=r"no checkpoint of step 9.*\[1\]"):
        other.restore(tiny_state(0), step=9)


def test_what_differs_is_shown_with_both_values(tmp_path: Path) -> None:
    saved = {"seed": 0, "credit": {"gamma": 0.9, "floor": None}, "same": {"a": (1,)}}
    Checkpoints(tmp_path, config_hash="old", settings=saved).save(1, tiny_state(1), {})
    now = {"seed": 0, "credit": {"gamma": 0.5}, "same": {"a": [1]}, "algo": {"tis": 2.0}}
    with pytest.raises(ValueError, match="config hash") as refused:
        Checkpoints(tmp_path, config_hash="new", settings=now).restore(tiny_state(0))
    expected = "(algo.tis was not set, is 2.0; credit.floor was None, is not set; credit.gamma was 0.9, is 0.5)"
    assert expected in str(refused.value)
    many = {**saved, **{f"k{i}": i for i in range(8)}}
    with pytest.raises(ValueError, match=r"\(k0 was not set, is 0; .*; 3 more\)"):
        Checkpoints(tmp_path, config_hash="new", settings=many).restore(tiny_state(0))


WRITER = """
import sys, jax.numpy as jnp
from lightning_jax.publish.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep=3)
for step in range(1, 10_000):
    checkpoints.save(step, {"w": jnp.full((200_000,), step, jnp.float32)}, {"step": step})
    print(step, flush=True)
"""


def test_kill_while_writing_leaves_a_complete_latest(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = int(process.stdout.readline())
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".partial-*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    checkpoints = Checkpoints(tmp_path, keep=3)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest >= reported
    state, data = checkpoints.restore({"w": jnp.zeros(200_000, jnp.float32)})
    assert data["step"] == latest
    np.testing.assert_array_equal(state["w"], latest)
    # a torn one that got as far as its arrays is not picked up, and is cleared away by the next save
    shutil.copytree(tmp_path / f"step-{latest:08d}", tmp_path / f".partial-{latest + 1:08d}", dirs_exist_ok=True)
    assert checkpoints.latest() == latest
    checkpoints.save(latest + 1, {"w": jnp.zeros(200_000, jnp.float32)}, {})
    assert not list(tmp_path.glob(".partial-*"))


def test_safetensors_round_trip_and_digest() -> None:
    tree = {**params(), "value": {"weight": jnp.zeros(3), "bias": jnp.zeros(())}}
    tree["embed"] = jnp.asarray(tree["embed"], jnp.bfloat16)
    back = params_from_safetensors(safetensors_bytes(tree))
    assert "value" not in back  # the critic is not served
    expected = {k: v for k, v in tree.items() if k != "value"}
    assert jax.tree.structure(back) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(back), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, np.asarray(want))
    assert params_digest(back) == params_digest(tree) == policy_version(tree, 3, 4).digest
    back["final_norm"] = back["final_norm"] + 1
    assert params_digest(back) != params_digest(tree)
    with pytest.raises(ValueError, match="4 bytes are no safetensors file"):
        params_from_safetensors(b"junk")
