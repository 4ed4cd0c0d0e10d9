"""The credit strategies by name: the one place where a new one is entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lightning_jax.credit import discounted_return, dynamic, exponential, identical, terminal, uniform
from lightning_jax.credit.allocation import Float64Array
from lightning_jax.credit.config import CreditConfig, Strategy

WeightFunction = Callable[[int, CreditConfig, float], Float64Array]  # (K, config, progress) -> w f64[K]
CreditFunction = Callable[[Float64Array, Float64Array, float, CreditConfig], Float64Array]  # (w, r, R, config) -> c


@dataclass(frozen=True, slots=True)
class CreditStrategy:
    """A strategy is two pure functions on one trajectory."""

    weights: WeightFunction
    credits: CreditFunction


STRATEGIES: Mapping[Strategy, CreditStrategy] = {
    "identical": CreditStrategy(identical.weights, identical.credits),
    "uniform": CreditStrategy(uniform.weights, uniform.credits),
    "exponential": CreditStrategy(exponential.weights, exponential.credits),
    "dynamic": CreditStrategy(dynamic.weights, dynamic.credits),
    "return": CreditStrategy(discounted_return.weights, discounted_return.credits),
    "terminal": CreditStrategy(terminal.weights, terminal.credits),
}
