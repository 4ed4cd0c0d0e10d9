"""A small sweep written to disk in the formats that runs write: two credit strategies, three seeds, ten steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

LEVELS = ("easy", "medium", "hard", "extra")
DATABASES = ("flights", "pets", "concerts")
ITEMS, STEPS = 60, 10
GAIN = {"uniform": 0.10, "exponential": 0.35}  # what training adds to the chance of a right answer


def write_sweep(folder: Path, seeds: int = 3) -> Path:
    """All runs of the sweep, one folder per job as Hydra numbers them."""
    (folder / "multirun.yaml").parent.mkdir(parents=True, exist_ok=True)
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    for job, (credit, seed) in enumerate((c, s) for c in GAIN for s in range(seeds)):
        write_run(folder / str(job), credit, seed)
    return folder


def write_run(folder: Path, credit: str, seed: int) -> Path:
    """One finished run with every artefact."""
    folder.mkdir(parents=True)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "config.yaml").write_text("credit: {}\n")
    items = np.random.default_rng(7).uniform(0.1, 0.6, ITEMS)  # difficulty is the items' own, the same for all runs
    generator = np.random.default_rng([seed, len(credit)])
    evaluations = pd.concat([_evaluation(items, credit, step, generator) for step in (0, 5, STEPS)])
    _write_parts(folder / "evaluations", evaluations)
    _write_parts(folder / "transitions", _transitions(credit, generator))
    metrics, timings = _metrics(evaluations, credit, generator)
    _write_lines(folder / "metrics.jsonl", metrics)
    _write_lines(folder / "timings.jsonl", timings)
    config = {
        "seed": seed,
        "credit": {"name": credit, "gamma": 0.85 if credit == "exponential" else None},
        "out_dir": str(folder),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = {
        "eval_before": _summary_of(evaluations, 0),
        "eval_after": _summary_of(evaluations, STEPS),
        "wall_s": 90.0 + seed,
        "config_hash": f"{credit}-0123456789abcdef",
        "seed": seed,
        "credit": credit,
        "reward": "execution",
        "algo": "grpo",
        "steps": STEPS,
        "status": "finished",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _evaluation(items: Any, credit: str, step: int, generator: np.random.Generator) -> pd.DataFrame:
    chance = np.clip(items + GAIN[credit] * step / STEPS, 0, 1)
    correct = generator.uniform(size=ITEMS) < chance
    number = np.arange(ITEMS)
    return pd.DataFrame(
        {
            "step": step,
            "split": "dev",
            "task_id": [f"dev-{i}" for i in number],
            "hardness": [LEVELS[i % 4] for i in number],
            "db": [DATABASES[i % 3] for i in number],
            "correct": correct,
            "score": correct.astype(float),
            "query": "SELECT 1",
            "calls": 3,
            "status": "succeeded",
        }
    )


def _transitions(credit: str, generator: np.random.Generator) -> pd.DataFrame:
    rows = []
    for step in range(1, STEPS + 1):
        for rollout in range(12):
            outcome = float(generator.uniform() < 0.3 + GAIN[credit] * step / STEPS)
            components = {"execution": outcome, "format": float(generator.uniform() < 0.9)}
            for index, agent in enumerate(("writer", "checker", "writer")):
                weight = 0.85 ** (2 - index) if credit == "exponential" else 1 / 3
                rows.append(
                    {
                        "step": step,
                        "rollout_id": f"{step}-{rollout}",
                        "task_id": f"train-{rollout // 4}",
                        "sample": rollout % 4,
                        "index": index,
                        "agent": agent,
                        "prompt_tokens": 90 + index,
                        "response_tokens": 12,
                        "advantage": (outcome - 0.45) * weight,
                        "credit": weight,
                        "reward_total": 0.9 * outcome + 0.1 * components["format"],
                        "outcome": outcome,
                        "components": json.dumps(components),
                        "finish_reason": "stop",
                        "policy_version": step - 1,
                        "status": "succeeded",
                    }
                )
    return pd.DataFrame(rows)


def _metrics(evaluations: pd.DataFrame, credit: str, generator: np.random.Generator) -> tuple[list[Any], list[Any]]:
    accuracy = evaluations.groupby("step")["correct"].mean()
    metrics: list[dict[str, Any]] = [{"step": 0, "eval/execution_accuracy": float(accuracy[0])}]
    timings = []
    for step in range(1, STEPS + 1):
        outcome = 0.3 + GAIN[credit] * step / STEPS + float(generator.normal(0, 0.03))
        row = {
            "step": step,
            "reward/mean": 0.9 * outcome + 0.09,
            "reward/outcome_mean": outcome,
            "reward/execution_mean": outcome,
            "reward/format_mean": 0.9,
            "credit/zero_variance_fraction": 0.4 - 0.02 * step,
            "learner/grad_norm": 1.0 + float(generator.normal(0, 0.1)),
            "learner/entropy_nats": 1.2 - 0.05 * step,
            "learner/kl": 0.001 * step,
            "rollout/calls_mean": 3.0,
        }
        if step in accuracy.index:
            row["eval/execution_accuracy"] = float(accuracy[step])
        metrics.append(row)
        timings.append({"step": step, "rollout_s": 6.0, "update_s": 2.5})
    return metrics, timings


def _summary_of(evaluations: pd.DataFrame, step: int) -> dict[str, Any]:
    rows = evaluations[evaluations["step"] == step]
    accuracy = float(rows["correct"].mean())
    levels = rows.groupby("hardness")["correct"]
    return {
        "execution_accuracy": accuracy,
        "n": len(rows),
        "by_hardness": {level: {"execution_accuracy": float(c.mean()), "n": len(c)} for level, c in levels},
        "ci95": [max(0.0, accuracy - 0.12), min(1.0, accuracy + 0.12)],
    }


def _write_parts(folder: Path, frame: pd.DataFrame) -> None:
    """One file a step."""
    folder.mkdir()
    for step, part in frame.groupby("step"):
        part.to_parquet(folder / f"part-{step:06d}.parquet", index=False)


def _write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
