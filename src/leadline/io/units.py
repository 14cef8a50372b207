"""Units of depth files: conversion to metres, guesses of an unknown unit, and 16-bit codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param
from leadline.core.units import METRES_PER_UNIT, metres_per_unit
from leadline.io.notes import Note, NoteKind

LOG_CODED = "moge-log"

UNITS: Mapping[str, float | None] = MappingProxyType({**METRES_PER_UNIT, LOG_CODED: None})
"""Named units and their metres per count; None for the log code, which is not linear."""

MAX_COUNT = 65534
"""Largest count of a linear 16-bit map. 65535 is a full counter (sky, "no return") and is read as missing."""

FARTHEST = 1e3
"""Metres beyond which depth is more likely in another unit."""

# Number of valid pixels that a guess is based on: enough for a percentile, cheap on any image.
_SAMPLES = 65536

# The guess for integer depth. Consumer depth cameras write millimetres and reach about 10 m, so the guess is
# millimetres unless the 99th percentile is above 12 000, i.e. 12 m. Then two other units explain the numbers better:
# a sparse map with a smaller median is a projected LiDAR sweep in 1/256 m (7 to 31 m, where mm would give 2 to 8 m);
# a dense map with a median above 5 m in mm is a map of a Kinect-like camera in 1/5000 m (1 m and more).
_CAMERA_REACH = 12_000
_SPARSE_COVERAGE = 1 / 3
_LIDAR_MEDIAN = 8_000
_KINECT_MEDIAN = 5_000

# The guess for floats is metres. No depth sensor has a median beyond 200 m, while 200 mm is common; below 1 cm the
# numbers are more likely relative or normalised depth.
_FAR_MEDIAN = 200.0
_NEAR_MEDIAN = 0.01

_ADVICE = f"set {param('unit')} if that is wrong"


@dataclass(frozen=True)
class Unit:
    """A unit of depth."""

    name: str  # as it is recorded, e.g. "mm" or "0.00025 m"
    metres: float | None  # per count; None for the log code
    note: Note | None = None  # what was guessed and why; None if the unit was stated or plausible

    @property
    def guessed(self) -> bool:
        return self.note is not None


def as_unit(unit: str | float) -> Unit:
    """`unit` by name, or as metres per count, e.g. 0.00025 or "0.00025 m"."""
    if isinstance(unit, str) and unit.strip().lower() in UNITS:
        name = unit.strip().lower()
        return Unit(name, UNITS[name])
    metres = metres_per_unit(unit)
    return Unit(f"{metres:g} m", metres)


def png_units(measured: str) -> tuple[str, ...]:
    """Units to write a 16-bit depth map in, best first; the first one into which the depth fits is to be taken.

    In the unit of the measurements these are written bit for bit. A unit coarser than a centimetre would round the
    depth elsewhere, so it is not used. Millimetres reach to 65 m, ``kitti`` to 256 m.
    """
    own, coarsest = as_unit(measured), UNITS["cm"]
    fine = own.metres is not None and coarsest is not None and own.metres <= coarsest
    return tuple(dict.fromkeys((own.name, "mm", "kitti") if fine else ("mm", "kitti")))


def guess_unit(values: NDArray[Any], invalid_from: float, *, arbitrary: bool = False) -> Unit:
    """The most likely unit of stored numbers; `guessed`, with a note, unless they are plausible metres.

    0, negative numbers, NaN, inf and numbers from `invalid_from` on are missing. An `arbitrary` unit is that of a
    reconstruction, which cannot be guessed from the numbers.
    """
    if arbitrary:
        advice = f"set {param('unit')} to the metres per unit if that is wrong"
        return _guessed("m", f"COLMAP depth has the unit of its reconstruction, assumed to be m; {advice}.")
    found = values[np.isfinite(values) & (values > 0) & (values < invalid_from)]
    integer = values.dtype.kind in "iu"
    if found.size == 0:
        if not integer:
            return Unit("m", 1.0)
        return _guessed("mm", f"unit assumed to be mm, as no pixel is measured; {_ADVICE}.")
    low, median, high = np.percentile(found[:: max(1, found.size // _SAMPLES)].astype(np.float64), (1, 50, 99))

    if integer:
        coverage = found.size / values.size
        unit, reason = "mm", "the usual unit of depth cameras"
        if high > _CAMERA_REACH and coverage < _SPARSE_COVERAGE and median <= _LIDAR_MEDIAN:
            unit, reason = "kitti", "the map is sparse and would reach beyond 12 m in mm, as LiDAR maps in 1/256 m do"
        elif high > _CAMERA_REACH and coverage >= _SPARSE_COVERAGE and median > _KINECT_MEDIAN:
            unit, reason = "tum", "the map is dense and mostly beyond 5 m in mm, as maps in 1/5000 m are"
    elif median > _FAR_MEDIAN:
        unit, reason = "mm", f"in metres half of the pixels would lie beyond {median:.4g} m"
    elif median < _NEAR_MEDIAN:
        unit, reason = "m", f"although half of the pixels lie within {median:.2g} m: is this relative depth?"
    else:
        return Unit("m", 1.0)
    metres = UNITS[unit] or 1.0
    span = f"{low * metres:.3g} to {high * metres:.3g} m"
    return _guessed(unit, f"unit guessed as {unit} ({reason}), which gives {span}; {_ADVICE}.")


def _guessed(name: str, text: str) -> Unit:
    return Unit(name, UNITS[name], Note(NoteKind.UNIT_GUESSED, text))


def scale_depth(values: NDArray[Any], factor: float, invalid_from: float = math.inf) -> NDArray[np.float32]:
    """`factor` times `values` as float32, NaN where they are not positive, not finite, or at least `invalid_from`."""
    with np.errstate(all="ignore"):  # a damaged file may hold any bit pattern; values that overflow are missing
        missing = ~(values > 0) | (values >= invalid_from)
        product = values if factor == 1.0 else values.astype(np.float64) * factor
        depth = np.array(product, dtype=np.float32, order="C")
    depth[missing | ~np.isfinite(depth) | (depth == 0)] = np.nan
    return depth


def decode_log(codes: NDArray[np.uint16], near: float, far: float) -> NDArray[np.float32]:
    """Log-coded depth: near^(1-t) far^t with t = (code - 1) / 65533; 0 (unknown) and 65535 (infinite) become NaN."""
    t = (np.arange(65536, dtype=np.float64) - 1) / 65533
    table = np.exp((1 - t) * math.log(near) + t * math.log(far)).astype(np.float32)
    table[[0, 65535]] = np.nan
    return table[codes]


def encode_log(depth: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float, float]:
    """The log code of `depth` (NaN becomes 0), and the near and far distance that it is relative to."""
    found = depth[np.isfinite(depth)].astype(np.float64)
    near = float(found.min(initial=np.inf)) if found.size else 1.0
    # A constant map still needs a range to divide by.
    far = max(float(found.max(initial=0.0)), near * 1.1)
    codes = np.zeros(depth.shape, dtype=np.uint16)
    codes[np.isfinite(depth)] = 1 + np.rint(np.log(found / near) / math.log(far / near) * 65533)
    return codes, near, far


def encode_counts(depth: NDArray[np.float32], unit: Unit, metres: float) -> NDArray[np.uint16]:
    """Depth in 16-bit counts, rounded to nearest; NaN becomes 0."""
    counts = np.rint(np.nan_to_num(depth.astype(np.float64), nan=0.0) / metres)
    if counts.max(initial=0.0) > MAX_COUNT:
        largest = float(np.nanmax(depth))
        fitting = [name for name in ("mm", "kitti", "cm") if largest <= (UNITS[name] or 0.0) * MAX_COUNT]
        advice = f"unit {fitting[0]!r} or " if fitting else ""
        doubt = " Is the unit of the measurements right?" if largest > FARTHEST else ""
        raise InputError(
            f"the depth reaches {largest:.6g} m, but 16 bits in unit {unit.name!r} end at {MAX_COUNT * metres:.6g} m."
            f"{doubt} Use {advice}a float format such as .npy."
        )
    return counts.astype(np.uint16)


def parse_log_range(path: object, info: Mapping[Any, Any]) -> tuple[float, float] | None:
    """Near and far in metres from the text chunks of a log-coded PNG; None if it has none."""
    if "near" not in info or "far" not in info:
        return None
    try:
        scale = float(info.get("unit", 1.0))  # older files of this kind scale both ends
        near, far = float(info["near"]) * scale, float(info["far"]) * scale
    except (TypeError, ValueError):
        near = far = math.nan
    if not 0 < near <= far < math.inf:
        raise FileError(f"{path}: the text chunks near={info['near']!r} and far={info['far']!r} are no range.")
    return near, far
