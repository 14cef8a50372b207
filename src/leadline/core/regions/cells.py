"""Measurements reduced to cells: medians, a smooth background, and the part that a wrong response explains."""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float64Array, IndexArray
from leadline.base.jit import compiled
from leadline.core.outliers import MAD_TO_SIGMA

NODES = 6
"""Nodes of the background along each side of the image. With more of them it would follow large regions."""
STIFFNESS = 0.02
"""Weight of the background's second differences, relative to the number of cells per node."""
TREND_WINDOWS = (0.02, 0.05, 0.1)
"""Shares of the cells that the running medians over t cover; the largest of the medians is subtracted."""
_ITERATIONS, _WIDE_ITERATIONS = 12, 4  # of the background's fit; the first ones with a wider loss


def background(values: Float64Array, cells: IndexArray, grid: tuple[int, int]) -> Float64Array:
    """A smooth surface through the cells' values, bilinear between few nodes; regions have little influence on it."""
    rows, columns = np.divmod(cells, grid[1])
    down = (rows + 0.5) / grid[0] * (NODES - 1)
    across = (columns + 0.5) / grid[1] * (NODES - 1)
    second = np.diff(np.eye(NODES), 2, axis=0)
    bends = np.vstack([np.kron(second, np.eye(NODES)), np.kron(np.eye(NODES), second)])
    stiffness = STIFFNESS * values.size / NODES**2 * bends.T @ bends + 1e-9 * np.eye(NODES**2)
    surface = np.full(values.size, np.median(values))
    for k in range(_ITERATIONS):
        residual = values - surface
        sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(residual - np.median(residual)))), 1e-4)
        width = (3.0 if k < _WIDE_ITERATIONS else 2.0) * sigma
        weights = (1.0 + (residual / width) ** 2) ** -2
        matrix, right_side = stiffness.copy(), np.zeros(NODES**2)
        _add_normal_equations(down, across, weights, values, matrix, right_side)
        _evaluate(down, across, np.linalg.solve(matrix, right_side), surface)
    return surface


def trend(deviation: Float64Array, depth: Float64Array) -> Float64Array:
    """The largest of the running medians of the deviations over windows of cells with similar depth."""
    order, n = np.argsort(depth, kind="stable"), deviation.size
    ordered, largest = deviation[order], np.full(n, -np.inf)
    for share in TREND_WINDOWS:
        width = min(max(int(share * n), 9), n)
        starts = np.unique(np.append(np.arange(0, n - width + 1, max(width // 8, 1)), n - width))
        medians = [np.median(ordered[start : start + width]) for start in starts]
        np.maximum(largest, np.interp(np.arange(n), starts + width // 2, medians), out=largest)
    found = np.empty(n)
    found[order] = largest
    return found


@compiled()
def cell_medians(cell, values, medians):  # type: ignore[no-untyped-def]
    """Write the medians of each row of `values` in each cell; cells without a value are left as they are."""
    ends = np.zeros(medians.shape[1] + 1, np.int64)
    for k in cell:
        ends[k + 1] += 1
    for k in range(medians.shape[1]):
        ends[k + 1] += ends[k]
    place, order = ends[:-1].copy(), np.empty(cell.size, np.int64)
    for m in range(cell.size):
        order[place[cell[m]]] = m
        place[cell[m]] += 1
    for k in range(medians.shape[1]):
        if ends[k + 1] > ends[k]:
            members = order[ends[k] : ends[k + 1]]
            for i in range(values.shape[0]):
                medians[i, k] = np.median(values[i][members])


@compiled()
def _corners(down, across):  # type: ignore[no-untyped-def]
    """The four nodes around a point of the grid of nodes, and their bilinear weights."""
    i, j = min(int(down), NODES - 2), min(int(across), NODES - 2)
    y, x = down - i, across - j
    first = i * NODES + j
    nodes = (first, first + 1, first + NODES, first + NODES + 1)
    return nodes, ((1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x)


@compiled()
def _add_normal_equations(down, across, weights, values, matrix, right_side):  # type: ignore[no-untyped-def]
    for k in range(values.size):
        nodes, shares = _corners(down[k], across[k])
        for a in range(4):
            share = weights[k] * shares[a]
            right_side[nodes[a]] += share * values[k]
            for b in range(4):
                matrix[nodes[a], nodes[b]] += share * shares[b]


@compiled()
def _evaluate(down, across, nodal, surface):  # type: ignore[no-untyped-def]
    for k in range(surface.size):
        nodes, shares = _corners(down[k], across[k])
        surface[k] = 0.0
        for a in range(4):
            surface[k] += shares[a] * nodal[nodes[a]]
