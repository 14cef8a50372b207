"""A line in depth whose coefficients change slowly over the image: locally weighted linear regression (LWLR).

At each node of a 24 by 24 grid, with h_i and s_i the prior's and the measured depth and d_i the distance between
measurement i and the node,

    min over a, b of  sum_i w_i (a h_i + b - s_i)^2,    w_i = exp(-d_i^2 / (2 sigma^2)),    sigma = 0.1 max(H, W).

The two coefficients are interpolated bilinearly between the nodes, and depth = a h + b. Choices the paper leaves open:
the outermost nodes lie on the outermost pixels, so that nothing is extrapolated; the weights multiply the squared
residuals; nothing is regularised by default; a node at which the prior is the same for all measurements has a scale and
no offset; measured depths are not restored.

The published code of the regression's authors (Xu et al. 2022) first replaces the prior by its global least-squares fit
g = A h + B and adds ridge * b^2 to each node's sum, with ridge = 1. The option `ridge` does both. Without the ridge the
global fit would change nothing, because affine maps of g are affine maps of h. Not taken over from that code: it drops
measurements 15 % off the global fit, uses some 100 of the others, and has nodes every 32 pixels.

The Gaussian is the product of one in rows and one in columns, so the five sums of all nodes take n x 24 + H x 24 x 24
steps instead of n x 24 x 24. It never underflows: d is at most sqrt(2) max(H, W), where the weight is exp(-100).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.base.jit import parallel_loop
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status, relative_depth

NODES = 24
WIDTH = 0.1  # sigma as a fraction of the image's longer side
# Variance of the prior at a node, relative to its mean square, below which the offset is not determined. The variance
# is a difference of moments with some 14 correct digits, and a float32 prior has a relative rounding error of 1e-7.
SPREAD = 1e-12

_Floats = NDArray[np.float64]


def lwlr(prior: Prior, sparse: FloatArray, *, ridge: float = 0.0) -> MethodResult:
    """Depth from affine maps of depth, fitted on a 24 by 24 grid with Gaussian weights and interpolated.

    A pixel whose depth comes out non-positive is NaN and counted. Without a measurement at a usable pixel of the prior
    the method fails; a single measurement gives a scale. The `parameters` of the result count the nodes without an
    offset (`scale_only`) and the unusable pixels (`failed`).

    Parameters
    ----------
    ridge : float
        Weight of the squared offset at each node, relative to a measurement at the node itself. If it is not 0, the
        prior is first fitted to the measurements globally, so that the offset is one from that fit. The published code
        has 1.
    """
    if not (ridge >= 0 and np.isfinite(ridge)):
        raise InputError(f"{param('ridge')} must be a finite number of at least 0, got {ridge!r} instead.")
    relative = relative_depth(prior)
    at = np.flatnonzero(measured_pixels(prior, sparse) & np.isfinite(relative))
    if not at.size:
        return failure(prior.shape, "no usable measurement")
    depths = np.asarray(sparse).ravel()[at].astype(np.float64)
    if ridge > 0:
        relative = _fit_globally(relative, relative.ravel()[at], depths)
    gain, offset, scale_only = _coefficients(at, prior.shape, relative.ravel()[at], depths, ridge)
    depth = np.full(prior.shape, np.nan, np.float32)
    failed = np.zeros(prior.shape[0], np.int64)
    _apply[len(depth)](relative, gain, offset, depth, failed)
    total = int(failed.sum())
    parameters = {"scale_only": float(scale_only), "failed": float(total)}
    return MethodResult(depth, pixel_status(total, depth.size), parameters=parameters)


def _fit_globally(relative: _Floats, h: _Floats, s: _Floats) -> _Floats:
    """The least-squares fit of s by a line in h, at every pixel; by a scale if h is constant."""
    h_mean, s_mean = float(h.mean()), float(s.mean())
    squares = float(((h - h_mean) ** 2).sum())
    if not squares > SPREAD * h.size * h_mean**2:
        return relative * (s_mean / h_mean)
    gain = float(((h - h_mean) * (s - s_mean)).sum()) / squares
    return s_mean + gain * (relative - h_mean)


def _coefficients(
    at: NDArray[np.intp], shape: tuple[int, int], h: _Floats, s: _Floats, ridge: float
) -> tuple[_Floats, _Floats, int]:
    """Gain and offset at every node, (24, 24) each, and the number of nodes without an offset."""
    height, width = shape
    sigma = WIDTH * max(shape)
    in_rows, in_columns = (
        np.exp(-0.5 * ((np.linspace(0, size - 1, NODES)[:, None] - np.arange(size)) / sigma) ** 2) for size in shape
    )
    # Subtracting the means of all measurements removes most of the cancellation in the moments.
    h_middle, s_middle = float(h.mean()), float(s.mean())
    row_starts = np.searchsorted(at, np.arange(height + 1) * width)
    sums = np.zeros((NODES, NODES, 5))
    by_row = np.zeros((height, NODES, 5))
    columns = at % width, row_starts, h - h_middle, s - s_middle, np.ascontiguousarray(in_columns.T)
    _row_moments[height](*columns, by_row)
    _sum_rows[NODES](in_rows, by_row, sums)
    weight = sums[..., 0]
    h_off, s_off, hh, hs = (sums[..., k] / weight for k in range(1, 5))
    variance, covariance = hh - h_off**2, hs - h_off * s_off
    h_mean, s_mean = h_middle + h_off, s_middle + s_off
    if ridge > 0:
        # With the weights' mean as 1, the ridge is k: b = (s_mean - a h_mean) / (1 + k), and a follows from it.
        k = ridge / weight
        share = k / (1.0 + k)
        gain = (covariance + share * h_mean * s_mean) / (variance + share * h_mean**2)
        return gain, (s_mean - gain * h_mean) / (1.0 + k), 0
    determined = variance > SPREAD * (h_mean**2 + hh)
    # For a prior that is constant at the measurements, sum w h s / sum w h^2 is the ratio of the means.
    gain = np.where(determined, covariance / np.where(determined, variance, 1.0), s_mean / h_mean)
    offset = np.where(determined, s_mean - gain * h_mean, 0.0)
    return gain, offset, int(np.count_nonzero(~determined))


@parallel_loop()
def _row_moments(i, columns, row_starts, h, s, in_columns, by_row):  # type: ignore[no-untyped-def]
    """Sums of 1, h, s, h^2 and h s over the measurements of row i, weighted for every column of nodes."""
    for k in range(row_starts[i], row_starts[i + 1]):
        for c in range(by_row.shape[1]):
            weight = in_columns[columns[k], c]
            by_row[i, c, 0] += weight
            by_row[i, c, 1] += weight * h[k]
            by_row[i, c, 2] += weight * s[k]
            by_row[i, c, 3] += weight * h[k] * h[k]
            by_row[i, c, 4] += weight * h[k] * s[k]


@parallel_loop()
def _sum_rows(r, in_rows, by_row, sums):  # type: ignore[no-untyped-def]
    """The weighted sums over all rows, for row r of nodes."""
    for i in range(in_rows.shape[1]):
        for c in range(sums.shape[1]):
            for m in range(5):
                sums[r, c, m] += in_rows[r, i] * by_row[i, c, m]


@parallel_loop()
def _apply(i, relative, gain, offset, depth, failed):  # type: ignore[no-untyped-def]
    """Fill `depth` with a h + b, the coefficients interpolated bilinearly; `failed` counts unusable pixels per row."""
    height, width = relative.shape
    last = gain.shape[0] - 1
    position = i * last / max(height - 1, 1)
    r = min(int(position), last - 1)
    fraction = position - r
    gains = (1 - fraction) * gain[r] + fraction * gain[r + 1]
    offsets = (1 - fraction) * offset[r] + fraction * offset[r + 1]
    count = 0
    for j in range(width):
        if not np.isfinite(relative[i, j]):
            continue
        column_position = j * last / max(width - 1, 1)
        c = min(int(column_position), last - 1)
        column_fraction = column_position - c
        a = (1 - column_fraction) * gains[c] + column_fraction * gains[c + 1]
        b = (1 - column_fraction) * offsets[c] + column_fraction * offsets[c + 1]
        metric = np.float32(a * relative[i, j] + b)
        if metric > 0 and np.isfinite(metric):
            depth[i, j] = metric
        else:
            count += 1
    failed[i] = count
