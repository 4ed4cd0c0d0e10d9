"""The policy a run starts from: a published model by path, or sizes, random weights and a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from lightning_jax.configuration import from_mapping
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.pretrained import load_model
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, named
from lightning_jax.model.spelling import spelled_embeddings
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.tokenizer_training import train_tokenizer
from lightning_jax.model.transformer import Params, init_params, parameters
from lightning_jax.run.randomness import derive


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The model group of a run's configuration."""

    name: str
    path: str | None = None  # HF directory or .gguf file; None: from scratch
    precision: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # from scratch: {vocab_size}
    config: Mapping[str, Any] = field(default_factory=dict)  # from scratch: fields of ModelConfig but vocab_size
    max_learning_rate: float = 2e-5  # with a path: above it, training all of the weights is refused


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its weights and tokenizer."""

    config: ModelConfig
    precision: Precision
    params: Params
    tokenizer: Tokenizer


def check_learning_rate(values: Mapping[str, Any], algo: AlgoConfig, optimizer: OptimizerConfig) -> None:
    """ValueError where a rate made for random weights would train a published model. values: the model group."""
    settings = from_mapping(PolicyConfig, values, where="model")
    rate, limit = optimizer.learning_rate, float(settings.max_learning_rate)
    if settings.path is None or algo.lora is not None or rate <= limit:
        return
    raise ValueError(
        f"algo.optimizer.learning_rate={rate:g} on all weights of the trained model {settings.path}: algo's presets "
        f"have the rates of tiny models that start from nothing, and this is above model.max_learning_rate={limit:g}. "
        "Set algo.optimizer.learning_rate=1e-6, or take adapters (algo=grpo_lora, 1e-5), or raise "
        "model.max_learning_rate to train like this knowingly"
    )


def build_policy(
    values: Mapping[str, Any],
    corpus: Sequence[str],
    seed: int,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
) -> Policy:
    """Load or make the policy.

    mesh: every leaf is created in `rules`' sharding on it, and no device ever holds a leaf whole that is split; the
    values are the same on every mesh. None: on one device.

    ValueError says what is missing or does not fit.
    """
    settings = from_mapping(PolicyConfig, values, where="model")
    precision = from_mapping(Precision, settings.precision, where="model.precision")
    if settings.path is not None:
        loaded = load_model(settings.path, dtype=precision.param, mesh=mesh, rules=rules)
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
    key = jax.random.key(derive(seed, "init") & 0xFFFFFFFF)
    params = init_params(model, key, dtype=precision.param, mesh=mesh, rules=rules)
    tokens = [tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.vocab_size)]
    spelled = spelled_embeddings(tokens, model.embed_dim, derive(seed, "spelling"))
    embed = np.asarray(spelled, jnp.dtype(precision.param))
    place = None if mesh is None else named(mesh, rules, parameters(model)["embed"].axes)
    return Policy(model, precision, {**params, "embed": _placed(embed, place)}, tokenizer)


def _placed(x: Any, sharding: NamedSharding | None) -> jax.Array:
    """A host array on its devices, each getting its slice."""
    if sharding is None:
        return jnp.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
