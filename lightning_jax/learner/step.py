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
from lightning_jax.learner.trainable import ADDED, join
from lightning_jax.model.lora import merged
from lightning_jax.model.transformer import Params

Objective = Callable[..., tuple[jax.Array, Totals]]  # (params, batch, scalars, *, setting)


@dataclass(frozen=True)
class Programs:
    """Jitted functions. evaluate, policy and supervised compile once per micro-batch shape, the others once."""

    evaluate: Any  # (params, batch) → {logp, value?}
    policy: Any  # (trained, held, grads, batch, scalars) → (grads, totals)
    supervised: Any  # likewise
    zeros: Any  # (trained) → grads
    apply: Any  # (trained, opt_state, step, grads) → (trained, opt_state, step, norms)
    merge: Any  # (params) → what is served: without adapters

    def compiled(self) -> int:
        """Executables that exist; a rise after warm-up means that something recompiled."""
        return sum(getattr(self, f.name)._cache_size() for f in fields(self))


def zeros(trained: Params) -> Params:
    """Where gradients add up: float32, sharded like the parameters."""
    grads: Params = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), trained)
    return grads


def accumulate(
    trained: Params,
    held: Params,
    grads: Params,
    batch: Batch,
    scalars: Scalars,
    *,
    objective: Objective,
    setting: Setting,
) -> tuple[Params, Totals]:
    """Add a micro-batch's gradient with respect to the trained leaves to `grads`."""

    def loss(leaves: Params) -> tuple[jax.Array, Totals]:
        return objective(join(leaves, held), batch, scalars, setting=setting)

    new, totals = jax.grad(loss, has_aux=True)(trained)
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, new), totals


@partial(jax.jit, donate_argnums=0)
def not_finite(grads: Params) -> Params:
    """Gradients that `apply` must refuse: its whole work, and no change."""
    refused: Params = jax.tree.map(lambda g: jnp.full_like(g, jnp.nan), grads)
    return refused


def apply(
    trained: Params,
    opt_state: Any,
    step: jax.Array,
    grads: Params,
    *,
    tx: optax.GradientTransformation,
    offload: bool = False,
) -> tuple[Params, Any, jax.Array, dict[str, jax.Array]]:
    """One optimiser step. A gradient that is not finite changes nothing and is counted.

    offload: the optimiser's state comes from and goes to the host's memory, but for counts.
    """
    opt_state = _moved(opt_state, jax.memory.Space.Device, offload)
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, trained)
    norm = optax.global_norm(grads)
    finite = jnp.isfinite(norm)
    updates, new_opt_state = tx.update(grads, opt_state, trained)
    new_trained = optax.apply_updates(trained, updates)
    keep = partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
    norms = {
        "grad_norm": jnp.where(finite, norm, 0.0),
        "skipped": 1.0 - finite.astype(jnp.float32),
        "update_norm": jnp.where(finite, optax.global_norm(updates), 0.0),
    }
    kept = _moved(keep(new_opt_state, opt_state), jax.memory.Space.Host, offload)
    return keep(new_trained, trained), kept, step + finite.astype(step.dtype), norms


def _moved(tree: Any, space: Any, offload: bool) -> Any:
    return jax.tree.map(lambda x: jax.device_put(x, space) if x.ndim else x, tree) if offload else tree


def served(params: Params, *, setting: Setting) -> Params:
    """The policy alone, adapters folded in."""
    policy = {name: leaf for name, leaf in params.items() if name not in ADDED or name == "lora"}
    lora = setting.algo.lora
    return policy if lora is None else merged(policy, setting.model, lora, setting.rules)


def make_programs(setting: Setting, tx: optax.GradientTransformation, *, offload: bool = False) -> Programs:
    """Create every jitted function; nothing compiles before its first call."""
    policy = partial(accumulate, objective=policy_objective, setting=setting)
    supervised = partial(accumulate, objective=supervised_objective, setting=setting)
    return Programs(
        evaluate=jax.jit(partial(evaluate, setting=setting)),
        policy=jax.jit(policy, donate_argnums=(2,)),
        supervised=jax.jit(supervised, donate_argnums=(2,)),
        zeros=jax.jit(zeros),
        apply=jax.jit(partial(apply, tx=tx, offload=offload), donate_argnums=(1, 3)),
        merge=jax.jit(partial(served, setting=setting)),
    )
