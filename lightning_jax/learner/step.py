"""The jitted programs of the learner, all created here and once.

Gradients of micro-batches are added up unreduced (the denominators are inside the weights) and applied once.
Moments and gradients are donated. Parameters are not: an engine in this process may still be serving them, and
sharing one buffer is cheaper than copying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lightning_jax.learner.objective import (
    Batch,
    Scalars,
    Setting,
    Totals,
    evaluate,
    policy_objective,
    supervised_objective,
)
from lightning_jax.model.transformer import Params

Objective = Callable[..., tuple[jax.Array, Totals]]  # (params, batch, scalars, *, setting)


@dataclass(frozen=True)
class Programs:
    """Jitted functions. evaluate, policy and supervised compile once per micro-batch shape, the others once."""

    evaluate: Any  # (params, batch) → {logp, value?}
    policy: Any  # (params, grads, batch, scalars) → (grads, totals)
    supervised: Any  # likewise
    zeros: Any  # (params) → grads
    apply: Any  # (params, opt_state, step, grads) → (params, opt_state, step, norms)

    def compiled(self) -> int:
        """Executables that exist; a rise after warm-up means that something recompiled."""
        return sum(getattr(self, f.name)._cache_size() for f in fields(self))


def zeros(params: Params) -> Params:
    """Where gradients add up: float32, sharded like the parameters."""
    grads: Params = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), params)
    return grads


def accumulate(
    params: Params, grads: Params, batch: Batch, scalars: Scalars, *, objective: Objective, setting: Setting
) -> tuple[Params, Totals]:
    """Add a micro-batch's gradient to `grads`."""
    gradient = jax.grad(partial(objective, setting=setting), has_aux=True)
    new, totals = gradient(params, batch, scalars)
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, new), totals


def apply(
    params: Params, opt_state: Any, step: jax.Array, grads: Params, *, tx: optax.GradientTransformation
) -> tuple[Params, Any, jax.Array, dict[str, jax.Array]]:
    """One optimiser step. A gradient that is not finite changes nothing and is counted."""
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
    norm = optax.global_norm(grads)
    finite = jnp.isfinite(norm)
    updates, new_opt_state = tx.update(grads, opt_state, params)
    new_params = optax.apply_updates(params, updates)
    keep = partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
    norms = {
        "grad_norm": jnp.where(finite, norm, 0.0),
        "skipped": 1.0 - finite.astype(jnp.float32),
        "update_norm": jnp.where(finite, optax.global_norm(updates), 0.0),
    }
    return keep(new_params, params), keep(new_opt_state, opt_state), step + finite.astype(step.dtype), norms


def make_programs(setting: Setting, tx: optax.GradientTransformation) -> Programs:
    """Create every jitted function; nothing compiles before its first call."""
    policy = partial(accumulate, objective=policy_objective, setting=setting)
    supervised = partial(accumulate, objective=supervised_objective, setting=setting)
    return Programs(
        evaluate=jax.jit(partial(evaluate, setting=setting)),
        policy=jax.jit(policy, donate_argnums=(1,)),
        supervised=jax.jit(supervised, donate_argnums=(1,)),
        zeros=jax.jit(zeros),
        apply=jax.jit(partial(apply, tx=tx), donate_argnums=(1, 3)),
    )
