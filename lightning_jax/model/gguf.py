"""GGUF file → HF model directory, once: dequantising and reading metadata are slow, so the result is kept.

Invariant: the directory is keyed by the file's content, written beside and renamed, so it is complete or absent.
Weights are stored as float32, exactly the values the quantised ones stand for. Host code: numpy only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from lightning_jax.model.config import ModelConfig, RopeScaling
from lightning_jax.model.gguf_tokenizer import GgufVocabulary, build_tokenizer
from lightning_jax.model.hf_config import to_hf
from lightning_jax.model.safetensors_files import write_file

logger = logging.getLogger(__name__)

ARCHITECTURES = ("llama", "qwen2", "qwen3")
FORMAT = "1"  # of the cached directory: raise it when conversion changes
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Tensor = tuple[str, tuple[int, ...], Callable[[], NDArray[np.float32]]]  # HF name, shape, read


def default_cache() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME (or ~/.cache)/lightning_jax/gguf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_jax" / "gguf"


def converted_directory(path: str | Path, cache_dir: str | Path | None = None) -> Path:
    """HF directory with a GGUF file's model and tokenizer, converted on first use.

    ValueError where the file is no GGUF or its architecture, rotary scaling or tokenizer is not supported.
    """
    path = Path(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(FORMAT.encode(), digest_size=16)).hexdigest()
    cache = Path(cache_dir) if cache_dir is not None else default_cache()
    target = cache / f"{path.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    logger.info("converting %s to %s (once)", path, target)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        draft = Path(work) / "model"
        convert_gguf(path, draft)
        try:
            os.replace(draft, target)
        except OSError:  # another process was faster; its result has the same content
            if not (target / "config.json").is_file():
                shutil.rmtree(target, ignore_errors=True)
                os.replace(draft, target)
    return target


def convert_gguf(path: str | Path, directory: str | Path) -> None:
    """Write config.json, model.safetensors (float32) and tokenizer files of a GGUF file to a directory."""
    try:
        reader = gguf.GGUFReader(str(path))
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is no readable GGUF file: {error}") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    tied = _is_tied(tensors)
    config = _config(reader, tensors, tied)
    tokenizer = build_tokenizer(_vocabulary(reader))
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = str(_value(reader, "general.architecture"))
    write_file(folder / "model.safetensors", _renamed(tensors, config, architecture), dtype="float32")
    tokenizer.save(folder)
    values = to_hf(config, eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id)
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _strings(reader: gguf.GGUFReader, key: str) -> list[str]:
    """A list of strings; much faster than contents() for vocabularies."""
    field = reader.get_field(key)
    return [] if field is None else [field.parts[place].tobytes().decode("utf-8", "replace") for place in field.data]


def _config(reader: gguf.GGUFReader, tensors: dict[str, gguf.ReaderTensor], tied: bool) -> ModelConfig:
    architecture = _value(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"GGUF architecture {architecture!r} is not supported; supported are {list(ARCHITECTURES)}")

    def size(name: str, default: Any = None) -> Any:
        value = _value(reader, f"{architecture}.{name}", default)
        if value is None:
            raise ValueError(f"the GGUF metadata lack {architecture}.{name}: the file is incomplete, get it again")
        return value

    if (kind := size("rope.scaling.type", "none")) not in ("none", ""):
        raise ValueError(f"rotary scaling {kind!r} of the GGUF is not supported: load the model's HF directory instead")
    heads, embed = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", embed // heads)
    theta = float(size("rope.freq_base", 10_000.0))
    vocab_size = int(tensors["token_embd.weight"].shape[-1])  # GGUF shapes run backwards
    return ModelConfig(
        vocab_size=vocab_size,
        num_layers=size("block_count"),
        embed_dim=embed,
        mlp_dim=size("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_theta=theta,
        rope_scaling=_rope_scaling(tensors, theta, head_dim),
        norm_eps=float(f"{size('attention.layer_norm_rms_epsilon'):.6g}"),  # stored as f32: 9.9999997e-06
        tie_embeddings=tied,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        max_position=size("context_length"),
    )


def _rope_scaling(tensors: dict[str, gguf.ReaderTensor], theta: float, head_dim: int) -> RopeScaling | None:
    """Llama 3's scaling, which GGUF stores as the factor of each frequency, not as its parameters."""
    if "rope_freqs.weight" not in tensors:
        return None
    stored = tensor_values(tensors["rope_freqs.weight"]).reshape(-1)
    scaling = RopeScaling(
        float(np.max(stored)), 1.0, 4.0, 8192
    )  # what all Llama 3.1-3.3 models have, but for the factor
    half = head_dim // 2
    wavelength = 2 * np.pi * theta ** (np.arange(half) / half)
    ramp = np.clip((scaling.original_max_position / wavelength - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1 - ramp) / scaling.factor + ramp)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise ValueError(
            f"rope_freqs.weight of the GGUF is not Llama 3's scaling with factor {scaling.factor:g} over 8192 "
            "positions: load the model's HF directory instead"
        )
    return scaling


def _vocabulary(reader: gguf.GGUFReader) -> GgufVocabulary:
    prefix = "tokenizer.ggml."
    roles = {
        role: int(value)
        for role in ("bos", "eos", "eot", "unknown", "padding")
        if (value := _value(reader, f"{prefix}{role}_token_id")) is not None
    }
    tokens = _strings(reader, prefix + "tokens")
    types = reader.get_field(prefix + "token_type")
    return GgufVocabulary(
        model=_value(reader, prefix + "model", ""),
        pre=_value(reader, prefix + "pre", "default"),
        tokens=tokens,
        types=[int(types.parts[place][0]) for place in types.data] if types is not None else [1] * len(tokens),
        merges=_strings(reader, prefix + "merges"),
        ids=roles,
        chat_template=_value(reader, "tokenizer.chat_template"),
    )


def tensor_values(tensor: gguf.ReaderTensor, rows: slice = slice(None)) -> NDArray[np.float32]:
    """The values a (quantised) tensor stands for, [out, in] or [n]."""
    values: NDArray[np.float32] = gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type)
    return values.astype(np.float32, copy=False)


def _is_tied(tensors: dict[str, gguf.ReaderTensor]) -> bool:
    """Whether the head is the embedding: absent, or a second copy of it that may be quantised differently."""
    if "output.weight" not in tensors:
        return True
    one, other = tensors["token_embd.weight"], tensors["output.weight"]
    if list(one.shape) != list(other.shape):
        return False
    a, b = tensor_values(one, slice(0, 512)), tensor_values(other, slice(0, 512))
    # quantisation noise is a few per cent of the norm; two different matrices differ by more than the norm
    return bool(np.linalg.norm(a - b) < 0.2 * np.linalg.norm(a))


def _renamed(tensors: dict[str, gguf.ReaderTensor], config: ModelConfig, architecture: str) -> list[Tensor]:
    """Tensors under HF names, to be read one at a time."""
    chosen = {name: tensor for name, tensor in tensors.items() if name != "rope_freqs.weight"}
    if config.tie_embeddings and (head := chosen.pop("output.weight", None)) is not None:
        embedding = chosen["token_embd.weight"]
        if head.n_bytes > embedding.n_bytes:  # the finer copy
            chosen["token_embd.weight"] = head
    renamed: list[Tensor] = []
    for name, tensor in chosen.items():
        shape = tuple(int(size) for size in reversed(tensor.shape))
        heads = _interleaved_heads(name, config) if architecture == "llama" else 0
        renamed.append((_hf_name(name), shape, partial(_read_straight, tensor, heads)))
    return renamed


def _read_straight(tensor: gguf.ReaderTensor, heads: int) -> NDArray[np.float32]:
    """Values with rows of each head in half-split order (heads=0: as stored).

    llama.cpp turns neighbouring rows, HF rows half a head apart; its converter interleaves q and k of llama models.
    """
    values = tensor_values(tensor)
    if not heads:
        return values
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _interleaved_heads(name: str, config: ModelConfig) -> int:
    return {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(name.split(".")[-2], 0)


def _hf_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = name.split(".")  # blk.0.attn_q.weight
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise ValueError(
        f"the GGUF has a tensor {name!r} that no supported model has: load the model's HF directory instead"
    )
