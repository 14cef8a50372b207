"""Joint bilateral upsampling and guided filtering of the measurements.

- `joint_bilateral`: Kopf et al. 2007, *Joint Bilateral Upsampling*: at every pixel the mean of the measurements
  around it with weights that fall with their distance in the image and in colour. The original upsamples a regular
  grid; here the neighbours are the nearest measurements, and the width is the mean distance between measurements.
- `guided_filter`: He, Sun and Tang 2010, *Guided Image Filtering*: a line in the guide, depth = a guide + b, in every
  square window, fitted to the measurements in it, and a and b averaged over the windows that contain a pixel. The
  guide is the image's luminance, or the prior.

Both are written from the papers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import require_choice, require_count, require_positive
from leadline.core.prior import Prior
from leadline.methods import MethodResult, relative_depth
from leadline.methods.classical.fields import Interpolated, Quantity, grey_image, interpolate, pixel_places, unit_image

Guide = Literal["image", "prior"]
_Floats = NDArray[np.float64]

ROWS = 64  # rows of the image that are filtered at once, which bounds the memory
FEWEST = 8  # measurements in a window of the guided filter; with fewer the window is enlarged


def joint_bilateral(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    quantity: Quantity = "depth",
    neighbours: int = 24,
    width: float = 0.5,
    colour: float = 0.1,
) -> MethodResult:
    """The mean of the nearest measurements, weighted by distance and by difference in colour.

    Measured depths are not restored. Some 2 s at 640 x 480.

    Parameters
    ----------
    quantity : {"depth", "residual"}
        What is averaged: the depth, without the prior, or its log ratio to the aligned prior.
    neighbours : int
        Number of measurements at each pixel.
    width : float
        Standard deviation in the image, relative to the mean distance between measurements.
    colour : float
        Standard deviation of the difference in colour, with channels in [0, 1].
    """
    require_positive(width=width, colour=colour)
    require_count(neighbours=neighbours)
    colours = unit_image(image, prior.shape)

    def fill(values: _Floats, known: BoolArray) -> Interpolated:
        from scipy.spatial import cKDTree

        points = np.argwhere(known)
        found, found_colours = values[known], colours[known]
        sigma = width * np.sqrt(known.size / len(points))
        tree, used = cKDTree(points), min(neighbours, len(points))
        out = np.empty(known.shape)
        for top in range(0, known.shape[0], ROWS):
            strip = np.s_[top : top + ROWS]
            places = pixel_places(top, out[strip].shape)
            distances, at = tree.query(places, k=list(range(1, used + 1)))
            differences = ((colours[strip].reshape(-1, 1, 3) - found_colours[at]) ** 2).sum(axis=-1)
            exponents = -(distances**2) / (2 * sigma**2) - differences / (2 * colour**2)
            # The largest weight becomes 1, so that far from all measurements no sum of weights is zero.
            weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
            out[strip] = ((weights * found[at]).sum(axis=1) / weights.sum(axis=1)).reshape(out[strip].shape)
        return Interpolated(out)

    return interpolate(prior, sparse, quantity, fill, restore=False)


def guided_filter(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    quantity: Quantity = "depth",
    guide: Guide = "image",
    radius: float = 1.5,
    regularisation: float = 1e-3,
) -> MethodResult:
    """Lines in the guide in square windows, averaged. Measured depths are not restored. Some 0.3 s at 640 x 480.

    A window with fewer than eight measurements is enlarged to twice its radius until it has them, or covers the image.

    Parameters
    ----------
    quantity : {"depth", "residual"}
        What is filtered: the depth, or its log ratio to the aligned prior.
    guide : {"image", "prior"}
        The luminance of the image, or the prior's depth scaled to [0, 1].
    radius : float
        Half the side of a window, relative to the mean distance between measurements.
    regularisation : float
        Added to the variance of the guide in a window; the guide is in [0, 1].
    """
    require_choice("guide", guide, Guide)
    require_positive(radius=radius, regularisation=regularisation)
    steering = grey_image(image, prior.shape)
    if guide == "prior":
        relative = relative_depth(prior)
        low, high = (np.nanmin(relative), np.nanmax(relative)) if np.isfinite(relative).any() else (0.0, 1.0)
        steering = (relative - low) / (high - low if high > low else 1.0)

    def fill(values: _Floats, known: BoolArray) -> Interpolated:
        used = known & np.isfinite(steering)
        if not used.any():
            return Interpolated(np.full(known.shape, np.nan))
        g = np.where(used, steering, 0.0)
        v = np.where(used, values, 0.0)
        tables = [_running_sums(part) for part in (used, g, v, g * g, g * v)]
        first = max(1, round(radius * np.sqrt(known.size / np.count_nonzero(used))))
        gain, offset = np.full(known.shape, np.nan), np.full(known.shape, np.nan)
        reach = first
        while np.isnan(gain).any():
            count, g_sum, v_sum, gg_sum, gv_sum = (_window_sums(table, reach) for table in tables)
            covers = reach >= max(known.shape)
            ready = np.isnan(gain) & ((count >= FEWEST - 0.5) | covers)
            with np.errstate(divide="ignore", invalid="ignore"):
                g_mean, v_mean = g_sum / count, v_sum / count
                slope = (gv_sum / count - g_mean * v_mean) / (gg_sum / count - g_mean**2 + regularisation)
            gain[ready] = slope[ready]
            offset[ready] = (v_mean - slope * g_mean)[ready]
            reach *= 2
        pixels = _window_sums(_running_sums(np.ones(known.shape)), first)
        a, b = (_window_sums(_running_sums(part), first) / pixels for part in (gain, offset))
        return Interpolated(a * steering + b)

    return interpolate(prior, sparse, quantity, fill, restore=False)


def _running_sums(values: FloatArray | BoolArray) -> _Floats:
    return np.pad(np.cumsum(np.cumsum(values, axis=0, dtype=np.float64), axis=1), ((1, 0), (1, 0)))


def _window_sums(table: _Floats, reach: int) -> _Floats:
    """Sums over the square of pixels within `reach` of each pixel along both axes, cut off at the border."""
    (top, bottom), (left, right) = (
        (np.maximum(np.arange(side - 1) - reach, 0), np.minimum(np.arange(side - 1) + reach + 1, side - 1))
        for side in table.shape
    )
    return (
        table[np.ix_(bottom, right)]
        - table[np.ix_(top, right)]
        - table[np.ix_(bottom, left)]
        + table[np.ix_(top, left)]
    )
