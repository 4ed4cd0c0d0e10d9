"""Tables of a sweep: what the notebook shows, each one call.

Every function takes the runs and returns a DataFrame, or a `Note`: a sentence that says what is missing. Invariant:
runs that failed are counted where they were left out, and no number is shown without how many seeds and items it
rests on.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments import artefacts, statistics
from experiments.artefacts import Run
from experiments.statistics import Estimate

SPLITS = ("test", "validation", "dev", "eval")  # which one counts where there are several
DIVERGENCE_SIGNS = ("learner/", "reward/mean")  # metrics that must stay finite


class Note(str):
    """A sentence in place of a table or figure; notebooks show it as text."""

    def _repr_markdown_(self) -> str:
        return f"*{self}*"


def percent(estimate: Estimate) -> str:
    """ "61.2 ± 3.7", in per cent; without ± where one value allows none."""
    if math.isnan(estimate.low):
        return f"{100 * estimate.value:.1f}"
    return f"{100 * estimate.value:.1f} ± {100 * estimate.half_width:.1f}"


def accuracy(run: Run, when: str) -> float | None:
    """The exact task metric of the evaluation before or after training (when: "eval_before", "eval_after")."""
    value = (run.summary.get(when) or {}).get(artefacts.metric_name(run))
    return float(value) if value is not None and math.isfinite(value) else None


def results(runs: Sequence[Run]) -> pd.DataFrame | Note:
    """One row per arm: accuracy before and after in per cent, mean ± 95 % over seeds; n, time, config hashes."""
    rows = []
    for arm, group in artefacts.arms(runs).items():
        after = [value for run in group if (value := accuracy(run, "eval_after")) is not None]
        before = [value for run in group if (value := accuracy(run, "eval_before")) is not None]
        pairs = [(accuracy(run, "eval_before"), accuracy(run, "eval_after")) for run in group]
        gains = [b - a for a, b in pairs if a is not None and b is not None]
        hashes = sorted({str(run.summary["config_hash"])[:8] for run in group if "config_hash" in run.summary})
        items = sorted({int(n) for run in group if (n := (run.summary.get("eval_after") or {}).get("n")) is not None})
        minutes = [float(run.summary["wall_s"]) / 60 for run in group if "wall_s" in run.summary]
        rows.append(
            {
                "arm": arm,
                "before, %": _over_seeds(before),
                "after, %": _over_seeds(after),
                "gain, points": _over_seeds(gains),
                "95 % over items of one seed": _item_interval(group),
                "seeds": len(after),
                "not finished": sum(run.status != "finished" for run in group),
                "items": "/".join(map(str, items)) or "–",
                "minutes": round(float(np.mean(minutes)), 1) if minutes else "–",
                "config": ", ".join(hashes) or "–",
            }
        )
    if all(row["seeds"] == 0 for row in rows):
        return Note(f"None of the {len(runs)} runs has an evaluation after training (summary.json, eval_after) yet.")
    return pd.DataFrame(rows).set_index("arm")


def by_hardness(runs: Sequence[Run]) -> pd.DataFrame | Note:
    """Accuracy after training per level (hardness, or what the study has) in per cent, mean ± 95 % over seeds."""
    rows: dict[str, dict[str, str]] = {}
    for arm, group in artefacts.arms(runs).items():
        values: dict[str, list[float]] = {}
        for run in group:
            levels = f"by_{run.summary.get('breakdown', 'hardness')}"
            for level, entry in ((run.summary.get("eval_after") or {}).get(levels) or {}).items():
                name = f"{level} (n={entry.get('n', '?')})"
                values.setdefault(name, []).append(float(entry[artefacts.metric_name(run)]))
        if values:
            rows[arm] = {level: _over_seeds(found) for level, found in values.items()}
    if not rows:
        return Note("No run reports accuracy by hardness (summary.json, eval_after.by_…).")
    frame = pd.DataFrame.from_dict(rows, orient="index").fillna("–")
    order = {"easy": 0, "medium": 1, "hard": 2, "extra": 3}
    frame = frame[sorted(frame.columns, key=lambda column: (order.get(column.split(" ")[0], 9), column))]
    return frame.rename_axis("arm")


def failures(runs: Sequence[Run]) -> pd.DataFrame | Note:
    """Runs that failed, never finished, or whose metrics left the finite numbers, with the last step they reached."""
    rows = []
    for run in runs:
        diverged = _diverged(run)
        if run.status == "finished" and not diverged:
            continue
        reason = run.summary.get("failure") or ("no summary.json: still running, or killed" if not run.summary else "")
        frame = artefacts.metrics(run)
        rows.append(
            {
                "run": run.path.name,
                "arm": run.arm,
                "seed": run.seed if run.seed is not None else "?",
                "status": "diverged" if diverged and run.status == "finished" else run.status,
                "last step": int(frame.index.max()) if frame is not None else "–",
                "why": "; ".join(filter(None, [str(reason), diverged])),
            }
        )
    if not rows:
        return Note(f"All {len(runs)} runs finished with finite metrics.")
    return pd.DataFrame(rows).set_index("run")


def comparisons(runs: Sequence[Run], *, resamples: int = 2000, seed: int = 0) -> pd.DataFrame | Note:
    """Every pair of arms on the seeds and items both have: difference in points, Holm-adjusted p, P(improvement).

    Difference and p: paired bootstrap over (seed, item); with one common seed, p is McNemar's. P(improvement) treats
    databases as the tasks (Agarwal et al. 2021).
    """
    tables = {arm: _final_scores(group) for arm, group in artefacts.arms(runs).items()}
    tables = {arm: table for arm, table in tables.items() if table is not None}
    if len(tables) < 2:
        return Note(f"A comparison needs two arms with evaluations/*.parquet; {len(tables)} found.")
    rows, p_values = [], {}
    for one, other in itertools.combinations(tables, 2):
        pair = _common(tables[one], tables[other])
        if pair is None:
            rows.append({"A": one, "B": other, "common seeds": 0, "common items": 0})
            continue
        a, b, groups = pair
        difference, p_value = statistics.paired_bootstrap(a, b, resamples=resamples, seed=seed)
        if len(a) == 1 and set(np.unique([a, b])) <= {0.0, 1.0}:
            p_value = statistics.mcnemar(a[0] > 0.5, b[0] > 0.5)
        chance = statistics.probability_of_improvement_interval(
            _by_group(a, groups), _by_group(b, groups), resamples=resamples, seed=seed
        )
        p_values[f"{len(rows)}"] = p_value
        bounds = f"{100 * difference.low:+.1f}, {100 * difference.high:+.1f}"
        rows.append(
            {
                "A": one,
                "B": other,
                "A - B, points": f"{100 * difference.value:+.1f} [{bounds}]",
                "p": p_value,
                "P(A better)": f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]",
                "common seeds": len(a),
                "common items": a.shape[1],
            }
        )
    for place, adjusted in statistics.holm(p_values).items():
        rows[int(place)]["p (Holm)"] = adjusted
    frame = pd.DataFrame(rows).set_index(["A", "B"])
    return frame.round({"p": 4, "p (Holm)": 4})


def reward_components(runs: Sequence[Run]) -> pd.DataFrame | Note:
    """How each reward component goes with the exact metric over rollouts: correlation, mean by right and wrong.

    A component that is as high on wrong rollouts as on right ones pays for something else than the task.
    """
    rows = []
    for arm, group in artefacts.arms(runs).items():
        frames = [frame for run in group if (frame := rollout_rewards(run)) is not None]
        if not frames:
            continue
        frame = pd.concat(frames)
        right = frame["outcome"] >= 0.5
        for name in [column for column in frame if column not in ("outcome", "step")]:
            column = frame[name].astype(float)
            varies = column.nunique() > 1 and frame["outcome"].nunique() > 1
            rows.append(
                {
                    "arm": arm,
                    "component": name,
                    "correlation with outcome": round(float(column.corr(frame["outcome"])), 3)
                    if varies
                    else "constant",
                    "mean where right": _mean(column[right]),
                    "mean where wrong": _mean(column[~right]),
                    "rollouts": len(frame),
                }
            )
    if not rows:
        return Note("No run has transitions/*.parquet, so reward components cannot be set against the exact metric.")
    return pd.DataFrame(rows).set_index(["arm", "component"])


def stage_seconds(runs: Sequence[Run]) -> pd.DataFrame | Note:
    """Mean seconds per step and stage, per arm."""
    rows = {}
    for arm, group in artefacts.arms(runs).items():
        means = [frame.mean() for run in group if (frame := artefacts.timings(run)) is not None]
        if means:
            rows[arm] = pd.concat(means, axis="columns").mean(axis="columns").round(3)
    if not rows:
        return Note("No run has timings.jsonl.")
    return pd.DataFrame(rows).T.rename_axis("arm")


def overview(runs: Sequence[Run]) -> Note:
    """One sentence: how many runs, arms and seeds, and how they ended."""
    groups = artefacts.arms(runs)
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    states = pd.Series([run.status for run in runs]).value_counts()
    ended = ", ".join(f"{count} {state}" for state, count in states.items())
    return Note(f"{len(runs)} runs in {len(groups)} arms ({', '.join(groups)}), seeds {seeds}: {ended}.")


def rollout_rewards(run: Run) -> pd.DataFrame | None:
    """One row per rollout: step, outcome, reward_total and each component; None without transitions."""
    wanted = ["rollout_id", "step", "outcome", "reward_total", "components"]
    frame = artefacts.transitions(run, wanted)
    if frame is None:
        return None
    frame = frame.drop_duplicates("rollout_id").reset_index(drop=True)
    parts = pd.DataFrame([_components(text) for text in frame["components"]])
    return pd.concat([frame[["step", "outcome", "reward_total"]], parts], axis="columns")


def _components(text: Any) -> dict[str, float]:
    value = json.loads(text) if isinstance(text, str) and text else (text or {})
    return {str(k): float(v) for k, v in value.items() if v is not None} if isinstance(value, Mapping) else {}


def _mean(column: pd.Series) -> float | str:
    return round(float(column.mean()), 3) if column.notna().any() else "–"


def _over_seeds(values: Sequence[float]) -> str:
    return percent(statistics.mean_interval(values)) if values else "–"


def _item_interval(group: Sequence[Run]) -> str:
    """The binomial interval of the first finished seed: the noise floor of a single evaluation."""
    for run in group:
        entry = run.summary.get("eval_after") or {}
        share = entry.get(artefacts.metric_name(run))
        if entry.get("n") and share is not None:
            found = statistics.proportion_interval(round(share * entry["n"]), int(entry["n"]))
            return f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return "–"


def _diverged(run: Run) -> str:
    """Which metrics became NaN or infinite, and when; "" where none did."""
    for row in artefacts.metric_lines(run):
        bad = [
            name
            for name, value in row.items()
            if name.startswith(DIVERGENCE_SIGNS) and isinstance(value, float) and not math.isfinite(value)
        ]
        if bad:
            return f"{', '.join(bad)} not finite at step {row.get('step')}"
    return ""


def _final_scores(group: Sequence[Run]) -> pd.DataFrame | None:
    """score by seed (rows) and item (columns: task_id, group) of the last evaluation; None where no run has one."""
    rows = {}
    for run in group:
        frame = artefacts.evaluations(run)
        if frame is None or run.seed is None or run.status != "finished":
            continue
        splits = list(frame["split"].unique())
        split = next((name for name in SPLITS if name in splits), splits[0])
        frame = frame[frame["split"] == split]
        frame = frame[frame["step"] == frame["step"].max()]
        label = "db" if frame["db"].astype(str).str.len().gt(0).any() else run.summary.get("breakdown", "hardness")
        rows[run.seed] = frame.astype({"correct": float}).groupby(["task_id", label])["correct"].mean()
    if not rows:
        return None
    return pd.DataFrame(rows).T.sort_index()


def _common(a: pd.DataFrame, b: pd.DataFrame) -> tuple[NDArray[Any], NDArray[Any], list[Any]] | None:
    """Scores of two arms on common seeds and items that every one of those seeds has, with each item's group."""
    seeds = a.index.intersection(b.index)
    items = a.columns.intersection(b.columns)
    x, y = a.loc[seeds, items], b.loc[seeds, items]
    whole = (x.notna() & y.notna()).all(axis="index")
    items = items[whole.to_numpy()]
    if len(seeds) == 0 or len(items) == 0:
        return None
    return x[items].to_numpy(), y[items].to_numpy(), list(items.get_level_values(1))


def _by_group(scores: NDArray[Any], groups: Sequence[Any]) -> NDArray[Any]:
    """f[N, T] → f[N, groups]: mean score per database."""
    means: NDArray[Any] = pd.DataFrame(scores).T.groupby(list(groups)).mean().T.to_numpy()
    return means
