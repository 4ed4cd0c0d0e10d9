"""The sampler draws from the distribution it says it draws from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lightning_jax.serve.sampler import inverse_cdf, sample

draw = jax.jit(sample)


def many(logits, temperature, top_p, count=20000, position=7):
    tile = jnp.tile(jnp.asarray(logits, jnp.float32), (count, 1))
    full = lambda x, t: jnp.full(count, x, t)  # noqa: E731
    seeds = jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(2654435761)
    tokens, logps, _ = draw(
        tile, full(temperature, jnp.float32), full(top_p, jnp.float32), seeds, full(position, jnp.int32)
    )
    return np.asarray(tokens), np.asarray(logps)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.7, 1.0), (1.0, 0.7)])
@pytest.mark.parametrize("vocab", [7, 50, 257])
def test_frequencies(temperature, top_p, vocab):
    logits = np.random.default_rng(vocab).normal(size=vocab) * 1.5
    probs = np.exp(logits / temperature - np.max(logits / temperature))
    probs /= probs.sum()
    order = np.argsort(-probs)
    kept = order[np.cumsum(probs[order]) - probs[order] < top_p]
    expected = np.zeros(vocab)
    expected[kept] = probs[kept] / probs[kept].sum()
    tokens, logps = many(logits, temperature, top_p)
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    np.testing.assert_allclose(logps, np.log(expected[tokens]), atol=2e-5)
    big = expected * len(tokens) >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum()) * len(tokens)
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


def test_positions_of_one_seed_are_independent():
    count = 8192
    logits = jnp.zeros((count, 16))
    ones = jnp.ones(count)
    tokens, _, _ = draw(logits, ones, ones, jnp.full(count, 3, jnp.uint32), jnp.arange(count))
    tokens = np.asarray(tokens)
    pairs = np.bincount(tokens[:-1] * 16 + tokens[1:], minlength=256)
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_greedy_takes_the_first_maximum_and_scores_it_untempered():
    logits = np.asarray([0.0, 3.0, 3.0, -1.0])
    tokens, logps = many(logits, 0.0, 0.5, count=8)
    assert set(tokens) == {1}
    np.testing.assert_allclose(logps, np.log(np.exp(3) / np.exp(logits).sum()), rtol=1e-5)


def test_impossible_tokens_are_never_drawn():
    logits = np.full(300, -1e9)
    logits[[0, 128, 299]] = 0.0
    tokens, _ = many(logits, 1.0, 1.0)
    assert set(tokens) == {0, 128, 299}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.6), (0.0, 1.0)])
def test_masks_renormalise_and_tell_what_they_kept(temperature, top_p):
    vocab, count = 70, 20000
    rng = np.random.default_rng(4)
    logits = rng.normal(size=vocab) * 1.5
    allowed = rng.random(vocab) < 0.3
    words = np.zeros((count, 3), np.uint32)
    for token in np.flatnonzero(allowed):
        words[:, token // 32] |= np.uint32(1 << token % 32)
    masked = np.arange(count) % 2 == 0
    full = lambda x: jnp.full(count, x, jnp.float32)  # noqa: E731
    seeds = jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(2654435761)
    tile, at = jnp.tile(jnp.asarray(logits, jnp.float32), (count, 1)), jnp.full(count, 3, jnp.int32)
    given = (tile, full(temperature), full(top_p), seeds, at)
    tokens, logps, kept = (np.asarray(x) for x in draw(*given, jnp.asarray(words.view(np.int32)), jnp.asarray(masked)))
    free = [np.asarray(x) for x in draw(*given)]
    assert tokens[~masked].tolist() == free[0][~masked].tolist()
    assert logps[~masked].tobytes() == free[1][~masked].tobytes()

    probs = np.exp(logits / (temperature or 1.0))
    probs /= probs.sum()
    expected = np.where(allowed, probs, 0.0)
    mass = expected.sum()
    order = np.argsort(-expected)
    nucleus = order[np.cumsum(expected[order]) / mass - expected[order] / mass < top_p]
    expected = np.where(np.isin(np.arange(vocab), nucleus), expected, 0.0)
    np.testing.assert_allclose(kept[masked], expected.sum(), rtol=1e-4)
    expected /= expected.sum()
    np.testing.assert_allclose(logps[masked], np.log(expected[tokens[masked]]), atol=2e-5)
    counts = np.bincount(tokens[masked], minlength=vocab)
    if temperature == 0.0:
        assert set(tokens[masked]) == {int(np.argmax(expected))}
    else:
        assert counts[expected == 0].sum() == 0
        some = expected > 5 / count
        assert stats.chisquare(counts[some], expected[some] / expected[some].sum() * counts[some].sum()).pvalue > 1e-4


def test_inverse_cdf_at_the_ends():
    probs = jnp.asarray([[0.0, 0.0, 0.25, 0.0, 0.75, 0.0, 0.0]] * 4, jnp.float32)
    u = jnp.asarray([0.0, 0.2499, 0.25, 1 - 2**-23], jnp.float32)
    assert inverse_cdf(probs, u).tolist() == [2, 2, 4, 4]
