"""A point cloud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError

_COLUMNS = ("intensity", "time", "confidence")


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points, and what is known of each.

    Parameters
    ----------
    points : (N, 3) float32 or float64 array
        x, y, z in metres, in the sensor's or the world's frame.
    intensity, time, confidence : (N,) arrays, optional
        Strength of the return; seconds; larger is more trustworthy.

    Raises
    ------
    InputError
        If the shapes do not fit.
    """

    points: FloatArray
    intensity: FloatArray | None = None
    time: FloatArray | None = None
    confidence: FloatArray | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind not in "iuf":
            raise InputError(f"`points` must be an (N, 3) array of numbers, got {points.dtype} {points.shape} instead.")
        wide = points.dtype != np.float32
        object.__setattr__(self, "points", np.ascontiguousarray(points, np.float64 if wide else np.float32))
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None and np.shape(column) != (len(points),):
                raise InputError(
                    f"`{name}` must have one number for each of {len(points)} points, got {np.shape(column)}."
                )

    def __len__(self) -> int:
        return len(self.points)

    def select(self, kept: BoolArray) -> Cloud:
        """The points where `kept`, (N,) bool, is true."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return Cloud(self.points[kept], **{name: None if c is None else c[kept] for name, c in columns.items()})
