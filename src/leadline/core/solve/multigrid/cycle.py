"""The V-cycle: z = B r, with B a symmetric approximation of the inverse of the system.

On the way down each level smooths from zero and restricts its residual to the next level. The coarsest level is solved
directly. On the way up each level adds the prolongation of the coarse solution and smooths again. The smoother is the
same before and after, which makes B symmetric, as conjugate gradients require.

Each visit to a level is one pass over memory: the rows in progress (smoothed, residual, ...) are held in ring buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from leadline.core.solve.multigrid.levels import Hierarchy, Planes


class VCycle(ABC):
    """A preconditioner: callable z = B r on padded float32 arrays.

    It returns z, an array that the next call overwrites, and r . z. Subclasses implement the visits to a level.
    """

    def __init__(self, hierarchy: Hierarchy, block_rows: int) -> None:
        shape = hierarchy.code.shape
        self._hierarchy = hierarchy
        self._smoothed = np.zeros(shape, np.float32)
        self._result = np.zeros(shape, np.float32)
        self._dots = np.zeros((shape[0] - 3) // block_rows + 1)  # r . z per block of rows
        self.scratch = self._smoothed  # its content is not needed between two calls

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        levels = self._hierarchy.levels
        image = r, self._smoothed, self._result
        for depth, level in enumerate(levels[:-1]):
            self._visit(False, depth, image if depth == 0 else level.vectors)
        rhs, _, solution = levels[-1].vectors
        np.dot(self._hierarchy.inverse, rhs.ravel(), out=solution.ravel())
        for depth in reversed(range(len(levels) - 1)):
            self._visit(True, depth, image if depth == 0 else levels[depth].vectors)
        return self._result, float(self._dots.sum())

    def increase_damping(self) -> bool:
        """Make the smoother more cautious; returns False if this is not possible."""
        return False

    @abstractmethod
    def _visit(self, upward: bool, depth: int, vectors: tuple[NDArray[np.float32], ...] | Planes) -> None:
        """Smooth and restrict (downward), or correct and smooth (upward), on the level `depth`; 0 is the image.

        `vectors` are the level's right-hand side, its solution after the first smoothing, and its final solution.
        Upward, `_dots` receives the products of right-hand side and solution; the image is visited last.
        """
