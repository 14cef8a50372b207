"""The dense relative depth that a network predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError, param, require_choice
from leadline.geometry.cameras import Camera

PriorKind = Literal["depth", "disparity", "log_depth"]
PriorKindOrAuto = Literal["depth", "disparity", "log_depth", "auto"]

MAX_RANKED = 10_000
"""Pairs whose ranks are compared: many more than the sign of a correlation needs."""


@dataclass(frozen=True)
class Prior:
    """A dense monocular prediction, with the meaning of its values.

    Parameters
    ----------
    values : (H, W) array, float32 or float64
        Prediction of a network, on any scale.
    kind : {"depth", "disparity", "log_depth", "auto"}
        Whether larger values are farther (depth, log depth) or nearer (disparity, i.e. inverse depth). With "auto" it
        is depth or disparity, by the sign of the rank correlation with the measurements.
    valid : (H, W) bool array, optional
        False where the prediction must not be used, e.g. sky. NaN, inf and non-positive depths are invalid in any
        case.
    floor : float
        For disparity only, also if "auto" finds one. Networks with an unknown shift return zero or less for far pixels,
        where 1/d is not a depth. With ``floor=f > 0`` disparities below ``f`` times the largest one are raised to that
        value; with 0, the default, pixels with d <= 0 are invalid.
    camera : Camera, optional
        The camera that the network predicted, if it predicts one. The method does not use it.

    Examples
    --------
    >>> Prior(np.array([[2.0, 4.0]]), kind="disparity").depth()
    array([[0.5 , 0.25]])
    """

    values: FloatArray
    kind: PriorKindOrAuto = "depth"
    valid: BoolArray | None = None
    floor: float = 0.0
    camera: Camera | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_map(self.values, "prior"))
        require_choice("prior.kind", self.kind, PriorKindOrAuto)
        if self.valid is not None:
            object.__setattr__(self, "valid", as_mask(self.valid, "valid", self.values.shape))
        if not 0.0 <= self.floor < 1.0:
            raise InputError(
                f"{param('prior.floor')} must be at least 0 and below 1, a fraction of the largest disparity, "
                f"got {self.floor!r}."
            )
        if self.floor and self.kind not in ("disparity", "auto"):
            raise InputError(f"{param('prior.floor')} needs {param('prior.kind', 'disparity')}, got {self.kind!r}.")
        if self.camera is not None and (self.camera.height, self.camera.width) != self.values.shape:
            raise InputError(
                f"{param('prior.camera')} must have the prior's size {self.values.shape[::-1]}, got {self.camera}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape  # type: ignore[return-value]

    def resolved(self, sparse: FloatArray, measured: BoolArray) -> Prior:
        """This prior with its kind decided by measurements, if it is "auto"; else this prior.

        The kind is disparity if the values fall where the measured depth rises. Values that are not positive do not
        take part, because they have no depth or disparity. `sparse` and `measured`, the pixels that count, have the
        prior's shape.

        Examples
        --------
        >>> prior = Prior(np.array([[8.0, 4.0, 2.0]]), kind="auto")
        >>> prior.resolved(np.array([[1.0, 0.0, 5.0]]), np.array([[True, False, True]])).kind
        'disparity'
        """
        if self.kind != "auto":
            return self
        both = measured & (self.values > 0) & (self.values < np.inf)
        both = both if self.valid is None else both & self.valid
        nearer_is_larger = rank_correlation(self.values[both], sparse[both]) < 0
        kind: PriorKind = "disparity" if nearer_is_larger else "depth"
        return replace(self, kind=kind, floor=self.floor if nearer_is_larger else 0.0)

    def depth(self) -> FloatArray:
        """Relative depth h, (H, W), NaN where the prior is invalid by its mask."""
        if self.kind == "auto":
            raise InputError(
                f"{param('prior.kind', 'auto')} needs measurements to decide what the prior is; use `Prior.resolved`, "
                "or state the kind."
            )
        values = self.values
        if self.kind == "depth" and self.valid is None:
            return values  # `check_inputs` decides which values are valid
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.kind == "disparity":
                usable = np.isfinite(values)
                floor = self.floor * float(values[usable].max(initial=0.0))
                depth: FloatArray = 1.0 / np.where(usable & (values < floor), values.dtype.type(floor), values)
            else:
                depth = np.exp(values) if self.kind == "log_depth" else values
        return depth if self.valid is None else np.where(self.valid, depth, values.dtype.type(np.nan))


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's correlation of two (n,) arrays, of at most a few thousand pairs of them; 0 if it is not defined."""
    from scipy.stats import rankdata

    step = -(-first.size // MAX_RANKED) or 1
    x, y = (rankdata(values[::step]) for values in (first, second))
    x, y = x - x.mean() if x.size else x, y - y.mean() if y.size else y
    norm = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / norm if norm > 0 else 0.0
