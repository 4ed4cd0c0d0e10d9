"""The aggregation of a loss as one weight per token, with denominators over the whole mini-batch.

Because loss = Σ_t w_t·L_t and w is fixed before anything is split, neither micro-batches nor padding, packing, row
order or sharding can change the loss or its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_jax.types import ScoredTransition

Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant", "per-rollout-mean", "prompt-mean"
]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)


def token_weights(
    transitions: Sequence[ScoredTransition], aggregation: str, *, constant: float = 1024.0
) -> NDArray[np.float64]:
    """w f64[K]: the weight of each response token of each transition of one mini-batch.

    With n_k tokens of transition k (sequence = transition), only transitions with loss_weight > 0 count:
    token-mean 1/Σn; seq-mean-token-mean 1/(K·n_k); seq-mean-token-sum 1/K; constant 1/(K·constant) (Dr. GRPO,
    arXiv 2503.20783); per-rollout-mean 1/(rollouts · tokens of the rollout) (Agent Lightning 1.0);
    prompt-mean 1/(tasks · tokens of the task). loss_weight multiplies.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation={aggregation!r} is not one of {AGGREGATIONS}")
    lengths = np.array([s.transition.response_ids.size for s in transitions], np.float64)
    scale = np.array([s.loss_weight for s in transitions], np.float64)
    trained = scale > 0
    if not trained.any():
        return np.zeros_like(scale)
    count = int(trained.sum())
    if aggregation == "token-mean":
        divisor = np.full_like(lengths, lengths[trained].sum())
    elif aggregation == "seq-mean-token-mean":
        divisor = count * lengths
    elif aggregation == "seq-mean-token-sum":
        divisor = np.full_like(lengths, count)
    elif aggregation == "constant":
        divisor = np.full_like(lengths, count * constant)
    else:
        by_rollout = aggregation == "per-rollout-mean"
        keys = [s.rollout_id if by_rollout else s.task_id for s in transitions]
        tokens: Counter[str] = Counter()
        for key, length, counts in zip(keys, lengths, trained, strict=True):
            if counts:
                tokens[key] += int(length)
        divisor = np.array([len(tokens) * tokens[key] for key in keys], np.float64)
    return np.where(trained, scale / np.where(trained, divisor, 1.0), 0.0)
