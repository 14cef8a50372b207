"""Progress bars, the results of many frames, and tables on the terminal."""

from __future__ import annotations

import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from leadline.apps.terminal.commands import flag_wording, say, say_notes
from leadline.base.errors import FileError, param, render
from leadline.batch.outcome import Outcome, State
from leadline.io.notes import NoteKind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table as RichTable

    from leadline.batch.views import ViewsProgress
    from leadline.bench.run import RunProgress
    from leadline.bench.tables import Table

# Number of progress lines for a whole run if stderr is not a terminal.
PROGRESS_LINES = 20
# Number of frames with the same reason of their failure for which it is repeated.
SAME_REASON = 5


class FolderReport:
    """Prints progress, notes and failures to stderr and the counts to stdout.

    A note of each kind is printed once in full; the others of its kind are counted at the end. As a context it ends
    the run at Ctrl-C, which `finish` then reports. If `total` is not known yet, `start` follows later.
    """

    def __init__(self, total: int | None, output: Path, *, quiet: bool, doing: str = "completing") -> None:
        self.total, self.output, self.quiet, self.doing = total or 0, output, quiet, doing
        self.interrupted = False
        self.outcomes: list[Outcome] = []
        self._notes: Counter[NoteKind] = Counter()
        self._bar: Progress | None = None

    def __enter__(self) -> FolderReport:
        if self.total:
            self.start(self.total)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self.interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self.interrupted

    def start(self, total: int) -> None:
        """Show a progress bar if stderr is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.total, console = total, Console(stderr=True)
        if console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._bar.add_task(self.doing, total=self.total)
            self._bar.start()

    def show_step(self, progress: ViewsProgress) -> None:
        """Show how far a step before the results is."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=f"{progress.step} {progress.done}/{progress.total}")
        elif progress.done == progress.total:
            click.echo(f"{progress.step}: {progress.done} frames", err=True)

    def add(self, outcome: Outcome) -> None:
        """Report the outcome of one frame."""
        self.outcomes.append(outcome)
        for note in outcome.notes:
            self._notes[note.kind] += 1
            if self._notes[note.kind] == 1:
                self._print_note(f"{outcome.stem}: {note.render(flag_wording)}")
        step, finished = math.ceil(self.total / PROGRESS_LINES), len(self.outcomes)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif not self.quiet and (finished % step == 0 or finished == self.total):
            click.echo(f"{finished}/{self.total} frames: {self._counts()}", err=True)

    def finish(self, after_interrupt: str, also: Iterable[Outcome] = ()) -> int:
        """Print each failure with its reason, then the counts; returns the exit code.

        `after_interrupt` says what Ctrl-C left behind, and `also` are outcomes that were known before the run.
        """
        self.outcomes += also
        for kind, count in self._notes.items():
            if count > 1:
                say("note", f"frames with the same note ({kind.value}): {count - 1} more.")
        self._print_failures()
        if not self.quiet:
            click.echo(f"{self._counts()}; results in {self.output}")
        if self.interrupted:
            say("error", f"stopped by Ctrl-C; {after_interrupt}")
            return 130
        return 1 if any(outcome.state is State.FAILED for outcome in self.outcomes) else 0

    def _print_failures(self) -> None:
        """Each failed frame with its reason; where many have the same one, it is printed once."""
        by_reason: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.state is State.FAILED:
                by_reason.setdefault(outcome.message, []).append(outcome)
        for reason, failed in by_reason.items():
            shown = failed if len(failed) <= SAME_REASON else failed[:1]
            for outcome in shown:
                if outcome.traceback:
                    click.echo(outcome.traceback, err=True)
                say("error", f"{outcome.stem}: {render(reason, flag_wording)}")
            if others := [outcome.stem for outcome in failed[len(shown) :]]:
                more = f" and {len(others) - SAME_REASON} more" if len(others) > SAME_REASON else ""
                names = ", ".join(others[:SAME_REASON])
                say("error", f"{len(others)} other frames failed for the same reason: {names}{more}.")

    def _print_note(self, text: str) -> None:
        if self._bar is None:
            say("note", text)
            return
        from rich.text import Text

        # The console prints the bar again below the line.
        line = Text.assemble(("note:", "bold yellow"), " ", " ".join(text.split()))
        self._bar.console.print(line, soft_wrap=True)

    def _counts(self) -> str:
        counts = Counter(outcome.state for outcome in self.outcomes)
        return ", ".join(f"{counts[state]} {state.value}" for state in State)


def print_outcome(outcome: Outcome, *, quiet: bool) -> None:
    """Print the notes of a single frame to stderr, its summary and its files to stdout."""
    say_notes(outcome.notes)
    if not quiet:
        written = [f"wrote {path}" for path in outcome.files]
        click.echo("\n".join([f"{outcome.stem}: {render(outcome.message, flag_wording)}", *written]))


def make_output_folder(folder: Path) -> None:
    """Make the folder, and find out before the first frame whether files can be written there."""
    probe = folder / f".{secrets.token_hex(4)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror
        raise FileError(
            f"{param('output')} {folder}: cannot write there ({reason}); choose a folder of your own."
        ) from error


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


@contextmanager
def picture_progress(doing: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """How many pictures are done, on stderr: a bar where that is a terminal, and a few lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal)

    def show(done: int, total: int) -> None:
        if not bar.disable:
            bar.update(task, completed=done, total=total)
        elif not quiet and (done % math.ceil(total / PROGRESS_LINES) == 0 or done == total):
            click.echo(f"{doing}: {done}/{total} pictures", err=True)

    with bar:
        task = bar.add_task(doing, total=None)
        yield show


@contextmanager
def record_progress() -> Iterator[Callable[[RunProgress], None]]:
    """A bar on stderr for the records of a run: how many are done, rate, time left, failures."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
        console=Console(stderr=True),
        speed_estimate_period=300.0,  # seconds; work items differ, so a short period would make the estimate jump
    )
    task = bar.add_task("records", total=None, rate="", failed="")
    begun = 0.0

    def show(progress: RunProgress) -> None:
        nonlocal begun
        if not begun:  # not before the plan is made, which may end in an error of one line
            begun = time.perf_counter()
            bar.start()
        rate = f"{progress.new / (time.perf_counter() - begun):.1f}/s" if progress.new else ""
        failed = f"{progress.failed} failed" if progress.failed else ""
        bar.update(task, total=progress.planned, completed=progress.done, rate=rate, failed=failed)

    try:
        yield show
    finally:
        bar.stop()


def table_console() -> Console:
    """A console as wide as the terminal, or of 240 characters if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=240)


def rich_table(table: Table) -> RichTable:
    """The table for a console, with the best numbers in bold."""
    from rich.table import Table as RichTable
    from rich.text import Text

    from leadline.bench.render import format_row

    shown = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        header_style="",
        caption=table.convention or None,
        caption_justify="left",
    )
    shown.add_column(table.corner)
    for column in table.columns:
        head = f"{column.group}\n{column.head}" if column.group else column.head
        shown.add_column(Text(head), justify="left" if column.is_text else "right", no_wrap=not column.is_text)
    marked = table.marked()
    for b, block in enumerate(table.blocks):
        if block.title:
            shown.add_row(Text(block.title, style="italic"))
        for r, row in enumerate(block.rows):
            cells = [
                Text(text, style="bold" if (b, r, c) in marked else "")
                for c, text in enumerate(format_row(table.columns, block, row.values))
            ]
            shown.add_row(Text(row.label), *cells, end_section=r == len(block.rows) - 1)
    return shown
