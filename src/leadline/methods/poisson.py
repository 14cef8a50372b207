"""Log depth whose gradients are the prior's, pulled towards the measurements: the LDCM-style baseline.

The prior is aligned by least squares in depth, t = gain h + offset. At a level of the pyramid, with l = log t and g its
difference along an edge between neighbouring cells, clipped to +-3, the log depth x minimises

    sum over edges (p, q) of (x_q - x_p - g_pq)^2  +  5 sum over measured cells of (x_p - log s_p)^2,

that is (A + 5 M) x = div g + 5 M log s, by plain conjugate gradients to a relative residual of 1e-5. Four levels are
solved, cells of 32, 16, 8 and 4 pixels, each from the coarser one's solution; the last is upsampled to the image.

Choices the paper leaves open
- The four levels *end* at a quarter of the resolution; at most 5000, 2000, 1000 and 500 steps, from the coarsest on.
- Cell k of an axis covers pixels [f k, f (k + 1)), cut off at the border. Its prior and its measurement are the means,
  in metres, of those pixels that are valid; a cell without a valid prior is no part of the graph.
- The weight multiplies the *squared* residual of a measured cell, however many measurements are in it, at all levels.
- "Clamped positive" is t >= a thousandth of the smallest measurement, so that the unit of depth does not matter. For
  the same reason logs are taken relative to the measurements' geometric mean: the tolerance is a share of the
  right-hand side, which would otherwise depend on the unit.
- A prior that is constant at the measurements, or a single one, gives a scale and no offset.
- Upsampling is bilinear in log depth between cell centres, over the valid cells among the four. It serves the initial
  guesses and the result. The coarsest level starts from l.
- A part of the graph without a measurement has the prior's gradients and takes its level from the coarser solution.
- Measured depths are not restored: the penalty is soft.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.jit import SUM, compiled
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.global_fits import gmetric, measured_pixels, relative_depth

FINEST = 4  # pixels of a cell at the last level that is solved
LIMITS = (5000, 2000, 1000, 500)  # steps of conjugate gradients, the coarsest level first
LARGEST_GRADIENT = 3.0  # of log depth between neighbouring cells
OBSERVATION_WEIGHT = 5.0
TOLERANCE = 1e-5
FLOOR = 1e-3  # of the smallest measurement
ROUNDING = 1e-12  # root mean square residual, in log depth, below which only rounding errors are left

_Floats = NDArray[np.float64]


def poisson(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Depth integrated from the aligned prior's log-gradients with soft measurements, at a quarter of the resolution.

    Without a measurement at a usable pixel of the prior every pixel fails. A level that stops at its limit of steps
    is named in the status; its solution is used.

    Parameters
    ----------
    prior : Prior
        Relative depth, (H, W).
    sparse : (H, W) array
        Metres; 0, NaN and inf mean "not measured".

    Returns
    -------
    MethodResult
        Its `parameters` are the alignment's `gain` and `offset`, the number of `clamped` pixels, and `iterations`
        and relative `residual` of the last level.

    Examples
    --------
    >>> result = poisson(Prior(np.full((8, 8), 0.5)), np.diag(np.full(8, 3.0)))
    >>> bool(np.allclose(result.depth, 3.0))
    True
    """
    begun = time.perf_counter()
    relative = relative_depth(prior)
    measured = measured_pixels(prior, sparse)
    known = np.isfinite(relative)
    paired = measured & known
    if not paired.any():
        empty = np.full(prior.shape, np.nan, np.float32)
        return MethodResult(empty, "failed: no usable measurement", time.perf_counter() - begun, {})
    depths = np.where(measured, sparse, 0.0).astype(np.float64)
    gain, offset = _alignment(prior, sparse, relative[paired], depths[paired])
    floor = FLOOR * float(depths[paired].min())
    aligned = gain * relative + offset
    clamped = int(np.count_nonzero(aligned[known] < floor))
    aligned = np.where(known, np.maximum(aligned, floor), 0.0)
    middle = math.exp(float(np.log(depths[paired]).mean()))

    level, iterations, residual, stopped = _solve_levels(aligned / middle, known, depths / middle, measured)
    with np.errstate(over="ignore"):
        depth = (middle * np.exp(_upsample(level, FINEST, known))).astype(np.float32)
    failed = known & ~(np.isfinite(depth) & (depth > 0))
    depth[failed] = np.nan
    remarks = [f"stopped at the limit of steps at cells of {stopped} pixels"] if stopped else []
    if failed.any():
        remarks.append(f"{int(failed.sum())} of {depth.size} pixels came out zero or infinite")
    status = f"ok, but {' and '.join(remarks)}" if remarks else "ok"
    parameters = {
        "gain": gain,
        "offset": offset,
        "clamped": float(clamped),
        "iterations": float(iterations),
        "residual": residual,
    }
    return MethodResult(depth, status, time.perf_counter() - begun, parameters)


def _alignment(prior: Prior, sparse: FloatArray, h: _Floats, s: _Floats) -> tuple[float, float]:
    fitted = gmetric(prior, sparse).parameters
    if fitted:
        return fitted["gain"], fitted["offset"]
    return float(np.sum(h * s) / np.sum(h * h)), 0.0


def _solve_levels(
    aligned: _Floats, known: BoolArray, depths: _Floats, measured: BoolArray
) -> tuple[_Floats, int, float, str]:
    """Log depth at the last level, NaN where the prior is not valid; its steps and residual; cells that hit a limit."""
    sums = [np.stack([_blocks(array, FINEST) for array in (aligned, known, depths, measured)])]
    while len(sums) < len(LIMITS):
        sums.append(np.stack([_blocks(array, 2) for array in sums[-1]]))
    stopped = []
    solution = np.empty((0, 0))
    for level in reversed(range(len(LIMITS))):
        prior_sum, prior_count, depth_sum, depth_count = sums[level]
        valid = prior_count > 0
        observed = valid & (depth_count > 0)
        guidance = np.log(np.divide(prior_sum, prior_count, where=valid, out=np.ones_like(prior_sum)))
        targets = np.log(np.divide(depth_sum, depth_count, where=observed, out=np.ones_like(depth_sum)))
        guess = guidance if not solution.size else np.where(valid, _upsample(solution, 2, valid), 0.0)
        right, diagonal = _system(guidance, valid, targets, observed)
        x = np.pad(guess, 1)
        limit = LIMITS[len(LIMITS) - 1 - level]
        iterations, residual, converged = _conjugate_gradients(np.pad(valid, 1), diagonal, right, x, limit)
        if not converged:
            stopped.append(str(FINEST * 2**level))
        solution = np.where(valid, x[1:-1, 1:-1], np.nan)
    return solution, iterations, residual, " and ".join(stopped)


def _blocks(values: FloatArray | BoolArray, factor: int) -> _Floats:
    """Sums over blocks of `factor` by `factor`, cut off at the border."""
    across = np.add.reduceat(values, np.arange(0, values.shape[1], factor), axis=1, dtype=np.float64)
    return np.add.reduceat(across, np.arange(0, values.shape[0], factor), axis=0)


def _system(guidance: _Floats, valid: BoolArray, targets: _Floats, observed: BoolArray) -> tuple[_Floats, _Floats]:
    """Right-hand side div g + 5 M log s and the diagonal of A + 5 M, padded by zeros."""
    right = np.pad(np.where(observed, OBSERVATION_WEIGHT * targets, 0.0), 1)
    diagonal = np.pad(np.where(observed, OBSERVATION_WEIGHT, 0.0), 1)
    for axis in (0, 1):
        joined = np.logical_and(*_ends(valid, axis))
        first, second = _ends(guidance, axis)
        gradient = np.where(joined, np.clip(second - first, -LARGEST_GRADIENT, LARGEST_GRADIENT), 0.0)
        for total, share in ((right, (-gradient, gradient)), (diagonal, (joined, joined))):
            for end, part in zip(_ends(total[1:-1, 1:-1], axis), share, strict=True):
                end += part
    return right, diagonal


def _ends(values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The two ends of every edge along an axis, as views."""
    return (values[:-1], values[1:]) if axis == 0 else (values[:, :-1], values[:, 1:])


@compiled(fastmath=SUM)
def _apply_row(
    above: _Floats, row: _Floats, below: _Floats, valid: BoolArray, diagonal: _Floats, out: _Floats
) -> float:
    """out = (A + 5 M) p on one row, zero at invalid cells, where p must be zero; returns the row's p . out."""
    dot = 0.0
    for j in range(1, row.size - 1):
        value = diagonal[j] * row[j] - ((above[j] + below[j]) + (row[j - 1] + row[j + 1]))
        value = value if valid[j] else 0.0
        out[j] = value
        dot += value * row[j]
    return dot


@compiled(fastmath=SUM)
def _advance(x: _Floats, r: _Floats, p: _Floats, q: _Floats, step: float) -> float:
    """x += step p, r -= step q; returns r . r."""
    total = 0.0
    for k in range(x.size):
        x[k] += step * p[k]
        value = r[k] - step * q[k]
        r[k] = value
        total += value * value
    return total


@compiled()
def _conjugate_gradients(
    valid: BoolArray, diagonal: _Floats, right: _Floats, x: _Floats, limit: int
) -> tuple[int, float, bool]:
    """Solve for `x` in place, from its present values; returns steps, relative residual, and whether that suffices.

    One thread: at a quarter of the resolution a pass is too short to share. In a part of the graph without a
    measurement the matrix is singular but the system consistent, and the guess's mean is kept.
    """
    rows = x.shape[0]
    q = np.zeros_like(x)
    for i in range(1, rows - 1):
        _apply_row(x[i - 1], x[i], x[i + 1], valid[i], diagonal[i], q[i])
    r = right - q
    p = r.copy()
    square = np.sum(r * r)
    size = math.sqrt(np.sum(right * right))
    enough = max(TOLERANCE * size, ROUNDING * math.sqrt(x.size))
    steps = 0
    while math.sqrt(square) > enough and steps < limit:
        curvature = 0.0
        for i in range(1, rows - 1):
            curvature += _apply_row(p[i - 1], p[i], p[i + 1], valid[i], diagonal[i], q[i])
        if not curvature > 0:
            break
        new_square = _advance(x.ravel(), r.ravel(), p.ravel(), q.ravel(), square / curvature)
        p *= new_square / square
        p += r
        square = new_square
        steps += 1
    return steps, math.sqrt(square) / size if size > 0 else 0.0, math.sqrt(square) <= enough


def _upsample(values: _Floats, factor: int, wanted: BoolArray) -> _Floats:
    """Bilinear between cell centres, over those of the four cells that are not NaN; NaN where it is not wanted.

    A wanted pixel's own cell must be valid: it then has at least a quarter of the weight.
    """
    out = np.full(wanted.shape, np.nan)
    _upsample_rows(values, factor, wanted, out)
    return out


@compiled(parallel=True)
def _upsample_rows(values: _Floats, factor: int, wanted: BoolArray, out: _Floats) -> None:
    height, width = values.shape
    for i in prange(out.shape[0]):
        y = min(max((i + 0.5) / factor - 0.5, 0.0), height - 1.0)
        top = int(y)
        bottom = min(top + 1, height - 1)
        down = y - top
        for j in range(out.shape[1]):
            if not wanted[i, j]:
                continue
            u = min(max((j + 0.5) / factor - 0.5, 0.0), width - 1.0)
            left = int(u)
            right = min(left + 1, width - 1)
            across = u - left
            total = 0.0
            weights = 0.0
            for row, in_rows in ((top, 1 - down), (bottom, down)):
                for column, in_columns in ((left, 1 - across), (right, across)):
                    if np.isfinite(values[row, column]):
                        total += in_rows * in_columns * values[row, column]
                        weights += in_rows * in_columns
            out[i, j] = total / weights
