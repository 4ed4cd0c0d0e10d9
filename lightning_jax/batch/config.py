"""How transitions become rows: the knobs of the batch stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_jax.configuration import from_mapping

Layout = Literal["trie", "rows", "concatenated"]
Overlong = Literal["error", "drop"]


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Layout and the few shapes that all micro-batches have: one [B, T] per bucket and row count."""

    layout: Layout = "trie"  # trie: share every prefix; concatenated: along one rollout; rows: share nothing
    buckets: tuple[int, ...] = (256, 512, 1024, 2048)  # T: tokens of a row, ascending
    micro_batch_tokens: int = 2048  # B = this // T rows in a micro-batch (at least row_multiple)
    row_multiple: int = 1  # B is a multiple of it: devices along the batch axes of the mesh
    short_rows: bool = True  # a second, 4 times smaller B for what is left over
    entries_per_token: float = 1.0  # N = this · T loss entries of a row
    overlong: Overlong = "error"  # a single sequence longer than the last bucket

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout={self.layout!r} is not one of {get_args(Layout)}")
        if self.overlong not in get_args(Overlong):
            raise ValueError(f"overlong={self.overlong!r} is not one of {get_args(Overlong)}")
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise ValueError(f"buckets={self.buckets} must be positive and strictly ascending")
        if self.entries_per_token <= 0 or self.row_multiple < 1 or self.micro_batch_tokens < 1:
            raise ValueError(
                f"entries_per_token={self.entries_per_token}, row_multiple={self.row_multiple} and "
                f"micro_batch_tokens={self.micro_batch_tokens} must all be positive"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BatchConfig:
        """From plain data; ValueError names unknown keys and the nearest known ones."""
        return from_mapping(cls, values, where="batch")

    def entries(self, bucket: int) -> int:
        """N: loss entries of a row of T = bucket tokens."""
        return max(1, round(bucket * self.entries_per_token))

    def row_counts(self, bucket: int) -> tuple[int, ...]:
        """The B allowed for T = bucket, largest first."""
        unit = self.row_multiple
        full = max(1, self.micro_batch_tokens // bucket // unit) * unit
        short = max(1, full // unit // 4) * unit
        return (full, short) if self.short_rows and short < full else (full,)
