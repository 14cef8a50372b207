"""The neighbours of each measurement among the others, and robust statistics over them.

The search scans square rings of pixels around each measurement until enough others are found. Its total cost is
proportional to the number of pixels, for any number of measurements that are spread evenly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float64Array, IndexArray
from leadline.base.jit import parallel_loop

MIN_NEIGHBOURS = 4
"""Other measurements that the square around a measurement must contain; with fewer it is enlarged."""
MAX_NEIGHBOURS = 24
"""Largest number of neighbours of a measurement. A square on a regular grid contains 5 to 8; more than 24 are rare."""

ISOLATED = 2.0
"""Distance of its neighbours, in units of the spacing, beyond which a measurement may differ more from them."""
PER_BLOCK = 256  # measurements that share a buffer: to allocate one for each would take as long as the search
GRID_DISTANCE = 0.6  # median distance of the nearest neighbour in units of the spacing, beyond which they form a grid


def nearest_others(where: IndexArray, shape: tuple[int, int], count: int) -> NDArray[np.int32]:
    """Indices into `where` of the others nearest to each measurement, nearest first, (n, min(count, n - 1)).

    `where` holds the flat indices of the measured pixels of an (H, W) image, each once, in increasing order.

    >>> nearest_others(np.array([0, 3, 4]), (1, 5), 2)
    array([[1, 2],
           [2, 0],
           [1, 0]], dtype=int32)
    """
    return _search(where, shape, min(count, where.size - 1))[0]


class Neighbours:
    """For each measurement, the others in the smallest square around it that contains `MIN_NEIGHBOURS` of them.

    There must be more than `MIN_NEIGHBOURS` measurements.

    Attributes
    ----------
    nearest : (n, k) int32
        Indices of the neighbours, nearest first, of which each measurement has `counts`, (n,).
    spacing : int
        Distance of the measurements in pixels: the median half-width of the squares, on a square grid its mesh width.
    isolation : (n,) float64
        Half-width of the square of each measurement relative to ISOLATED times the spacing, at least 1. Values of
        neighbours that are farther away differ more.
    on_grid : bool
        Whether the nearest neighbour of most measurements is about as far as the others, as on a grid. The median
        distance of the nearest, along the axis where it is larger, is 0.43 of the spacing for points at random places
        and 0.5 for points on lines; on a grid it is 1, or 2/3 and more where the mesh width is no whole number.
    """

    def __init__(self, where: IndexArray, shape: tuple[int, int]) -> None:
        nearest, self.counts, half_width = _search(where, shape, MIN_NEIGHBOURS, in_squares=True)
        self.nearest = np.ascontiguousarray(nearest[:, : self.counts.max()])  # most of the columns are empty
        self.spacing = int(np.median(half_width))
        self.isolation = np.maximum(half_width / (ISOLATED * self.spacing), 1.0)
        (row, column), other = np.divmod(where, shape[1]), self.nearest[:, 0]
        distance = np.maximum(np.abs(row - row[other]), np.abs(column - column[other]))
        self.on_grid = bool(np.median(distance) > GRID_DISTANCE * self.spacing)

    def compare(self, values: Float64Array, counted: BoolArray | None = None) -> tuple[Float64Array, Float64Array]:
        """Distance of each value from the median of its neighbours' values, and a measure of the neighbours' spread.

        The spread is the third largest distance of a neighbour from that median: it is large where three neighbours or
        more differ from the others, as beside a depth edge, and small if at most two are outliers. Measurements that
        are not `counted` are ignored as neighbours; where all are ignored both results are 0.
        """
        distance, spread = np.empty(values.size), np.empty(values.size)
        counted = np.ones(values.size, np.bool_) if counted is None else counted
        _compare[-(-values.size // PER_BLOCK)](self.nearest, self.counts, counted, values, distance, spread)
        return distance, spread


def _search(
    where: IndexArray, shape: tuple[int, int], enough: int, *, in_squares: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Neighbours of each measurement, nearest first; their number; and the half-width of the square searched.

    The neighbours are the `enough` nearest, or, with `in_squares`, all (up to `MAX_NEIGHBOURS`) in the smallest square
    that contains `enough` of them. There must be at least `enough` others.
    """
    index = np.full(shape, -1, np.int32)
    index.flat[where] = np.arange(where.size, dtype=np.int32)
    capacity = min(MAX_NEIGHBOURS, where.size - 1) if in_squares else enough
    nearest = np.empty((where.size, capacity), np.int32)
    counts, half_width = np.empty(where.size, np.int32), np.empty(where.size, np.int32)
    _search_rings[-(-where.size // PER_BLOCK)](index, where, enough, in_squares, nearest, counts, half_width)
    return nearest, counts, half_width


@parallel_loop()
def _search_rings(block, index, where, enough, in_squares, nearest, counts, half_width):  # type: ignore[no-untyped-def]
    height, width = index.shape
    capacity = nearest.shape[1]
    squares = np.empty(capacity, np.int64)  # squared distances of the n neighbours so far, ascending
    for k in range(block * PER_BLOCK, min((block + 1) * PER_BLOCK, where.size)):
        row, column = where[k] // width, where[k] % width
        n, radius = 0, 0
        # Pixels outside the square of half-width `radius` are farther than `radius`, but those in its corners are too.
        while n < enough or (not in_squares and squares[enough - 1] > radius * radius):
            radius += 1
            for i in range(max(row - radius, 0), min(row + radius + 1, height)):
                step = 1 if abs(i - row) == radius else 2 * radius  # whole rows at top and bottom, else the two ends
                for j in range(column - radius, column + radius + 1, step):
                    if 0 <= j < width and index[i, j] >= 0:
                        square = (i - row) ** 2 + (j - column) ** 2
                        if n == capacity and square >= squares[n - 1]:
                            continue
                        place = min(n, capacity - 1)
                        while place > 0 and squares[place - 1] > square:
                            squares[place], nearest[k, place] = squares[place - 1], nearest[k, place - 1]
                            place -= 1
                        squares[place], nearest[k, place] = square, index[i, j]
                        n = min(n + 1, capacity)
        counts[k], half_width[k] = n, radius


@parallel_loop()
def _compare(block, nearest, counts, counted, values, distance, spread):  # type: ignore[no-untyped-def]
    found = np.empty(nearest.shape[1])
    for k in range(block * PER_BLOCK, min((block + 1) * PER_BLOCK, values.size)):
        count = 0
        for m in range(counts[k]):  # by number: numba would count references to a view of the row
            other = nearest[k, m]
            if counted[other]:
                place = count
                while place > 0 and found[place - 1] > values[other]:  # insertion sort, since they are few
                    found[place] = found[place - 1]
                    place -= 1
                found[place] = values[other]
                count += 1
        distance[k] = spread[k] = 0.0
        if count == 0:
            continue
        median = (found[(count - 1) // 2] + found[count // 2]) / 2
        distance[k] = abs(values[k] - median)
        first, last = 0, count - 1
        for _ in range(min(3, count)):  # the values are sorted, so that the largest distances are at the ends
            below, above = median - found[first], found[last] - median
            spread[k] = max(below, above)
            first, last = (first + 1, last) if below > above else (first, last - 1)
