"""The one sink of a run's numbers: metrics.jsonl (bit-identical between equal runs), timings.jsonl, TensorBoard.

Wall-clock values never enter metrics.jsonl; that is what lets two runs be compared with `cmp`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter


class MetricsWriter:
    """Appends lines to a run folder; those that a run going on after step `resume_from` writes again are dropped."""

    def __init__(self, folder: Path, *, resume_from: int = 0) -> None:
        self._metrics_path = folder / "metrics.jsonl"
        self._timings_path = folder / "timings.jsonl"
        for path in (self._metrics_path, self._timings_path):
            keep_until(path, resume_from)
        self._metrics = self._metrics_path.open("a", encoding="utf-8")
        self._timings = self._timings_path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_from + 1 if resume_from else None)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line; ValueError names a value that is no finite number (a run must not go on with it)."""
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        self._write(self._metrics, {"step": step, **{k: _plain(v) for k, v in sorted(values.items())}})
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()
        if bad:
            raise ValueError(
                f"step {step}: not a finite number: {bad}; lower the learning rate or clip gradients harder"
            )

    def timings(self, step: int, values: Mapping[str, float]) -> None:
        """Seconds and rates of one step."""
        self._write(self._timings, {"step": step, **{k: round(v, 4) for k, v in values.items()}})

    def close(self) -> None:
        """Flush and close all files."""
        self._metrics.close()
        self._timings.close()
        self._board.close()

    @staticmethod
    def _write(file: Any, record: Mapping[str, Any]) -> None:
        file.write(json.dumps(record) + "\n")
        file.flush()


def keep_until(path: Path, step: int) -> None:
    """Drop what a run that goes on after `step` writes again: later steps, the closing evaluation, a torn last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # torn by a kill: nothing after it was written
        held_out = "eval/n" in record  # before the first step, or after the last one of a run that now goes on
        if (record["step"] == 0 < step) if held_out else (record["step"] <= step):
            kept.append(line + "\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a JSONL file; [] where it is absent."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _plain(value: float) -> float | str:
    """JSON has no NaN: write it as a word so that the line can be read anywhere."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
