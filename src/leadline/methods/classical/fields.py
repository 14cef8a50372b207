"""What the interpolators of this package interpolate: the measured depth, or its log ratio to the aligned prior.

An interpolator fills a map between scattered values. Applied to the depth itself it is the classical method, which does
not use the prior. Applied to the residual log(s / t), with t the prior aligned to the measurements by one curve for the
image, it completes the prior as `ours` and `poisson` do, so that the interpolator is compared and not the prior.

The curve is a line in disparity, as affine-invariant networks need it. If its gain is not positive, or if it has no
positive depth somewhere on the prior, a line in log depth takes its place, and then a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param, require_choice
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, relative_depth
from leadline.methods.lines import least_squares_line
from leadline.priors import as_image

Quantity = Literal["depth", "residual"]
_Floats = NDArray[np.float64]

NO_MEASUREMENT = "no usable measurement"
_GREY = np.array([0.2989, 0.5870, 0.1140])  # weights of red, green and blue in MATLAB's rgb2gray


class Interpolated(NamedTuple):
    """What an interpolator returns."""

    values: _Floats  # (H, W), NaN where it has no value
    parameters: dict[str, float] = {}  # noqa: RUF012  (never changed)
    remark: str = ""  # for the status
    converged: bool | None = None  # whether its iterations met their tolerance, if it has any


def interpolate(
    prior: Prior,
    sparse: FloatArray,
    quantity: Quantity,
    fill: Callable[[_Floats, BoolArray], Interpolated],
    *,
    restore: bool,
) -> MethodResult:
    """Depth from `fill`, which gets the (H, W) values, 0 where not measured, and the mask of the measured pixels.

    With `restore`, measured depths replace what was interpolated there.
    """
    require_choice("quantity", quantity, Quantity)
    measured = measured_pixels(prior, sparse)
    depths = np.where(measured, sparse, 0.0).astype(np.float64)
    base: _Floats | float = 1.0
    known = measured
    if quantity == "residual":
        relative = relative_depth(prior)
        known = measured & np.isfinite(relative)
    if not known.any():
        return failure(prior.shape, NO_MEASUREMENT)
    values = depths
    if quantity == "residual":
        base = align_prior(relative, depths, known)
        values = np.zeros(prior.shape)
        values[known] = np.log(depths[known] / base[known])
    found = fill(values, known)
    with np.errstate(over="ignore", invalid="ignore"):
        depth = (base * np.exp(found.values) if quantity == "residual" else found.values).astype(np.float32)
        usable = np.isfinite(depth) & (depth > 0)
    depth[~usable] = np.nan
    if restore:
        depth[measured] = np.asarray(sparse)[measured]
    missing = int(np.count_nonzero(np.isnan(depth) & (np.isfinite(base) if quantity == "residual" else True)))
    remarks = [f"{missing} of {depth.size} pixels have no depth"] if missing else []
    remarks += [found.remark] if found.remark else []
    status = f"ok, but {' and '.join(remarks)}" if remarks else "ok"
    return MethodResult(depth, status, parameters=found.parameters, converged=found.converged)


def align_prior(relative: _Floats, depths: _Floats, known: BoolArray) -> _Floats:
    """The prior in metres by one curve for the image, (H, W), positive wherever the prior is.

    A line in disparity, else in log depth, else a scale, as described at the top of this module.
    """
    h, s = relative[known], depths[known]
    line = least_squares_line(1.0 / h, 1.0 / s)
    if line is not None and line.gain > 0:
        with np.errstate(divide="ignore", invalid="ignore"):
            aligned = 1.0 / (line.gain / relative + line.offset)
        usable = np.isfinite(aligned) & (aligned > 0)
        if usable[np.isfinite(relative)].all():
            return aligned
    line = least_squares_line(np.log(h), np.log(s))
    if line is not None and line.gain > 0:
        return np.asarray(np.exp(line.gain * np.log(relative) + line.offset))
    return relative * float(np.median(s / h))


def unit_image(image: NDArray[np.uint8], shape: tuple[int, int]) -> _Floats:
    """The image as (H, W, 3) values in [0, 1]; it must have the prior's shape."""
    checked = as_image(image)
    if checked.shape[:2] != shape:
        raise InputError(f"{param('image')} must have the prior's shape {shape}, got {checked.shape[:2]} instead.")
    return checked.astype(np.float64) / 255.0


def grey_image(image: NDArray[np.uint8], shape: tuple[int, int]) -> _Floats:
    """The luminance of the image in [0, 1], (H, W)."""
    colours = unit_image(image, shape)
    return np.asarray(sum(colours[..., k] * _GREY[k] for k in range(3)))


def nearest_values(values: _Floats, known: BoolArray) -> _Floats:
    """At every pixel the value of the nearest known pixel."""
    from scipy.ndimage import distance_transform_edt

    rows, columns = distance_transform_edt(~known, return_distances=False, return_indices=True)
    return np.asarray(values[rows, columns])


def pixel_places(top: int, shape: tuple[int, ...]) -> _Floats:
    """Row and column of every pixel of a strip of the image that begins at row `top`, (pixels, 2)."""
    rows, columns = np.indices(shape[:2], dtype=np.float64)
    return np.stack(((rows + top).ravel(), columns.ravel()), axis=1)
