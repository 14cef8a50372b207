"""What the numbers in a depth file mean in metres, and what to assume when nobody says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError

LOG_CODED = "moge-log"

UNITS: Mapping[str, float | None] = MappingProxyType(
    {
        "mm": 1e-3,
        "cm": 1e-2,
        "m": 1.0,
        "kitti": 1.0 / 256.0,
        "tum": 1.0 / 5000.0,
        "vkitti": 1e-2,
        "ibims": 50.0 / 65535.0,
        LOG_CODED: None,
    }
)
"""Named units and their metres per count; None for the one code that is not linear."""

LARGEST_CODE = 65534
"""Of a linear 16-bit map. 65535 is a full counter (sky, "no return"), not a distance, and is read as missing."""

# Statistics for a guess come from about this many valid pixels: enough for a percentile, cheap on any image.
_SAMPLES = 65536

# A guess of the unit of integer depth. Consumer depth cameras write millimetres and end near 10 m, so
# millimetres it is unless the 99th percentile lies beyond 12 000, i.e. 12 m. Then two codes explain it better:
# a sparse map with a nearer median is a projected LiDAR sweep in 1/256 m (7 to 31 m where mm would say 2 to 8 m);
# a dense map with a median above 5 m in mm is a Kinect-class map in 1/5000 m (1 m and more).
_BEYOND_CAMERAS = 12_000
_SPARSE_COVERAGE = 1 / 3
_LIDAR_MEDIAN = 8_000
_KINECT_MEDIAN = 5_000

# Floats are metres. A median beyond 200 m is not seen by any depth sensor this reads, while 200 mm is; below
# 1 cm the numbers are rather relative or normalised depth.
_FAR_MEDIAN = 200.0
_NEAR_MEDIAN = 0.01

_CHANGE = "pass --unit (in Python: unit=) if that is wrong"


@dataclass(frozen=True)
class Unit:
    """A resolved unit: its name as recorded, and metres per count (None: log-coded)."""

    name: str
    metres: float | None
    guessed: bool = False
    note: str = ""


def as_unit(unit: str | float) -> Unit:
    """`unit` by name, or as metres per count.

    Raises
    ------
    InputError
        Neither a known name nor a positive finite number.

    Examples
    --------
    >>> as_unit("kitti").metres
    0.00390625
    >>> as_unit("0.00025").name
    '0.00025 m'
    """
    if isinstance(unit, str) and unit.strip().lower() in UNITS:
        name = unit.strip().lower()
        return Unit(name, UNITS[name])
    try:
        # "0.00025 m" is how such a unit is recorded, so it is read back too.
        metres = float(unit.strip().removesuffix("m")) if isinstance(unit, str) else float(unit)
    except (TypeError, ValueError):
        metres = math.nan
    if not (metres > 0 and math.isfinite(metres)) or isinstance(unit, bool):
        raise InputError(
            f"`unit` must be one of {', '.join(UNITS)}, or metres per count as a positive number, got {unit!r} instead."
        )
    return Unit(f"{metres:g} m", metres)


def guess_unit(values: NDArray[Any], ceiling: float) -> Unit:
    """The likeliest unit of raw depth, with a note wherever that is more than reading metres as metres.

    Parameters
    ----------
    values : (H, W) array, integer or float
        Raw numbers; 0, negative, NaN and inf count as missing.
    ceiling : float
        Numbers from here on count as missing too.
    """
    found = values[np.isfinite(values) & (values > 0) & (values < ceiling)]
    integer = values.dtype.kind in "iu"
    if found.size == 0:
        if not integer:
            return Unit("m", 1.0)
        return Unit("mm", 1e-3, True, f"unit assumed to be mm, as no pixel is measured; {_CHANGE}.")
    low, median, high = np.percentile(found[:: max(1, found.size // _SAMPLES)].astype(np.float64), (1, 50, 99))

    if integer:
        coverage = found.size / values.size
        unit, reason = "mm", "the usual unit of depth cameras"
        if high > _BEYOND_CAMERAS and coverage < _SPARSE_COVERAGE and median <= _LIDAR_MEDIAN:
            unit, reason = "kitti", "sparse and reaching beyond 12 m if it were mm, as LiDAR maps in 1/256 m do"
        elif high > _BEYOND_CAMERAS and coverage >= _SPARSE_COVERAGE and median > _KINECT_MEDIAN:
            unit, reason = "tum", "dense and mostly beyond 5 m if it were mm, as maps in 1/5000 m are"
    elif median > _FAR_MEDIAN:
        unit, reason = "mm", f"as metres half of it would lie beyond {median:.4g} m"
    elif median < _NEAR_MEDIAN:
        unit, reason = "m", f"though half of it lies within {median:.2g} m: is this relative depth?"
    else:
        return Unit("m", 1.0)
    metres = UNITS[unit] or 1.0
    span = f"{low * metres:.3g} to {high * metres:.3g} m"
    return Unit(unit, metres, True, f"unit guessed as {unit} ({reason}), which gives {span}; {_CHANGE}.")


def scaled(values: NDArray[Any], factor: float, ceiling: float = math.inf) -> NDArray[np.float32]:
    """`factor` times `values` as float32, NaN where they are not positive, not finite, or from `ceiling` on."""
    with np.errstate(all="ignore"):  # a corrupt file may hold any bit pattern: what overflows is missing
        missing = ~(values > 0) | (values >= ceiling)
        product = values if factor == 1.0 else values.astype(np.float64) * factor
        depth = np.array(product, dtype=np.float32, order="C")
    depth[missing | ~np.isfinite(depth) | (depth == 0)] = np.nan
    return depth


def from_codes(codes: NDArray[np.uint16], near: float, far: float) -> NDArray[np.float32]:
    """Log-coded depth: near^(1-t) far^t with t = (code - 1) / 65533; 0 (unknown) and 65535 (infinite) become NaN."""
    share = (np.arange(65536, dtype=np.float64) - 1) / 65533
    table = np.exp((1 - share) * math.log(near) + share * math.log(far)).astype(np.float32)
    table[[0, 65535]] = np.nan
    return table[codes]


def to_codes(depth: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float, float]:
    """The log code of `depth` (NaN becomes 0), and the near and far it is relative to."""
    found = depth[np.isfinite(depth)].astype(np.float64)
    near = float(found.min(initial=np.inf)) if found.size else 1.0
    # A constant map still needs a range to divide by.
    far = max(float(found.max(initial=0.0)), near * 1.1)
    codes = np.zeros(depth.shape, dtype=np.uint16)
    codes[np.isfinite(depth)] = 1 + np.rint(np.log(found / near) / math.log(far / near) * 65533)
    return codes, near, far


def to_counts(depth: NDArray[np.float32], unit: Unit, metres: float) -> NDArray[np.uint16]:
    """Depth in 16-bit counts, rounded to nearest; NaN, and what rounds to 0, become 0.

    Raises
    ------
    InputError
        A depth does not fit into 16 bits.
    """
    counts = np.rint(np.nan_to_num(depth.astype(np.float64), nan=0.0) / metres)
    if counts.max(initial=0.0) > LARGEST_CODE:
        largest = float(np.nanmax(depth))
        fitting = [name for name in ("mm", "kitti", "cm", "m") if largest <= (UNITS[name] or 0.0) * LARGEST_CODE]
        advice = f"unit {fitting[0]!r} or " if fitting else ""
        raise InputError(
            f"`depth` reaches {largest:.6g} m, but 16 bits in unit {unit.name!r} end at {LARGEST_CODE * metres:.6g} m. "
            f"Use {advice}a float form such as .npy."
        )
    return counts.astype(np.uint16)


def log_range(path: object, info: Mapping[Any, Any]) -> tuple[float, float] | None:
    """Near and far in metres as a log-coded PNG states them in its text chunks; None where it states none."""
    if "near" not in info or "far" not in info:
        return None
    try:
        scale = float(info.get("unit", 1.0))  # older files of this kind scale both ends
        near, far = float(info["near"]) * scale, float(info["far"]) * scale
    except (TypeError, ValueError):
        near = far = math.nan
    if not 0 < near <= far < math.inf:
        raise FileError(f"{path}: its text chunks near={info['near']!r} and far={info['far']!r} are no range of depth.")
    return near, far
