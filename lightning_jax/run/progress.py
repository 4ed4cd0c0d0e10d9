"""One live line per activity on stderr (warm-up, rollouts, updates): count, rate, time left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text

console = Console(stderr=True)
logger = logging.getLogger(__name__)


class RateColumn(ProgressColumn):
    """Finished items per second."""

    def render(self, task: ProgressTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="progress.data.speed")


class Line:
    """Handle of one progress line."""

    def __init__(self, progress: Progress, task_id: int) -> None:
        self._progress, self._task_id = progress, task_id

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count items done; `note` replaces the text at the end of the line."""
        fields = {} if note is None else {"note": note}
        self._progress.update(self._task_id, advance=count, **fields)  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """Replace the text at the end of the line."""
        self._progress.update(self._task_id, note=text)  # type: ignore[arg-type]


class ProgressBoard:
    """All lines of a run. On a terminal they move; in a log file each is printed once, when it is finished."""

    def __init__(self, *, quiet: bool = False) -> None:
        """quiet: show nothing and log what would stay (for programs with a screen of their own)."""
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("[bold]{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            RateColumn(),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=quiet,
            refresh_per_second=4,
            auto_refresh=console.is_terminal,  # drawing what nobody sees would cost 4% of a core
        )

    def __enter__(self) -> ProgressBoard:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def log(self, text: str) -> None:
        """A line that stays, above the moving ones."""
        if self._quiet:
            logger.info("%s", text)
        else:
            self._progress.console.print(text, highlight=False)

    @contextmanager
    def line(self, name: str, total: int, note: str = "", *, keep: bool = True) -> Iterator[Line]:
        """A progress line for the duration of a block; `keep=False` removes it afterwards."""
        task_id = self._progress.add_task(name, total=total, note=note)
        try:
            yield Line(self._progress, int(task_id))
        finally:
            if keep:
                self._progress.stop_task(task_id)
                if not console.is_terminal:
                    task = self._progress.tasks[self._progress.task_ids.index(task_id)]
                    self.log(
                        f"{name}: {int(task.completed)}/{total} in {task.elapsed or 0:.1f} s {task.fields['note']}"
                    )
                    self._progress.remove_task(task_id)
            else:
                self._progress.remove_task(task_id)
