"""Depth maps and pictures, from files and to files.

The form of a file follows from its suffix (any case):

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

Depth is z along the optical axis. 8-bit PNG is refused as depth: 256 steps are a picture of depth.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import FileError, InputError
from leadline.io.atomic import atomic_write
from leadline.io.depth import packaged as packaged_forms
from leadline.io.depth import raw as raw_forms
from leadline.io.depth.raw import RawMap
from leadline.io.depth.units import LOG_CODED, UNITS, Unit, as_unit, from_codes, guess_unit, scaled, to_codes, to_counts
from leadline.io.reading import reading

__all__ = [
    "DEPTH_SUFFIXES",
    "UNITS",
    "DepthMap",
    "atomic_write",
    "read_depth",
    "read_image",
    "read_values",
    "write_depth",
]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class _Form:
    name: str
    read: Callable[[Path, str | None], RawMap]
    write: Callable[[Path, NDArray[np.float32]], None] | None = None  # None: PNG, which needs a unit, or read only
    keyed: bool = False


_TIFF = _Form("TIFF", packaged_forms.read_tiff, packaged_forms.write_tiff)
_HDF5 = _Form("HDF5", packaged_forms.read_hdf5, packaged_forms.write_hdf5, keyed=True)
_FORMS = {
    ".png": _Form("PNG", packaged_forms.read_png),
    ".npy": _Form("npy", raw_forms.read_npy, raw_forms.write_npy),
    ".npz": _Form("npz", raw_forms.read_npz, raw_forms.write_npz, keyed=True),
    ".exr": _Form("EXR", packaged_forms.read_exr, packaged_forms.write_exr, keyed=True),
    ".pfm": _Form("PFM", raw_forms.read_pfm, raw_forms.write_pfm),
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".mat": _Form("MATLAB 7.3", packaged_forms.read_hdf5, keyed=True),
    ".bin": _Form("COLMAP dense map", raw_forms.read_colmap, raw_forms.write_colmap),
}

DEPTH_SUFFIXES: tuple[str, ...] = tuple(_FORMS)


@dataclass(frozen=True, eq=False)
class DepthMap:
    """Metric depth as read from a file, and how its numbers became metres.

    Parameters
    ----------
    values : (H, W) float32 array, metres
        NaN where nothing was measured.
    unit : str
        What was applied, e.g. ``"mm"``, ``"kitti"``, ``"0.00025 m"``.
    guessed : bool
        True if nobody stated the unit and it is not plainly metres.
    note : str
        One sentence on what was assumed and why; empty unless guessed.
    path : Path
        The file.
    """

    values: NDArray[np.float32]
    unit: str
    guessed: bool
    note: str
    path: Path


def read_depth(path: PathLike, unit: str | float | None = None, *, key: str | None = None) -> DepthMap:
    """Metric depth from a file of any form in the table above.

    Without a unit, one is guessed from the size of the numbers and the result says so: the same counts may be
    3.5 m in millimetres and 14 m in KITTI's unit, so state the unit wherever it is known.

    Parameters
    ----------
    path : path
    unit : str or float, optional
        A name from `UNITS`, or metres per count. ``moge-log`` PNG needs none: it states its own range.
    key : str, optional
        Array in an npz, dataset in an HDF5 file (``"depths[3]"`` for one map of a stack), channel of an EXR.

    Raises
    ------
    FileError
        Missing, truncated, foreign, too large, or not a depth map.
    InputError
        Unknown suffix or unit, or a key where there are none.
    MissingExtra
        The package for this form is not installed.
    """
    file, form = _form(path)
    declared = None if unit is None else as_unit(unit)
    raw = _read(file, form, key)
    if raw.values.dtype.itemsize == 1:
        raise FileError(
            f"{file}: has 8 bits per pixel, which is too coarse for metric depth: it looks like a picture of a depth "
            "map. Give the 16-bit or float file."
        )
    if raw.log_range is not None and (declared is None or declared.name == LOG_CODED):
        return DepthMap(from_codes(raw.values, *raw.log_range), LOG_CODED, False, "", file)
    applied = _assumed(form, raw) if declared is None else declared
    if applied.metres is None:
        raise FileError(
            f"{file}: is not {LOG_CODED}: that is a 16-bit PNG whose text chunks name near and far. Give another unit."
        )
    values = scaled(raw.values, applied.metres, raw.ceiling)
    return DepthMap(values, applied.name, applied.guessed, applied.note, file)


def read_values(path: PathLike, *, key: str | None = None) -> FloatArray:
    """The plain numbers of a depth-like file, (H, W) float32 or float64, with no unit and nothing masked.

    For priors, which are relative. 8-bit PNG is accepted. A PNG that states the range of its log code is
    decoded by it, with NaN for its codes "unknown" and "infinite".

    Parameters
    ----------
    path, key
        As for `read_depth`.

    Raises
    ------
    FileError, InputError, MissingExtra
        As for `read_depth`.
    """
    file, form = _form(path)
    raw = _read(file, form, key)
    if raw.log_range is not None:
        return from_codes(raw.values, *raw.log_range)
    values = raw.values
    wide = values.dtype.itemsize > (4 if values.dtype.kind == "f" else 2)
    # A copy in native byte order: what comes back can be written to, and compiled code can read it.
    return np.array(values, dtype=np.float64 if wide else np.float32, order="C")


def write_depth(path: PathLike, depth: ArrayLike, unit: str | float | None = None) -> None:
    """Write metric depth in the form that the suffix of `path` names; whole, or not at all.

    What is not positive and finite is written as the form's own "not measured": 0 in PNG and COLMAP maps, NaN
    elsewhere. PNG rounds to the nearest count, so depth below half a count becomes "not measured" too.

    Parameters
    ----------
    path : path
        In an existing folder. ``.mat`` is read only.
    depth : (H, W) array, metres
    unit : str or float, optional
        A name from `UNITS`, or metres per count. Default: millimetres in PNG, metres in the float forms.

    Raises
    ------
    InputError
        Unknown suffix or unit, no (H, W) map, or a depth beyond the 16 bits of a PNG.
    FileError
        The file cannot be written.
    """
    file, form = _form(path)
    default = "mm" if form.name == "PNG" else "m"
    resolved = as_unit(default if unit is None else unit)
    metric = scaled(as_map(depth, "depth"), 1.0)
    if form.name == "PNG":
        texts: dict[str, str] = {}
        if resolved.metres is None:
            codes, near, far = to_codes(metric)
            texts = {"near": repr(near), "far": repr(far)}
        else:
            codes = to_counts(metric, resolved, resolved.metres)
        atomic_write(file, lambda temporary: packaged_forms.write_png(temporary, codes, texts))
        return
    write = form.write
    if write is None:
        raise InputError(f"{file}: {form.name} files are read only. Write an .h5 file instead.")
    if resolved.metres is None:
        raise InputError(f"`unit` {LOG_CODED!r} is for PNG files only, got {file}. Leave it out or give another.")
    counts = scaled(metric, 1.0 / resolved.metres)
    atomic_write(file, lambda temporary: write(temporary, counts))


def read_image(path: PathLike) -> NDArray[np.uint8]:
    """A picture as (H, W, 3) uint8 RGB; grey is repeated, transparency dropped.

    Pixels come as they are stored: an EXIF orientation is *not* applied, because depth maps and intrinsics
    belong to the stored grid. Rotate pictures and depth beforehand if they disagree.

    Raises
    ------
    FileError
        Missing, truncated, foreign, too large, or a 16-bit depth map.
    """
    file = Path(path)
    with reading(file, "picture"):
        return packaged_forms.read_picture(file)


def _form(path: PathLike) -> tuple[Path, _Form]:
    file = Path(path)
    form = _FORMS.get(file.suffix.lower())
    if form is None:
        raise InputError(f"{file}: the suffix {file.suffix!r} names no depth form. Known: {', '.join(DEPTH_SUFFIXES)}.")
    return file, form


def _read(file: Path, form: _Form, key: str | None) -> RawMap:
    if key is not None and not form.keyed:
        raise InputError(f"`key` is for npz, EXR and HDF5 files, got {key!r} for {file}. Leave it out.")
    with reading(file, form.name):
        return form.read(file, key)


def _assumed(form: _Form, raw: RawMap) -> Unit:
    if form.name == "COLMAP dense map":
        # Its scale is that of the reconstruction, metric only if the poses were: numbers cannot tell.
        note = "COLMAP depth has the unit of its reconstruction, assumed to be m; pass --unit (in Python: unit=) "
        return Unit("m", 1.0, True, note + "with metres per unit if that is wrong.")
    return guess_unit(raw.values, raw.ceiling)
