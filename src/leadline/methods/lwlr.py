"""A line in depth that changes slowly over the image: locally weighted linear regression (LWLR).

At each node of a 24 by 24 grid, with h_i and s_i the prior's and the measured depth and d_i the distance between
measurement i and the node,

    min over a, b of  sum_i w_i (a h_i + b - s_i)^2,    w_i = exp(-d_i^2 / (2 sigma^2)),    sigma = 0.1 max(H, W).

The two coefficients are interpolated bilinearly between the nodes, and depth = a h + b. Choices the paper leaves open:
the outermost nodes lie on the outermost pixels, so that nothing is extrapolated; the weights multiply the squared
residuals; nothing is regularised; a node at which the prior is the same for all measurements keeps a scale and drops
the offset; measured depths are not restored.

The Gaussian is a product of one in rows and one in columns, so the five sums of a node need n x 24 + H x 24 x 24
steps and not n x 24 x 24. It never underflows: d is at most sqrt(2) max(H, W), where it is exp(-100).
"""

from __future__ import annotations

import time

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.jit import compiled
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.global_fits import measured_pixels, relative_depth

NODES = 24
WIDTH = 0.1  # sigma, as a share of the image's longer side
# A node's variance is a difference of moments and keeps some 14 of their digits; and a spread below 1e-6 of the value
# is the rounding of a float32 prior. Both are shares of squares.
SPREAD = 1e-12

_Floats = NDArray[np.float64]


def lwlr(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Depth from affine maps of depth, fitted on a 24 by 24 grid with Gaussian weights and interpolated.

    A pixel whose depth comes out non-positive has failed: it is NaN and counted. Without a measurement at a usable
    pixel of the prior every pixel fails; a single one gives a scale.

    Parameters
    ----------
    prior : Prior
        Relative depth, (H, W).
    sparse : (H, W) array
        Metres; 0, NaN and inf mean "not measured".

    Returns
    -------
    MethodResult
        Its `parameters` count the nodes without an offset (`scale_only`) and the `failed` pixels.

    Examples
    --------
    >>> lwlr(Prior(np.array([[1.0, 2.0, 4.0, 5.0]])), np.array([[3.0, 5.0, 9.0, 0.0]])).depth
    array([[ 3.,  5.,  9., 11.]], dtype=float32)
    """
    begun = time.perf_counter()
    relative = relative_depth(prior)
    at = np.flatnonzero(measured_pixels(prior, sparse) & np.isfinite(relative))
    depth = np.full(prior.shape, np.nan, np.float32)
    if not at.size:
        return MethodResult(depth, "failed: no usable measurement", time.perf_counter() - begun, {})
    gain, offset, scale_only = _coefficients(
        at, prior.shape, relative.ravel()[at], np.asarray(sparse).ravel()[at].astype(np.float64)
    )
    failed = np.zeros(prior.shape[0], np.int64)
    _apply(relative, gain, offset, depth, failed)
    total = int(failed.sum())
    status = f"ok, but {total} of {depth.size} pixels came out non-positive or infinite" if total else "ok"
    parameters = {"scale_only": float(scale_only), "failed": float(total)}
    return MethodResult(depth, status, time.perf_counter() - begun, parameters)


def _coefficients(at: NDArray[np.intp], shape: tuple[int, int], h: _Floats, s: _Floats) -> tuple[_Floats, _Floats, int]:
    """Gain and offset at every node, (24, 24) each, and the number of nodes without an offset."""
    height, width = shape
    sigma = WIDTH * max(shape)
    in_rows, in_columns = (
        np.exp(-0.5 * ((np.linspace(0, size - 1, NODES)[:, None] - np.arange(size)) / sigma) ** 2) for size in shape
    )
    # Around the means of all measurements, which takes most of the cancellation out of the moments.
    h_middle, s_middle = float(h.mean()), float(s.mean())
    row_starts = np.searchsorted(at, np.arange(height + 1) * width)
    sums = np.zeros((NODES, NODES, 5))
    _moments(at % width, row_starts, h - h_middle, s - s_middle, in_rows, np.ascontiguousarray(in_columns.T), sums)
    weight = sums[..., 0]
    h_off, s_off, hh, hs = (sums[..., k] / weight for k in range(1, 5))
    variance, covariance = hh - h_off**2, hs - h_off * s_off
    h_mean, s_mean = h_middle + h_off, s_middle + s_off
    determined = variance > SPREAD * (h_mean**2 + hh)
    # With a spread that does not count, sum w h s / sum w h^2 is the ratio of the means.
    gain = np.where(determined, covariance / np.where(determined, variance, 1.0), s_mean / h_mean)
    offset = np.where(determined, s_mean - gain * h_mean, 0.0)
    return gain, offset, int(np.count_nonzero(~determined))


@compiled(parallel=True)
def _moments(
    columns: NDArray[np.intp],
    row_starts: NDArray[np.intp],
    h: _Floats,
    s: _Floats,
    in_rows: _Floats,
    in_columns: _Floats,
    sums: _Floats,
) -> None:
    """Weighted sums of 1, h, s, h^2 and h s at every node; each is added up in one order, whatever the threads."""
    height = in_rows.shape[1]
    nodes = in_rows.shape[0]
    by_row = np.zeros((height, nodes, 5))
    for i in prange(height):
        for k in range(row_starts[i], row_starts[i + 1]):
            for c in range(nodes):
                weight = in_columns[columns[k], c]
                by_row[i, c, 0] += weight
                by_row[i, c, 1] += weight * h[k]
                by_row[i, c, 2] += weight * s[k]
                by_row[i, c, 3] += weight * h[k] * h[k]
                by_row[i, c, 4] += weight * h[k] * s[k]
    for r in prange(nodes):
        for i in range(height):
            for c in range(nodes):
                for m in range(5):
                    sums[r, c, m] += in_rows[r, i] * by_row[i, c, m]


@compiled(parallel=True)
def _apply(
    relative: _Floats, gain: _Floats, offset: _Floats, depth: NDArray[np.float32], failed: NDArray[np.int64]
) -> None:
    height, width = relative.shape
    last = gain.shape[0] - 1
    for i in prange(height):
        place = i * last / max(height - 1, 1)
        r = min(int(place), last - 1)
        share = place - r
        gains = (1 - share) * gain[r] + share * gain[r + 1]
        offsets = (1 - share) * offset[r] + share * offset[r + 1]
        count = 0
        for j in range(width):
            if not np.isfinite(relative[i, j]):
                continue
            across = j * last / max(width - 1, 1)
            c = min(int(across), last - 1)
            part = across - c
            a = (1 - part) * gains[c] + part * gains[c + 1]
            b = (1 - part) * offsets[c] + part * offsets[c + 1]
            metric = np.float32(a * relative[i, j] + b)
            if metric > 0 and np.isfinite(metric):
                depth[i, j] = metric
            else:
                count += 1
        failed[i] = count
