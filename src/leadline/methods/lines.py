"""One line for the whole image, in a coordinate of depth: what the global fits share.

A line y = gain x + offset is fitted between coordinate(h) and coordinate(s) at the measured pixels, and inverted at
every valid pixel of the prior. The fits differ in how they estimate the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import require_choice
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status, relative_depth

Undefined = Literal["fail", "drop"]
_Floats = NDArray[np.float64]
_Function = Callable[[_Floats], _Floats]


@dataclass(frozen=True)
class Coordinate:
    """A function of depth and its inverse."""

    forward: _Function
    inverse: _Function


DEPTH = Coordinate(np.positive, np.positive)
DISPARITY = Coordinate(np.reciprocal, np.reciprocal)
LOG_DEPTH = Coordinate(np.log, np.exp)


@dataclass(frozen=True)
class Line:
    """y = gain (x - x_mean) + y_mean. The means avoid the cancellation that a large offset would cause."""

    gain: float
    x_mean: float = 0.0
    y_mean: float = 0.0
    parameters: Mapping[str, float] = field(default_factory=dict)  # what else the fit has to report

    @property
    def offset(self) -> float:
        return self.y_mean - self.gain * self.x_mean


def least_squares_line(x: _Floats, y: _Floats) -> Line | None:
    """The line by least squares; None if fewer than two values of x differ."""
    if x.size < 2 or not np.ptp(x) > 0:
        return None
    # Sums are used instead of @, whose last digits depend on the number of threads.
    x_mean, y_mean = float(x.mean()), float(y.mean())
    gain = float(((x - x_mean) * (y - y_mean)).sum() / ((x - x_mean) ** 2).sum())
    return Line(gain, x_mean, y_mean)


def fit_line(
    prior: Prior,
    sparse: FloatArray,
    coordinate: Coordinate,
    fit: Callable[[_Floats, _Floats], Line | str | None],
    undefined: Undefined,
) -> MethodResult:
    """The prior through the line that `fit` finds between coordinate(h) and coordinate(s).

    The method fails, with the reason in its status, if the two coefficients are not determined (fewer than two
    measurements, or the same prior at all of them) or `fit` returns a reason, if the gain is not positive (eq:affine
    requires alpha > 0), or if the inverse is not a finite positive depth at every valid pixel of the prior. The paper
    reports such images as failures; it does not define them, and these two conditions are our reading.

    With ``undefined="drop"`` the last two are no failures: any gain is accepted, and a pixel whose depth is not finite
    and positive is NaN and counted in the status.
    """
    require_choice("undefined", undefined, Undefined)
    relative = relative_depth(prior)
    known = np.isfinite(relative)
    paired = measured_pixels(prior, sparse) & known
    x, y = coordinate.forward(relative[paired]), coordinate.forward(np.asarray(sparse)[paired].astype(np.float64))
    if x.size < 2:
        return failure(prior.shape, "fewer than two usable measurements")
    if not np.ptp(x) > 0:
        return failure(prior.shape, "the prior is constant at the measurements")
    line = fit(x, y)
    if not isinstance(line, Line):
        return failure(prior.shape, line or "the line is not determined")
    parameters = {"gain": line.gain, "offset": line.offset, **line.parameters}
    if undefined == "fail" and not line.gain > 0:
        # The reasons contain no numbers, so that a benchmark can count them; the parameters have the numbers.
        reason = "the fitted gain is not positive, so the depths would not have the order of the prior"
        return replace(failure(prior.shape, reason), parameters=parameters)
    with np.errstate(divide="ignore", over="ignore"):
        fitted = line.gain * (coordinate.forward(relative[known]) - line.x_mean) + line.y_mean
        values = coordinate.inverse(fitted).astype(np.float32)
    usable = (values > 0) & np.isfinite(values)
    unusable = int(np.count_nonzero(~usable))
    if undefined == "fail" and unusable:
        reason = "the fitted line gives no positive finite depth at some valid pixels of the prior"
        return replace(failure(prior.shape, reason), parameters={**parameters, "undefined": float(unusable)})
    depth = np.full(prior.shape, np.nan, np.float32)
    depth[known] = np.where(usable, values, np.nan)
    return MethodResult(depth, pixel_status(unusable, depth.size), parameters=parameters)
