"""Reading and writing of depth maps, reading of images.

The format of a file follows from its suffix (any case):

=================  ===============================================================  ==========================
suffix             what it holds                                                    not measured
=================  ===============================================================  ==========================
.png               16-bit grey counts in some unit, or log-coded with near and far  0 and 65535
.npy .npz          an array; in npz the key ``depth`` or the only one               0, negative, NaN, inf
.exr               channel Z, Y or R                                                the same, and from 65504 on
.pfm               grey, bottom row first, sign of the scale = byte order           0, negative, NaN, inf
.tif .tiff         float, or 16-bit as in PNG                                       the same
.h5 .hdf5 .mat     HDF5 dataset ``depth`` or the only one; ``depths[3]`` of a stack the same
.bin               COLMAP dense map: ``width&height&channels&``, then float32       the same
=================  ===============================================================  ==========================

Depth is z along the optical axis. 8-bit PNG is refused as depth: 256 steps are too few for metric depth.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import FileError, InputError, param
from leadline.io import depth_formats as formats
from leadline.io.depth_formats import StoredMap
from leadline.io.files import atomic_write, reading
from leadline.io.notes import Note
from leadline.io.units import LOG_CODED, as_unit, decode_log, encode_counts, encode_log, guess_unit, scale_depth

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class _Format:
    """One format of depth files."""

    name: str
    read: Callable[[Path, str | None], StoredMap]
    # None for formats that are read only, and for PNG, which stores counts and has a separate writer.
    write: Callable[[Path, NDArray[np.float32]], None] | None = None
    has_keys: bool = False  # a file holds several named arrays
    stores_counts: bool = False  # a file holds 16-bit counts, which need a unit
    unit_unknown: bool = False  # the numbers have an arbitrary unit that no statistics can guess


_TIFF = _Format("TIFF", formats.read_tiff, formats.write_tiff)
_HDF5 = _Format("HDF5", formats.read_hdf5, formats.write_hdf5, has_keys=True)
_FORMATS = {
    ".png": _Format("PNG", formats.read_png, stores_counts=True),
    ".npy": _Format("npy", formats.read_npy, formats.write_npy),
    ".npz": _Format("npz", formats.read_npz, formats.write_npz, has_keys=True),
    ".exr": _Format("EXR", formats.read_exr, formats.write_exr, has_keys=True),
    ".pfm": _Format("PFM", formats.read_pfm, formats.write_pfm),
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".mat": _Format("MATLAB 7.3", formats.read_hdf5, has_keys=True),
    ".bin": _Format("COLMAP dense map", formats.read_colmap, formats.write_colmap, unit_unknown=True),
}

DEPTH_SUFFIXES: tuple[str, ...] = tuple(_FORMATS)


@dataclass(frozen=True, eq=False)
class DepthMap:
    """Metric depth from a file, and the unit of the file.

    Parameters
    ----------
    values : (H, W) float32 array, metres
        NaN where nothing was measured.
    unit : str
        Unit of the file's numbers, e.g. ``"mm"``, ``"kitti"``, ``"0.00025 m"``.
    guessed : bool
        True if the unit was not given and the numbers are not plausible metres.
    note : Note or None
        What was guessed and why; None unless guessed.
    path : Path
        The file.
    """

    values: NDArray[np.float32]
    unit: str
    guessed: bool
    note: Note | None
    path: Path


def read_depth(path: PathLike, unit: str | float | None = None, *, key: str | None = None) -> DepthMap:
    """Metric depth from a file of any format in the table above.

    Without a unit, one is guessed from the magnitude of the numbers; see `DepthMap.guessed`. The same counts may be
    3.5 m in millimetres and 14 m in KITTI's unit, so state the unit wherever it is known.

    Parameters
    ----------
    path : path
    unit : str or float, optional
        A name from `UNITS`, or metres per count. A log-coded PNG needs none, because it contains its range.
    key : str, optional
        Array in an npz, dataset in an HDF5 file (``"depths[3]"`` for one map of a stack), channel of an EXR.

    Raises
    ------
    FileError
        The file is missing, truncated, of another format, too large, or not a depth map.
    InputError
        The suffix or the unit is unknown, or a key is given for a format without keys.
    MissingExtra
        The package for this format is not installed.
    """
    file, format = _find_format(path)
    declared = None if unit is None else as_unit(unit)
    stored = _read(file, format, key)
    if stored.values.dtype.itemsize == 1:
        raise FileError(
            f"{file}: has 8 bits per pixel, which is too coarse for metric depth: it looks like a picture of a depth "
            "map. Give the 16-bit or float file."
        )
    if stored.log_range is not None and (declared is None or declared.name == LOG_CODED):
        return DepthMap(decode_log(stored.values, *stored.log_range), LOG_CODED, False, None, file)
    applied = declared or guess_unit(stored.values, stored.invalid_from, arbitrary=format.unit_unknown)
    if applied.metres is None:
        raise FileError(
            f"{file}: is not in the unit {LOG_CODED}, which is a 16-bit PNG whose text chunks state near and far. Give "
            f"another {param('unit')}."
        )
    values = scale_depth(stored.values, applied.metres, stored.invalid_from)
    return DepthMap(values, applied.name, applied.guessed, applied.note, file)


def read_values(path: PathLike, *, key: str | None = None) -> FloatArray:
    """The numbers of a depth-like file, (H, W) float32 or float64, without a unit and without masking.

    For priors, which are relative. 8-bit PNG is accepted. A log-coded PNG is decoded, with NaN for its codes "unknown"
    and "infinite". Arguments and errors are those of `read_depth`.
    """
    file, format = _find_format(path)
    stored = _read(file, format, key)
    if stored.log_range is not None:
        return decode_log(stored.values, *stored.log_range)
    values = stored.values
    wide = values.dtype.itemsize > (4 if values.dtype.kind == "f" else 2)
    # A copy, so that it is writable and in native byte order, which compiled code needs.
    return np.array(values, dtype=np.float64 if wide else np.float32, order="C")


def write_depth(path: PathLike, depth: ArrayLike, unit: str | float | None = None) -> None:
    """Write metric depth in the format of the suffix of `path`. The file appears only when it is complete.

    Values that are not positive and finite are written as "not measured": 0 in PNG and COLMAP maps, NaN elsewhere. PNG
    rounds to the nearest count, so depth below half a count becomes "not measured", too.

    Parameters
    ----------
    path : path
        In an existing folder. ``.mat`` is read only.
    depth : (H, W) array, metres
    unit : str or float, optional
        A name from `UNITS`, or metres per count. Default: millimetres in PNG, metres in the float formats.

    Raises
    ------
    InputError
        The suffix or the unit is unknown, `depth` is not an (H, W) map, or exceeds the 16 bits of a PNG.
    FileError
        The file cannot be written.
    """
    file, format = _find_format(path)
    default = "mm" if format.stores_counts else "m"
    resolved = as_unit(default if unit is None else unit)
    metric = scale_depth(as_map(depth, "depth"), 1.0)
    if format.stores_counts:
        texts: dict[str, str] = {}
        if resolved.metres is None:
            codes, near, far = encode_log(metric)
            texts = {"near": repr(near), "far": repr(far)}
        else:
            codes = encode_counts(metric, resolved, resolved.metres)
        atomic_write(file, lambda temporary: formats.write_png(temporary, codes, texts))
        return
    write = format.write
    if write is None:
        raise InputError(f"{file}: {format.name} files are read only. Write an .h5 file instead.")
    if resolved.metres is None:
        raise InputError(f"{param('unit')} {LOG_CODED!r} is for PNG only, got {file}. Leave it out or give another.")
    counts = scale_depth(metric, 1.0 / resolved.metres)
    atomic_write(file, lambda temporary: write(temporary, counts))


def write_sigma(path: PathLike, sigma: ArrayLike) -> None:
    """Write standard deviations in metres, in a float format; unlike in a depth map, 0 is a value: exactly measured.

    `read_values` reads them back.
    """
    file, format = _find_format(path)
    write = format.write
    if write is None:
        raise InputError(f"{file}: {format.name} cannot hold standard deviations; write an .npy file instead.")
    values = np.ascontiguousarray(as_map(sigma, "sigma"), np.float32)
    atomic_write(file, lambda temporary: write(temporary, values))


def read_image(path: PathLike) -> NDArray[np.uint8]:
    """An image as (H, W, 3) uint8 RGB; grey is repeated, transparency dropped.

    The pixels are returned as they are stored. An EXIF orientation is *not* applied, because depth maps and intrinsics
    belong to the stored grid. Rotate images and depth beforehand if they disagree.

    Raises
    ------
    FileError
        The file is missing, truncated, of another format, too large, or a 16-bit depth map.
    """
    file = Path(path)
    with reading(file, "an image"):
        return formats.read_colour_image(file)


def read_image_size(path: PathLike) -> tuple[int, int]:
    """Width and height of an image in pixels, from its header alone. The errors are those of `read_image`."""
    file = Path(path)
    with reading(file, "an image"):
        return formats.read_image_size(file)


def read_orientation(path: PathLike) -> str | None:
    """A sentence about the EXIF tag of a picture that viewers turn or mirror when they show it; None if it has none."""
    file = Path(path)
    with reading(file, "an image"):
        orientation = formats.read_exif_orientation(file)
    turn = {3: "180", 4: "180", 5: "90", 6: "90", 7: "90", 8: "90"}.get(orientation)
    if orientation not in range(2, 9):
        return None
    what = "mirrors it" if turn is None else f"turns it by {turn} degrees"
    return f"{file} has an EXIF orientation ({orientation}), with which a viewer {what}."


def _find_format(path: PathLike) -> tuple[Path, _Format]:
    file = Path(path)
    format = _FORMATS.get(file.suffix.lower())
    if format is None:
        raise InputError(
            f"{file}: the suffix {file.suffix!r} is not one of a depth format: {', '.join(DEPTH_SUFFIXES)}."
        )
    return file, format


def _read(file: Path, format: _Format, key: str | None) -> StoredMap:
    if key is not None and not format.has_keys:
        raise InputError(f"{param('key')} is for npz, EXR and HDF5 files, got {key!r} for {file}. Leave it out.")
    with reading(file, format.name):
        return format.read(file, key)
