"""Progress and results of many frames on the terminal."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from leadline.apps.terminal.messages import flag_wording, say, say_notes
from leadline.base.errors import FileError, param, render
from leadline.batch.outcome import Outcome, State
from leadline.io.notes import NoteKind

if TYPE_CHECKING:
    from rich.progress import Progress

# Number of progress lines for a whole run if stderr is not a terminal.
PROGRESS_LINES = 20


class FolderReport:
    """Prints progress, notes and failures to stderr and the counts to stdout.

    A note of each kind is printed once in full; the others of its kind are counted at the end.
    """

    def __init__(self, total: int, output: Path, *, quiet: bool, doing: str = "completing") -> None:
        self.total, self.output, self.quiet, self.doing = total, output, quiet, doing
        self.outcomes: list[Outcome] = []
        self._notes: Counter[NoteKind] = Counter()
        self._bar: Progress | None = None

    def __enter__(self) -> FolderReport:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Show a progress bar if stderr is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._bar.add_task(self.doing, total=self.total)
            self._bar.start()

    def stop(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def add(self, outcome: Outcome) -> None:
        """Report what became of one frame."""
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

    def finish(self, *, interrupted: str = "", also: Iterable[Outcome] = ()) -> int:
        """Print each failure with its reason, then the counts; returns the exit code.

        Parameters
        ----------
        interrupted : str
            The message after Ctrl-C; empty if the run came to its end.
        also : iterable of Outcome
            Outcomes that were known before the run.
        """
        self.outcomes += also
        for kind, count in self._notes.items():
            if count > 1:
                say("note", f"{count - 1} more frames with the note: {kind.value}.")
        for outcome in self.outcomes:
            if outcome.state is State.FAILED:
                if outcome.traceback:
                    click.echo(outcome.traceback, err=True)
                say("error", f"{outcome.stem}: {render(outcome.message, flag_wording)}")
        if not self.quiet:
            click.echo(f"{self._counts()}; results in {self.output}")
        if interrupted:
            say("error", interrupted)
            return 130
        return 1 if any(outcome.state is State.FAILED for outcome in self.outcomes) else 0

    def _print_note(self, text: str) -> None:
        if self._bar is None:
            say("note", text)
            return
        from rich.text import Text

        # The console of the bar draws the bar again below the line.
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
    """Make the folder, and find out before the first frame whether files can be written there.

    Raises
    ------
    FileError
        They cannot.
    """
    probe = folder / f".{secrets.token_hex(4)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(
            f"{param('output')} {folder}: cannot write there ({error.strerror}); choose a folder of your own."
        ) from error
