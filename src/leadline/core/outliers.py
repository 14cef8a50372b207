"""Which measurements contradict their surroundings, and are better left out.

A wrong measurement is told by its log residual g = log s - log t. Where the calibrated prior t errs it does so for
whole surfaces, so that the residuals of neighbouring measurements agree; a return from behind the foreground, a
reflection or a mismatched feature stands alone. A measurement is left out if both hold:

- it is far from the others: |g - median| > FAR sqrt(spread^2 + typical^2 + sigma^2), the median and the spread (1.48
  times the median absolute deviation) being those of its nearest neighbours, typical the same of all deviations in the
  image, and sigma its own standard deviation if it is known. Beside a depth edge that the prior blurs, residuals
  scatter, and so does what is allowed;
- it is alone: fewer than a fifth of them lie within two typical deviations of it. Those behind an edge are not alone.

This is repeated with ever closer neighbours, among those not left out so far, since at first up to half of them may be
wrong. A blurred prior leaves residuals that slope: errors smaller than the slope from one neighbour to the next hide
behind it. Two last rounds therefore ask, in place of the median, a plane through the neighbours' residuals, itself
robust (Geman and McClure's weights), with the median deviation from it as their spread. A whole region that is wrong
in itself, such as the table behind a glass, agrees with its neighbours and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.jit import compiled

NEIGHBOURS = (24, 12, 8)
"""How many are asked in each round. Of 24 the median survives 30 % of errors in all but 2 % of neighbourhoods."""
PLANES = (12, 12)
"""And in the last rounds, whose neighbours vote with a plane."""
FAR = 4.0
"""Deviations beyond which a measurement may be left out: of normal ones this concerns one in 16,000."""
FAR_FROM_PLANE = 5.0
"""The same in the last rounds. A plane fits its few neighbours closely, so that deviations are larger beside them."""
ALONE = 0.2
"""Share of neighbours whose company a measurement needs: twice what 10 % of coherent errors among them could give."""
_FEWEST = 6  # neighbours for a plane: twice its parameters
_TURNS = 6  # of plane and weights
_DRAWN = 0.05  # weight of a slope of zero, as a share of the neighbours' own
_SMALLEST = 1e-6  # log depth: what float32 can tell apart
NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute deviation


@dataclass(frozen=True, eq=False)
class Rejected:
    """The measurements that were left out, and why.

    Attributes
    ----------
    where : (k,) int
        Flat indices of their pixels.
    deviation : (k,) float64
        How far, in log depth, each is from its neighbours' median: positive if it is too far away.
    allowed : (k,) float64
        How far it might have been.
    """

    where: NDArray[np.intp]
    deviation: NDArray[np.float64]
    allowed: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        return {"count": int(self.where.size), "where": self.where.tolist()}


def contradictions(
    residuals: FloatArray,
    where: NDArray[np.intp],
    shape: tuple[int, int],
    sigma: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.bool_], Rejected]:
    """Which measurements to keep, (n,) bool, and what is known of the others.

    With fewer than three times as many measurements as the last round asks for, all are kept: too few to outvote one.

    Parameters
    ----------
    residuals : (n,) float
        log(s / t) of each measurement, t from a robust fit.
    where : (n,) int
        Flat indices of their pixels, each once.
    shape : (H, W)
    sigma : (n,) float, optional
        Standard deviation of each in log depth. Default: 0.

    Examples
    --------
    >>> where = np.arange(0, 6400, 64)
    >>> residuals = np.where(np.arange(100) == 40, 0.5, 0.01 * np.sin(np.arange(100)))
    >>> keep, rejected = contradictions(residuals, where, (80, 80))
    >>> rejected.where // 64, rejected.deviation.round(1)
    (array([40]), array([0.5]))
    """
    g = np.asarray(residuals, np.float64)
    keep = np.ones(g.size, np.bool_)
    deviation, allowed = np.zeros(g.size), np.full(g.size, np.inf)
    if g.size >= 3 * NEIGHBOURS[-1]:
        nearest = nearest_others(where, shape, NEIGHBOURS[0])
        own = np.zeros(g.size) if sigma is None else sigma
        middle, spread, company = np.empty(g.size), np.empty(g.size), np.empty(g.size)
        rows, columns = (axis.astype(np.float64) for axis in np.divmod(where, shape[1]))
        rounds = [(asked, FAR, False) for asked in NEIGHBOURS] + [(asked, FAR_FROM_PLANE, True) for asked in PLANES]
        for asked, far, plane in rounds:
            _surroundings(nearest, g, keep, asked, middle, spread)
            if plane:
                _planes(nearest, rows, columns, g, keep, asked, middle, spread)
            deviation = g - middle
            typical = NORMAL * float(np.median(np.abs(deviation[keep])))
            allowed = far * np.sqrt((NORMAL * spread) ** 2 + typical**2 + own**2)
            _company(nearest, g, keep, asked, 2.0 * typical, company)
            keep = (np.abs(deviation) <= allowed) | (company >= ALONE)
    out = ~keep
    return keep, Rejected(where[out], deviation[out], allowed[out])


def nearest_others(where: NDArray[np.intp], shape: tuple[int, int], count: int) -> NDArray[np.int32]:
    """The `count` nearest others of each of the measurements at flat indices `where`, nearest first, (n, count).

    They are given by their place in `where`; fewer than asked for where there are not as many.

    Examples
    --------
    >>> nearest_others(np.array([0, 3, 4]), (1, 5), 2)
    array([[1, 2],
           [2, 0],
           [1, 0]], dtype=int32)
    """
    index = np.full(shape, -1, np.int32)
    index.flat[where] = np.arange(where.size, dtype=np.int32)
    nearest = np.empty((where.size, min(count, where.size - 1)), np.int32)
    _nearest(index, where, nearest)
    return nearest


@compiled(parallel=True)
def _nearest(index, where, nearest):  # type: ignore[no-untyped-def]
    """The nearest others of each measurement, nearest first; there are as many in the image."""
    height, width = index.shape
    count = nearest.shape[1]
    for k in prange(where.size):
        row, column = where[k] // width, where[k] % width
        distance = np.full(count, np.iinfo(np.int64).max)
        n, radius = 0, 0
        # What lies outside a square of this half-width is farther than any circle in it.
        while n < count or distance[count - 1] > radius * radius:
            radius += 1
            for i in range(max(row - radius, 0), min(row + radius + 1, height)):
                step = 1 if abs(i - row) == radius else 2 * radius  # whole rows at top and bottom, else the two ends
                for j in range(column - radius, column + radius + 1, step):
                    if 0 <= j < width and index[i, j] >= 0:
                        square = (i - row) ** 2 + (j - column) ** 2
                        if n == count and square >= distance[count - 1]:
                            continue
                        at = min(n, count - 1)
                        while at > 0 and distance[at - 1] > square:
                            distance[at], nearest[k, at] = distance[at - 1], nearest[k, at - 1]
                            at -= 1
                        distance[at], nearest[k, at] = square, index[i, j]
                        n = min(n + 1, count)


@compiled()
def _kept(others, values, keep, count, found):  # type: ignore[no-untyped-def]
    """The values of the first `count` that are kept; returns how many there are."""
    n = 0
    for other in others:
        if keep[other] and n < count:
            found[n] = values[other]
            n += 1
    return n


@compiled(parallel=True)
def _surroundings(nearest, values, keep, count, middle, spread):  # type: ignore[no-untyped-def]
    """Median, and median absolute deviation, of each measurement's neighbours; its own value if none is kept."""
    for k in prange(values.size):
        found = np.empty(nearest.shape[1])
        n = _kept(nearest[k], values, keep, count, found)
        middle[k] = np.median(found[:n]) if n else values[k]
        spread[k] = np.median(np.abs(found[:n] - middle[k])) if n else 0.0


@compiled(parallel=True)
def _planes(nearest, rows, columns, values, keep, count, middle, spread):  # type: ignore[no-untyped-def]
    """Replace middle and spread by those of a robust plane, where there are neighbours enough for one.

    From the median on, a line of weighted least squares and its weights take turns. Its slopes are drawn to zero a
    little, so that neighbours in one row leave the other slope alone.
    """
    for k in prange(values.size):
        found, down, across = np.empty(count), np.empty(count), np.empty(count)
        n, reach = 0, 1.0
        for other in nearest[k]:
            if keep[other] and n < count:
                found[n], down[n], across[n] = values[other], rows[other] - rows[k], columns[other] - columns[k]
                reach = max(reach, abs(down[n]), abs(across[n]))
                n += 1
        if n < _FEWEST:
            continue
        level, deviation = middle[k], spread[k]
        fall, lean = 0.0, 0.0
        for _ in range(_TURNS):
            width = 2.0 * max(NORMAL * deviation, _SMALLEST)
            w0, wx, wy, wxx, wxy, wyy, wv, wxv, wyv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for m in range(n):
                x, y = down[m] / reach, across[m] / reach
                off = (found[m] - level - fall * x - lean * y) / width
                weight = 1.0 / (1.0 + off * off) ** 2
                w0 += weight
                wx += weight * x
                wy += weight * y
                wxx += weight * x * x
                wxy += weight * x * y
                wyy += weight * y * y
                wv += weight * found[m]
                wxv += weight * x * found[m]
                wyv += weight * y * found[m]
            # Level eliminated: two equations for the slopes about the weighted means.
            a, b, c = wxx - wx * wx / w0 + _DRAWN * w0, wxy - wx * wy / w0, wyy - wy * wy / w0 + _DRAWN * w0
            p, q = wxv - wx * wv / w0, wyv - wy * wv / w0
            determinant = a * c - b * b
            fall, lean = (c * p - b * q) / determinant, (a * q - b * p) / determinant
            level = (wv - fall * wx - lean * wy) / w0
            off_plane = np.empty(n)
            for m in range(n):
                off_plane[m] = abs(found[m] - level - fall * down[m] / reach - lean * across[m] / reach)
            deviation = np.median(off_plane)
        middle[k], spread[k] = level, deviation


@compiled(parallel=True)
def _company(nearest, values, keep, count, reach, company):  # type: ignore[no-untyped-def]
    """Share of its neighbours that a measurement agrees with; all if none is kept."""
    for k in prange(values.size):
        found = np.empty(nearest.shape[1])
        n = _kept(nearest[k], values, keep, count, found)
        near = 0
        for m in range(n):
            near += abs(found[m] - values[k]) <= reach
        company[k] = near / n if n else 1.0
