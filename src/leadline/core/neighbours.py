"""What the measurements around a measurement say of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.core.jit import compiled
from leadline.core.types import BoolArray

FEWEST = 4
"""Others that a square around a measurement must hold to speak of it; one with fewer is widened."""
ODD = 8.0
"""Median errors by which a measurement may differ from neighbours that agree before it counts as wrong."""


class Neighbours:
    """For each measurement, the others in the smallest square around it that holds FEWEST of them.

    Parameters
    ----------
    where : (n,) int
        Flat indices of the measured pixels, each once; more than FEWEST.
    shape : (H, W)
    """

    def __init__(self, where: NDArray[np.intp], shape: tuple[int, int]) -> None:
        self._where = where
        self._index = np.full(shape, -1, np.int32)
        self._index.flat[where] = np.arange(where.size, dtype=np.int32)
        self._reach = np.empty(where.size, np.int32)
        _reach(self._index, where, self._reach)

    @property
    def spacing(self) -> int:
        """Distance between measurements in pixels: the median half-width of the squares."""
        return int(np.median(self._reach))

    def compare(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Distance of each value from the median of its neighbours', and the third largest such distance of these."""
        errors, around = np.empty(values.size), np.empty(values.size)
        _compare(self._index, self._where, self._reach, values, errors, around)
        return errors, around

    def confirm(self, values: NDArray[np.float64]) -> BoolArray:
        """Which values are not far from their neighbours, unless these are far from each other.

        Examples
        --------
        >>> where = np.arange(0, 6400, 64)
        >>> values = np.where(np.arange(100) == 40, 0.5, 0.01 * np.sin(np.arange(100)))
        >>> np.flatnonzero(~Neighbours(where, (80, 80)).confirm(values))
        array([40])
        """
        errors, around = self.compare(values)
        confirmed: BoolArray = errors <= ODD * np.median(errors) + 2.0 * around
        return confirmed


@compiled()
def _reach(index, where, reach):  # type: ignore[no-untyped-def]
    """Half-width of the smallest square around each that holds FEWEST others; there are as many in the image."""
    height, width = index.shape
    for k in range(where.size):
        row, column = where[k] // width, where[k] % width
        found, radius = 0, 0
        while found < FEWEST:
            radius += 1
            for i in range(max(row - radius, 0), min(row + radius + 1, height)):
                step = 1 if abs(i - row) == radius else 2 * radius  # whole rows at top and bottom, else the two ends
                for j in range(column - radius, column + radius + 1, step):
                    if 0 <= j < width and index[i, j] >= 0:
                        found += 1
        reach[k] = radius


@compiled()
def _compare(index, where, reach, values, errors, around):  # type: ignore[no-untyped-def]
    height, width = index.shape
    found = np.empty(FEWEST + 8 * reach.max())  # fewer inside the largest square, and its border
    for k in range(where.size):
        row, column, radius = where[k] // width, where[k] % width, reach[k]
        count = 0
        for i in range(max(row - radius, 0), min(row + radius + 1, height)):
            for j in range(max(column - radius, 0), min(column + radius + 1, width)):
                if index[i, j] >= 0 and not (i == row and j == column):
                    place, value = count, values[index[i, j]]
                    while place > 0 and found[place - 1] > value:  # by insertion: they are a handful
                        found[place] = found[place - 1]
                        place -= 1
                    found[place] = value
                    count += 1
        median = (found[(count - 1) // 2] + found[count // 2]) / 2
        errors[k] = abs(values[k] - median)
        first, last = 0, count - 1
        for _ in range(3):  # sorted, so that the largest distances are at the ends
            below, above = median - found[first], found[last] - median
            around[k] = max(below, above)
            first, last = (first + 1, last) if below > above else (first, last - 1)
