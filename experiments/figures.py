"""Figures of a sweep, each one call; a `Note` says what is missing where a figure cannot be drawn.

Figures are made without pyplot, so that nothing is shown twice and no global state is left behind. One colour is one
arm in every figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import artefacts, statistics
from experiments.analysis import Note, rollout_rewards
from experiments.artefacts import Run

STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#A6761D")  # told apart by all
CURVES = {  # beside the evaluation's exact metric
    "reward/outcome_mean": "exact metric (training rollouts)",
    "reward/mean": "reward (training rollouts)",
}
DIAGNOSTICS = (
    "baseline/zero_variance",
    "rollout/calls_mean",
    "learner/entropy_nat",
    "learner/grad_norm",
    "learner/kl_nat",
    "learner/clip_fraction",
)
MAX_PANELS = 12  # of diagnostics
MAX_ARMS = 8  # rows of a heat map
MAX_ANNOTATED = 60  # cells of a heat map that still leave room for numbers


def learning_curves(runs: Sequence[Run], x: str = "step") -> Figure | Note:
    """Mean over seeds with its 95 % band, one panel per metric.

    x: "step", or "minutes" (seconds of timings.jsonl summed up, mean over seeds).
    """
    if x not in ("step", "minutes"):
        raise ValueError(f"x={x!r}; known are 'step' and 'minutes'")
    found = {run.path: frame for run in runs if (frame := artefacts.metrics(run)) is not None}
    exact = sorted({artefacts.metric_name(run) for run in runs})
    titles = {f"eval/{name}": f"{name.replace('_', ' ')} (evaluation)" for name in exact} | CURVES
    names = [name for name in titles if any(name in frame for frame in found.values())]
    if not names:
        return Note(f"No run has metrics.jsonl with one of {', '.join(titles)}.")
    with mpl.rc_context(STYLE):
        figure, axes = _grid(len(names), columns=3, size=(4.6, 3.5))
        for axis, name in zip(axes, names, strict=True):
            for place, (arm, group) in enumerate(artefacts.arms(runs).items()):
                series = {r.path: found[r.path][name].dropna() for r in group if name in found.get(r.path, ())}
                minutes = _minutes(group) if x == "minutes" else None
                _band(axis, series, arm, _colour(place), minutes)
            axis.set(title=titles[name], xlabel="training step" if x == "step" else "minutes of training")
            if x == "step":
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if name != "reward/mean":  # shares stay between 0 and 1, however wide the band of three seeds is
                low, high = axis.get_ylim()
                axis.set_ylim(max(low, -0.02), min(high, 1.02))
        axes[0].set_ylabel("mean over seeds, 95 % band")
        _legend(figure, axes)
    return figure


def credit_heat_map(runs: Sequence[Run]) -> Figure | Note:
    """Mean credit and mean advantage by step index within the rollout (columns) and agent (rows), per arm."""
    groups: dict[str, pd.DataFrame] = {}
    for arm, group in artefacts.arms(runs).items():
        frames = [
            frame
            for run in group
            if (frame := artefacts.transitions(run, ["index", "agent", "credit", "advantage"])) is not None
        ]
        if frames:
            groups[arm] = pd.concat(frames)
    if not groups:
        return Note("No run has transitions/*.parquet, so there is no credit to show.")
    shown = dict(list(groups.items())[:MAX_ARMS])
    agents = sorted({agent for frame in shown.values() for agent in frame["agent"].unique()})
    last = max(int(frame["index"].max()) for frame in shown.values())
    tables = {
        (arm, value): frame.pivot_table(index="agent", columns="index", values=value, aggfunc="mean").reindex(
            index=agents, columns=range(last + 1)
        )
        for arm, frame in shown.items()
        for value in ("credit", "advantage")
    }
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        width, height = min(14.0, 5.0 + 0.8 * (last + 1)), 1.0 + len(shown) * (0.9 + 0.38 * len(agents))
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(len(shown), 2, squeeze=False, sharex=True, sharey=True)
        for column, value in enumerate(("credit", "advantage")):
            limit = max(_largest(table) for (_, name), table in tables.items() if name == value)
            for row, arm in enumerate(shown):
                image = _heat(grid[row][column], tables[arm, value], limit, diverging=value == "advantage")
                grid[row][column].set_title(f"{arm}: mean {value}")
            figure.colorbar(image, ax=list(grid[:, column]), shrink=0.8, label=f"mean {value}")
        for axis in grid[-1]:
            axis.set_xlabel("step index within the rollout")
        left_out = len(groups) - len(shown)
        if left_out:
            figure.suptitle(f"first {MAX_ARMS} arms; {left_out} more not drawn")
    return figure


def reward_against_metric(runs: Sequence[Run]) -> Figure | Note:
    """Per arm: every reward component and the exact metric over training, mean over seeds.

    A component that climbs while the metric doesn't is being gamed.
    """
    groups = {}
    for arm, group in artefacts.arms(runs).items():
        frames = [frame for run in group if (frame := _component_means(run)) is not None]
        if frames:
            groups[arm] = pd.concat(frames).groupby(level=0).mean()
    if not groups:
        return Note(
            "No run has reward components (reward/<component>_mean in metrics.jsonl, or transitions/*.parquet)."
        )
    names = sorted({name for frame in groups.values() for name in frame} - {"outcome"})
    with mpl.rc_context(STYLE):
        figure, axes = _grid(len(groups), columns=3, size=(4.6, 3.3), sharey=True)
        for axis, (arm, frame) in zip(axes, groups.items(), strict=True):
            for place, name in enumerate(names):
                if name in frame:
                    style = "--" if name == "total" else "-"
                    axis.plot(frame.index, frame[name], style, label=name, color=_colour(place), linewidth=1.4)
            if "outcome" in frame:
                axis.plot(frame.index, frame["outcome"], color="black", linewidth=2.4, label="exact metric")
            axis.set(title=arm, xlabel="training step")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].set_ylabel("mean over rollouts and seeds")
        _legend(figure, axes)
    return figure


def diagnostics(runs: Sequence[Run]) -> Figure | Note:
    """Every run's course of what shows trouble early: zero-variance groups, entropy, gradient norm, KL, calls..."""
    found = {run.path: frame for run in runs if (frame := artefacts.metrics(run)) is not None}
    known = sorted({name for frame in found.values() for name in frame})
    names = [name for name in DIAGNOSTICS if name in known]
    names += [name for name in known if name.startswith("learner/") and name not in names]
    if not names:
        return Note("No run has metrics.jsonl with diagnostics (learner/…, credit/zero_variance_fraction).")
    with mpl.rc_context({**STYLE, "lines.linewidth": 1.1}):
        figure, axes = _grid(min(len(names), MAX_PANELS), columns=3, size=(4.4, 2.6))
        for axis, name in zip(axes, names, strict=False):
            for place, (arm, group) in enumerate(artefacts.arms(runs).items()):
                label: str | None = arm
                for run in group:
                    frame = found.get(run.path)
                    if frame is None or name not in frame:
                        continue
                    column = frame[name].replace([np.inf, -np.inf], np.nan).dropna()
                    axis.plot(column.index, column, color=_colour(place), alpha=0.8, label=label)
                    label = None
            axis.set(title=name, xlabel="training step")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(figure, axes)
    return figure


def _grid(
    panels: int, *, columns: int, size: tuple[float, float], sharey: bool = False
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with exactly `panels` axes, `columns` to a row."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for axis in axes[panels:]:
        axis.remove()
    return figure, list(axes[:panels])


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, above them."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=min(4, len(handles)))


def _band(axis: Axes, series: Mapping[Any, pd.Series], arm: str, colour: str, minutes: pd.Series | None = None) -> None:
    """Mean line and t band of one arm; a step that only some seeds reached rests on those."""
    if not series:
        return
    table = pd.DataFrame(dict(series)).replace([np.inf, -np.inf], np.nan).dropna(how="all")
    estimates = [statistics.mean_interval(row.dropna().to_numpy()) for _, row in table.iterrows()]
    if not estimates:
        return
    x = table.index if minutes is None else minutes.reindex(table.index).to_numpy()
    marker = "o" if len(table) <= 12 else None
    axis.plot(x, [e.value for e in estimates], color=colour, label=arm, marker=marker, markersize=3.5)
    axis.fill_between(x, [e.low for e in estimates], [e.high for e in estimates], color=colour, alpha=0.15, linewidth=0)


def _minutes(group: Sequence[Run]) -> pd.Series | None:
    """Minutes since the start at the end of each step, mean over seeds."""
    frames = [frame for run in group if (frame := artefacts.timings(run)) is not None]
    if not frames:
        return pd.Series(dtype=float)
    clocks = [frame[[c for c in frame if c.endswith("_s")]].sum(axis="columns").cumsum() / 60 for frame in frames]
    mean: pd.Series = pd.concat(clocks, axis="columns").mean(axis="columns")
    if 0 not in mean.index:
        mean.loc[0] = 0.0  # the evaluation before training
    return mean.sort_index()


def _component_means(run: Run) -> pd.DataFrame | None:
    """Mean of each component (and "outcome", "total") by step, from the metrics, else from the transitions."""
    frame = artefacts.metrics(run)
    columns = {c: c[len("reward/") : -len("_mean")] for c in frame if _is_component(c)} if frame is not None else {}
    if frame is not None and "reward/mean" in frame:
        columns["reward/mean"] = "total"
    if frame is not None and set(columns.values()) - {"outcome", "total"}:
        means: pd.DataFrame = frame[list(columns)].rename(columns=columns).dropna(how="all")
        return means
    rewards = rollout_rewards(run)
    return None if rewards is None else rewards.rename(columns={"reward_total": "total"}).groupby("step").mean()


def _is_component(name: str) -> bool:
    return name.startswith("reward/") and name.endswith("_mean")


def _largest(table: pd.DataFrame) -> float:
    values = np.abs(table.to_numpy(dtype=float))
    return float(np.nanmax(values)) if np.isfinite(values).any() else 1.0


def _heat(axis: Axes, table: pd.DataFrame, limit: float, *, diverging: bool) -> Any:
    """One heat map; cells that no transition fell into stay blank."""
    values = np.ma.masked_invalid(table.to_numpy(dtype=float))
    low = -limit if diverging or values.min() < 0 else 0.0
    image = axis.imshow(values, aspect="auto", cmap="RdBu_r" if low < 0 else "YlGnBu", vmin=low, vmax=limit or 1.0)
    axis.set_yticks(range(len(table.index)), [_short(agent) for agent in table.index])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if values.size <= MAX_ANNOTATED:
        decimals = max(2, 1 - math.floor(math.log10(limit))) if limit > 0 else 2
        for (row, column), value in np.ndenumerate(values.filled(np.nan)):
            if np.isfinite(value):
                dark = abs(value) > 0.6 * limit
                text = f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 turns -0 into 0
                axis.text(column, row, text, ha="center", va="center", color="white" if dark else "black", size=8)
    return image


def _short(agent: Any) -> str:
    """Agent names may be hashes of system prompts."""
    text = str(agent)
    return text if len(text) <= 18 else text[:16] + "…"
