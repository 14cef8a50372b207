"""Array types, and the checks that turn a user's argument into one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.errors import InputError

FloatArray = NDArray[np.floating[Any]]


BoolArray = NDArray[np.bool_]


def as_map(values: ArrayLike, name: str) -> FloatArray:
    """`values` as a 2-D float32 or float64 array, not copied where it is one already."""
    if isinstance(values, np.ma.MaskedArray):  # what is masked out is unknown, as NaN is
        values = np.ma.filled(values.astype(np.promote_types(values.dtype, np.float32)), np.nan)
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        hint = " A colour picture? Pass one channel of depth." if array.ndim == 3 else ""
        raise InputError(f"`{name}` must be a non-empty (H, W) array, got shape {array.shape} instead.{hint}")
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "iuf":
        raise InputError(f"`{name}` must hold real numbers, got dtype {array.dtype} instead.")
    return array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)


def as_mask(values: ArrayLike, name: str, shape: tuple[int, ...]) -> BoolArray:
    """`values` as a boolean array of the given shape."""
    array = np.asarray(values)
    if array.shape != shape:
        raise InputError(f"`{name}` must have the prior's shape {shape}, got {array.shape} instead.")
    if array.dtype != np.bool_:
        raise InputError(f"`{name}` must be boolean, got dtype {array.dtype} instead. Compare it first, e.g. mask > 0.")
    return array
