"""Checkpoints of the whole state: arrays by orbax, everything else as JSON beside them.

Invariants: a checkpoint exists under its final name or not at all (it is written beside and renamed), so that whatever
kills a run, `latest` is complete; restoring gives the exact bits; a checkpoint of another configuration is refused.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{8})")
_ARRAYS, _DATA = "arrays", "checkpoint.json"
ALLOW = "allow_changed_config"  # the argument, here and on the command line, by which a run goes on under another one
_SHOWN = 5  # settings in a message


class Checkpoints:
    """The checkpoints of one run, in `folder`."""

    def __init__(
        self, folder: Path, *, config_hash: str = "", settings: Mapping[str, Any] | None = None, keep: int = 2
    ) -> None:
        """settings: what `config_hash` is of, for the message when it differs (JSON, nested as it likes).

        keep: how many of the newest stay; the one with the best score stays besides.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must stay, or nothing could be resumed")
        self._folder = Path(folder).absolute()
        self._config_hash, self._settings, self._keep = config_hash, _flat(_as_saved(settings or {})), keep

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self._folder.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        return sorted(int(match[1]) for match, path in found if match and (path / _DATA).is_file())

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint; None where there is none."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """Step of the highest score (the newest of equals); None where none was saved with a score."""
        scored = [(score, step) for step in self.steps() if (score := self._read(step)["score"]) is not None]
        return max(scored)[1] if scored else None

    def improves(self, score: float) -> bool:
        """Whether `score` beats that of every checkpoint: then its state is worth one, whatever the schedule says."""
        best = self.best()
        return best is None or score > float(self._read(best)["score"])

    def save(self, step: int, state: Any, data: Mapping[str, Any], *, score: float | None = None) -> Path:
        """Write a checkpoint of `step`, replacing one of the same step, and drop those that retention doesn't keep.

        state: pytree of arrays. data: JSON, whatever else the caller needs to go on.
        score: what `best` goes by. Every process of a distributed run must call it.
        """
        if score is not None and not math.isfinite(score):
            raise ValueError(f"score={score} of step {step} is no finite number: it could not be compared")
        final, partial = self._path(step), self._folder / f".partial-{step:08d}"
        record = {
            "step": step,
            "score": score,
            "config_hash": self._config_hash,
            "settings": self._settings,
            "tree": describe(state),
            "data": dict(data),
        }
        content = json.dumps(record, sort_keys=True)  # fails before anything is touched
        if jax.process_index() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for leftover in self._folder.glob(".partial-*"):
                shutil.rmtree(leftover)
            partial.mkdir()
        _barrier(f"checkpoint-begin-{step}")
        ocp.save(partial / _ARRAYS, state)
        if jax.process_index() == 0:
            _write_durably(partial / _DATA, content)
            self._replace(partial, final)
            self._retain()
        _barrier(f"checkpoint-end-{step}")
        return final

    def restore(
        self, like: Any, *, step: int | None = None, allow_changed_config: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """(state, data) of `step`, by default the newest.

        like: a state, or its abstract form, that gives tree and shardings.

        ValueError where there is no such checkpoint, the configuration is another, or the tree doesn't fit.
        """
        chosen = self.latest() if step is None else step
        if chosen is None or chosen not in self.steps():
            raise ValueError(f"no checkpoint of step {step} in {self._folder}; complete ones: {self.steps()}")
        record = self._read(chosen)
        if record["config_hash"] != self._config_hash and not allow_changed_config:
            different = _differences(record.get("settings", {}), self._settings)
            raise ValueError(
                f"checkpoint step {chosen} was written under config hash {record['config_hash']!r}, this run has "
                f"{self._config_hash!r}{different}: resume with the same configuration, or go on with the new "
                f"one knowingly by {ALLOW}=true (from Python: {ALLOW}=True)"
            )
        saved, wanted = record["tree"], describe(like)
        if saved != wanted:
            names = sorted(k for k in saved.keys() | wanted.keys() if saved.get(k) != wanted.get(k))
            first = names[0]
            raise ValueError(
                f"checkpoint step {chosen} doesn't fit this state: {len(names)} leaves differ, first {first!r}: "
                f"saved {saved.get(first, 'nothing')}, wanted {wanted.get(first, 'nothing')}; "
                "model and algorithm must be the same"
            )
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        state = ocp.load(self._path(chosen) / _ARRAYS, abstract)
        data: dict[str, Any] = record["data"]
        return state, data

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _read(self, step: int) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self._path(step) / _DATA).read_text(encoding="utf-8"))
        return record

    def _replace(self, partial: Path, final: Path) -> None:
        if final.exists():
            self._remove(final)
        os.replace(partial, final)
        _sync(self._folder)

    def _retain(self) -> None:
        steps = self.steps()
        keep = {*steps[-self._keep :], self.best()}
        for step in steps:
            if step not in keep:
                self._remove(self._path(step))

    def _remove(self, path: Path) -> None:
        """Out of sight first: a half-deleted checkpoint must not look complete."""
        hidden = self._folder / f".partial-removed-{path.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        shutil.rmtree(hidden)
        log.debug("removed checkpoint %s", path.name)


def describe(tree: Any) -> dict[str, str]:
    """Dotted path → "dtype[shape]" of every leaf."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(p, simple=True, separator="."): f"{x.dtype}{list(x.shape)}" for p, x in leaves}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"credit": {"gamma": 1}} → {"credit.gamma": 1}"""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _as_saved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Through JSON, as a checkpoint's own settings went: tuples are lists, keys are texts."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    return plain


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What was set otherwise, both values, in brackets; nothing where the settings of either are not known."""
    if not saved or not now:
        return ""

    def value(of: Mapping[str, Any], name: str) -> str:
        return repr(of[name]) if name in of else "not set"

    names = [n for n in sorted(saved.keys() | now.keys()) if value(saved, n) != value(now, n)]
    shown = [f"{name} was {value(saved, name)}, is {value(now, name)}" for name in names[:_SHOWN]]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f" ({'; '.join([*shown, *more])})" if names else ""


def _write_durably(path: Path, content: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
