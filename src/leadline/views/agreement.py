"""Which views agree, and where: a wrong pose or a moved object must not spread.

Where a neighbour's measurement lands close to one of the view's own, the view knows its depth, and the two must agree
whatever the network says. The median of |log depth ratio| over these measurements is the discrepancy of the pair. With
right poses it is about that of all other pairs; with a wrong one it is larger. The typical discrepancy is the median
over all pairs, so that it follows from the data how accurate measurements and poses are.

Objects may move, and small errors of a pose show at edges only. Each view therefore also compares the completed depth
of its neighbours with its own measurements, one by one, in every round (`Contradictions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray, is_measured
from leadline.core.uncertainty import distance_to
from leadline.views.evidence import NEARER, DepthMap, Tolerance, carry, sources

REACH = 0.01
"""Distance of a carried measurement from one of the view's own, relative to the diagonal of the image, up to which the
two are compared: 8 pixels at 640 x 480. Where the view has few measurements it is a third of their spacing."""
MIN_COMPARED = 5
"""Measurements that a discrepancy needs."""
MAX_RATIO = 1.75
"""Pairs whose discrepancy exceeds the typical one by this factor do not exchange evidence. On real frames the
median with a wrong pose of 5 cm and 2 degrees is 2.1 to 2.7 times the typical discrepancy, and 90 % of the pairs with
right poses are below 1.4 to 1.7 times."""
MAX_VIEW_RATIO = 2.0
"""The same for the median over all pairs of a view, which then has no neighbours at all. With right poses it is at most
1.76, in two models of 60 frames that COLMAP made."""
MIN_DISCREPANCY = 0.005
"""Pairs with a smaller discrepancy agree in any case."""
CLOSE = 0.005
"""Distance of completed depth from a measurement of the view, relative to the diagonal of the image, up to which the
two are compared: 4 pixels at 640 x 480."""
CONTRADICTION = 5.0
"""Deviation from a measurement, in typical standard deviations, by which a neighbour contradicts it."""

AREAS, MIN_IN_AREA, MAX_CONTRADICTED = 4, 8, 0.25
"""Where a neighbour contradicts more than this share of the measurements in an area, of at least `MIN_IN_AREA`, it saw
something else there, and not only at these measurements. On real frames nearly all pairs have less."""


def close_to(measured: IndexArray, depth: FloatArray) -> BoolArray:
    """Where a view knows its depth from its measurements at the flat indices `measured`, (H, W)."""
    shape = (depth.shape[0], depth.shape[1])
    if not measured.size:
        return np.zeros(shape, np.bool_)
    spacing = math.sqrt(depth.size / measured.size)
    found: BoolArray = distance_to(measured, shape) <= max(REACH * math.hypot(*shape), spacing / 3)
    return found


def discrepancies(own: DepthMap, measured: IndexArray, neighbours: list[Float64Array]) -> Float64Array:
    """The discrepancy of a view with the measured points of each neighbour, (n,).

    `own` is the depth that was completed from the view's own measurements at the flat indices `measured`. NaN where too
    few measurements can be compared.
    """
    close = close_to(measured, own.depth)
    return np.array([_discrepancy(own, close, points) for points in neighbours])


def _discrepancy(own: DepthMap, close: BoolArray, points: Float64Array) -> float:
    where, ratio, _ = carry(own, points)
    compared = np.abs(ratio[close.flat[where]])
    return float(np.median(compared)) if compared.size >= MIN_COMPARED else math.nan


def agreeing(
    neighbours: Mapping[str, tuple[str, ...]], found: Mapping[str, Float64Array]
) -> dict[str, tuple[str, ...]]:
    """The neighbours of each view with which it agrees; `found` are the discrepancies with `neighbours`.

    A pair is compared in both directions. First the views whose median discrepancy is too large leave, the worst one
    first, because its pairs make its neighbours look wrong as well. Then the single pairs leave. Pairs that could not
    be compared stay.
    """
    both: dict[str, dict[str, list[float]]] = {name: {} for name in neighbours}
    for name, others in neighbours.items():
        for other, value in zip(others, found[name].tolist(), strict=True):
            for one, two in ((name, other), (other, name)):
                both[one].setdefault(two, []).append(value)
    values = {name: {other: _mean(of_pair) for other, of_pair in pairs.items()} for name, pairs in both.items()}
    known = [value for pairs in values.values() for value in pairs.values() if not math.isnan(value)]
    if not known:
        return dict(neighbours)
    typical = float(np.median(known))
    limit, view_limit = (max(ratio * typical, MIN_DISCREPANCY) for ratio in (MAX_RATIO, MAX_VIEW_RATIO))
    medians = {name: _median(pairs.values()) for name, pairs in values.items()}
    while (worst := max(medians, key=lambda name: medians[name])) and medians[worst] > view_limit:
        for other in values.pop(worst):
            del values[other][worst]
            medians[other] = _median(values[other].values())
        del medians[worst]
        if not medians:
            break
    return {
        name: tuple(other for other in others if other in values.get(name, {}) and not values[name][other] > limit)
        for name, others in neighbours.items()
    }


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _median(values: Iterable[float]) -> float:
    """Median of the values that are not NaN; 0 if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else 0.0


class Contradictions:
    """Where the measurements of a view contradict its neighbours.

    If the completed depth of a neighbour deviates from a measurement by much more than is typical of all neighbours and
    measurements, nothing of this neighbour is used at the pixels to which this measurement is the nearest one. If that
    happens often in an area of the image, nothing of the neighbour is used in the area: the surface that has moved
    usually has few measurements.
    `surfaces` should have only depth that the neighbours know from measurements of their own: elsewhere a deviation is
    usual, at depth edges in particular, and tells nothing about poses and moved objects.
    """

    def __init__(self, own: DepthMap, measured: IndexArray, surfaces: Mapping[int, Float64Array]) -> None:
        from scipy.ndimage import distance_transform_edt

        shape = own.depth.shape
        self._nearest: IndexArray = np.zeros(own.depth.size, np.intp)  # number of the nearest measurement
        self._found = np.zeros((max(surfaces) + 1, max(1, measured.size)), np.bool_)
        if not measured.size:
            return
        number = np.zeros(shape, np.intp)
        number.flat[measured] = np.arange(measured.size)
        elsewhere = np.ones(shape, np.bool_)
        elsewhere.flat[measured] = False
        distance, (rows, columns) = distance_transform_edt(elsewhere, return_indices=True)
        self._nearest = number[rows, columns].ravel()
        anything = Tolerance(np.broadcast_to(np.float32(1.0), shape), NEARER)
        where, ratio, index = carry(replace(own, tolerance=anything), np.concatenate(list(surfaces.values())))
        close = distance.flat[where] <= CLOSE * math.hypot(*shape)
        if not close.any():
            return
        deviation, source = np.abs(ratio[close]), sources(surfaces)[index[close]]
        limit = CONTRADICTION * 1.4826 * float(np.median(deviation))
        votes = np.zeros(self._found.shape)
        np.add.at(votes, (source, self._nearest[where[close]]), np.where(deviation > limit, 1.0, -1.0))
        self._found = votes > 0
        self._found |= _areas_of_contradiction(votes, measured, shape)

    def trust(self, where: IndexArray, source: IndexArray) -> BoolArray:
        """See `leadline.views.evidence.Trust`."""
        found: BoolArray = ~self._found[source, self._nearest[where]]
        return found


def _areas_of_contradiction(votes: Float64Array, measured: IndexArray, shape: tuple[int, ...]) -> BoolArray:
    """Measurements in areas where a neighbour contradicts too many of those with which it was compared.

    `votes`, (neighbours, measurements), are positive where a neighbour contradicts a measurement, negative where it
    agrees, and 0 where the two were not compared. An area is one of `AREAS` x `AREAS` of the image together with those
    around it.
    """
    rows, columns = (np.arange(AREAS**2) // AREAS, np.arange(AREAS**2) % AREAS)
    around = (abs(rows[:, None] - rows) <= 1) & (abs(columns[:, None] - columns) <= 1)
    y, x = np.divmod(measured, shape[1])
    area = y * AREAS // shape[0] * AREAS + x * AREAS // shape[1]
    near = around[area].astype(np.float64)  # (measurements, areas)
    compared, contradicted = (votes != 0).astype(np.float64) @ near, (votes > 0).astype(np.float64) @ near
    found: BoolArray = (compared >= MIN_IN_AREA) & (contradicted > MAX_CONTRADICTED * compared)
    return found[:, area]


def median_change(new: FloatArray, old: FloatArray) -> float:
    """Median change of log depth where both maps are known; NaN if they are nowhere."""
    both = is_measured(new) & is_measured(old)
    return float(np.median(np.abs(np.log(new[both] / old[both])))) if both.any() else math.nan
