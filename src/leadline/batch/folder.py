"""A folder of frames: matched by name, run here or in worker processes, resumable, with a summary."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from leadline.apps.cli import say
from leadline.apps.network import Network
from leadline.base.errors import InputError, LeadlineError, MissingExtra
from leadline.batch.frame import COMPILING, Outcome, compile_kernels, kernels_compiled, run_frame
from leadline.io.depth.files import DEPTH_SUFFIXES
from leadline.io.frames import Frame, Settings

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm")

# Without a terminal there is no bar, and about this many lines say how far a folder is.
PROGRESS_LINES = 20
# Of unmatched names this many are listed before "and n more".
LISTED = 5


@dataclass(frozen=True)
class Matches:
    """The frames of a folder, those that cannot be told apart, and a note per kind of leftover."""

    frames: tuple[Frame, ...]
    ambiguous: tuple[Outcome, ...]
    notes: tuple[str, ...]


def run_folder(
    inputs: Mapping[str, Path],
    settings: Settings,
    output: Path,
    *,
    network: Network | None,
    jobs: int,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Complete each frame of the input folders; the exit code: 0, 1 if any failed, 130 if stopped by Ctrl-C."""
    matches = match(inputs)
    report = Report(len(matches.frames), output, quiet)
    for note in matches.notes:
        say("note", note)
    report.outcomes += matches.ambiguous
    run = _in_processes if jobs > 1 else _here
    return conclude(report, lambda: run(Work(settings, output, overwrite, network), matches.frames, jobs, report))


def conclude(report: Report, run: Callable[[], None]) -> int:
    """Let `run` fill the report, then give its summary; returns the exit code as `run_folder` does."""
    try:
        run()
    except KeyboardInterrupt:
        report.summary()
        say("error", "stopped by the keyboard; what is finished is kept, and the same command goes on from here.")
        return 130
    report.summary()
    return 1 if any(outcome.state == "failed" for outcome in report.outcomes) else 0


def match(inputs: Mapping[str, Path]) -> Matches:
    """Files of the same stem in each folder; `inputs` are the folders by the name of their flag, IMAGE first.

    Raises
    ------
    InputError
        If not one image has its partners.
    """
    listings = {
        name: listing(folder, IMAGE_SUFFIXES if name in ("IMAGE", "--valid") else DEPTH_SUFFIXES)
        for name, folder in inputs.items()
    }
    images = listings["IMAGE"]
    frames, ambiguous = [], []
    for stem in sorted(images):
        found = [files.get(stem, []) for files in listings.values()]
        twice = [
            f"{name} has {' and '.join(path.name for path in files)}"
            for name, files in zip(listings, found, strict=True)
            if len(files) > 1
        ]
        if twice:
            ambiguous.append(Outcome(stem, "failed", f"the name matches twice: {'; '.join(twice)}; keep one of them."))
        elif all(found):
            # The flags are named as the fields are.
            names = (name.removeprefix("--").lower() for name in listings)
            frames.append(Frame(stem, **dict(zip(names, (files[0] for files in found), strict=True))))
    notes = []
    for name, files in listings.items():
        if name != "IMAGE":
            notes += _leftover(f"images without a file in {name} {inputs[name]}", images.keys() - files.keys())
            notes += _leftover(f"files in {name} {inputs[name]} without an image", files.keys() - images.keys())
    if not frames and not ambiguous:
        examples = [f"{name} {folder} has {_example(listings[name])}" for name, folder in inputs.items()]
        raise InputError(
            f"no image has its partners, which need the same name up to the suffix: {', '.join(examples)}."
        )
    return Matches(tuple(frames), tuple(ambiguous), tuple(notes))


def listing(folder: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """The folder's files with one of the suffixes by stem; hidden ones are left out."""
    longest_first = sorted(set(suffixes), key=len, reverse=True)
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in longest_first if path.name.lower().endswith(suffix)), "")
        if suffix and not path.name.startswith(".") and path.is_file():
            found.setdefault(path.name[: -len(suffix)], []).append(path)
    return found


def _leftover(what: str, stems: set[str]) -> list[str]:
    if not stems:
        return []
    names = sorted(stems)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{len(names)} {what}: {', '.join(names[:LISTED])}{more}"]


def _example(files_by_stem: Mapping[str, Sequence[Path]]) -> str:
    return next((files[0].name for files in files_by_stem.values()), "no file that leadline reads")


@dataclass(frozen=True)
class Work:
    """What is to be done with each frame; goes to the worker processes."""

    settings: Settings
    output: Path
    overwrite: bool
    network: Network | None = None

    def __call__(self, frame: Frame) -> Outcome:
        """Run one frame, guarded."""
        return guarded(
            frame.stem,
            lambda: run_frame(frame, self.settings, self.output, network=self.network, overwrite=self.overwrite),
        )


def guarded(stem: str, run: Callable[[], Outcome]) -> Outcome:
    """What `run` returns, or its failure as an outcome, so that one bad frame does not end the folder.

    A missing package is raised all the same: it would fail every frame alike.
    """
    try:
        return run()
    except MissingExtra:
        raise
    except LeadlineError as error:
        return Outcome(stem, "failed", str(error))
    except Exception as error:  # a bug: told with its traceback, and the other frames go on
        reason = f"unexpected {type(error).__name__}: {error}"
        return Outcome(stem, "failed", reason, traceback=traceback.format_exc())


class Report:
    """What a run says, and where: the summary on stdout; progress, notes and failures on stderr."""

    def __init__(self, total: int, output: Path, quiet: bool, doing: str = "completing") -> None:
        self.total, self.output, self.quiet, self.doing = total, output, quiet, doing
        self.outcomes: list[Outcome] = []
        self._finished = 0
        self._told: set[str] = set()
        self._bar: Progress | None = None

    def __enter__(self) -> Report:
        console = Console(stderr=True)
        if console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._bar.add_task(self.doing, total=self.total)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def take(self, outcome: Outcome) -> None:
        """Take in what became of one frame."""
        self.outcomes.append(outcome)
        self._finished += 1
        for note in outcome.notes:
            # Guessed units come with each frame's own range: notes that differ in numbers only are told once.
            kind = re.sub(r"\d[\d.e+-]*", "#", note)
            if kind not in self._told:
                self._told.add(kind)
                self._note(f"{outcome.stem}: {note}")
        step = math.ceil(self.total / PROGRESS_LINES)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif not self.quiet and (self._finished % step == 0 or self._finished == self.total):
            click.echo(f"{self._finished}/{self.total} frames: {self._counts()}", err=True)

    def _note(self, text: str) -> None:
        if self._bar is None:
            say("note", text)
        else:  # through the bar's own console, which draws the bar again below the line
            line = Text.assemble(("note:", "bold yellow"), " ", " ".join(text.split()))
            self._bar.console.print(line, soft_wrap=True)

    def _counts(self) -> str:
        counts = Counter(outcome.state for outcome in self.outcomes)
        return ", ".join(f"{counts[state]} {state}" for state in ("done", "skipped", "failed"))

    def summary(self) -> None:
        """Each failure with its reason, then the counts."""
        for outcome in self.outcomes:
            if outcome.state == "failed":
                if outcome.traceback:
                    click.echo(outcome.traceback, err=True)
                say("error", f"{outcome.stem}: {outcome.message}")
        if not self.quiet:
            click.echo(f"{self._counts()}; results in {self.output}")


def _here(work: Work, frames: Sequence[Frame], _jobs: int, report: Report) -> None:
    compile_kernels(work.settings.completion)
    with report:
        for frame in frames:
            report.take(work(frame))


def _in_processes(work: Work, frames: Sequence[Frame], jobs: int, report: Report) -> None:
    """Run the frames in `jobs` fresh processes; this one only schedules."""
    threads = max(1, _cores() // jobs)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_start_worker, initargs=(threads, work))
    running: set[Future[Outcome]] = set()
    with pool:
        try:
            with _interrupts_ignored():  # workers start at a submit and inherit this: Ctrl-C is for this process
                compiled = pool.submit(kernels_compiled, work.settings.completion)
            if not compiled.result():
                click.echo(COMPILING, err=True)
                pool.submit(
                    compile_kernels, work.settings.completion, quiet=True
                ).result()  # in one, not in all at once
            with report:
                with _interrupts_ignored():
                    running |= {pool.submit(_do, frame) for frame in frames}
                _collect(running, report)
        except KeyboardInterrupt:
            click.echo("stopping after the frames in hand…", err=True)
            pool.shutdown(cancel_futures=True)
            _collect({future for future in running if not future.cancelled()}, report)
            raise
        except BrokenProcessPool:
            known = {outcome.stem for outcome in report.outcomes}
            reason = "not done: a worker process died, perhaps for want of memory; run again with fewer --jobs."
            report.outcomes += [Outcome(frame.stem, "failed", reason) for frame in frames if frame.stem not in known]


def _collect(running: set[Future[Outcome]], report: Report) -> None:
    """Report each result as it comes and take it out of `running`."""
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        broken = None
        for future in done:
            running.discard(future)
            broken = broken or future.exception()
            if future.exception() is None:
                report.take(future.result())
        if broken is not None:
            raise broken


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # what a container or scheduler grants; Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_works: list[Work] = []  # what this process, if it is a worker, does with each frame: its network is loaded once


def _do(frame: Frame) -> Outcome:
    return _works[0](frame)


def _start_worker(threads: int, work: Work) -> None:
    _works.append(work)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))  # read when numba is imported, which is later
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
