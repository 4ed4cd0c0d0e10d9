"""The prefix cache's book never gives one place to two chunks that are written together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.serve.prefix import PrefixCache, chunk_keys


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(0, 6), plans=st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=12))
def test_places_of_one_plan_differ(capacity, plans):
    cache = PrefixCache(capacity)
    for plan in plans:
        places: dict[bytes, int] = {}
        for number in plan:
            key = bytes([number])
            if cache.find(key) is None and (place := cache.insert(key, places.keys())) is not None:
                places[key] = place
        assert len(set(places.values())) == len(places)
        assert all(cache.find(key) == place for key, place in places.items())
        assert len(cache) <= capacity


def test_keys_stand_for_the_whole_prefix():
    tokens = np.arange(20, dtype=np.int32)
    keys = chunk_keys(tokens, 8)
    assert len(keys) == 3
    assert chunk_keys(tokens[:16], 8) == keys[:2]
    assert chunk_keys(tokens[:19], 8)[2] != keys[2]
    changed = tokens.copy()
    changed[0] = 9
    assert not set(chunk_keys(changed, 8)) & set(keys)


def test_least_recently_used_goes_first():
    cache = PrefixCache(2)
    cache.insert(b"a"), cache.insert(b"b")
    cache.touch([b"a"])
    cache.insert(b"c")
    assert cache.find(b"b") is None
    assert cache.find(b"a") is not None
    cache.clear()
    assert len(cache) == 0
    assert cache.find(b"a") is None
