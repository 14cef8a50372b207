"""Log depth with the gradients of the prior and a quadratic penalty at the measurements: the LDCM-style baseline.

The prior is aligned by least squares in depth, t = gain h + offset. At a level of the pyramid, with l = log t and g its
difference along an edge between neighbouring cells, clipped to +-3, the log depth x minimises

    sum over edges (p, q) of (x_q - x_p - g_pq)^2  +  5 sum over measured cells of (x_p - log s_p)^2,

that is (A + 5 M) x = div g + 5 M log s, by plain conjugate gradients to a relative residual of 1e-5. Each level starts
from the coarser one's solution. The last one that is solved has cells of 4 pixels and is upsampled to the image.

The paper gives four levels, the clipping, the weight, the tolerance and the quarter of the resolution, and refers to
LDCM for the rest. Where its text allows two readings, both are options, and the default is what its public code does:
- `pyramid`: the four levels of that code start at full resolution, so stopping at a quarter solves cells of 8 and 4
  pixels, with at most 5000 and 2000 steps ("to_full"). Or they end at a quarter: cells of 32, 16, 8 and 4 pixels with
  5000, 2000, 1000 and 500 steps ("to_quarter").
- `sampling`: the aligned prior of a cell is its value at the cell's centre, interpolated ("point"), or the mean of the
  cell's valid pixels ("mean").
- `upsampling`: the result is interpolated in "depth" or in "log" depth.

Our choices, where this differs from that code or it has no rule:
- Cell k of an axis covers the pixels [f k, f (k + 1)), cut off at the border; the code drops the remainder of the
  division. The measurement of a cell is the mean of its measurements in metres. A cell without a valid prior is not
  in the graph. A cell that is valid only off its centre has the mean of its valid pixels.
- The weight multiplies the *squared* residual of a measured cell at all levels, whatever its number of measurements.
- "Clamped positive" means t >= a thousandth of the smallest measurement, so that the result does not depend on the unit
  of depth; the code takes log t = 0, one metre, where t <= 0. For the same reason logs are taken relative to the
  geometric mean of the measurements: the tolerance is relative to the right-hand side, which would otherwise depend on
  the unit.
- The code also stops after ten steps in a row that lower the residual by less than 1e-4. The residual of conjugate
  gradients is not monotone, so that rule can end a solve early; it is left out.
- A prior that is constant at the measurements, or a single measurement, gives a scale and no offset.
- Upsampling is bilinear between cell centres, over those of the four cells that are valid. First guesses are upsampled
  in log depth. The coarsest level starts from l.
- A part of the graph without a measurement has the gradients of the prior, and its level is that of the coarser
  solution.
- Measured depths are not restored, since the penalty is soft.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import require_choice
from leadline.base.jit import SUM, called_by_kernels, compiled, parallel_loop
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, relative_depth
from leadline.methods.simple import gmetric

FINEST_CELL = 4  # side of a cell in pixels at the last level that is solved
ITERATION_LIMITS = (5000, 2000, 1000, 500)  # steps of conjugate gradients, the coarsest of the four levels first
COARSEST_CELL = {"to_full": 8, "to_quarter": 32}
LARGEST_GRADIENT = 3.0  # bound on the difference of log depth between neighbouring cells
OBSERVATION_WEIGHT = 5.0
TOLERANCE = 1e-5  # residual relative to the right-hand side
DEPTH_FLOOR = 1e-3  # least depth of the aligned prior, relative to the smallest measurement
ROUNDING = 1e-12  # root mean square residual in log depth below which only rounding errors are left

Pyramid = Literal["to_full", "to_quarter"]
Sampling = Literal["point", "mean"]
Upsampling = Literal["depth", "log"]
_Floats = NDArray[np.float64]


def poisson(
    prior: Prior,
    sparse: FloatArray,
    *,
    pyramid: Pyramid = "to_full",
    sampling: Sampling = "point",
    upsampling: Upsampling = "depth",
) -> MethodResult:
    """Depth integrated from the aligned prior's log-gradients with soft measurements, at a quarter of the resolution.

    Without a measurement at a usable pixel of the prior the method fails. The status names a level that stopped at its
    limit of steps; its solution is used. The `parameters` of the result are the alignment's `gain` and `offset`, the
    number of `clamped` pixels, and `iterations` and relative `residual` of the last level.

    Parameters
    ----------
    pyramid : {"to_full", "to_quarter"}
        Whether the finest of the four levels is the image itself or a quarter of it. Only the levels up to a quarter
        are solved.
    sampling : {"point", "mean"}
        The prior of a cell: its value at the centre, or the mean over the cell.
    upsampling : {"depth", "log"}
        Whether the result is interpolated in depth or in log depth.
    """
    require_choice("pyramid", pyramid, Pyramid)
    require_choice("sampling", sampling, Sampling)
    require_choice("upsampling", upsampling, Upsampling)
    relative = relative_depth(prior)
    measured = measured_pixels(prior, sparse)
    known = np.isfinite(relative)
    paired = measured & known
    if not paired.any():
        return failure(prior.shape, "no usable measurement")
    depths = np.where(measured, sparse, 0.0).astype(np.float64)
    aligned_by = gmetric(prior, sparse).parameters
    if not aligned_by:  # not determined: a gain alone
        products, squares = relative[paired] * depths[paired], relative[paired] * relative[paired]
        aligned_by = {"gain": float(np.sum(products) / np.sum(squares)), "offset": 0.0}
    floor = DEPTH_FLOOR * float(depths[paired].min())
    aligned = aligned_by["gain"] * relative + aligned_by["offset"]
    clamped = int(np.count_nonzero(aligned[known] < floor))
    aligned = np.where(known, np.maximum(aligned, floor), 0.0)
    middle = math.exp(float(np.log(depths[paired]).mean()))

    level, iterations, residual, stopped = _solve_levels(
        aligned / middle, known, depths / middle, measured, COARSEST_CELL[pyramid], sampling
    )
    with np.errstate(over="ignore", invalid="ignore"):
        if upsampling == "log":
            depth = (middle * np.exp(_upsample(level, FINEST_CELL, known))).astype(np.float32)
        else:
            depth = (middle * _upsample(np.exp(level), FINEST_CELL, known)).astype(np.float32)
    failed = known & ~(np.isfinite(depth) & (depth > 0))
    depth[failed] = np.nan
    remarks = [f"stopped at the limit of steps at cells of {stopped} pixels"] if stopped else []
    if failed.any():
        remarks.append(f"{int(failed.sum())} of {depth.size} pixels came out zero or infinite")
    status = f"ok, but {' and '.join(remarks)}" if remarks else "ok"
    parameters = {"clamped": float(clamped), "iterations": float(iterations), "residual": residual}
    return MethodResult(depth, status, parameters={**aligned_by, **parameters}, converged=not stopped)


def _solve_levels(
    aligned: _Floats, known: BoolArray, depths: _Floats, measured: BoolArray, coarsest: int, sampling: Sampling
) -> tuple[_Floats, int, float, str]:
    """Log depth at the last level, NaN outside the valid prior; its steps and residual; cells of unfinished levels."""
    stopped = []
    solution = np.empty((0, 0))
    cell = coarsest
    for limit in ITERATION_LIMITS:
        prior_sum, prior_count, depth_sum, depth_count = (
            _block_sums(array, cell) for array in (aligned, known, depths, measured)
        )
        valid = prior_count > 0
        observed = valid & (depth_count > 0)
        prior_mean = np.divide(prior_sum, prior_count, where=valid, out=np.ones_like(prior_sum))
        guidance = np.log(prior_mean if sampling == "mean" else _sample_centres(aligned, known, cell, prior_mean))
        targets = np.log(np.divide(depth_sum, depth_count, where=observed, out=np.ones_like(depth_sum)))
        guess = guidance if not solution.size else np.where(valid, _upsample(solution, 2, valid), 0.0)
        rhs, diagonal = _system(guidance, valid, targets, observed)
        x = np.pad(guess, 1)
        iterations, residual, converged = _conjugate_gradients(np.pad(valid, 1), diagonal, rhs, x, limit)
        if not converged:
            stopped.append(str(cell))
        solution = np.where(valid, x[1:-1, 1:-1], np.nan)
        if cell == FINEST_CELL:
            break
        cell //= 2
    return solution, iterations, residual, " and ".join(stopped)


def _sample_centres(values: _Floats, known: BoolArray, cell: int, otherwise: _Floats) -> _Floats:
    """The mean of the valid ones of the four pixels around the centre of each cell; `otherwise` if none is valid.

    The centre of a cell with an even side lies between four pixels, so bilinear interpolation there is their mean.
    """
    rows, columns = (
        [np.minimum(np.arange(0, side, cell) + cell // 2 - k, side - 1) for k in (1, 0)] for side in values.shape
    )
    total, count = np.zeros_like(otherwise), np.zeros_like(otherwise)
    for r in rows:
        for c in columns:
            place = np.ix_(r, c)
            total += np.where(known[place], values[place], 0.0)
            count += known[place]
    return np.divide(total, count, where=count > 0, out=otherwise.copy())


def _block_sums(values: FloatArray | BoolArray, factor: int) -> _Floats:
    """Sums over blocks of `factor` by `factor` values, cut off at the border."""
    across = np.add.reduceat(values, np.arange(0, values.shape[1], factor), axis=1, dtype=np.float64)
    return np.add.reduceat(across, np.arange(0, values.shape[0], factor), axis=0)


def _system(guidance: _Floats, valid: BoolArray, targets: _Floats, observed: BoolArray) -> tuple[_Floats, _Floats]:
    """Right-hand side div g + 5 M log s and the diagonal of A + 5 M, padded with zeros."""
    rhs = np.pad(np.where(observed, OBSERVATION_WEIGHT * targets, 0.0), 1)
    diagonal = np.pad(np.where(observed, OBSERVATION_WEIGHT, 0.0), 1)
    for axis in (0, 1):
        joined = np.logical_and(*_ends(valid, axis))
        first, second = _ends(guidance, axis)
        gradient = np.where(joined, np.clip(second - first, -LARGEST_GRADIENT, LARGEST_GRADIENT), 0.0)
        for total, terms in ((rhs, (-gradient, gradient)), (diagonal, (joined, joined))):
            for end, term in zip(_ends(total[1:-1, 1:-1], axis), terms, strict=True):
                end += term
    return rhs, diagonal


def _ends(values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the values at the two ends of every edge along an axis."""
    return (values[:-1], values[1:]) if axis == 0 else (values[:, :-1], values[:, 1:])


@called_by_kernels(fastmath=SUM)
def _apply_row(
    above: _Floats, row: _Floats, below: _Floats, valid: BoolArray, diagonal: _Floats, out: _Floats
) -> float:
    """Write (A + 5 M) p of one row to `out`, zero at invalid cells, where p must be zero; return the row's p . out."""
    dot = 0.0
    for j in range(1, row.size - 1):
        value = diagonal[j] * row[j] - ((above[j] + below[j]) + (row[j - 1] + row[j + 1]))
        value = value if valid[j] else 0.0
        out[j] = value
        dot += value * row[j]
    return dot


@called_by_kernels(fastmath=SUM)
def _advance(x: _Floats, r: _Floats, p: _Floats, q: _Floats, step: float) -> float:
    """Update x += step p and r -= step q in place; return r . r."""
    total = 0.0
    for k in range(x.size):
        x[k] += step * p[k]
        value = r[k] - step * q[k]
        r[k] = value
        total += value * value
    return total


@compiled()
def _conjugate_gradients(
    valid: BoolArray, diagonal: _Floats, rhs: _Floats, x: _Floats, limit: int
) -> tuple[int, float, bool]:
    """Solve for `x` in place, starting from its values; return steps, relative residual, and whether it converged.

    It uses one thread: at a quarter of the resolution a pass is too short to be worth dividing. In a part of the graph
    without a measurement the matrix is singular but the system is consistent, and the mean of the guess is preserved.
    """
    rows = x.shape[0]
    q = np.zeros_like(x)
    for i in range(1, rows - 1):
        _apply_row(x[i - 1], x[i], x[i + 1], valid[i], diagonal[i], q[i])
    r = rhs - q
    p = r.copy()
    square = np.sum(r * r)
    size = math.sqrt(np.sum(rhs * rhs))
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
    """Bilinear interpolation between cell centres, over those of the four cells that are not NaN; NaN outside `wanted`.

    The cell of a wanted pixel must be valid; it has at least a quarter of the weight.
    """
    out = np.full(wanted.shape, np.nan)
    _upsample_row[len(out)](values, factor, wanted, out)
    return out


@parallel_loop()
def _upsample_row(i: int, values: _Floats, factor: int, wanted: BoolArray, out: _Floats) -> None:
    height, width = values.shape
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
        total, weights = 0.0, 0.0
        for row, in_rows in ((top, 1 - down), (bottom, down)):
            for column, in_columns in ((left, 1 - across), (right, across)):
                if np.isfinite(values[row, column]):
                    total += in_rows * in_columns * values[row, column]
                    weights += in_rows * in_columns
        out[i, j] = total / weights
