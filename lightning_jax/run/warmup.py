"""Supervised warm-up: teach a model that starts from nothing the form of the task, from a few demonstrations.

Cached by content: the same demonstrations, tokenizer, sizes, settings and seed give the same weights, so a second run
starts from the file. Reinforcement learning then starts from execution feedback alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_jax.cache import cache_root
from lightning_jax.learner.learner import Learner
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.publish.version import params_from_safetensors, safetensors_bytes
from lightning_jax.run.config import WarmupConfig
from lightning_jax.run.progress import ProgressBoard
from lightning_jax.run.randomness import generator
from lightning_jax.run.study import Demonstration
from lightning_jax.types import ScoredTransition, Transition


def as_transitions(demonstrations: Sequence[Demonstration], tokenizer: Tokenizer) -> list[ScoredTransition]:
    """Demonstrations as transitions of advantage 1: cross-entropy is the same rows with another loss."""
    transitions = []
    for number, demonstration in enumerate(demonstrations):
        prompt = tokenizer.encode_chat([dict(m) for m in demonstration.messages])
        response = [*tokenizer.encode(demonstration.answer), tokenizer.eos_ids[0]]
        transition = Transition(
            call_id=f"demonstration-{number}",
            index=0,
            agent=demonstration.role,
            prompt_ids=np.asarray(prompt, np.int32),
            response_ids=np.asarray(response, np.int32),
            rollout_logps=np.zeros(len(response), np.float32),
            temperature=1.0,
            policy_version=0,
            finish_reason="stop",
        )
        name = f"demonstration-{number}"
        transitions.append(ScoredTransition(transition, name, name, 1.0, 1.0, 1.0))
    return transitions


def content_key(
    config: WarmupConfig, model: ModelConfig, tokenizer: Tokenizer, demonstrations: Sequence[Demonstration], seed: int
) -> str:
    """Name of the cached weights."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (asdict(config), asdict(model), tokenizer.content_hash, seed, [asdict(d) for d in demonstrations]):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def warm_up(
    learner: Learner,
    params: Any,
    config: WarmupConfig,
    model: ModelConfig,
    tokenizer: Tokenizer,
    demonstrations: Sequence[Demonstration],
    seed: int,
    board: ProgressBoard,
) -> tuple[Any, dict[str, float]]:
    """Train `params` on the demonstrations, or fetch the result of an equal warm-up. Returns (params, figures).

    `learner` must be one whose optimiser is the warm-up's. ValueError where there is nothing to learn from.
    """
    if not demonstrations:
        raise ValueError("warmup.enabled=true but the study has no demonstrations (see task.demonstrations)")
    path = cache_root() / "warmup" / f"{content_key(config, model, tokenizer, demonstrations, seed)}.safetensors"
    if path.exists():
        board.log(f"warm-up: weights of an equal warm-up found in {path.parent}")
        return params_from_safetensors(path.read_bytes()), {"cached": 1.0}
    transitions = as_transitions(demonstrations, tokenizer)
    state = learner.init(params)
    order: list[int] = []
    epoch = 0
    loss = float("nan")
    with board.line("warm-up", config.steps) as line:
        for _ in range(config.steps):
            while len(order) < config.batch_size:
                order.extend(int(i) for i in generator(seed, "warmup", epoch).permutation(len(transitions)))
                epoch += 1
            batch, order = order[: config.batch_size], order[config.batch_size :]
            state, metrics = learner.supervised(state, [transitions[i] for i in batch])
            loss = metrics["learner/loss"]
            line.advance(note=f"loss {loss:.3f}, {epoch} epochs of {len(transitions)} demonstrations")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(safetensors_bytes(state["params"]))
    temporary.replace(path)
    return state["params"], {"cached": 0.0, "loss": loss, "epochs": float(epoch)}
