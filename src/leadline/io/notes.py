"""Notes about a result that a user should read, although they are not errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from leadline.base.errors import Wording, param, render


class NoteKind(Enum):
    """The subject of a note. Each value is a short title, for counts and lists."""

    UNIT_GUESSED = "unit guessed"
    UNIT_FROM_SIDECAR = "unit as in the sidecar"
    UNIT_CONTRADICTED = "unit other than in the sidecar"
    REFERENCE_UNIT_GUESSED = "unit of the reference guessed"
    UNIT_FROM_MEASUREMENTS = "unit of the reference as of the measurements"
    UNIT_IMPLAUSIBLE = "implausible distances"
    LOW_CONFIDENCE = "measurements of low confidence left out"
    RESIZED = "measurements moved to the image's pixels"
    ASPECT_RATIO = "different aspect ratios"
    TURNED = "image turned by its EXIF tag"
    CAMERA_SCALED = "camera scaled to the image"
    NO_EXTRINSICS = "no extrinsics"
    SCALE_UNKNOWN = "scale of the reconstruction unknown"
    PROJECTED = "point cloud projected"
    ALIGNMENT = "points and image may not line up"
    PRIOR = "about the prior"
    POSES = "about the poses"
    NO_MEASUREMENTS = "no measurements: relative depth"
    FIT = "fit fell back or stopped early"
    SOLVE = "solve stopped early"
    EXTRAPOLATED = "depth far beyond the measurements"
    OUTPUT_UNIT = "written in another unit"
    BEYOND_FORMAT = "depth beyond the range of the format"
    REDONE = "completed again"
    UNMATCHED = "files without a partner"
    NO_OVERLAP = "no other picture overlaps"


@dataclass(frozen=True)
class Note:
    """A sentence about a result, and its subject.

    Parameters
    ----------
    kind : NoteKind
        What the note is about. Programs test this field, never the text.
    text : str
        May contain references to parameters, made with `leadline.base.errors.param`.
    """

    kind: NoteKind
    text: str

    def __str__(self) -> str:
        return self.render()

    def render(self, wording: Wording | None = None) -> str:
        """The text with its parameter references in the words of a front end."""
        return render(self.text, wording)


def as_texts(notes: Iterable[Note]) -> list[str]:
    """The texts of notes with Python's parameter names, for a JSON file."""
    return [str(note) for note in notes]


def rename_parameter(text: str, old: str, new: str) -> str:
    """`text` with its references to the parameter `old` made references to `new`."""
    return render(text, lambda name, value: param(new if name == old else name, value))
