"""Array types, and functions that check a user's argument and convert it to one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.errors import InputError, param

FloatArray = NDArray[np.floating[Any]]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


def as_map(values: ArrayLike, name: str) -> FloatArray:
    """`values` as a 2-D float32 or float64 array, not copied if it is one; leading axes of length 1 are dropped."""
    _refuse_tensors(values, name)
    if isinstance(values, np.ma.MaskedArray):  # masked values are unknown, so they become NaN
        values = np.ma.filled(values.astype(np.promote_types(values.dtype, np.float32)), np.nan)
    array = _without_leading_axes(np.asarray(values))
    if array.ndim != 2 or array.size == 0:
        hint = " A colour picture? Pass one channel of depth." if array.ndim == 3 else ""
        raise InputError(f"{param(name)} must be a non-empty (H, W) array, got shape {array.shape} instead.{hint}")
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "iuf":
        raise InputError(f"{param(name)} must hold real numbers, got dtype {array.dtype} instead.")
    return array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)


def as_mask(values: ArrayLike, name: str, shape: tuple[int, ...]) -> BoolArray:
    """`values` as a boolean array of the given shape. Leading axes of length 1 are dropped."""
    _refuse_tensors(values, name)
    array = _without_leading_axes(np.asarray(values))
    if array.shape != shape:
        raise InputError(f"{param(name)} must have the prior's shape {shape}, got {array.shape} instead.")
    if array.dtype != np.bool_:
        raise InputError(
            f"{param(name)} must be boolean, got dtype {array.dtype} instead. Compare it first, e.g. mask > 0."
        )
    return array


def is_measured(depth: FloatArray) -> BoolArray:
    """Where depth is finite and positive; all other values mean "not measured"."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(depth) & (depth > 0))


def _without_leading_axes(array: NDArray[Any]) -> NDArray[Any]:
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    return array


def _refuse_tensors(values: object, name: str) -> None:
    """NumPy would convert some tensors and fail on others with an error of torch."""
    if type(values).__module__.partition(".")[0] == "torch":
        raise InputError(f"{param(name)} is a torch tensor; use leadline.torch, which takes tensors of any device.")
