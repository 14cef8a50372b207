"""The outcome of a frame, and the sidecar that records how its results were computed."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError, LeadlineError, MissingExtra, param
from leadline.base.strict_json import json_ready
from leadline.io.notes import Note


class State(Enum):
    """The state of a frame after it was processed."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class PixelCounts:
    """How many pixels of a frame were measured, measured and left out, filled, and have no depth."""

    measured: int
    left_out: int
    filled: int
    no_depth: int

    @property
    def total(self) -> int:
        return self.measured + self.left_out + self.filled + self.no_depth

    @property
    def left_out_share(self) -> float:
        """Share of the measurements that were left out."""
        return self.left_out / max(1, self.measured + self.left_out)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a frame. It can be pickled, since it is returned by worker processes."""

    stem: str  # name of the frame
    state: State
    message: str = ""  # summary or reason of the failure; may contain references to parameters, see `base.errors`
    notes: tuple[Note, ...] = ()
    files: tuple[Path, ...] = ()  # what was written
    traceback: str = ""  # of an error that is not a `LeadlineError`, which is a bug
    pixels: PixelCounts | None = None  # None if the frame failed


def outcome_of(stem: str, run: Callable[[], Outcome]) -> Outcome:
    """The result of `run`, or a failed outcome if it raises an error."""
    try:
        return run()
    except MissingExtra:  # would fail every frame in the same way
        raise
    except LeadlineError as error:
        return Outcome(stem, State.FAILED, error.args[0])
    except Exception as error:
        reason = f"unexpected {type(error).__name__}: {error}"
        return Outcome(stem, State.FAILED, reason, traceback=traceback.format_exc())


# Parameters in plain groups have the name of the field, those in dotted groups also that of the group.
_PLAIN_GROUPS = ("inputs", "outputs", "completion")
_DOTTED_GROUPS = ("fit", "reconstruction", "projection")


def package_version() -> str:
    """Version of the installed package, or of the sources when they run without being installed."""
    from leadline import __version__

    try:
        return metadata.version("leadline")
    except metadata.PackageNotFoundError:
        return __version__


def settings_record(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested options as JSON returns them, so that two records can be compared."""
    record: dict[str, Any] = json.loads(json.dumps(json_ready(settings), allow_nan=False))
    return record


def reasons_to_redo(paths: Mapping[str, Path], hashes: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """Why a frame that has a sidecar must be completed again; empty if it need not.

    Options and the contents of the inputs are compared, not their paths, so that folders may be moved. The version of
    leadline is not compared either.
    """
    try:
        record = json.loads(paths["sidecar"].read_text(encoding="utf-8"))
        inputs = {name: entry["sha256"] for name, entry in record["inputs"].items()}
        options = _flatten(record["settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{paths['sidecar'].name} is not a sidecar that leadline wrote"
    reasons = []
    changed_options = _differing(options, _flatten(settings))
    if changed_options:
        reasons.append(f"the options changed ({', '.join(map(param, changed_options))})")
    changed_inputs = _differing(inputs, hashes)
    if changed_inputs:
        reasons.append(f"the inputs changed ({', '.join(changed_inputs)})")
    missing = [name for name, path in paths.items() if not path.exists()]
    if missing and not reasons:
        reasons = [f"outputs are missing ({', '.join(missing)})"]
    return " and ".join(reasons)


def skipped(stem: str, sidecar: Path) -> Outcome:
    """The outcome of a frame whose results are there."""
    text = f"complete already, from the same inputs and options; {param('overwrite', True)} completes it again"
    return Outcome(stem, State.SKIPPED, text, pixels=_recorded_pixels(sidecar))


def _recorded_pixels(sidecar: Path) -> PixelCounts | None:
    """The counts in the sidecar of a frame; None if it has none."""
    try:
        return PixelCounts(**json.loads(sidecar.read_text(encoding="utf-8"))["pixels"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recorded_unit(sidecar: Path) -> str:
    """The unit of the depth that a sidecar belongs to."""
    try:
        return str(json.loads(sidecar.read_text(encoding="utf-8"))["units"]["depth"]["unit"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{sidecar}: is not a sidecar that leadline wrote.") from error


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by the names of their parameters, e.g. ``fit.max_iterations``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _PLAIN_GROUPS:
            flat |= _flatten(value)
        elif name in _DOTTED_GROUPS:
            flat |= _flatten(value, f"{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
