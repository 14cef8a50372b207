"""One worker thread for all sessions: it does the jobs in the order of their requests, one at a time."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from leadline.base.errors import InputError, LeadlineError

MAX_WAITING = 40
_KEPT_RESULTS = 12  # finished jobs of one owner whose result can still be fetched
_MAX_KNOWN = 400  # jobs of all owners, including those whose page was closed
_LOG = logging.getLogger(__name__)


class JobState(Enum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"  # a newer job of the same owner and subject took its place in the queue
    CANCELLED = "cancelled"


_ENDED = (JobState.DONE, JobState.FAILED)


class JobCancelled(Exception):
    """Raised inside a job that was cancelled, or whose result is not needed any more."""


@dataclass(eq=False)
class Job:
    """A function that the worker calls, with its state and result.

    `subject` identifies what the job computes: a waiting job is superseded by a newer one of the same owner and
    subject.
    """

    key: str
    owner: str
    subject: str
    work: Callable[[Job], Any]
    state: JobState = JobState.QUEUED
    stage: str = ""
    result: Any = None
    error: LeadlineError | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    cancel_requested: bool = False
    superseded: bool = False  # a newer job of the same owner and subject waits

    @property
    def wanted(self) -> bool:
        """Whether the result of a running job is still of use to its owner."""
        return not (self.cancel_requested or self.superseded)

    def report(self, stage: str) -> None:
        """Announce the stage that begins now; raises JobCancelled if the owner has cancelled the job."""
        if self.cancel_requested:
            raise JobCancelled
        self.stage = stage

    def finish(self, state: JobState, error: LeadlineError | None = None) -> None:
        """Enter a final state."""
        self.error, self.state = error, state
        self.finished.set()


class Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._known: dict[str, Job] = {}  # oldest first
        self._numbers = itertools.count(1)
        self._change = threading.Condition()
        self._open = True
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._run, name="studio-worker", daemon=True)
        self._thread.start()

    def submit(self, owner: str, subject: str, work: Callable[[Job], Any]) -> Job:
        """Put a job at the end of the queue. It supersedes a waiting job of the same owner and subject."""
        with self._change:
            for old in [job for job in self._waiting if (job.owner, job.subject) == (owner, subject)]:
                self._waiting.remove(old)
                old.finish(JobState.SUPERSEDED)
            if len(self._waiting) >= MAX_WAITING:
                raise InputError(f"{MAX_WAITING} jobs are waiting already; try again in a while.")
            if self._current is not None and (self._current.owner, self._current.subject) == (owner, subject):
                self._current.superseded = True
            job = Job(str(next(self._numbers)), owner, subject, work)
            self._waiting.append(job)
            self._known[job.key] = job
            # Superseded jobs hold no result, and a page that sent many requests still polls for each of them.
            ended = [old.key for old in self._known.values() if old.owner == owner and old.state in _ENDED]
            for key in ended[:-_KEPT_RESULTS]:
                del self._known[key]
            while len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._change.notify()
        return job

    def find(self, owner: str, key: str) -> Job | None:
        """The owner's job of that key."""
        with self._change:
            job = self._known.get(key)
        return job if job is not None and job.owner == owner else None

    def cancel(self, owner: str) -> None:
        """Remove the owner's waiting jobs, and stop a running one at its next stage."""
        with self._change:
            for job in [job for job in self._waiting if job.owner == owner]:
                self._waiting.remove(job)
                job.finish(JobState.CANCELLED)
            if self._current is not None and self._current.owner == owner:
                self._current.cancel_requested = True

    def position(self, job: Job) -> int:
        """Number of jobs that come before it."""
        with self._change:
            before = list(self._waiting).index(job) if job in self._waiting else 0
            return before + (self._current is not None and job.state is JobState.QUEUED)

    def close(self) -> None:
        """Start no further job. A running one is not interrupted."""
        with self._change:
            self._open = False
            self._waiting.clear()
            self._change.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._change:
                self._current = None
                while self._open and not self._waiting:
                    self._change.wait()
                if not self._open:
                    return
                job = self._current = self._waiting.popleft()
                job.state = JobState.RUNNING
            try:
                job.result = job.work(job)
                job.finish(JobState.DONE)
            except JobCancelled:
                job.finish(JobState.CANCELLED if job.cancel_requested else JobState.SUPERSEDED)
            except LeadlineError as error:
                job.finish(JobState.FAILED, error)
            except MemoryError:
                text = "there is not enough memory for this scene; try a smaller image."
                job.finish(JobState.FAILED, LeadlineError(text))
            except Exception:  # a bug must not end the worker; its traceback belongs in the terminal
                _LOG.exception("studio: the job %s failed", job.subject)
                text = "an internal error occurred; the terminal shows the details."
                job.finish(JobState.FAILED, LeadlineError(text))
