"""What a run leaves in its folder, written so that a kill leaves either the old file or the new one.

config.yaml · environment.json · metrics.jsonl · timings.jsonl · tensorboard/ · checkpoints/ · evaluations/*.parquet ·
transitions/*.parquet · summary.json. Parquet comes in parts, one an evaluation or step; a folder is one table.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_jax.types import Score, ScoredTransition, Trajectory

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "grpcio",
    "protobuf",
    "transformers",
    "langgraph",
)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_rows(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as `folder/name.parquet`; nothing where there are none."""
    if not rows:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.tmp"
    pq.write_table(pa.Table.from_pylist([dict(r) for r in rows]), temporary)
    temporary.replace(folder / f"{name}.parquet")


def transition_rows(
    trajectories: Sequence[Trajectory], scores: Sequence[Score], scored: Sequence[ScoredTransition]
) -> list[dict[str, Any]]:
    """One row a transition: what credit gave it, beside its rollout's reward and components."""
    by_rollout = {t.rollout_id: (t, s) for t, s in zip(trajectories, scores, strict=True)}
    rows = []
    for item in scored:
        trajectory, score = by_rollout[item.rollout_id]
        transition = item.transition
        rows.append(
            {
                "step": trajectory.step,
                "rollout_id": item.rollout_id,
                "call_id": transition.call_id,
                "task_id": item.task_id,
                "sample": trajectory.sample,
                "index": transition.index,
                "agent": transition.agent,
                "prompt_tokens": len(transition.prompt_ids),
                "response_tokens": len(transition.response_ids),
                "text": transition.text,
                "advantage": item.advantage,
                "credit": item.credit,
                "loss_weight": item.loss_weight,
                "reward_total": score.total,
                "outcome": score.outcome,
                "components": json.dumps(dict(score.components)),
                "finish_reason": transition.finish_reason,
                "policy_version": transition.policy_version,
                "kept_mass": transition.kept_mass,
                "status": trajectory.outcome.status,
            }
        )
    return rows


def environment() -> dict[str, Any]:
    """Versions and machine: what a reader needs to know why numbers differ elsewhere."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "code": code_version(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "argv": sys.argv,
    }


def code_version() -> dict[str, Any]:
    """Git commit of the source tree and whether it was changed; the package version where there is no git."""
    root = Path(__file__).resolve().parents[2]
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root, capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        try:
            return {"version": metadata.version("lightning_jax")}
        except metadata.PackageNotFoundError:
            return {"version": "unknown"}
    return {"commit": commit, "dirty": bool(changed)}
