"""Tokens from the device to whoever waits: what a decode drew becomes part of results, streams and counts."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np

from lightning_jax.serve.device import Device
from lightning_jax.serve.generation import Alternatives, GenerationResult, TokenChunk
from lightning_jax.serve.slots import Occupant, SlotTable
from lightning_jax.types import FinishReason


class Delivery:
    """Reads decodes back. The engine's thread only."""

    def __init__(self, device: Device, slots: SlotTable, eos_ids: tuple[int, ...], counts: Counter[str]) -> None:
        self._device = device
        self._slots = slots
        self._eos_ids = eos_ids
        self._counts = counts
        self.wait_s = 0.0  # spent waiting for the device
        self.last_end = 0.0  # when a sequence ended last, by the monotonic clock

    def deliver(self, out: Any, tops: Any, decoding: list[Occupant]) -> None:
        """Wait for a decode (handles of `Device.decode`) of these occupants and hand on what each drew."""
        began = time.perf_counter()
        tokens, logps, kept = (array.tolist() for array in self._device.read(out))
        self.wait_s += time.perf_counter() - began
        for occupant in decoding:
            if occupant.done:  # cancelled since; another may sit in the slot by now
                continue
            ids = [token for token in tokens[occupant.slot] if token >= 0]
            if not ids:
                continue
            occupant.ids += ids
            occupant.logps += logps[occupant.slot][: len(ids)]
            occupant.kept += kept[occupant.slot][: len(ids)]
            self._counts["generated_tokens_total"] += len(ids)
            wanted = occupant.generation.request.top_logprobs
            new_tops = self._alternatives(tops, occupant.slot, len(ids), wanted) if wanted else []
            occupant.tops += new_tops
            if occupant.generation.streams:
                occupant.generation.push(TokenChunk(ids, logps[occupant.slot][: len(ids)], new_tops))
            self._end(occupant, ids[-1])

    def finish(self, occupant: Occupant, reason: FinishReason) -> None:
        """Tell the result; the slot is vacated already."""
        self._counts[f"finished_{reason}_total"] += 1
        self.last_end = time.monotonic()
        occupant.generation.future.set_result(
            GenerationResult(
                np.asarray(occupant.ids, np.int32),
                np.asarray(occupant.logps, np.float32),
                reason,
                occupant.version,
                float(np.mean(occupant.kept)) if occupant.kept else 1.0,
                occupant.tops,
            )
        )

    def _end(self, occupant: Occupant, last: int) -> None:
        """Finish a sequence whose last token so far ends it."""
        ended = last in self._eos_ids
        full = len(occupant.prefix) + 1 + len(occupant.ids) >= occupant.end
        # A grammar may leave nothing to be said where the model has no end token to say it with.
        closed = occupant.matcher is not None and not ended and not occupant.matcher.accept(last)
        if ended or full or closed:
            self._slots.vacate(occupant, stop=not (ended or full))
            self.finish(occupant, "stop" if ended or closed else "length")

    def _alternatives(self, tops: Any, slot: int, tokens: int, wanted: int) -> list[Alternatives]:
        """What might have been drawn for each of `tokens`; fewer than wanted where fewer could be."""
        ids, logps = (array[slot, :tokens, :wanted].tolist() for array in self._device.read_tops(tops))
        return [[(i, p) for i, p in zip(*pair, strict=True) if p > -math.inf] for pair in zip(ids, logps, strict=True)]
