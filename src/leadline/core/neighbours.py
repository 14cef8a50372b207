"""What the measurements around a measurement say of it."""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray
from leadline.base.jit import compiled

FEWEST = 4
"""Others that a square around a measurement must hold to speak of it; one with fewer is widened."""
ODD = 24.0
"""Median errors by which a measurement may differ from neighbours that agree before it counts as wrong. Many, because
what is odd only for its surroundings may be all that tells of the far end of the response."""
ROUNDS = 2  # of asking neighbours


class Neighbours:
    """For each measurement, the others in the smallest square around it that holds FEWEST of them.

    Parameters
    ----------
    where : (n,) int
        Flat indices of the measured pixels, each once; more than FEWEST.
    shape : (H, W)
    """

    def __init__(self, where: NDArray[np.intp], shape: tuple[int, int]) -> None:
        index = np.full(shape, -1, np.int32)
        index.flat[where] = np.arange(where.size, dtype=np.int32)
        self._reach, self._ends = np.empty(where.size, np.int32), np.zeros(where.size + 1, np.int64)
        _count(index, where, self._reach, self._ends[1:])
        np.cumsum(self._ends, out=self._ends)
        self._others = np.empty(self._ends[-1], np.int32)
        _collect(index, where, self._reach, self._ends, self._others)

    @property
    def spacing(self) -> int:
        """Distance between measurements in pixels: the median half-width of the squares."""
        return int(np.median(self._reach))

    def compare(
        self, values: NDArray[np.float64], asked: BoolArray | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Distance of each value from the median of its neighbours', and the third largest such distance of these.

        Only neighbours that are `asked` count, by default all of them; with none of them both are 0.
        """
        errors, around = np.empty(values.size), np.empty(values.size)
        asked = np.ones(values.size, np.bool_) if asked is None else asked
        _compare(self._ends, self._others, asked, values, errors, around)
        return errors, around

    def confirm(self, values: NDArray[np.float64]) -> BoolArray:
        """Which values are not far from their neighbours, unless these are far from each other.

        In the second round, only neighbours that passed the first are asked: wrong ones hide each other.

        Examples
        --------
        >>> where = np.arange(0, 6400, 64)
        >>> values = np.where(np.arange(100) == 40, 0.5, 0.01 * np.sin(np.arange(100)))
        >>> np.flatnonzero(~Neighbours(where, (80, 80)).confirm(values))
        array([40])
        """
        confirmed = np.ones(values.size, np.bool_)
        for _ in range(ROUNDS):
            errors, around = self.compare(values, confirmed)
            confirmed = errors <= ODD * np.median(errors) + 2.0 * around
        return confirmed


@compiled(parallel=True)
def _count(index, where, reach, counts):  # type: ignore[no-untyped-def]
    """Half-width of the smallest square around each that holds FEWEST others, and how many it holds."""
    height, width = index.shape
    for k in prange(where.size):
        row, column = where[k] // width, where[k] % width
        found, radius = 0, 0
        while found < FEWEST:  # there are as many in the image
            radius += 1
            for i in range(max(row - radius, 0), min(row + radius + 1, height)):
                step = 1 if abs(i - row) == radius else 2 * radius  # whole rows at top and bottom, else the two ends
                for j in range(column - radius, column + radius + 1, step):
                    if 0 <= j < width and index[i, j] >= 0:
                        found += 1
        reach[k], counts[k] = radius, found


@compiled(parallel=True)
def _collect(index, where, reach, ends, others):  # type: ignore[no-untyped-def]
    """The others in each square, one after the other; those of measurement k begin at ends[k]."""
    height, width = index.shape
    for k in prange(where.size):
        row, column, radius = where[k] // width, where[k] % width, reach[k]
        place = ends[k]
        for i in range(max(row - radius, 0), min(row + radius + 1, height)):
            for j in range(max(column - radius, 0), min(column + radius + 1, width)):
                if index[i, j] >= 0 and index[i, j] != k:
                    others[place] = index[i, j]
                    place += 1


@compiled(parallel=True)
def _compare(ends, others, asked, values, errors, around):  # type: ignore[no-untyped-def]
    longest = 0
    for k in range(values.size):
        longest = max(longest, ends[k + 1] - ends[k])
    for k in prange(values.size):
        found = np.empty(longest)
        count = 0
        for other in others[ends[k] : ends[k + 1]]:
            if asked[other]:
                place = count
                while place > 0 and found[place - 1] > values[other]:  # by insertion: they are a handful
                    found[place] = found[place - 1]
                    place -= 1
                found[place] = values[other]
                count += 1
        errors[k] = around[k] = 0.0
        if count == 0:
            continue
        median = (found[(count - 1) // 2] + found[count // 2]) / 2
        errors[k] = abs(values[k] - median)
        first, last = 0, count - 1
        for _ in range(min(3, count)):  # sorted, so that the largest distances are at the ends
            below, above = median - found[first], found[last] - median
            around[k] = max(below, above)
            first, last = (first + 1, last) if below > above else (first, last - 1)
