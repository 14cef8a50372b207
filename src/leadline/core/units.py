"""Named units of depth, in metres."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from leadline.base.errors import InputError, param

_LARGEST = 1e6  # metres per count: beyond it depths overflow in single precision, and no sensor is meant

METRES_PER_UNIT: Mapping[str, float] = MappingProxyType(
    {
        "mm": 1e-3,
        "cm": 1e-2,
        "m": 1.0,
        "kitti": 1.0 / 256.0,
        "tum": 1.0 / 5000.0,
        "vkitti": 1e-2,
        "ibims": 50.0 / 65535.0,
    }
)
"""Metres per count of each named unit."""


def metres_per_unit(unit: str | float) -> float:
    """Metres per count of a unit: a name from `METRES_PER_UNIT`, or the number itself, e.g. 0.00025 or "0.00025 m".

    Examples
    --------
    >>> metres_per_unit("mm"), metres_per_unit("0.00025 m"), metres_per_unit(2)
    (0.001, 0.00025, 2.0)
    """
    if isinstance(unit, str) and unit.strip().lower() in METRES_PER_UNIT:
        return METRES_PER_UNIT[unit.strip().lower()]
    try:
        # Such a unit is recorded as "0.00025 m", so that is accepted, too.
        metres = float(unit.strip().removesuffix("m")) if isinstance(unit, str) else float(unit)
    except (TypeError, ValueError):
        metres = math.nan
    if not 0 < metres <= _LARGEST or isinstance(unit, bool):
        raise InputError(
            f"{param('unit')} must be one of {', '.join(METRES_PER_UNIT)}, or metres per count as a positive number of "
            f"at most {_LARGEST:g}, got {unit!r} instead."
        )
    return metres
