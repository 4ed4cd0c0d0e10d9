"""Intervals and tests for comparing runs: what a table or figure needs to be evidence.

Invariant: every function is a pure function of its arguments; resampling draws from a generator seeded by `seed`,
never from numpy's global state, so a notebook shows the same interval each time.

Shapes: N seeds (runs), T items (tasks). `scores` are f[N, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval; NaN bounds where the data allow none (one seed)."""

    value: float
    low: float
    high: float
    n: int  # observations behind it

    @property
    def half_width(self) -> float:
        """Half the interval's length: the ± of a table."""
        return (self.high - self.low) / 2


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean over seeds with Student's t interval. values f[N]; one value has no interval (NaN bounds)."""
    x = _finite(values, "values", axes=1)
    mean = float(x.mean())
    if len(x) == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    half = float(stats.t.ppf((1 + level) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Estimate(mean, mean - half, mean + half, len(x))


def proportion_interval(successes: int, n: int, level: float = 0.95, method: str = "wilson") -> Estimate:
    """Binomial proportion with Wilson's score interval, or the normal one ("normal": too narrow near 0 and 1)."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"successes={successes} of n={n}: needs 0 ≤ successes ≤ n and n > 0")
    z, p = float(stats.norm.ppf((1 + level) / 2)), successes / n
    if method == "normal":
        half = z * math.sqrt(p * (1 - p) / n)
        return Estimate(p, max(0.0, p - half), min(1.0, p + half), n)
    if method != "wilson":
        raise ValueError(f"method={method!r}; known are 'wilson' and 'normal'")
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # p itself stays inside where rounding would push a bound past it
    return Estimate(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n)


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean: mean of the middle half of all scores, seeds and items pooled (Agarwal et al. 2021)."""
    return float(stats.trim_mean(_finite(scores, "scores").ravel(), 0.25))


def stratified_bootstrap(
    scores: ArrayLike,
    statistic: Callable[[Floats], float] = iqm,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Percentile interval of a statistic of f[N, T], seeds resampled within each item (Agarwal et al. 2021)."""
    x = _finite(scores, "scores", axes=2)
    n, items = x.shape
    generator = np.random.default_rng(seed)
    columns = np.arange(items)
    draws = [statistic(x[generator.integers(0, n, (n, items)), columns]) for _ in range(resamples)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(statistic(x), float(low), float(high), n * items)


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """P(A > B) + P(A = B)/2 for a random seed of each, mean over items (Mann-Whitney U, Agarwal et al. 2021).

    a f[N, T], b f[M, T].
    """
    x, y = _finite(a, "a", axes=2), _finite(b, "b", axes=2)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"a has {x.shape[1]} items, b {y.shape[1]}: both need the same items in the same order")
    difference = x[:, None, :] - y[None, :, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def probability_of_improvement_interval(
    a: ArrayLike, b: ArrayLike, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> Estimate:
    """`probability_of_improvement` with a stratified bootstrap interval: seeds resampled per item and side."""
    x, y = _finite(a, "a", axes=2), _finite(b, "b", axes=2)
    value = probability_of_improvement(x, y)
    generator = np.random.default_rng(seed)
    columns = np.arange(x.shape[1])
    draws = [
        probability_of_improvement(
            x[generator.integers(0, len(x), x.shape), columns], y[generator.integers(0, len(y), y.shape), columns]
        )
        for _ in range(resamples)
    ]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), x.size + y.size)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples or more is right: 1 - C(n-c,k)/C(n,k) (Chen et al. 2021); c of n were."""
    _check_counts(n, c, k)
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that all k samples are right: C(c,k)/C(n,k); reliability (Yao et al. 2024)."""
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, resamples: int = 5000, level: float = 0.95, seed: int = 0
) -> tuple[Estimate, float]:
    """Difference of means a - b over pairs of (seed, item), both resampled: the same seeds and items on both sides.

    Resampling seeds and items, each whole, keeps what is shared inside a seed and inside an item; resampling single
    cells would call too much significant.

    Args:
        a, b: f[N, T]; row i of both is one seed, column j one item. f[T] counts as one seed.

    Returns:
        The difference with its percentile interval, and a two-sided p-value (twice the rarer tail at 0, at most 1).
    """
    x, y = np.atleast_2d(_finite(a, "a")), np.atleast_2d(_finite(b, "b"))
    if x.shape != y.shape:
        raise ValueError(f"a has shape {x.shape}, b {y.shape}: pairs need the same seeds and items")
    difference = x - y
    n, items = difference.shape
    generator = np.random.default_rng(seed)
    draws = np.empty(resamples)
    for number in range(resamples):
        # counts as weights: a matrix-vector product instead of a copy of the matrix
        seeds = generator.multinomial(n, np.full(n, 1 / n))
        chosen = generator.multinomial(items, np.full(items, 1 / items))
        draws[number] = seeds @ difference @ chosen / (n * items)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    tail = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    p_value = min(1.0, 2 * (tail + 1) / (resamples + 1))
    return Estimate(float(difference.mean()), float(low), float(high), difference.size), p_value


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided p-value that two checkpoints are equally often right on the same items. a, b bool[T]."""
    x, y = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if x.shape != y.shape:
        raise ValueError(f"a has {x.shape} items, b {y.shape}: McNemar's test needs the same items on both sides")
    only_a, only_b = int((x & ~y).sum()), int((~x & y).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values of a family of comparisons (Holm 1979), in the given order."""
    ordered = sorted(p_values, key=lambda name: (p_values[name], name))
    adjusted: dict[str, float] = {}
    running = 0.0
    for place, name in enumerate(ordered):
        running = max(running, min(1.0, (len(ordered) - place) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def performance_profile(scores: ArrayLike, thresholds: Sequence[float]) -> Floats:
    """Share of (seed, item) scores strictly above each threshold (Dolan & Moré 2002; Agarwal et al. 2021)."""
    x = _finite(scores, "scores").ravel()
    return np.asarray([(x > threshold).mean() for threshold in thresholds])


def _finite(values: ArrayLike, name: str, axes: int | None = None) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or (axes is not None and x.ndim != axes):
        raise ValueError(
            f"{name} has shape {x.shape}; needs {axes if axes is not None else 'some'} axes and no empty one"
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{name} holds {int((~np.isfinite(x)).sum())} values that are not finite: leave them out first"
        )
    return x


def _check_counts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n={n}, c={c}, k={k}: needs 0 ≤ c ≤ n and 1 ≤ k ≤ n")
