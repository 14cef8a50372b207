"""One worker for all: work is done in the order in which it was asked for, and says how far it is."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from leadline.base.errors import InputError, LeadlineError

State = Literal["queued", "running", "done", "failed", "superseded"]
Work = Callable[["Job"], dict[str, Any]]

MOST_WAITING = 40
_KEPT = 12  # finished jobs of an owner whose outcome can still be asked for
_MOST_KNOWN = 400
_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A piece of work and what became of it; `owner` and `kind` decide what it supersedes."""

    key: str
    owner: str
    kind: str
    work: Work
    state: State = "queued"
    stage: str = ""
    outcome: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    finished: threading.Event = field(default_factory=threading.Event)

    def say(self, stage: str) -> None:
        """What is being done now, for the person who waits."""
        self.stage = stage


class Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._known: OrderedDict[str, Job] = OrderedDict()
        self._numbers = itertools.count(1)
        self._change = threading.Condition()
        self._open = True
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._run, name="studio-worker", daemon=True)
        self._thread.start()

    def submit(self, owner: str, kind: str, work: Work) -> Job:
        """Put work into the queue. What the same owner still has waiting of the same kind is out of date and dropped.

        Raises
        ------
        InputError
            The queue is full.
        """
        with self._change:
            for old in [job for job in self._waiting if (job.owner, job.kind) == (owner, kind)]:
                self._waiting.remove(old)
                old.state = "superseded"
                old.finished.set()
            if len(self._waiting) >= MOST_WAITING:
                raise InputError(f"{MOST_WAITING} pieces of work are waiting already; try again in a while.")
            job = Job(str(next(self._numbers)), owner, kind, work)
            self._waiting.append(job)
            self._known[job.key] = job
            # Those that were superseded hold nothing, and a page that asked for many still asks for each.
            ended = [old.key for old in self._known.values() if old.owner == owner and old.state in ("done", "failed")]
            for key in ended[:-_KEPT]:
                del self._known[key]
            while len(self._known) > _MOST_KNOWN:  # of owners who have left
                self._known.popitem(last=False)
            self._change.notify()
        return job

    def find(self, owner: str, key: str) -> Job | None:
        """The owner's job of that key."""
        with self._change:
            job = self._known.get(key)
        return job if job is not None and job.owner == owner else None

    def position(self, job: Job) -> int:
        """How many jobs come before it."""
        with self._change:
            before = list(self._waiting).index(job) if job in self._waiting else 0
            return before + (self._current is not None and job.state == "queued")

    def busy(self, owner: str) -> bool:
        """Whether work of this owner is waiting or running."""
        with self._change:
            current = [] if self._current is None else [self._current]
            return any(job.owner == owner for job in (*self._waiting, *current))

    def close(self) -> None:
        """Do no further work; what is running is left to end by itself."""
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
                job.state = "running"
            try:
                job.outcome = job.work(job)
                job.state = "done"
            except LeadlineError as error:
                job.error, job.state = str(error), "failed"
            except MemoryError:
                job.error, job.state = "there is not enough memory for this scene; try a smaller picture.", "failed"
            except Exception:  # a bug of ours must not end the worker; its trace belongs to the terminal
                _LOG.exception("studio: %s failed", job.kind)
                job.error = "something went wrong inside leadline; the terminal has the details."
                job.state = "failed"
            job.finished.set()
