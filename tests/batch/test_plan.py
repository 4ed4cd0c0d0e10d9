"""The layout loses nothing, invents nothing, and doesn't depend on the order of arrival."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.batch import BatchConfig, MicroBatch, plan, shapes
from lightning_jax.batch.trie import build_trie, common_prefix, sort_key
from tests.batch.examples import agent_calls, transition

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(SEQUENCES)
def test_trie_holds_every_sequence_and_each_prefix_once(sequences: list[list[int]]) -> None:
    ordered = sorted((np.array(s, np.int32) for s in sequences), key=sort_key)
    shared = [0] + [common_prefix(a, b) for a, b in pairwise(ordered)]
    trie = build_trie(ordered, shared)
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert trie.tokens.size == len(prefixes)
    for sequence, path in zip(ordered, trie.paths, strict=True):
        np.testing.assert_array_equal(trie.tokens[path], sequence)
        np.testing.assert_array_equal(trie.positions[path], np.arange(sequence.size))
        last = path[-1]
        seen = [j for j in range(last + 1) if last < trie.subtree_end[j]]
        np.testing.assert_array_equal(seen, path)  # a token sees its own sequence and nothing else


def read_back(micro: MicroBatch) -> dict[int, tuple[list[int], list[int], float, float]]:
    """transition → (what its last entry sees, its targets, weight, advantage), from the arrays alone."""
    found = {}
    for row in range(micro.tokens.shape[0]):
        numbers = micro.entry_transition[row]
        for number in sorted(set(numbers[numbers >= 0].tolist())):
            where = np.flatnonzero(numbers == number)
            source = int(micro.entry_source[row, where[-1]])
            seen = [j for j in range(source + 1) if source < micro.subtree_end[row, j]]
            assert micro.positions[row, seen].tolist() == list(range(len(seen)))
            assert micro.entry_first[row, where].tolist() == [1.0] + [0.0] * (where.size - 1)
            assert number not in found
            found[number] = (
                micro.tokens[row, seen].tolist(),
                micro.entry_target[row, where].tolist(),
                float(micro.entry_weight[row, where[0]]),
                float(micro.entry_advantage[row, where[0]]),
            )
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["trie", "rows", "concatenated"]),
    st.sampled_from([(48,), (24, 48), (64, 128)]),
    st.sampled_from([0.8, 1.0]),
)
def test_every_transition_is_laid_out_once(seed: int, layout: str, buckets: tuple[int, ...], ratio: float) -> None:
    transitions = agent_calls(seed)
    config = BatchConfig(layout=layout, buckets=buckets, micro_batch_tokens=192, entries_per_token=ratio)  # type: ignore[arg-type]
    work = plan(transitions, config)
    found: dict[int, tuple[list[int], list[int], float, float]] = {}
    for micro in work.micro_batches:
        assert micro.shape in shapes(config)
        found |= read_back(micro)
    assert sorted(found) == list(range(len(transitions)))
    for number, (seen, targets, weight, advantage) in found.items():
        scored = work.transitions[number]
        assert seen == [*scored.transition.prompt_ids.tolist(), *scored.transition.response_ids.tolist()][:-1]
        assert targets == scored.transition.response_ids.tolist()
        assert advantage == pytest.approx(scored.advantage)
        assert weight > 0
    assert work.stats.tokens_trained == sum(s.transition.response_ids.size for s in transitions)
    assert work.stats.tokens_laid <= work.stats.tokens_separate <= work.stats.tokens_computed * 10
    if layout == "rows":
        assert work.stats.tokens_laid == work.stats.tokens_separate


def test_order_of_arrival_changes_no_bit() -> None:
    transitions = agent_calls(3)
    config = BatchConfig(buckets=(32, 64), micro_batch_tokens=128)
    first = plan(transitions, config, mini_batches=2, shuffle_seed=(1, 2))
    second = plan(transitions[::-1], config, mini_batches=2, shuffle_seed=(1, 2))
    assert len(first.micro_batches) == len(second.micro_batches)
    for a, b in zip(first.micro_batches, second.micro_batches, strict=True):
        for field in fields(a):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_sharing_by_layout() -> None:
    """Two samples of one prompt, of which the first makes a second call that extends its first."""
    prompt = list(range(1, 11))
    transitions = [
        transition(prompt, [20, 21], rollout="a"),
        transition([*prompt, 20, 21, 30], [22, 23], rollout="a", index=1),
        transition(prompt, [24, 25], rollout="b"),
    ]
    laid = {
        layout: plan(transitions, BatchConfig(layout=layout, buckets=(64,))).stats.tokens_laid  # type: ignore[arg-type]
        for layout in ("trie", "concatenated", "rows")
    }
    # nodes: prompt 10; "20 21 30 22" of a, "24" of b; last response tokens predict nothing and are not laid out
    assert laid == {"trie": 10 + 4 + 1, "concatenated": 14 + 11, "rows": 11 + 14 + 11}


def test_mini_batches_keep_rollouts_whole() -> None:
    transitions = agent_calls(5, tasks=4)
    work = plan(transitions, BatchConfig(buckets=(64,)), mini_batches=3, shuffle_seed=(0, 1))
    assert len(work.mini_batches) == 3
    where: dict[str, set[int]] = {}
    for number, mini in enumerate(work.mini_batches):
        for micro in mini:
            for transition_number in np.unique(micro.entry_transition[micro.entry_transition >= 0]):
                where.setdefault(work.transitions[transition_number].rollout_id, set()).add(number)
    assert all(len(parts) == 1 for parts in where.values())
    assert len(where) == 12


def test_trie_larger_than_a_row_is_split() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, 50, 20)
    transitions = [transition(prompt, rng.integers(1, 50, 10), rollout=f"r{i}") for i in range(20)]
    work = plan(transitions, BatchConfig(buckets=(64,), micro_batch_tokens=256))
    assert {m.shape[1] for m in work.micro_batches} == {64}
    assert sorted(n for m in work.micro_batches for n in read_back(m)) == list(range(20))
    assert work.stats.tokens_laid > 20 + 20 * 9 - 1  # the prompt is repeated in each row


def test_overlong_is_an_error_that_names_both_numbers_or_is_counted() -> None:
    transitions = [transition(list(range(1, 60)), [1, 2], rollout="long"), transition([1, 2], [3], rollout="short")]
    with pytest.raises(ValueError, match=r"60 tokens.*32 tokens"):
        plan(transitions, BatchConfig(buckets=(16, 32)))
    work = plan(transitions, BatchConfig(buckets=(16, 32), overlong="drop"))
    assert (work.stats.dropped, work.stats.transitions) == (1, 1)


def test_unselected_empty_and_zero_advantage_transitions() -> None:
    transitions = [
        transition([1, 2], [3, 4], rollout="a"),
        transition([1, 2], [5], rollout="b", loss_weight=0.0),
        transition([1, 2], [6, 7], rollout="c", advantage=0.0),
        transition([1, 2], [], rollout="d"),
    ]
    config = BatchConfig(buckets=(16,))
    kept = plan(transitions, config)
    assert (kept.stats.skipped, kept.stats.empty, kept.stats.tokens_trained) == (1, 1, 4)
    skipping = plan(transitions, config, skip_zero_advantage=True)
    assert (skipping.stats.skipped, skipping.stats.tokens_trained) == (2, 2)
    # the skipped rollout still counts in the denominator: 1 / (2 rollouts · 2 tokens)
    assert skipping.micro_batches[0].entry_weight.max() == pytest.approx(0.25)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'bucket' \(did you mean 'buckets'\?\)"):
        BatchConfig.from_mapping({"bucket": [64]})
    assert BatchConfig.from_mapping({"buckets": [64, 128]}).buckets == (64, 128)
    with pytest.raises(ValueError, match="strictly ascending"):
        BatchConfig(buckets=(64, 32))
