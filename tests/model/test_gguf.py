"""GGUF files, written here with the gguf package from the HF fixtures as llama.cpp's converter lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest

from lightning_jax.model.config import RopeScaling
from lightning_jax.model.gguf import LAYER_NAMES, converted_directory, tensor_values
from lightning_jax.model.hf import load_hf
from lightning_jax.model.pretrained import load_model
from lightning_jax.model.safetensors_files import open_tensors
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.tokenizer_training import train_tokenizer

PARITY = Path(__file__).parents[1] / "golden" / "parity"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def gguf_names() -> dict[str, str]:
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return names | {f"model.layers.{i}.{hf}": f"blk.{i}.{name}" for i in range(2) for name, hf in LAYER_NAMES.items()}


def interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows r and r + h/2 of each head become neighbours."""
    rows = weight.shape[0] // heads
    order = [h * rows + half * (rows // 2) + r for h in range(heads) for r in range(rows // 2) for half in (0, 1)]
    return weight[order]


def llama3_factors(theta: float, head_dim: int, factor: float) -> np.ndarray[Any, Any]:
    """Divisors of the frequencies of Llama 3.x, by cases over the wavelength."""
    factors = []
    for place in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (place / head_dim)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1.0 if wavelength < 8192 / 4 else factor if wavelength > 8192 else between)
    return np.asarray(factors, np.float32)


def write_gguf(
    path: Path, family: str, *, pre: str = "gpt-2", kind: str | None = None, double: bool = False
) -> Tokenizer:
    source = PARITY / family
    config, _ = load_hf(source)
    tensors = dict(open_tensors(source))
    if double:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    writer = gguf.GGUFWriter(path, family)
    for name, value in (("block_count", 2), ("embedding_length", 32), ("feed_forward_length", 64)):
        writer.add_uint32(f"{family}.{name}", value)
    writer.add_context_length(128)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    theta = 500_000.0 if config.rope_scaling is not None else config.rope_theta
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    tokenizer = train_tokenizer(["a b a b"], vocab_size=400)
    model = json.loads(tokenizer.backend.to_str())["model"]
    vocabulary = sorted(tokenizer.backend.get_vocab(), key=tokenizer.backend.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if t in tokenizer.special_tokens else 4 if "tool_call" in t else 1 for t in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(tokenizer.special_tokens["<|im_end|>"])
    writer.add_eot_token_id(tokenizer.special_tokens["<|endoftext|>"])
    writer.add_chat_template(TEMPLATE)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if family == "llama" else {}
    for name, values in tensors.items():
        stem, _, ending = name.rpartition(".")
        array = np.ascontiguousarray(values, dtype=np.float32)
        if (last := stem.split(".")[-1]) in heads:
            array = interleave(array, heads[last])
        if kind is not None and array.ndim == 2:
            dtype = gguf.GGMLQuantizationType[kind]
            quantised = gguf.quants.quantize(array, dtype)
            writer.add_tensor(f"{gguf_names()[stem]}.{ending}", quantised, raw_dtype=dtype)
        else:
            writer.add_tensor(f"{gguf_names()[stem]}.{ending}", array)
    if config.rope_scaling is not None:
        writer.add_tensor("rope_freqs.weight", llama3_factors(theta, config.head_dim, factor=32.0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tokenizer


@pytest.mark.parametrize(("family", "double"), [("qwen2", False), ("qwen2", True), ("qwen3", False)])
def test_weights_equal_the_hf_directory(family: str, double: bool, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", family, double=double)
    config, params = load_hf(converted_directory(tmp_path / "m.gguf", tmp_path / "cache"))
    expected_config, expected = load_hf(PARITY / family)
    assert config == expected_config
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_rows_of_llama_heads_are_put_back_and_scaling_is_recognised(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama")
    config, params = load_hf(converted_directory(tmp_path / "m.gguf", tmp_path / "cache"))
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    _, expected = load_hf(PARITY / "llama")
    jax.tree.map(np.testing.assert_array_equal, params, expected)


STEPS = {"F16": 2**-11, "BF16": 2**-8, "Q4_0": 1 / 8, "Q4_1": 1 / 15, "Q5_0": 1 / 16, "Q5_1": 1 / 31, "Q8_0": 1 / 254}
"""Largest error in parts of a block's largest value."""


@pytest.mark.parametrize("kind", STEPS)
def test_quantised_weights_are_near(kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen2", kind=kind)
    _, params = load_hf(converted_directory(tmp_path / "m.gguf", tmp_path / "cache"))
    _, expected = load_hf(PARITY / "qwen2")
    for leaf, exact in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        # the scale itself is rounded to sixteen bits
        assert np.abs(leaf - exact).max() <= np.abs(exact).max() * (STEPS[kind] + 2**-10)
    assert not np.array_equal(params["embed"], expected["embed"])


def q4_k(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """256 values of 144 bytes: d, dmin, eight six-bit scales and minima, nibbles."""
    d, smallest = block[:4].view(np.float16).astype(np.float32)
    packed, nibbles = block[4:16].astype(int), block[16:].astype(int).reshape(4, 32)
    result = []
    for j in range(8):
        if j < 4:
            scale, minimum = packed[j] & 63, packed[j + 4] & 63
        else:
            scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4
            minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4
        result.append(d * scale * ((nibbles[j // 2] >> 4 * (j % 2)) & 15) - smallest * minimum)
    return np.concatenate(result)


def q6_k(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """256 values of 210 bytes: low four bits, high two bits, sixteen scales, d."""
    low, high = block[:128].astype(int).reshape(2, 2, 32), block[128:192].astype(int).reshape(2, 32)
    scales = block[192:208].view(np.int8).astype(np.float32)
    d = float(block[208:].view(np.float16)[0])
    result = []
    for half in range(2):
        for j in range(4):
            value = ((low[half, j % 2] >> 4 * (j // 2)) & 15) | ((high[half] >> 2 * j) & 3) << 4
            result.append(d * scales[8 * half + 2 * j :][:2].repeat(16) * (value - 32))
    return np.concatenate(result)


@pytest.mark.parametrize(
    ("kind", "size", "places", "formula"), [("Q4_K", 144, (0, 2), q4_k), ("Q6_K", 210, (208,), q6_k)]
)
def test_k_quants_are_what_their_bytes_stand_for(
    kind: str, size: int, places: tuple[int, ...], formula: Any, tmp_path: Path
) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (2, 3, size), dtype=np.uint8)
    for place in places:  # scales that are numbers
        blocks[..., place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("x", blocks.reshape(2, 3 * size), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    expected = np.stack([np.concatenate([formula(block) for block in row]) for row in blocks])
    np.testing.assert_allclose(tensor_values(tensor), expected, rtol=1e-6, atol=1e-6)


def test_tokenizer_and_template_come_from_the_metadata(tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "m.gguf", "qwen3", pre="qwen2")
    loaded = Tokenizer.load(converted_directory(tmp_path / "m.gguf", tmp_path / "cache"))
    assert loaded.chat_template == TEMPLATE
    assert loaded.eos_ids == (original.special_tokens["<|im_end|>"], original.special_tokens["<|endoftext|>"])
    assert loaded.special_tokens == original.special_tokens
    assert loaded.encode("a b <tool_call>") == original.encode("a b <tool_call>")
    with pytest.raises(ValueError, match="not of one model"):  # this tokenizer has more ids than the tiny embedding
        load_model(tmp_path / "m.gguf", cache_dir=tmp_path / "cache")


def test_a_file_is_converted_once_per_content(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen2")
    first = converted_directory(tmp_path / "m.gguf", tmp_path / "cache")
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert converted_directory(tmp_path / "m.gguf", tmp_path / "cache") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    write_gguf(tmp_path / "m.gguf", "qwen3")
    assert converted_directory(tmp_path / "m.gguf", tmp_path / "cache") != first
    assert sorted(p.name for p in (tmp_path / "cache").iterdir() if p.name.startswith("tmp")) == []


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUFnot really")
    with pytest.raises(ValueError, match="no readable GGUF"):
        converted_directory(tmp_path / "m.gguf", tmp_path / "cache")
    write_gguf(tmp_path / "m.gguf", "qwen2", pre="tekken")
    with pytest.raises(ValueError, match="tekken"):
        converted_directory(tmp_path / "m.gguf", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
