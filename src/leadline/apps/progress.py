"""Bars for work over many images, and over the records of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from leadline.bench.run import RunProgress


@contextmanager
def image_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where that is a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Meter:
    """Live progress of a run: records done, rate, time left, failures."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}"),
            console=console,
            # Seconds: work items differ, so the time left is estimated from the last five minutes.
            speed_estimate_period=300.0,
        )
        self._task = self._bar.add_task("records", total=None, rate="", failed="")
        self._begun: float | None = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: RunProgress) -> None:
        if self._begun is None:  # not before the plan is made, which may end in an error of one line
            self._begun = time.perf_counter()
            self._bar.start()
        passed = time.perf_counter() - self._begun
        self._bar.update(
            self._task,
            total=progress.planned,
            completed=progress.done,
            rate=f"{progress.new / passed:.1f}/s" if progress.new else "",
            failed=f"{progress.failed} failed" if progress.failed else "",
        )
