"""Run folders as data: what a run left behind, read without assuming that it finished.

Invariant: a missing or cut-off file never hides a run. Every reader returns None (or what could be read) where the
file isn't whole, and every run found is kept, the failed ones too.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

logger = logging.getLogger(__name__)

MARKS = ("summary.json", "metrics.jsonl", "config.yaml")  # any of them makes a folder a run
RUNS_VARIABLE = "LIGHTNING_JAX_RUNS"
NAMES = ("credit", "reward", "algo")  # fields of the summary that name what a run is an instance of
IGNORED_KEYS = ("seed", "dir", "path", "port", "host", "id", "hydra", "logger", "device")


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder. `arm` is what it shares with the runs that differ only by seed."""

    path: Path
    summary: Mapping[str, Any] = field(default_factory=dict)  # {} where the run never got to write it
    config: Mapping[str, Any] = field(default_factory=dict)
    arm: str = ""

    @property
    def seed(self) -> int | None:
        """Seed from the summary, else from the config."""
        seed = self.summary.get("seed", self.config.get("seed"))
        return int(seed) if seed is not None else None

    @property
    def status(self) -> str:
        """finished, failed, or unfinished where there is no summary (still running, or killed)."""
        return str(self.summary.get("status", "unfinished"))


def default_folder(base: str | Path = "..") -> Path:
    """$LIGHTNING_JAX_RUNS, else the newest sweep under base/multirun or run under base/runs.

    ValueError where there is none.
    """
    if chosen := os.environ.get(RUNS_VARIABLE):
        return Path(chosen)
    base = Path(base)
    found = [path for place in ("multirun", "runs") for path in run_folders(base / place)]
    if not found:
        raise ValueError(
            f"no runs under {base / 'multirun'} or {base / 'runs'}: start one with `python -m experiments.run`, "
            f"or name a folder in {RUNS_VARIABLE}"
        )
    newest = max(found, key=lambda path: path.stat().st_mtime)
    return newest.parent if (newest.parent / "multirun.yaml").is_file() else newest


def run_folders(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, else all runs below it, in order of name (2 before 10)."""

    def walk(path: Path) -> Iterator[Path]:
        if any((path / mark).is_file() for mark in MARKS):
            yield path
            return
        for child in path.iterdir() if path.is_dir() else ():
            if child.is_dir() and not child.name.startswith("."):  # .hydra holds a config.yaml too
                yield from walk(child)

    return sorted(
        walk(Path(folder)), key=lambda path: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in path.parts]
    )


def load_runs(folder: str | Path) -> list[Run]:
    """All runs of a sweep or run folder, arms named by what differs between them; ValueError where there is none."""
    paths = run_folders(folder)
    if not paths:
        raise ValueError(f"no run in {folder}: a run folder holds one of {list(MARKS)}; set {RUNS_VARIABLE}")
    runs = [Run(path, _mapping(path / "summary.json"), _mapping(path / "config.yaml")) for path in paths]
    return _with_arms(runs)


def arms(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm, arms in order of appearance, seeds ascending."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.arm, []).append(run)
    return {arm: sorted(group, key=lambda run: run.seed or 0) for arm, group in groups.items()}


def metric_lines(run: Run) -> list[dict[str, Any]]:
    """metrics.jsonl line by line, as written: NaN and all."""
    return _lines(run.path / "metrics.jsonl")


def metrics(run: Run) -> pd.DataFrame | None:
    """metrics.jsonl, a row per step (later lines of a step fill in what earlier ones lack); None where absent."""
    return _by_step(metric_lines(run))


def timings(run: Run) -> pd.DataFrame | None:
    """timings.jsonl, seconds per stage and step; None where absent."""
    return _by_step(_lines(run.path / "timings.jsonl"))


def evaluations(run: Run) -> pd.DataFrame | None:
    """evaluations/*.parquet, a row per (step, item); None where absent or unreadable."""
    return _parquet(run.path / "evaluations")


def transitions(run: Run, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """transitions/*.parquet, a row per transition; None where absent or unreadable."""
    return _parquet(run.path / "transitions", columns)


def metric_name(run: Run) -> str:
    """Name of the study's exact task metric."""
    return str(run.summary.get("metric", "execution_accuracy"))


def name_of(run: Run, field_name: str) -> str:
    """Name of the run's credit strategy, reward or algorithm."""
    value = run.summary.get(field_name)
    if value is None:
        group = run.config.get(field_name)
        value = group.get("name") if isinstance(group, Mapping) else group
    return "?" if value is None else str(value)


def _with_arms(runs: Sequence[Run]) -> list[Run]:
    """Name each run's arm by what varies: credit, reward, algo, then config keys among runs equal in these."""
    columns = [_completed([name_of(run, field_name) for run in runs]) for field_name in NAMES]
    kinds = list(zip(*columns, strict=True))
    varying = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    flat = [_flat(run.config) for run in runs]
    keys = sorted(
        {
            key
            for kind in set(kinds)
            for key in _differing([config for config, k in zip(flat, kinds, strict=True) if k == kind and config])
        }
    )
    named = []
    for run, kind, config in zip(runs, kinds, flat, strict=True):
        parts = [kind[place] for place in varying or [0]]
        parts += [f"{key}={config[key]}" for key in keys if key in config]
        named.append(Run(run.path, run.summary, run.config, " · ".join(parts)))
    return named


def _completed(names: list[str]) -> list[str]:
    """Unknown names (a killed run's) filled in where all others agree, so that it stays with its arm."""
    known = set(names) - {"?"}
    return [next(iter(known)) if name == "?" else name for name in names] if len(known) == 1 else names


def _differing(configs: Sequence[Mapping[str, str]]) -> set[str]:
    """Keys whose values differ; where a group's name differs, the name stands for the whole group."""
    keys = {key for config in configs for key in config}
    found = {key for key in keys if key != "name" and len({config.get(key) for config in configs}) > 1}
    named = {key.removesuffix("name") for key in found if key.endswith(".name")}
    return {key for key in found if key.endswith(".name") or not key.startswith(tuple(named))}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted key → text, without what says where or by whom a run was made."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if any(word in IGNORED_KEYS for word in str(key).split("_")):
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _mapping(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        logger.warning("%s is damaged and left out: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:  # the last line of a killed run
            logger.warning("%s, line %d is cut off and left out", path, number)
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows


def _by_step(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame | None:
    if not rows:
        return None
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(int(row["step"]), {}).update(row)
    frame = pd.DataFrame([merged[step] for step in sorted(merged)]).set_index("step")
    numeric: pd.DataFrame = frame.apply(pd.to_numeric, errors="coerce").dropna(axis="columns", how="all")
    return numeric


def _parquet(folder: Path, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """All readable parts as one table, in order of name, which is that of steps."""
    frames = []
    for path in sorted(folder.glob("*.parquet")):
        try:
            frames.append(pd.read_parquet(path, columns=list(columns) if columns is not None else None))
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            logger.warning("%s is damaged and left out: %s", path, error)
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else None
