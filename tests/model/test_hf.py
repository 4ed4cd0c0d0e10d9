"""HF directories: logits as torch computes them, strictness, shardings, export."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf import export_hf, load_hf, tensor_names
from lightning_jax.model.hf_config import from_hf, to_hf
from lightning_jax.model.pretrained import load_model
from lightning_jax.model.safetensors_files import open_file, open_tensors, write_file
from lightning_jax.model.sharding import make_mesh
from lightning_jax.model.tokenizer_training import train_tokenizer
from tests.model.exports import FAMILIES, PARITY, logits_of, write_export

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_torch(family: str) -> None:
    golden = np.load(PARITY / family / "logits.npz")
    config, params = load_hf(PARITY / family)
    difference = np.abs(logits_of(config, params, golden["tokens"]) - golden["logits"]).max()
    assert difference <= 1e-4
    assert np.abs(golden["logits"]).max() > 0.5  # else the bound would say nothing


def test_both_spellings_of_rotary_settings_are_one_config() -> None:
    new = from_hf(json.loads((PARITY / "llama" / "config.json").read_text()))
    old = from_hf(json.loads((PARITY / "llama_old" / "config.json").read_text()))
    assert new == old
    assert new.rope_scaling is not None
    assert (new.rope_theta, new.rope_scaling.factor) == (5000.0, 8.0)


def test_the_window_counts_only_when_used() -> None:
    qwen = json.loads((PARITY / "qwen2" / "config.json").read_text())
    mistral = from_hf(json.loads((PARITY / "mistral" / "config.json").read_text()))
    assert mistral.sliding_window == 8
    assert from_hf({**qwen, "sliding_window": 64, "use_sliding_window": False}).sliding_window is None
    del qwen["layer_types"]
    windowed = {**qwen, "sliding_window": 64, "use_sliding_window": True}
    assert from_hf({**windowed, "max_window_layers": 0}).sliding_window == 64
    assert from_hf({**windowed, "max_window_layers": 2}).sliding_window is None
    with pytest.raises(ValueError, match="mixes attention kinds"):
        from_hf({**windowed, "max_window_layers": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"quantization_config": {"bits": 4}}, "unquantised"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_the_decoder_lacks_is_refused(change: dict[str, Any], message: str) -> None:
    values = json.loads((PARITY / "llama" / "config.json").read_text())
    with pytest.raises(ValueError, match=message):
        from_hf({**values, **change})


@pytest.mark.parametrize("family", FAMILIES)
def test_export_loads_back_to_the_same_bits(family: str, tmp_path: Path) -> None:
    config, params = load_hf(PARITY / family)
    export_hf(params, config, None, tmp_path)
    again, restored = load_hf(tmp_path)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, restored, params)
    original, written = open_tensors(PARITY / family), open_tensors(tmp_path)
    assert {n: a.shape for n, a in original.items()} == {n: a.shape for n, a in written.items()}
    assert all(np.array_equal(original[n], written[n]) for n in original)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_exported_config(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config, params = load_hf(PARITY / family)
    export_hf(params, config, train_tokenizer(["a b"], vocab_size=300), tmp_path)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert from_hf(theirs.to_dict()) == config
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|end|>"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_what_transformers_would_have_written(family: str, tmp_path: Path) -> None:
    """Without torch: the names, shapes and dtypes of the fixture, which transformers saved, and the same logits."""
    write_export(family, tmp_path)
    saved, original, written = np.load(tmp_path / "logits.npz"), open_tensors(PARITY / family), open_tensors(tmp_path)
    assert sorted(written) == (PARITY / family / "keys.txt").read_text().split()
    assert {n: (a.shape, a.dtype) for n, a in written.items()} == {n: (a.shape, a.dtype) for n, a in original.items()}
    assert not any(np.array_equal(written[name], original[name]) for name in written)
    config, params = load_hf(tmp_path)
    np.testing.assert_array_equal(logits_of(config, params, saved["tokens"]), saved["logits"])
    assert np.abs(saved["logits"] - np.load(PARITY / family / "logits.npz")["logits"]).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_torch_computes_the_logits_of_an_export(family: str, tmp_path: Path) -> None:
    """Where torch is installed. Measured by scripts/make_parity_fixtures.py --check with torch 2.13: 1e-5 at most."""
    pytest.importorskip("torch")
    difference = runpy.run_path(str(ROOT / "scripts" / "make_parity_fixtures.py"))["difference"]
    write_export(family, tmp_path)
    found, largest = difference(tmp_path)
    assert found <= 1e-4
    assert largest > 0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sharded_files_in_every_dtype(dtype: str, tmp_path: Path) -> None:
    _config, params = load_hf(PARITY / "qwen2")
    tensors = open_tensors(PARITY / "qwen2")
    names = sorted(tensors)
    weight_map = {}
    for number, chunk in enumerate((names[:7], names[7:])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        entries = [(name, tensors[name].shape, lambda name=name: tensors[name]) for name in chunk]
        write_file(tmp_path / file, entries, dtype=dtype)
        weight_map |= dict.fromkeys(chunk, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(PARITY / "qwen2" / "config.json", tmp_path)
    _, loaded = load_hf(tmp_path)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b).astype(kind).astype(np.float32)),
        loaded,
        params,
    )
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00002"):
        load_hf(tmp_path)


def test_missing_and_left_over_tensors_are_both_listed(tmp_path: Path) -> None:
    shutil.copytree(PARITY / "qwen3", tmp_path, dirs_exist_ok=True)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "qwen2"}))
    with pytest.raises(ValueError, match=r"6 tensors missing .*q_proj\.bias.* 4 left over .*q_norm"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**values, "intermediate_size": 32}))
    with pytest.raises(ValueError, match=r"\(64, 32\).*\(32, 32\)"):
        load_hf(tmp_path)


def test_a_tied_head_written_twice_is_one_matrix(tmp_path: Path) -> None:
    tensors = dict(open_tensors(PARITY / "qwen3"))
    shutil.copy(PARITY / "qwen3" / "config.json", tmp_path)

    def write(head_matrix: np.ndarray[Any, Any]) -> None:
        entries = [(n, a.shape, lambda a=a: a) for n, a in {**tensors, "lm_head.weight": head_matrix}.items()]
        write_file(tmp_path / "model.safetensors", entries, dtype="float32")

    write(tensors["model.embed_tokens.weight"])
    _, params = load_hf(tmp_path)
    assert "head" not in params
    write(tensors["model.embed_tokens.weight"] + 1)
    with pytest.raises(ValueError, match=r"left over \['lm_head.weight'\]"):
        load_hf(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = (PARITY / "qwen3" / "model.safetensors").read_bytes()
    for damaged, message in (
        (whole[:-10], "truncated or damaged"),
        (whole[:50], "truncated"),
        (b"\xff" * 64, "header"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            open_file(path)


def test_leaves_land_in_their_shardings() -> None:
    mesh = make_mesh()
    config, params = load_hf(PARITY / "llama", mesh=mesh)
    _, plain = load_hf(PARITY / "llama")
    jax.tree.map(np.testing.assert_array_equal, params, plain)
    assert all(leaf.sharding.mesh == mesh for leaf in jax.tree.leaves(params))
    assert len(tensor_names(config)) == len(open_tensors(PARITY / "llama"))


def test_no_architecture_has_both_bias_and_norm() -> None:
    config, _ = load_hf(PARITY / "qwen3")
    both = ModelConfig(**{**{f: getattr(config, f) for f in config.__slots__}, "qkv_bias": True})
    with pytest.raises(ValueError, match="Qwen2 has the first"):
        to_hf(both)


def test_load_model_says_what_a_path_is_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model at"):
        load_model(tmp_path / "absent")
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="neither"):
        load_model(tmp_path / "weights.bin")
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(tmp_path)
    config, params = load_hf(PARITY / "llama")
    export_hf(params, config, train_tokenizer(["a b"], vocab_size=300), tmp_path)
    with pytest.raises(ValueError, match="not of one model"):
        load_model(tmp_path)


EIGHT_DEVICES = """
import sys, jax, numpy as np
from lightning_jax.model.hf import export_hf, load_hf
from lightning_jax.model.sharding import make_mesh
source, target = sys.argv[1:]
config, params = load_hf(source, mesh=make_mesh(2, 2, 2))
assert not params["layers"]["q"].is_fully_replicated
_, plain = load_hf(source)
jax.tree.map(np.testing.assert_array_equal, params, plain)
export_hf(params, config, None, target)
"""


def test_sharded_over_eight_devices_and_back(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    source = PARITY / "llama"
    command = [sys.executable, "-c", EIGHT_DEVICES, str(source), str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = open_tensors(source), open_tensors(tmp_path)
    assert all(np.array_equal(before[name], after[name]) for name in before)
