"""The dense relative depth that a network predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera

PriorKind = Literal["depth", "disparity", "log_depth"]


@dataclass(frozen=True)
class Prior:
    """A dense monocular prediction, and what its numbers mean.

    Parameters
    ----------
    values : (H, W) array, float32 or float64
        Prediction of the network, on any scale.
    kind : {"depth", "disparity", "log_depth"}
        Whether larger values are farther (depth, log depth) or nearer (disparity, i.e. inverse depth).
    valid : (H, W) bool array, optional
        False where the prediction is not to be used, e.g. sky. NaN, inf and non-positive depth are
        left out in any case.
    floor : float
        For disparity only. Networks with an unknown shift return zero or less for far pixels, whose
        depth 1/d would be infinite. With ``floor=f > 0`` disparities below ``f`` times the largest one
        are raised to it; with 0, the default, such pixels (d <= 0) are left out.
    camera : Camera, optional
        The camera that the network believes in, if it predicts one. The method does not use it.

    Examples
    --------
    >>> Prior(np.array([[2.0, 4.0]]), kind="disparity").depth()
    array([[0.5 , 0.25]])
    """

    values: FloatArray
    kind: PriorKind = "depth"
    valid: BoolArray | None = None
    floor: float = 0.0
    camera: Camera | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_map(self.values, "prior"))
        if self.kind not in get_args(PriorKind):
            raise InputError(f"`kind` must be one of {', '.join(get_args(PriorKind))}, got {self.kind!r} instead.")
        if self.valid is not None:
            object.__setattr__(self, "valid", as_mask(self.valid, "valid", self.values.shape))
        if not 0.0 <= self.floor < 1.0:
            raise InputError(
                f"`floor` must be at least 0 and below 1, a share of the largest disparity, got {self.floor!r}."
            )
        if self.floor and self.kind != "disparity":
            raise InputError(f"`floor` is for kind='disparity' only, got kind={self.kind!r}.")
        if self.camera is not None and (self.camera.height, self.camera.width) != self.values.shape:
            raise InputError(f"`camera` must be of the prior's size {self.values.shape[::-1]}, got {self.camera}.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape  # type: ignore[return-value]

    def depth(self) -> FloatArray:
        """Relative depth h, (H, W), with NaN wherever the prior is not to be used."""
        values = self.values
        if self.kind == "depth" and self.valid is None:
            return values  # validity of each pixel is decided where the values are read
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.kind == "disparity":
                usable = np.isfinite(values)
                floor = self.floor * float(values[usable].max(initial=0.0))
                depth: FloatArray = 1.0 / np.where(usable & (values < floor), values.dtype.type(floor), values)
            else:
                depth = np.exp(values) if self.kind == "log_depth" else values
        return depth if self.valid is None else np.where(self.valid, depth, values.dtype.type(np.nan))
