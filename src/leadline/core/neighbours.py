"""The neighbours of each measurement among the others, and robust statistics over them.

The search scans square rings around each measurement until enough others are found: rings of pixels where measurements
are dense, and else of square cells with about one measurement each. Its total cost is proportional to the number of
measurements, if they are spread evenly.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float64Array, IndexArray
from leadline.base.jit import parallel_loop

MIN_NEIGHBOURS = 4
"""Other measurements that the square around a measurement must contain; with fewer it is enlarged."""
MAX_NEIGHBOURS = 24
"""Largest number of neighbours of a measurement. A square on a regular grid contains 5 to 8; more than 24 are rare."""
DENSEST_NEIGHBOURS = 8
"""The same where more than half of the pixels are measured: those around a pixel. More would take 64 bytes a pixel."""
ISOLATED = 2.0
"""Distance of its neighbours, in units of the spacing, beyond which a measurement may differ more from them."""
DENSE = 30  # pixels per measurement, below which rings of pixels are faster than cells
MAX_PER_CELL = 4  # mean number of measurements in the cells that have any, above which cells are made smaller
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
        other = where.take(self.nearest[:, 0])
        rows = where // shape[1] - other // shape[1]
        columns = where - other - shape[1] * rows
        self.on_grid = bool(np.median(np.maximum(np.abs(rows), np.abs(columns))) > GRID_DISTANCE * self.spacing)

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
    """Neighbours of each measurement, nearest first; their number; and the half-width of the square of `enough` others.

    The neighbours are the `enough` nearest, or, with `in_squares`, all (up to `MAX_NEIGHBOURS` or
    `DENSEST_NEIGHBOURS`) in the smallest square that contains `enough` of them. There must be at least `enough` others.
    """
    capacity = enough
    if in_squares:
        most = DENSEST_NEIGHBOURS if 2 * where.size > shape[0] * shape[1] else MAX_NEIGHBOURS
        capacity = min(most, where.size - 1)
    nearest = np.empty((where.size, capacity), np.int32)
    counts, half_width = np.empty(where.size, np.int32), np.empty(where.size, np.int32)
    blocks, found = -(-where.size // PER_BLOCK), (enough, in_squares, nearest, counts, half_width)
    if shape[0] * shape[1] < DENSE * where.size:
        index = np.full(shape, -1, np.int32)
        index.put(where, np.arange(where.size, dtype=np.int32))
        _search_rings[blocks](index, where, *found)
    else:
        rows, columns = (part.astype(np.int32) for part in np.divmod(where, shape[1]))
        _search_cells[blocks](rows, columns, shape, *_cells(rows, columns, shape), *found)
    return nearest, counts, half_width


def _cells(
    rows: NDArray[np.int32], columns: NDArray[np.int32], shape: tuple[int, int]
) -> tuple[int, IndexArray, IndexArray]:
    """Side in pixels of square cells, where the measurements of each cell begin, and all of them cell by cell.

    The side is the mean distance of the measurements, and smaller if they are clustered.
    """
    side = max(1, round(math.sqrt(shape[0] * shape[1] / rows.size)))
    while True:
        across = -(-shape[1] // side)
        cell = rows // side * across + columns // side
        counts = np.bincount(cell, minlength=-(-shape[0] // side) * across)
        if side == 1 or rows.size <= MAX_PER_CELL * np.count_nonzero(counts):
            break
        side //= 2
    first = np.concatenate(([0], np.cumsum(counts)))
    return side, first, np.argsort(cell, kind="stable")


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
def _search_cells(block, rows, columns, shape, side, first, members, enough, in_squares, nearest, counts, half_width):  # type: ignore[no-untyped-def]
    height, width = shape
    down, across = -(-height // side), -(-width // side)
    capacity = nearest.shape[1]
    distances = np.empty(enough, np.int64)  # half-widths of the squares that reach the nearest ones so far, ascending
    keys = np.empty(capacity, np.int64)  # squared distances and, where these are equal, half-widths, ascending
    for k in range(block * PER_BLOCK, min((block + 1) * PER_BLOCK, rows.size)):
        row, column = rows[k], columns[k]
        i, j = row // side, column // side
        n, ring = 0, 0
        # Every pixel of the square of half-width `searched` is in a cell that was searched.
        searched = min(min(row - i * side, column - j * side), min((i + 1) * side - row, (j + 1) * side - column) - 1)
        searched -= side
        while n < enough or distances[enough - 1] > searched:
            for p in range(max(i - ring, 0), min(i + ring + 1, down)):
                step = 1 if abs(p - i) == ring else 2 * ring  # whole rows of cells at top and bottom, else the two ends
                for q in range(j - ring, j + ring + 1, step):
                    if not 0 <= q < across:
                        continue
                    for m in range(first[p * across + q], first[p * across + q + 1]):
                        other = members[m]
                        distance = max(abs(rows[other] - row), abs(columns[other] - column))
                        if distance == 0 or (n == enough and distance >= distances[n - 1]):
                            continue
                        place = min(n, enough - 1)
                        while place > 0 and distances[place - 1] > distance:
                            distances[place] = distances[place - 1]
                            place -= 1
                        distances[place] = distance
                        n = min(n + 1, enough)
            searched += side
            ring += 1
        half_width[k] = distances[enough - 1]
        # The nearest are in the circle around this square.
        reach = half_width[k] if in_squares else np.int64(math.sqrt(2.0) * half_width[k])
        n = 0
        for p in range(max(row - reach, 0) // side, min(row + reach, height - 1) // side + 1):
            for q in range(max(column - reach, 0) // side, min(column + reach, width - 1) // side + 1):
                for m in range(first[p * across + q], first[p * across + q + 1]):
                    other = members[m]
                    v, u = np.int64(rows[other] - row), np.int64(columns[other] - column)
                    distance = max(abs(v), abs(u))
                    if distance == 0 or distance > reach:
                        continue
                    key = (v * v + u * u) * 65536 + distance
                    place = n
                    while place > 0 and (
                        keys[place - 1] > key or (keys[place - 1] == key and nearest[k, place - 1] > other)
                    ):
                        place -= 1
                    if place == capacity:
                        continue
                    n = min(n + 1, capacity)
                    for later in range(n - 1, place, -1):
                        keys[later], nearest[k, later] = keys[later - 1], nearest[k, later - 1]
                    keys[place], nearest[k, place] = key, other
        counts[k] = n


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
