"""Which transitions may share tokens, and which row each goes to.

Everything here is a function of the transitions' content alone: they are put in a canonical order first, so the order
of arrival changes neither rows nor bits.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lightning_jax.batch.config import BatchConfig, Layout
from lightning_jax.batch.trie import common_prefix, sort_key
from lightning_jax.types import IntArray, ScoredTransition


@dataclass(frozen=True, slots=True)
class Laid:
    """Sequences of one mini-batch in layout order: neighbours share `shared` leading tokens."""

    numbers: tuple[int, ...]  # S: the transition's number in the caller's list
    sequences: tuple[IntArray, ...]  # S: prompt and response without its last token, whose logits nobody needs
    entries: tuple[int, ...]  # S: response tokens
    scope: tuple[int, ...]  # S: sequences share only within a scope
    shared: IntArray  # i32[S]: LCP with the sequence before; 0 at the start of a scope

    def between(self, left: int, right: int) -> int:
        """Tokens that sequences left < right share."""
        return int(np.min(self.shared[left + 1 : right + 1]))

    def size(self, low: int, high: int) -> int:
        """Nodes of the tries of sequences [low, high)."""
        total = sum(s.size for s in self.sequences[low:high])
        return total - int(self.shared[low + 1 : high].sum())


def canonical(transitions: Sequence[ScoredTransition]) -> list[ScoredTransition]:
    """The order in which everything downstream happens: by task, rollout, index and call."""
    return sorted(transitions, key=lambda s: (s.task_id, s.rollout_id, s.transition.index, s.transition.call_id))


def full_sequence(scored: ScoredTransition) -> IntArray:
    """prompt ⊕ response, i32[P+R]."""
    return np.concatenate([scored.transition.prompt_ids, scored.transition.response_ids]).astype(np.int32)


def scopes(transitions: Sequence[ScoredTransition], numbers: Sequence[int], layout: Layout) -> dict[int, int]:
    """transition number → scope. Concatenated: a chain ends where a prompt doesn't extend what came before it."""
    if layout == "trie":
        return dict.fromkeys(numbers, 0)
    if layout == "rows":
        return {number: scope for scope, number in enumerate(numbers)}
    result: dict[int, int] = {}
    previous: ScoredTransition | None = None
    scope = -1
    for number in numbers:  # canonical order: the calls of a rollout in sequence
        current = transitions[number]
        extends = False
        if previous is not None and previous.rollout_id == current.rollout_id:
            before, prompt = full_sequence(previous), current.transition.prompt_ids
            extends = prompt.size >= before.size and bool(np.array_equal(prompt[: before.size], before))
        scope += not extends
        result[number] = scope
        previous = current
    return result


def lay_out(transitions: Sequence[ScoredTransition], numbers: Sequence[int], layout: Layout) -> Laid:
    """Sort `numbers` (canonically ordered transitions) so that sharing sequences are neighbours."""
    scope = scopes(transitions, numbers, layout)
    rows = []
    for number in numbers:
        sequence = full_sequence(transitions[number])[:-1]
        rows.append((scope[number], sort_key(sequence), number, sequence))
    rows.sort(key=lambda row: row[:3])
    shared = np.zeros(len(rows), np.int32)
    for i in range(1, len(rows)):
        if rows[i - 1][0] == rows[i][0]:
            shared[i] = common_prefix(rows[i - 1][3], rows[i][3])
    return Laid(
        numbers=tuple(row[2] for row in rows),
        sequences=tuple(row[3] for row in rows),
        entries=tuple(int(transitions[row[2]].transition.response_ids.size) for row in rows),
        scope=tuple(row[0] for row in rows),
        shared=shared,
    )


def assign_buckets(laid: Laid, config: BatchConfig) -> list[int]:
    """T for every sequence: the smallest that holds it, or its longer neighbour's where it shares half of its tokens.

    ValueError where a sequence fits no bucket (the caller drops those first when it may).
    """
    result = []
    for sequence, entries in zip(laid.sequences, laid.entries, strict=True):
        fit = [t for t in config.buckets if sequence.size <= t and entries <= config.entries(t)]
        if not fit:
            last = config.buckets[-1]
            raise ValueError(
                f"a sequence of {sequence.size} tokens with {entries} response tokens is longer than the largest "
                f"row of {last} tokens and {config.entries(last)} loss entries: raise batch.buckets, "
                "lower the prompt or response limits, or set batch.overlong=drop"
            )
        result.append(fit[0])
    for order in (range(1, len(result)), range(len(result) - 1, 0, -1)):
        for i in order:  # two sweeps carry a long neighbour's bucket along its whole family, both ways
            for mine, other in ((i, i - 1), (i - 1, i)):
                if 2 * laid.shared[i] >= laid.sequences[mine].size and result[other] > result[mine]:
                    result[mine] = result[other]
    return result


@dataclass(frozen=True, slots=True)
class Atom:
    """Neighbouring sequences [low, high) of a Laid that go to one row."""

    low: int
    high: int
    size: int  # nodes
    entries: int


def atoms(laid: Laid, low: int, high: int, tokens: int, entries: int) -> list[Atom]:
    """Cut [low, high) at its shallowest branches until every piece fits a row; a cut repeats the shared prefix."""
    size, count = laid.size(low, high), sum(laid.entries[low:high])
    if (size <= tokens and count <= entries) or high - low == 1:
        return [Atom(low, high, size, count)]
    inner = laid.shared[low + 1 : high]
    cuts = [low, *(low + 1 + np.flatnonzero(inner == np.min(inner))).tolist(), high]
    return [atom for a, b in pairwise(cuts) for atom in atoms(laid, a, b, tokens, entries)]


def next_fit(laid: Laid, tokens: int, entries: int) -> list[list[int]]:
    """Rows of consecutive sequences, each as full as it gets: fewest rows among those that keep the order."""
    rows: list[list[int]] = []
    size = count = 0
    for i, sequence in enumerate(laid.sequences):
        added = sequence.size - int(laid.shared[i])
        if rows and size + added <= tokens and count + laid.entries[i] <= entries:
            rows[-1].append(i)
            size, count = size + added, count + laid.entries[i]
        else:
            rows.append([i])
            size, count = sequence.size, laid.entries[i]
    return rows


def best_fit(laid: Laid, tokens: int, entries: int) -> list[list[int]]:
    """Rows of whole subtrees, the largest first, each put where it adds fewest nodes and leaves least room."""
    pieces = sorted(atoms(laid, 0, len(laid.numbers), tokens, entries), key=lambda a: (-a.size, a.low))
    rows: list[list[Atom]] = []
    room: list[tuple[int, int]] = []  # (tokens, entries) left of each row
    for piece in pieces:
        choice: tuple[int, int, int] | None = None
        for number, (free, free_entries) in enumerate(room):
            if piece.entries > free_entries or piece.size - laid.sequences[piece.low].size > free:
                continue
            added = piece.size - _shared_with_row(laid, rows[number], piece)
            if added <= free and (choice is None or (added, free) < choice[:2]):
                choice = (added, free, number)
        if choice is None:
            rows.append([piece])
            room.append((tokens - piece.size, entries - piece.entries))
        else:
            added, free, number = choice
            bisect.insort(rows[number], piece, key=lambda a: a.low)
            room[number] = (free - added, room[number][1] - piece.entries)
    return [[i for atom in row for i in range(atom.low, atom.high)] for row in rows]


def _shared_with_row(laid: Laid, row: list[Atom], piece: Atom) -> int:
    """Nodes saved by adding `piece` to a row: its LCP with the nearest sequences there."""
    place = bisect.bisect_left([a.low for a in row], piece.low)
    saved = 0
    if place > 0 and laid.scope[row[place - 1].high - 1] == laid.scope[piece.low]:
        saved = laid.between(row[place - 1].high - 1, piece.low)
    if place < len(row) and laid.scope[row[place].low] == laid.scope[piece.high - 1]:
        saved = max(saved, laid.between(piece.high - 1, row[place].low))
    return saved


def subset(laid: Laid, keep: Sequence[int]) -> Laid:
    """The sequences at places `keep` (ascending), with what neighbours there still share."""
    shared = [0]
    for a, b in pairwise(keep):
        shared.append(laid.between(a, b) if laid.scope[a] == laid.scope[b] else 0)
    return Laid(
        numbers=tuple(laid.numbers[i] for i in keep),
        sequences=tuple(laid.sequences[i] for i in keep),
        entries=tuple(laid.entries[i] for i in keep),
        scope=tuple(laid.scope[i] for i in keep),
        shared=np.array(shared[: len(keep)], np.int32),
    )


def pack(laid: Laid, tokens: int, entries: int) -> list[Laid]:
    """Rows of at most `tokens` nodes and `entries` loss entries: the better of two greedy packings."""
    if not laid.numbers:
        return []
    rows = min(next_fit(laid, tokens, entries), best_fit(laid, tokens, entries), key=len)
    return [subset(laid, row) for row in sorted(rows)]
