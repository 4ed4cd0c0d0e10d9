"""The table at the end of a run: held-out accuracy before and after, with intervals, and where to look next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

LEVELS = ("easy", "medium", "hard", "extra")  # in this order where these are the names


def results_table(summary: Mapping[str, Any], metric: str, breakdown: str) -> Table:
    """before | after | difference, over all tasks and by `breakdown`."""
    before, after = summary["eval_before"], summary["eval_after"]
    title = f"{metric.replace('_', ' ')} on {after['n']} held-out tasks, greedy (95% Wilson intervals)"
    table = Table(title=title, title_justify="left")
    for name in (breakdown, "n", "before", "after", "difference"):
        table.add_column(name, justify="left" if name == breakdown else "right")
    parts = {"all": (before, after)}
    split = f"by_{breakdown}"
    for level in sorted(after[split], key=lambda name: (LEVELS.index(name) if name in LEVELS else 99, name)):
        parts[level] = (before[split][level], after[split][level])
    for number, (level, (old, new)) in enumerate(parts.items()):
        difference = f"{100 * (new[metric] - old[metric]):+.1f}"
        table.add_row(
            level, str(new["n"]), _share(old, metric), _share(new, metric), difference, end_section=not number
        )
    return table


def next_steps(folder: Path) -> str:
    """Commands for what people want to do next."""
    return (
        f"notebook:     LIGHTNING_JAX_RUNS={folder} jupyter lab notebooks/analysis.ipynb\n"
        f"curves:       tensorboard --logdir {folder}\n"
        f"go on:        python -m experiments.run '+resume={folder}'"
    )


def _share(part: Mapping[str, Any], metric: str) -> str:
    low, high = part["ci95"]
    return f"{100 * part[metric]:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"
