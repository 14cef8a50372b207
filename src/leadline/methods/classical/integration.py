"""OMNI-DC's integrator alone: log depth from its differences at several resolutions and the measurements.

Zuo and Deng 2025, *OMNI-DC: Highly Robust Depth Completion with Multiresolution Depth Integration*. The network of
OMNI-DC predicts differences of log depth between neighbouring cells of 1, 2 and 4 pixels, and a layer without
parameters integrates them. Here the differences are those of the prior. With l the log of the prior, and m_r the
means over the cells of r x r pixels, the log depth x minimises

    sum over r in (1, 2, 4), over neighbouring cells (p, q) at r, of (m_r(x)_q - m_r(x)_p - g_pq)^2
        +  weight  sum over measured pixels of (x - log s)^2 ,      g_pq = m_r(l)_q - m_r(l)_p, clipped to +-1.

Written from the paper. Compared with the public layer (princeton-vl/OMNI-DC, BSD-3-Clause), whose image sides must be
multiples of 4 and whose conjugate gradients end early where the residual falls by less than 1 % in ten steps; here
cells are cut off at the border, pixels without a prior are left out, and the system is solved to a tolerance.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param, require_choice, require_positive
from leadline.base.jit import compiled
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, relative_depth
from leadline.methods.classical.fields import NO_MEASUREMENT, align_prior

Alignment = Literal["disparity", "none"]
_Floats = NDArray[np.float64]

LARGEST_DIFFERENCE = 1.0  # of log depth between neighbouring cells
TOLERANCE = 1e-6  # residual relative to the right-hand side
MOST_STEPS = 5000
COARSER = 4  # pixels of a cell in the coarser problem that gives the start
SMALLEST = 32  # pixels of the shorter side below which there is no coarser problem


def integrator(
    prior: Prior,
    sparse: FloatArray,
    *,
    alignment: Alignment = "disparity",
    resolutions: int = 3,
    weight: float = 5.0,
) -> MethodResult:
    """Log depth integrated from the prior's differences at several resolutions. Measured depths are not restored.

    Some 2 s at 640 x 480. The `parameters` of the result are `iterations` and relative `residual`.

    Parameters
    ----------
    alignment : {"disparity", "none"}
        Whether the prior is first aligned by a line in disparity (or the next simpler curve that is possible), as
        affine-invariant networks need it, or its log differences are taken as they are.
    resolutions : int
        Number of resolutions, each half the one before.
    weight : float
        Of a squared residual at a measurement.
    """
    require_choice("alignment", alignment, Alignment)
    require_positive(weight=weight)
    if not (isinstance(resolutions, int) and 1 <= resolutions <= 8):
        raise InputError(f"{param('resolutions')} must be an integer from 1 to 8, got {resolutions!r} instead.")
    relative = relative_depth(prior)
    valid = np.isfinite(relative)
    measured = measured_pixels(prior, sparse) & valid
    if not measured.any():
        return failure(prior.shape, NO_MEASUREMENT)
    depths = np.where(measured, sparse, 1.0).astype(np.float64)
    if alignment == "disparity":
        relative = align_prior(relative, depths, measured)
    guidance = np.where(valid, np.log(np.where(valid, relative, 1.0)), 0.0)
    # Relative to the geometric mean of the measurements, as the tolerance is relative to the right-hand side, which
    # must not depend on the unit of depth.
    middle = float(np.log(depths[measured]).mean())
    targets = np.where(measured, np.log(depths) - middle, 0.0)
    x, steps, residual = _solve(guidance, valid, targets, weight * measured.astype(np.float64), resolutions)
    with np.errstate(over="ignore"):
        depth = np.where(valid, np.exp(x + middle), np.nan).astype(np.float32)
    depth[~(np.isfinite(depth) & (depth > 0))] = np.nan
    missing = int(np.count_nonzero(np.isnan(depth) & valid))
    remarks = [f"{missing} of {depth.size} pixels came out zero or infinite"] if missing else []
    remarks += ["the solver stopped at its limit of steps"] if residual > TOLERANCE else []
    status = f"ok, but {' and '.join(remarks)}" if remarks else "ok"
    parameters = {"iterations": float(steps), "residual": residual}
    return MethodResult(depth, status, parameters=parameters, converged=residual <= TOLERANCE)


def _solve(
    guidance: _Floats, valid: BoolArray, targets: _Floats, held: _Floats, resolutions: int
) -> tuple[_Floats, int, float]:
    """Log depth, 0 where not valid; the steps of conjugate gradients and the relative residual.

    `held` is the weight of each pixel's target. The start is the solution for cells of `COARSER` pixels, as conjugate
    gradients remove errors last that are smooth over many pixels. Sums of squared differences hardly depend on the
    size of a pixel, so that the coarse problem has the same weights. A part of the image without a measurement has
    the level of its start, which is the median residual.
    """
    measured = held > 0
    if min(valid.shape) >= SMALLEST:
        counts, weights = block_sums(valid, COARSER), block_sums(held, COARSER)
        filled, observed = counts > 0, weights > 0
        coarse = np.divide(block_sums(guidance * valid, COARSER), counts, where=filled, out=np.zeros(counts.shape))
        # The mean residual of a cell, not its mean target: its measurements need not be at its middle.
        residual = np.divide(
            block_sums(held * (targets - guidance), COARSER), weights, where=observed, out=np.zeros(counts.shape)
        )
        found = _solve(coarse, filled, coarse + residual, weights, resolutions)[0]
        start = guidance + _spread(found - coarse, COARSER, valid.shape)
    else:
        start = guidance + float(np.median((targets - guidance)[measured]))
    shares, rhs, diagonal = [], held * targets, held.astype(np.float64)
    for k in range(resolutions):
        size = 2**k
        counts = block_sums(valid, size)
        share = np.divide(1.0, counts, where=counts > 0, out=np.zeros(counts.shape))
        means = block_sums(guidance * valid, size) * share
        divergence, degree = _divergence(means, counts > 0)
        rhs += _spread(divergence * share, size, valid.shape)
        diagonal += _spread(degree * share * share, size, valid.shape)
        shares.append(share)
    rhs *= valid
    scaling = np.divide(1.0, diagonal, where=valid & (diagonal > 0), out=np.zeros(valid.shape))
    x = np.where(valid, start, 0.0)
    steps, size_of_residual = _conjugate_gradients(tuple(shares), held, valid, rhs, scaling, x)
    return x, steps, size_of_residual


def block_sums(values: FloatArray | BoolArray, size: int) -> _Floats:
    """Sums over blocks of `size` by `size` values, cut off at the border."""
    across = np.add.reduceat(values, np.arange(0, values.shape[1], size), axis=1, dtype=np.float64)
    return np.add.reduceat(across, np.arange(0, values.shape[0], size), axis=0)


def _spread(cells: _Floats, size: int, shape: tuple[int, int]) -> _Floats:
    """The value of its cell at every pixel."""
    rows, columns = (np.arange(side) // size for side in shape)
    return cells[rows][:, columns]


def _divergence(means: _Floats, filled: BoolArray) -> tuple[_Floats, _Floats]:
    """For each cell, the sum of the clipped differences to its neighbours, and the number of its neighbours."""
    total, degree = np.zeros(means.shape), np.zeros(means.shape)
    for axis in (0, 1):
        joined = np.logical_and(*_ends(filled, axis))
        first, second = _ends(means, axis)
        steps = np.where(joined, np.clip(second - first, -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE), 0.0)
        for sums, terms in ((total, (-steps, steps)), (degree, (joined, joined))):
            for end, term in zip(_ends(sums, axis), terms, strict=True):
                end += term
    return total, degree


def _ends(values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the values at the two ends of every edge along an axis."""
    return (values[:-1], values[1:]) if axis == 0 else (values[:, :-1], values[:, 1:])


@compiled()
def _apply(shares, held, valid, x, out):  # type: ignore[no-untyped-def]
    """Write the product of the system's matrix and `x`, which is 0 where not valid, to `out`; return x . out."""
    height, width = x.shape
    for i in range(height):
        for j in range(width):
            out[i, j] = held[i, j] * x[i, j]
    sums = x
    for k in range(len(shares)):
        share = shares[k]
        rows, columns = share.shape
        if k > 0:
            coarse = np.zeros((rows, columns))
            for i in range(sums.shape[0]):
                for j in range(sums.shape[1]):
                    coarse[i >> 1, j >> 1] += sums[i, j]
            sums = coarse
        means = sums * share
        change = np.zeros((rows, columns))
        for i in range(rows):
            for j in range(columns):
                if share[i, j] > 0:
                    if j + 1 < columns and share[i, j + 1] > 0:
                        step = means[i, j + 1] - means[i, j]
                        change[i, j] -= step
                        change[i, j + 1] += step
                    if i + 1 < rows and share[i + 1, j] > 0:
                        step = means[i + 1, j] - means[i, j]
                        change[i, j] -= step
                        change[i + 1, j] += step
        change *= share
        for i in range(height):
            for j in range(width):
                out[i, j] += change[i >> k, j >> k]
    product = 0.0
    for i in range(height):
        for j in range(width):
            if not valid[i, j]:
                out[i, j] = 0.0
            product += x[i, j] * out[i, j]
    return product


@compiled()
def _conjugate_gradients(shares, held, valid, rhs, scaling, x):  # type: ignore[no-untyped-def]
    """Solve for `x` in place, with the inverse diagonal `scaling`; return steps and relative residual."""
    image = np.zeros_like(x)
    _apply(shares, held, valid, x, image)
    residual = rhs - image
    z = scaling * residual
    direction = z.copy()
    product = np.sum(residual * z)
    goal = math.sqrt(np.sum(rhs * rhs))
    size = math.sqrt(np.sum(residual * residual))
    steps = 0
    while size > TOLERANCE * goal and steps < MOST_STEPS:
        curvature = _apply(shares, held, valid, direction, image)
        if not curvature > 0:
            break
        length = product / curvature
        x += length * direction
        residual -= length * image
        z = scaling * residual
        previous, product = product, np.sum(residual * z)
        direction *= product / previous
        direction += z
        size = math.sqrt(np.sum(residual * residual))
        steps += 1
    return steps, size / goal if goal > 0 else 0.0
