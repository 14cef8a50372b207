"""Geometric multigrid on the pixel grid: the levels, and the V-cycle that preconditions conjugate gradients.

A level keeps the pixels (2I, 2J) of the next finer one. All arrays are padded by one pixel of zeros. A level below the
image has a nine-point stencil, stored as the weights of four edges per pixel (east, south, south-east, south-west).

There are two kinds of hierarchy. The *membrane* (membrane.py) preconditions the paper's system, whose bending term is
negligible; the *thin plate* (thin_plate.py, thin_plate_cycle.py) preconditions the general system with edge weights,
soft measurements and any bending weight. Both take interpolation and coarse operators from galerkin.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array, Float64Array
from leadline.base.jit import called_by_kernels
from leadline.core.solve.kernels import EAST, SOUTH, SOUTH_EAST, SOUTH_WEST

Planes = Float32Array
"""A stack of padded maps, (k, h + 2, w + 2) or, for edge weights, (k, h + 2, w + 3)."""

COARSEST = 16  # A level of at most this many pixels is solved directly, by its stored inverse.
# A coarse pixel whose diagonal is smaller has no equation. The inverse of this bound, times any value that occurs on a
# level, is still a finite float32.
SMALLEST_DIAGONAL = np.float32(1e-30)
# Placeholders for arguments of a kernel that do not exist on a level; kernels test their shape.
NO_CODE = np.zeros((1, 1), np.uint8)
NO_MAP = np.zeros((1, 1), np.float32)
NO_PLANES = np.zeros((1, 1, 1), np.float32)


@dataclass(frozen=True)
class Level:
    """One level of a hierarchy. The image is the first level; arrays that it does not need are placeholders."""

    edges: Planes  # weights of the edges, see `edge_planes`
    # (8 or 9, h + 2, w + 2): weights from this level to the next finer one, see galerkin.py; from the first coarse
    # level of a membrane to the image (1, h + 2, w + 2): the scale of each pixel, see image_interpolation.py
    prolongation: Planes
    vectors: Planes  # (2, h + 2, w + 2): right-hand side and solution


@dataclass(frozen=True)
class Hierarchy:
    """All levels of a preconditioner, the image first."""

    code: NDArray[np.uint8]  # (H + 2, W + 2): the image's pixels, see kernels.py
    levels: tuple[Level, ...]
    inverse: Float32Array  # inverse of the last level's operator on its padded grid


def coarse_sizes(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the sizes of the levels below an image, each half of the one before; there is at least one."""
    while True:
        height, width = (height + 1) // 2, (width + 1) // 2
        yield height, width
        if height * width <= COARSEST:
            return


def padded(count: int, size: tuple[int, int]) -> Planes:
    """Return `count` padded maps of zeros."""
    return np.zeros((count, size[0] + 2, size[1] + 2), np.float32)


def edge_planes(count: int, size: tuple[int, int]) -> Planes:
    """Return zeros for the edge weights of a level: two planes for the image, four for a coarse level.

    They have one column more than other maps: at odd widths the last cell reads two columns beyond its corner.
    """
    return np.zeros((count, size[0] + 2, size[1] + 3), np.float32)


@called_by_kernels()
def copy_row(x, i, out, k):
    for j in range(x.shape[1]):
        out[k, j] = x[i, j]


def adjacency(edges: Planes, size: tuple[int, int]) -> Float64Array:
    """Return the symmetric dense matrix of a level's edge weights over all pixels of its padded grid."""
    height, width = size
    index = np.arange(height * width).reshape(height, width)[1:-1, 1:-1]
    matrix = np.zeros((height * width, height * width))
    for plane, offset in ((EAST, 1), (SOUTH, width), (SOUTH_EAST, width + 1), (SOUTH_WEST, width - 1)):
        weight = edges[plane, 1 : height - 1, 1 : width - 1]
        matrix[index, index + offset] = weight
        matrix[index + offset, index] = weight
    return matrix


class VCycle(ABC):
    """The V-cycle z = B r on padded float32 arrays, with B a symmetric approximation of the inverse of the system.

    On the way down each level smooths from zero and restricts its residual to the next level. The coarsest level is
    solved directly. On the way up each level adds the prolongation of the coarse solution and smooths again. The
    smoother is the same before and after, which makes B symmetric, as conjugate gradients require. Each visit to a
    level is one pass over memory: the rows in progress (smoothed, residual, ...) are held in ring buffers.

    The way up overwrites the solution of the first smoothing. A block of rows reads some rows of its neighbours, which
    may be overwritten before; copies of these rows, the halo, are therefore made first.

    A call returns z, an array that the next call overwrites and whose inside is free to use before, and r . z.
    Subclasses implement the visits to a level.
    """

    def __init__(self, hierarchy: Hierarchy, block_rows: int, halo_rows: int) -> None:
        shape = hierarchy.code.shape
        self._hierarchy = hierarchy
        self._block_rows, self._halo_rows = block_rows, halo_rows
        self._dots = np.zeros((shape[0] - 3) // block_rows + 1)  # r . z per block of rows
        self.solution = np.zeros(shape, np.float32)

    def __call__(self, r: Float32Array) -> tuple[Float32Array, float]:
        levels = self._hierarchy.levels
        image = r, self.solution
        for depth, level in enumerate(levels[:-1]):
            self._smooth_and_restrict(depth, *(image if depth == 0 else level.vectors))
        rhs, solution = levels[-1].vectors
        np.dot(self._hierarchy.inverse, rhs.ravel(), out=solution.ravel())
        for depth in reversed(range(len(levels) - 1)):
            rhs, solution = image if depth == 0 else levels[depth].vectors
            self._correct_and_smooth(depth, rhs, solution, self._halo(solution))
        return self.solution, float(self._dots.sum())

    def _halo(self, solution: Float32Array) -> Float32Array:
        """Return copies of the rows around the first row of the blocks 1, 2, ... of a level."""
        if len(solution) - 2 <= self._block_rows:  # there is only one block
            return NO_MAP
        first = np.arange(1 + self._block_rows, solution.shape[0] - 1, self._block_rows)
        around = first[:, None] + np.arange(-self._halo_rows, self._halo_rows)
        return solution.take(around.ravel(), axis=0, mode="clip")  # rows below the image are not used

    def compile(self) -> None:
        """Compile the visits to a level."""
        rhs, solution = self.solution, self.solution
        self._correct_and_smooth(0, rhs, solution, self._halo(solution))
        self._smooth_and_restrict(0, rhs, solution)

    def increase_damping(self) -> bool:
        """Reduce the steps of the smoother; returns False if this is not possible."""
        return False

    @abstractmethod
    def _smooth_and_restrict(self, depth: int, rhs: Float32Array, solution: Float32Array) -> None:
        """Visit the level `depth` on the way down; 0 is the image."""

    @abstractmethod
    def _correct_and_smooth(self, depth: int, rhs: Float32Array, solution: Float32Array, halo: Float32Array) -> None:
        """Visit the level `depth` on the way up; `_dots` receives the products of right-hand side and solution.

        The image is visited last.
        """
