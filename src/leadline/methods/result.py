"""What every method returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MethodResult:
    """A prediction and how it came about."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    status: str = "ok"  # for a person to read; nothing depends on its words
    seconds: float = math.nan  # wall clock; `run_method` measures it for a method that leaves it NaN
    parameters: dict[str, float] = field(default_factory=dict)  # what the method estimated or counted
    versions: dict[str, str] = field(default_factory=dict)  # of software outside leadline, e.g. {"ldcm commit": "3fab"}
    failed: bool = False  # True if no pixel was predicted because of the reason in `status`


def failure(shape: tuple[int, int], reason: str, versions: dict[str, str] | None = None) -> MethodResult:
    """The result of a method that predicts nothing.

    Examples
    --------
    >>> failure((1, 2), "no usable measurement")
    MethodResult(depth=array([[nan, nan]], dtype=float32), status='failed: no usable measurement', ...)
    """
    empty = np.full(shape, np.nan, np.float32)
    return MethodResult(empty, f"failed: {reason}", versions=versions or {}, failed=True)


def pixel_status(unusable: int, pixels: int) -> str:
    """The status of a prediction of which that many pixels came out non-positive or infinite, and so are NaN.

    Examples
    --------
    >>> pixel_status(0, 12), pixel_status(3, 12)
    ('ok', 'ok, but 3 of 12 pixels came out non-positive or infinite')
    """
    return f"ok, but {unusable} of {pixels} pixels came out non-positive or infinite" if unusable else "ok"
