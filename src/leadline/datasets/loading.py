"""Shared parts of the loaders: listing the files of a data set, and checks with errors that name the file or option."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.geometry.cameras import Camera
from leadline.io.files import read_text, reading

Beyond = Literal["drop", "clip"]  # what becomes of depth beyond the largest one that is used

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

_NUMBER = re.compile(r"[^\s,;]+")


def read_numbers(file: Path, counts: Iterable[int], content: str) -> list[float]:
    """All numbers of a text file, separated by white space, commas or semicolons; their number must be in `counts`."""
    text = read_text(file, content)
    with reading(file, content):
        numbers = [float(word) for word in _NUMBER.findall(text)]
    if len(numbers) not in counts or not all(map(math.isfinite, numbers)):
        expected = " or ".join(str(count) for count in counts)
        raise FileError(f"{file}: must hold {expected} finite numbers ({content}), got {len(numbers)}: {text[:60]!r}.")
    return numbers


def file_state(file: Path) -> tuple[str, int, int]:
    """The cache key of a file's content: path, size and time of change; zeros if the file is missing."""
    found = file.stat() if file.is_file() else None
    return (str(file), found.st_size, found.st_mtime_ns) if found else (str(file), 0, 0)


def pinhole_camera(numbers: list[float], width: int, height: int, file: Path) -> Camera:
    """The camera with fx, fy, cx, cy, or with the numbers of a 3x3 or 4x4 matrix row by row; errors name `file`."""
    side = {4: 0, 9: 3, 16: 4}[len(numbers)]
    fx, fy, cx, cy = (numbers[0], numbers[side + 1], numbers[2], numbers[side + 2]) if side else numbers
    try:
        return Camera(width, height, fx, fy, cx, cy)
    except InputError as error:
        raise FileError(f"{file}: its intrinsics are wrong. {error}") from error


def list_stems(folder: Path, suffixes: tuple[str, ...], ending: str = "") -> set[str]:
    """Stems of the files in `folder` with one of these suffixes, in upper or lower case, without `ending`.

    Only stems that end in `ending` are listed. A folder that does not exist gives no stems; the files that are missing
    in it are reported when an image is loaded.
    """
    if not folder.is_dir():
        return set()
    stems = (path.stem for path in folder.iterdir() if path.suffix.lower() in suffixes and path.name[0] != ".")
    return {stem.removesuffix(ending) for stem in stems if stem.endswith(ending)}


def require_images(names: Iterable[str], root: Path, expected: str) -> list[str]:
    """`names` in alphabetical order; `FileError` if there are none, since then `root` is the wrong folder."""
    ordered = sorted(names)
    if not ordered:
        raise FileError(f"{root}: holds no images of this data set. Expected {expected}.")
    return ordered


def require_positive_or_none(**values: float | None) -> None:
    """Raise `InputError` unless every option is None or a positive finite number."""
    for name, value in values.items():
        ok = value is None or (isinstance(value, (int, float)) and value > 0 and math.isfinite(value))
        if not ok or isinstance(value, bool):
            raise InputError(f"{param(name)} must be a positive number or None, got {value!r} instead.")


def require_size(size: tuple[int, int] | None) -> tuple[int, int] | None:
    """`size` as a tuple (width, height) of positive integers, or None; a list, as in a TOML file, is accepted."""
    if size is None:
        return None
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise InputError(f"{param('size')} must be (width, height) in pixels, or None for the full size, got {size!r}.")
    return size[0], size[1]


def require_shape(values: NDArray[Any], shape: tuple[int, ...], file: Path, image: Path) -> None:
    """Raise `FileError` unless a map has the size of its image."""
    if values.shape[:2] != shape[:2]:
        raise FileError(
            f"{file}: is {values.shape[1]}x{values.shape[0]}, but its image {image.name} is {shape[1]}x{shape[0]}; "
            "they must have the same size."
        )


def crop_camera(camera: Camera, left: int, top: int, width: int, height: int) -> Camera:
    """The camera of the part of an image that begins at this pixel and has this size."""
    return Camera(width, height, camera.fx, camera.fy, camera.cx - left, camera.cy - top)


def first_folder(root: Path, places: Iterable[str], content: str) -> Path:
    """The first of these folders below `root` that contains `content`; the last one if none does."""
    folders = [root / place for place in places]
    return next((folder for folder in folders if (folder / content).exists()), folders[-1])


def import_h5py(purpose: str) -> Any:
    """The package h5py, or `MissingExtra`."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise MissingExtra("h5py", "hdf5", purpose) from error


def read_hdf5(file: Path, keys: Iterable[str], index: int | None = None) -> list[NDArray[Any]]:
    """The named arrays of an HDF5 file, or their entry `index` along the first axis."""
    h5py = import_h5py("Reading HDF5 files")
    with reading(file, "an HDF5 file"), h5py.File(file, "r") as content:
        missing = [key for key in keys if key not in content]
        if missing:
            raise FileError(f"{file}: has no array {', '.join(missing)}, only {', '.join(content) or 'nothing'}.")
        if index is not None and not all(0 <= index < len(content[key]) for key in keys):
            raise FileError(f"{file}: has no entry {index}; its arrays have {[len(content[key]) for key in keys]}.")
        return [np.asarray(content[key][()] if index is None else content[key][index]) for key in keys]


def clean_reference(
    depth: FloatArray, max_depth: float | None, valid: BoolArray | None = None, beyond: Beyond = "drop"
) -> NDArray[np.float32]:
    """`depth` in metres as float32, NaN where it is not positive and finite or not `valid`.

    Depth beyond `max_depth` is NaN as well, or, if `beyond` is ``clip``, equal to `max_depth`.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # a pixel without depth may hold any value
        metres = depth.astype(np.float32)
        known = np.isfinite(metres) & (metres > 0)
        if max_depth is not None and beyond == "clip":
            metres = np.minimum(metres, np.float32(max_depth))
        elif max_depth is not None:
            known &= metres <= np.float32(max_depth)
    if valid is not None:
        known &= valid
    return np.where(known, metres, np.float32(np.nan))
