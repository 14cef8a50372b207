"""The bodies of requests and answers, as types that msgspec reads from and writes to JSON.

A request with an unknown field or a value of another type is refused before anything is done. Numbers that are not
finite are written as null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from leadline.apps.studio.jobs import JobState
from leadline.apps.studio.sessions import Role
from leadline.core.prior import PriorKind
from leadline.report.completed_scene import SceneScores

PRIOR_FILE = "file"
"""The choice of a prior from a file, in place of a network's name."""

Message = TypeVar("Message", bound=msgspec.Struct)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request without content."""


class RoleRequest(Request, frozen=True, kw_only=True):
    """A request about the file of one role; `unit` is for depth maps."""

    role: Role
    unit: str | None = None


class ExampleRequest(Request, frozen=True, kw_only=True):
    """Load an example."""

    name: str


class CompleteRequest(Request, frozen=True, kw_only=True):
    """Everything that a completion depends on except the files."""

    prior: str = PRIOR_FILE
    unit: str | None = None
    prior_kind: PriorKind | None = None
    reference_unit: str | None = None
    uncertainty: bool = False
    options: dict[str, str] = {}  # msgspec copies an empty default


class ExponentRequest(Request, frozen=True, kw_only=True):
    """Hold the exponent at a value, or with None return to the fit."""

    exponent: float | None = None


class MethodRequest(Request, frozen=True, kw_only=True):
    """Run another method on the scene."""

    name: str


@dataclass(frozen=True)
class ErrorAnswer:
    error: str


@dataclass(frozen=True)
class JobAnswer:
    """The key by which a job's state can be fetched."""

    job: str


@dataclass(frozen=True)
class JobStatus:
    """The state of a job; `position` counts the jobs before it."""

    state: JobState
    stage: str = ""
    position: int = 0
    result: Any = None
    error: str = ""


@dataclass(frozen=True)
class UploadAnswer:
    role: Role
    name: str


@dataclass(frozen=True)
class FileFacts:
    """What was found in a file: fields that do not apply to its role are None."""

    name: str
    size: tuple[int, int] | None = None  # width, height
    points: int | None = None  # of a point cloud
    count: int | None = None  # pixels with a depth
    unit: str | None = None
    unit_guessed: bool = False
    near: float | None = None  # metres, 1st and 99th percentile
    far: float | None = None


@dataclass(frozen=True)
class OptionField:
    """A field of the form for the options of the method. An empty default leaves the value to the preset."""

    name: str
    label: str
    help: str
    default: str
    choices: list[str] | None


@dataclass(frozen=True)
class Choice:
    """An entry of a list to choose from."""

    name: str
    title: str
    text: str = ""


@dataclass(frozen=True)
class Start:
    """What the page offers when it is loaded, and the files that the session has already."""

    examples: list[Choice]
    priors: list[Choice]
    default_prior: str
    methods: list[Choice]
    units: list[str]
    options: list[OptionField]
    depth_suffixes: tuple[str, ...]
    cloud_suffixes: tuple[str, ...]
    files: dict[Role, str]
    upload_limit: int  # bytes
    local: bool  # only this machine can reach the server


@dataclass(frozen=True)
class Recipe:
    """The same completion on the command line and in Python."""

    command: str
    python: str


@dataclass(frozen=True)
class Uncertainty:
    median: float  # metres
    high: float  # metres, at the dark end of the colour ramp


@dataclass(frozen=True)
class NoteText:
    """A remark about a result; a warning asks the user to check something."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Summary:
    """The numbers and texts about a completed scene."""

    revision: int
    width: int
    height: int
    views: list[str]
    near: float
    far: float
    measurements: int
    measurements_removed: int
    outliers: int
    exponent: float
    rmse: float
    converged: bool
    notes: list[NoteText]
    camera: str
    error_high: float
    uncertainty: Uncertainty | None
    scores: SceneScores | None
    downloads: dict[str, str]
    inputs: dict[Role, str]
    recipe: Recipe
    compare_as: str  # the name of this result among the methods to compare


@dataclass(frozen=True)
class HeldSummary:
    """The numbers about a completion at an exponent that was set by hand."""

    exponent: float
    gain: float
    offset: float
    rmse: float
    fitted_rmse: float
    median_change: float
    largest_change: float
    change_high: float
    scores: SceneScores | None
    curve: dict[str, list[float]]
    downloads: dict[str, str]


@dataclass(frozen=True)
class MethodSummary:
    name: str
    title: str
    scores: SceneScores | None


@dataclass(frozen=True)
class Empty:
    """An answer without content."""

    ok: bool = True


def decode(body: bytes, kind: type[Message]) -> Message:
    """A request of that type.

    Raises
    ------
    msgspec.MsgspecError
        The body is not JSON, or does not match the type.
    """
    return msgspec.json.decode(body or b"{}", type=kind)


def encode(message: Any) -> bytes:
    """An answer as JSON."""
    return msgspec.json.encode(message)
