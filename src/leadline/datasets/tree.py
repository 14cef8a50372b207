"""The parts that all loaders share: listing a tree, reading its files with errors that name them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray
from leadline.base.errors import FileError, InputError
from leadline.geometry.cameras import Camera
from leadline.io.reading import reading

PICTURES = (".png", ".jpg", ".jpeg")

_LARGEST_TEXT = 16 * 2**20  # bytes; calibration and lists are far smaller, so more is a file of another kind
_NUMBER = re.compile(r"[^\s,;]+")


def read_text(file: Path, form: str) -> str:
    """A small text file as it stands."""
    with reading(file, form):
        if file.stat().st_size > _LARGEST_TEXT:
            raise FileError(f"{file}: has {file.stat().st_size} bytes, too many for {form}. Is it another file?")
        return file.read_text(encoding="utf-8-sig")


def read_json(file: Path, form: str) -> dict[str, Any]:
    """A JSON object."""
    text = read_text(file, form)
    with reading(file, form):
        found = json.loads(text)
    if not isinstance(found, dict):
        raise FileError(f"{file}: must hold a JSON object, got {type(found).__name__} instead.")
    return found


def read_numbers(file: Path, counts: Iterable[int], form: str) -> list[float]:
    """All numbers of a text file, separated by spaces, commas or line ends; one of `counts` many."""
    text = read_text(file, form)
    with reading(file, form):
        numbers = [float(word) for word in _NUMBER.findall(text)]
    if len(numbers) not in counts or not all(map(math.isfinite, numbers)):
        expected = " or ".join(str(count) for count in counts)
        raise FileError(f"{file}: must hold {expected} finite numbers ({form}), got {len(numbers)}: {text[:60]!r}.")
    return numbers


def pinhole(numbers: list[float], width: int, height: int, file: Path) -> Camera:
    """A camera from fx, fy, cx, cy, or from the nine numbers of a matrix row by row; `file` is for the error."""
    fx, fy, cx, cy = numbers if len(numbers) == 4 else (numbers[0], numbers[4], numbers[2], numbers[5])
    try:
        return Camera(width, height, fx, fy, cx, cy)
    except InputError as error:
        raise FileError(f"{file}: holds no intrinsics. {error}") from error


def listed(folder: Path, suffixes: tuple[str, ...], ending: str = "") -> set[str]:
    """Stems of the files in `folder` with one of these suffixes, in any case, that end in `ending`, cut off.

    A folder that is not there gives none: the file that is then missing for each image is what gets reported.
    """
    if not folder.is_dir():
        return set()
    stems = (path.stem for path in folder.iterdir() if path.suffix.lower() in suffixes and path.name[0] != ".")
    return {stem.removesuffix(ending) for stem in stems if stem.endswith(ending)}


def found(names: Iterable[str], root: Path, expected: str) -> list[str]:
    """`names` in order, or an error if there are none: a benchmark over no images is a wrong path."""
    ordered = sorted(names)
    if not ordered:
        raise FileError(f"{root}: holds no images of this data set. Expected {expected}.")
    return ordered


def require_positive(**values: float | None) -> None:
    """Refuse options that are neither None nor a positive finite number."""
    for name, value in values.items():
        ok = value is None or (isinstance(value, (int, float)) and value > 0 and math.isfinite(value))
        if not ok or isinstance(value, bool):
            raise InputError(f"`{name}` must be a positive number or None, got {value!r} instead.")


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"`{name}` must be one of {', '.join(choices)}, got {value!r} instead.")


def require_size(size: tuple[int, int] | None) -> tuple[int, int] | None:
    """`size` as a (width, height) of positive whole numbers; a list, as files of settings give it, will do."""
    if size is None:
        return None
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise InputError(f"`size` must be (width, height) in whole pixels, or None for the full size, got {size!r}.")
    return size[0], size[1]


def require_shape(values: NDArray[Any], shape: tuple[int, ...], file: Path, image: Path) -> None:
    """Refuse a map whose grid is not that of its image."""
    if values.shape[:2] != shape[:2]:
        raise FileError(
            f"{file}: is {values.shape[1]}x{values.shape[0]}, but its image {image.name} is {shape[1]}x{shape[0]}; "
            "they must have the same size."
        )


def reference(
    depth: NDArray[np.floating[Any]], max_depth: float | None, valid: BoolArray | None = None
) -> NDArray[np.float32]:
    """`depth` in metres as float32, NaN where it is not positive and finite, beyond `max_depth`, or not `valid`."""
    with np.errstate(invalid="ignore", over="ignore"):  # an unmeasured pixel may hold anything
        metres = depth.astype(np.float32)
        known = np.isfinite(metres) & (metres > 0)
        if max_depth is not None:
            known &= metres <= np.float32(max_depth)
    if valid is not None:
        known &= valid
    return np.where(known, metres, np.float32(np.nan))
