"""What agents are called when people look: as in training, by the run's study, or by the patterns of a file."""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.console import Console

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.run.parts import load_study
from lightning_jax.traces.tree import NO_NAMES, short


def names_of(patterns: Path | None, store: str, console: Console) -> AgentNaming:
    """The naming of a patterns file, else of the run whose folder ``store`` is, else none.

    A study that cannot be loaded here (its data lie elsewhere) is said on the console. ValueError for a bad file.
    """
    if patterns is not None:
        found = yaml.safe_load(patterns.read_text(encoding="utf-8")) or {}
        if not isinstance(found, dict) or not all(isinstance(item, str) for pair in found.items() for item in pair):
            raise ValueError(
                f"{str(patterns)!r} must map agent names to regular expressions, e.g. `writer: ^You write`"
            )
        return AgentNaming.of(found)
    config = Path(store) / "config.yaml"
    if "://" in store or not config.is_file():
        return NO_NAMES
    task = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("task") or {}
    try:
        return AgentNaming.of(load_study(task).agents) if task.get("study") else NO_NAMES
    except Exception as error:  # a study is a module of somebody else's: looking at its traces must not need its data
        console.print(f"[yellow]agents have no names of the study's: {short(str(error), 200)}; give --patterns[/]")
        return NO_NAMES
