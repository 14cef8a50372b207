"""What became of a frame, and errors turned into outcomes so that one bad frame does not end a run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from leadline.base.errors import LeadlineError
from leadline.io.notes import Note


class State(Enum):
    """What became of a frame."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of a frame. It can be pickled, since it is returned by worker processes.

    Parameters
    ----------
    stem : str
        Name of the frame.
    state : State
    message : str
        Summary of the result, or the reason of the failure. It may contain references to parameters, see
        `leadline.base.errors.render`.
    notes : tuple of Note
    files : tuple of Path
        What was written.
    traceback : str
        Of an error that is not a `LeadlineError`, which is a bug.
    """

    stem: str
    state: State
    message: str = ""
    notes: tuple[Note, ...] = ()
    files: tuple[Path, ...] = ()
    traceback: str = ""


def outcome_of(stem: str, run: Callable[[], Outcome]) -> Outcome:
    """The result of `run`, or a failed outcome if it raises an error."""
    try:
        return run()
    except LeadlineError as error:
        return Outcome(stem, State.FAILED, error.args[0])
    except Exception as error:
        reason = f"unexpected {type(error).__name__}: {error}"
        return Outcome(stem, State.FAILED, reason, traceback=traceback.format_exc())
