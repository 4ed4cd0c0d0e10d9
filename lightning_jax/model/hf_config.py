"""config.json of a HF model ↔ ModelConfig.

Invariant: a field that would change the arithmetic and that the decoder doesn't have is an error, never ignored.
Both spellings of rotary settings are read: `rope_theta` + `rope_scaling`, and `rope_parameters` of transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_jax.model.config import ModelConfig, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""model_type → the class that transformers loads."""


def from_hf(values: Mapping[str, Any]) -> ModelConfig:
    """ModelConfig of a parsed config.json; ValueError names what the decoder cannot do."""
    kind = values.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"model_type={kind!r} is not supported; supported are {sorted(ARCHITECTURES)}")
    _refuse(values)
    heads = _need(values, "num_attention_heads")
    embed = _need(values, "hidden_size")
    theta, scaling = _rope(values)
    return ModelConfig(
        vocab_size=_need(values, "vocab_size"),
        num_layers=_need(values, "num_hidden_layers"),
        embed_dim=embed,
        mlp_dim=_need(values, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=_default(values, "num_key_value_heads", 8 if kind == "mistral" else heads),
        head_dim=_default(values, "head_dim", 128 if kind == "qwen3" else embed // heads),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(_default(values, "rms_norm_eps", 1e-6)),
        tie_embeddings=bool(_default(values, "tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        sliding_window=_sliding_window(values, kind),
        max_position=_default(values, "max_position_embeddings", 2048),
    )


def to_hf(
    config: ModelConfig, *, dtype: str = "float32", eos_ids: tuple[int, ...] = (), pad_id: int | None = None
) -> dict[str, Any]:
    """config.json that transformers 4 and 5 load; ValueError where no architecture has these switches."""
    kind = _model_type(config)
    rope: dict[str, Any] = {"rope_type": "default"}
    if (s := config.rope_scaling) is not None:
        rope = {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_max_position,
        }
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.embed_dim,
        "intermediate_size": config.mlp_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope_theta,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if config.rope_scaling is not None:
        values["rope_scaling"] = rope
    if kind in ("qwen2", "qwen3"):
        windowed = config.sliding_window is not None
        values |= {"use_sliding_window": windowed, "max_window_layers": 0 if windowed else config.num_layers}
    if kind == "mistral" or config.sliding_window is not None:
        values["sliding_window"] = config.sliding_window
    if eos_ids:
        values["eos_token_id"] = eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)
    if pad_id is not None:
        values["pad_token_id"] = pad_id
    return values


def _model_type(config: ModelConfig) -> str:
    if config.qkv_bias and config.qk_norm:
        raise ValueError(
            "qkv_bias and qk_norm together: no HF architecture has both; Qwen2 has the first, Qwen3 the second"
        )
    if config.qk_norm:
        return "qwen3"
    if config.qkv_bias:
        return "qwen2"
    return "llama" if config.sliding_window is None else "mistral"


def _need(values: Mapping[str, Any], name: str) -> int:
    if values.get(name) is None:
        raise ValueError(f"config.json has no {name!r} (it has {sorted(values)})")
    return int(values[name])


def _default(values: Mapping[str, Any], name: str, default: Any) -> Any:
    value = values.get(name)
    return default if value is None else value


def _refuse(values: Mapping[str, Any]) -> None:
    """ValueError on switches that change the arithmetic in ways the decoder doesn't know."""
    expected = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0}
    for name, only in expected.items():
        if _default(values, name, only) != only:
            raise ValueError(f"{name}={values[name]!r} in config.json: the decoder only has {only!r}")
    if values.get("quantization_config"):
        raise ValueError("config.json has a quantization_config: load the unquantised weights (bf16, f16 or f32)")


def _rope(values: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base frequency and scaling from either spelling."""
    rope = {**(values.get("rope_scaling") or {}), **(values.get("rope_parameters") or {})}
    theta = float(_default(rope, "rope_theta", _default(values, "rope_theta", 10_000.0)))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if _default(rope, "partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor={rope['partial_rotary_factor']}: the decoder rotates whole heads")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope_type={kind!r} is not supported; supported are 'default' and 'llama3'")
    original = _default(rope, "original_max_position_embeddings", values.get("max_position_embeddings"))
    try:
        return theta, RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position=int(original),
        )
    except KeyError as error:
        raise ValueError(f"rope_type 'llama3' lacks {error.args[0]!r} (it has {sorted(rope)})") from error


def _sliding_window(values: Mapping[str, Any], kind: str) -> int | None:
    """The window where every layer uses it, None where none does; ValueError where layers differ."""
    window = values.get("sliding_window")
    layers = int(values["num_hidden_layers"])
    switched = kind in ("qwen2", "qwen3") and not values.get("use_sliding_window", False)
    if window is None or switched or kind == "llama":
        return None
    kinds = set(values.get("layer_types") or ())
    if not kinds and kind != "mistral":
        first = int(_default(values, "max_window_layers", 28))  # layers from this one on have the window
        kinds = ({"full_attention"} if first > 0 else set()) | ({"sliding_attention"} if first < layers else set())
    if len(kinds) > 1:
        raise ValueError(
            f"config.json mixes attention kinds {sorted(kinds)} over {layers} layers; the decoder has one window for "
            "all: set use_sliding_window=false if prompts stay shorter than the window"
        )
    return None if kinds == {"full_attention"} else int(window)
