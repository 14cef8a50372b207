"""The fast bilateral solver: the smoothest map in the bilateral grid of the image that is near the measurements.

Barron and Poole 2016, *The Fast Bilateral Solver*. Pixels are grouped into the vertices of a grid over position,
luminance and chrominance. With S the sum over the pixels of a vertex, B the [1 2 1] blur along the five axes, and
diagonal N and M that make N B N bistochastic (M = N B N 1), the values y of the vertices minimise

    strength y' (M - N B N) y  +  sum over measured pixels (y_vertex - s)^2 ,

and every pixel has the value of its vertex. Compared with the public notebook (poolio/bilateral_solver, MIT), which
stops after 25 steps and starts from the mean of each vertex; that is undefined for a vertex without a measurement, so
that the start here is the nearest measurement, and the system is solved to a tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import require_positive
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.classical.fields import Interpolated, Quantity, interpolate, nearest_values, unit_image

TOLERANCE = 1e-6  # residual relative to the right-hand side
MOST_STEPS = 2000
BALANCING_STEPS = 10  # of the iteration that makes the blur bistochastic, as in the notebook
_Floats = NDArray[np.float64]

# Luminance and the two chrominances of JPEG, from red, green and blue.
_YCBCR = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


def bilateral_solver(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    quantity: Quantity = "depth",
    strength: float = 0.02,
    spacing: float = 4.0,
    luminance: float = 4.0,
    chrominance: float = 4.0,
) -> MethodResult:
    """Depth that is smooth except across edges of the image. Measured depths are not restored.

    A group of vertices without a measurement and without a connection to one has the nearest measurement. Some 2 s at
    640 x 480. The `parameters` of the result are the number of `vertices` and of `iterations`.

    Parameters
    ----------
    quantity : {"depth", "residual"}
        What is smoothed: the depth, without the prior, or its log ratio to the aligned prior.
    strength : float
        Weight of smoothness against a measurement. The notebook's 128 is for dense targets.
    spacing, luminance, chrominance : float
        Sides of a cell of the grid, in pixels and in steps of 255. The notebook has 8 pixels.
    """
    require_positive(strength=strength, spacing=spacing, luminance=luminance, chrominance=chrominance)
    colours = unit_image(image, prior.shape)

    def fill(values: _Floats, known: BoolArray) -> Interpolated:
        vertex, blur = bilateral_grid(colours * 255.0, spacing, luminance, chrominance)
        weights = known.ravel().astype(np.float64)
        start = np.bincount(vertex, nearest_values(values, known).ravel()) / np.bincount(vertex)
        y, steps, converged = solve_grid(vertex, blur, values.ravel(), weights, strength, start)
        remark = "" if converged else "the solver stopped at its limit of steps"
        parameters = {"vertices": float(y.size), "iterations": float(steps)}
        return Interpolated(y[vertex].reshape(known.shape), parameters, remark, converged)

    return interpolate(prior, sparse, quantity, fill, restore=False)


def bilateral_grid(
    colours: _Floats, spacing: float, luminance: float, chrominance: float
) -> tuple[NDArray[np.intp], Any]:
    """The vertex of each pixel, (H W,), and the sparse matrix of the blur over the vertices.

    `colours` is (H, W, 3) in steps of 255.
    """
    from scipy.sparse import csr_matrix, identity

    shape = colours.shape[:2]
    ycbcr = np.stack([sum(colours[..., k] * row[k] for k in range(3)) for row in _YCBCR])
    ycbcr[1:] += 128.0
    rows, columns = np.indices(shape)
    axes = [columns / spacing, rows / spacing, ycbcr[0] / luminance, ycbcr[1] / chrominance, ycbcr[2] / chrominance]
    cells = np.stack([axis.astype(np.int64).ravel() for axis in axes])
    # A margin of one on both sides keeps the codes of neighbours apart.
    sizes = cells.max(axis=1) + 3
    strides = np.cumprod([1, *sizes[:-1]])
    codes, vertex = np.unique(((cells + 1) * strides[:, None]).sum(axis=0), return_inverse=True)
    count = codes.size
    blur = 2.0 * len(axes) * identity(count, format="csr")
    for stride in strides:
        place = np.minimum(np.searchsorted(codes, codes + stride), count - 1)
        here = np.flatnonzero(codes[place] == codes + stride)
        step = csr_matrix((np.ones(here.size), (here, place[here])), (count, count))
        blur = blur + step + step.T
    return vertex.ravel(), blur


def solve_grid(
    vertex: NDArray[np.intp], blur: Any, values: _Floats, weights: _Floats, strength: float, start: _Floats
) -> tuple[_Floats, int, bool]:
    """The values of the vertices, the steps of conjugate gradients, and whether they converged."""
    from scipy.sparse import diags
    from scipy.sparse.linalg import cg

    sizes = np.bincount(vertex).astype(np.float64)
    n = np.ones(sizes.size)
    for _ in range(BALANCING_STEPS):
        n = np.sqrt(n * sizes / (blur @ n))
    m = n * (blur @ n)
    matrix = strength * (diags(m) - diags(n) @ blur @ diags(n)) + diags(np.bincount(vertex, weights))
    rhs = np.bincount(vertex, weights * values)
    diagonal = np.maximum(matrix.diagonal(), 1e-5 * strength)
    steps = 0

    def count(_: _Floats) -> None:
        nonlocal steps
        steps += 1

    # Solving for the change from the start leaves vertices without any measurement at their start.
    change, unfinished = cg(
        matrix, rhs - matrix @ start, rtol=0.0, atol=TOLERANCE * float(np.sqrt((rhs * rhs).sum())),
        maxiter=MOST_STEPS, M=diags(1.0 / diagonal), callback=count,
    )  # fmt: skip
    return start + change, steps, not unfinished
