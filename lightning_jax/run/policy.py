"""The policy a run starts from: a published model by path, or sizes, random weights and a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from lightning_jax.configuration import from_mapping
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.pretrained import load_model
from lightning_jax.model.spelling import spelled_embeddings
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.tokenizer_training import train_tokenizer
from lightning_jax.model.transformer import Params, init_params
from lightning_jax.run.randomness import derive


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The model group of a run's configuration."""

    name: str
    path: str | None = None  # HF directory or .gguf file; None: from scratch
    precision: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # from scratch: {vocab_size}
    config: Mapping[str, Any] = field(default_factory=dict)  # from scratch: fields of ModelConfig but vocab_size


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its weights and tokenizer."""

    config: ModelConfig
    precision: Precision
    params: Params
    tokenizer: Tokenizer


def build_policy(values: Mapping[str, Any], corpus: Sequence[str], seed: int) -> Policy:
    """Load or make the policy. ValueError says what is missing or does not fit."""
    settings = from_mapping(PolicyConfig, values, where="model")
    precision = from_mapping(Precision, settings.precision, where="model.precision")
    if settings.path is not None:
        loaded = load_model(settings.path, dtype=precision.param)
        return Policy(loaded.config, precision, loaded.params, loaded.tokenizer)
    if not settings.config or "vocab_size" not in settings.tokenizer:
        raise ValueError(
            f"model {settings.name!r} has neither a path nor sizes: give model.path (a HF directory or a .gguf file), "
            "or model.config and model.tokenizer.vocab_size to start from random weights"
        )
    if not corpus:
        raise ValueError("a model from scratch needs a tokenizer, but the study brings no texts to train it on")
    tokenizer = train_tokenizer(corpus, vocab_size=int(settings.tokenizer["vocab_size"]))
    model = ModelConfig.from_mapping({**settings.config, "vocab_size": tokenizer.vocab_size})
    params = init_params(model, jax.random.key(derive(seed, "init") & 0xFFFFFFFF), dtype=precision.param)
    tokens = [tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.vocab_size)]
    spelled = spelled_embeddings(tokens, model.embed_dim, derive(seed, "spelling"))
    return Policy(model, precision, {**params, "embed": jnp.asarray(spelled, precision.param)}, tokenizer)
