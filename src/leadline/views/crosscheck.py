"""Which measurements are wrong: those that contradict the depth that is known without them.

The reflection of an object in a smooth surface can be triangulated like the object itself, from many images and with a
small reprojection error, and lies behind the surface. A mismatched feature may do the same. All views that see such a
point have the same wrong measurement, so that comparing measurements between views does not find it. It stands out only
against the depth that follows from the other measurements and the network.

**Deviation.** The measurements of all views are divided into two halves, and each view is completed from the first
half of its own and its neighbours' measurements, and from the second one. A measurement is compared with the depth
that was completed without its half, in its own view and in those of its neighbours that see it; the median over these
views is its deviation in log depth. The network errs differently from view to view, so that the median over the views
of a right measurement is smaller than its deviation in one view.

**Halves.** The same point belongs to the same half in all views: the world is divided into small cubes, and a hash of
the cube decides.

**Limit.** Deviations grow with the distance d to the nearest measurement that was used. The typical deviation is
exp(a + b log d), with a and b from a regression over the measurements of all views. A measurement is left out if it
deviates by more than `LIMIT` times the typical deviation and its own noise, combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import complete
from leadline.core.uncertainty import distance_to
from leadline.views.evidence import NEARER, DepthMap, Points, Tolerance, carry, from_measurements, merge
from leadline.views.inputs import View
from leadline.views.overlap import Outline
from leadline.views.store import Store, part_of, stored_points

CUBE = 0.01
"""Side of the cubes relative to the typical distance of surfaces: several pixels of a usual camera, so that a point is
seldom in another cube because its pixel was rounded."""
LIMIT = 5.0
"""Deviation in units of the typical one beyond which a measurement is left out. With points of a COLMAP model of 60
frames 4 % are. A right point that contradicts network and other points is worth most: with 2.5 the error of the first
round is larger by 4 % (every fourth frame), and with 10 by 4 % as well; between 4 and 6 it hardly changes."""
_MIN_DEVIATION = 1e-4  # log depth; smaller ones are due to the solver's tolerance
_MIN_MEASUREMENTS = 50  # of all views together, which the regression needs
_PRIMES = np.array([73856093, 19349663, 83492791])  # of the spatial hash by Teschner et al. (2003)


def in_first_half(points: Float64Array, side: float) -> BoolArray:
    """Whether each point, (n, 3), belongs to the first half, with cubes of this side."""
    cubes = np.floor(points / side).astype(np.int64) * _PRIMES
    found: BoolArray = (cubes[:, 0] ^ cubes[:, 1] ^ cubes[:, 2]) % 2 == 0
    return found


class CrossCheck:
    """The check of the measurements of all views, with its maps in the store of the views.

    `compute` makes the arrays of one view for each of `PARTS`, in this order and for all views, and `fit_limits` the
    limits; `passed` and `without_failed` apply them.
    """

    PARTS = ("halves", "deviations")

    def __init__(
        self,
        store: Store,
        views: Mapping[str, View],
        neighbours: Mapping[str, tuple[str, ...]],
        options: CompletionOptions,
        outlines: Mapping[str, Outline],
    ) -> None:
        self._store, self._views, self._neighbours = store, views, neighbours
        self._options = replace(options, outliers="keep")
        self._side = CUBE * float(np.median(np.concatenate([outline.distances() for outline in outlines.values()])))
        self._limits: Limits | None = None

    def compute(self, part: str, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a view for a part."""
        if part == self.PARTS[0]:
            return self._complete_halves(name)
        first = self._store.get(self.PARTS[0], name, "first")
        maps = [self._half_maps(other, own=other == name) for other in (name, *self._neighbours[name])]
        return {"compared": compare_with_halves(stored_points(self._store, name).points, first, maps)}

    def fit_limits(self) -> None:
        self._limits = Limits.fit(self._store.get(self.PARTS[1], name, "compared") for name in self._views)

    def passed(self, name: str) -> Points:
        """The measurements of a view that passed."""
        points = stored_points(self._store, name)
        return points.subset(self._trusted(name, points))

    def without_failed(self, name: str, sparse: FloatArray) -> FloatArray:
        """The measurements of a view without those that failed and are not exact, (H, W)."""
        points, result = stored_points(self._store, name), sparse.copy()
        failed = ~self._trusted(name, points) & (points.relative > 0)
        result.flat[points.where[failed]] = np.nan
        return result

    def _trusted(self, name: str, points: Points) -> BoolArray:
        if self._limits is None:
            return np.ones(points.where.size, np.bool_)
        return self._limits.trusted(self._store.get(self.PARTS[1], name, "compared"), points.relative)

    def _complete_halves(self, name: str) -> dict[str, NDArray[Any]]:
        """The depth of a view from each half of its measurements and its neighbours', and which are in the first."""
        view, points = self._views[name], stored_points(self._store, name)
        prior, sparse, noise, valid = view.load()
        depth = self._store.get(part_of(0), name, "depth")
        own = DepthMap(depth, view.camera, view.camera_to_world, Tolerance.around(sparse))
        others = [stored_points(self._store, other) for other in self._neighbours[name]]
        first = in_first_half(points.points, self._side)
        arrays: dict[str, NDArray[Any]] = {"first": first}
        for array, wanted in (("of first", True), ("of second", False)):
            half = points.where[first == wanted]
            some = np.full_like(sparse, np.nan)
            some.flat[half] = sparse.flat[half]
            carried = [part.subset(in_first_half(part.points, self._side) == wanted) for part in others]
            some, sigma = merge(some, noise, [from_measurements(own, carried)] if carried else [])
            completion = complete(prior, some, noise=sigma, valid=valid, options=self._options)
            arrays[array] = completion.depth.astype(np.float32)
        return arrays

    def _half_maps(self, name: str, own: bool) -> tuple[HalfMap, HalfMap]:
        """The two maps of a view; in its own view a measurement is always seen, however much it deviates."""
        view, first = self._views[name], self._store.get(self.PARTS[0], name, "first")
        where, maps = stored_points(self._store, name).where, []
        for array, half in (("of first", first), ("of second", ~first)):
            depth = self._store.get(self.PARTS[0], name, array)
            tolerance = Tolerance(np.broadcast_to(np.float32(np.inf if own else 1.0), depth.shape), NEARER)
            maps.append(HalfMap(DepthMap(depth, view.camera, view.camera_to_world, tolerance), where[half]))
        return maps[0], maps[1]


@dataclass(frozen=True, eq=False)
class HalfMap:
    """The depth of a view that was completed from one half of its measurements, at the flat indices `used`."""

    map: DepthMap
    used: IndexArray

    def compare(self, points: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Log of the depth of each point relative to the view's, and distance to the nearest measurement, (n,).

        Both are NaN for points that the view does not see.
        """
        deviations, distances = np.full((2, len(points)), np.nan)
        where, ratio, seen = carry(self.map, points)
        deviations[seen] = ratio
        if self.used.size:
            shape = (self.map.depth.shape[0], self.map.depth.shape[1])
            distances[seen] = distance_to(self.used, shape).flat[where]
        return deviations, distances


def compare_with_halves(
    points: Float64Array, first: BoolArray, views: Sequence[tuple[HalfMap, HalfMap]]
) -> Float64Array:
    """Deviation of each point and its distance from the nearest measurement, medians over the views, (n, 2).

    `views` have the depth completed from the first half and that from the second one. NaN for points that none sees.
    """
    deviations, distances = np.full((2, len(views), len(first)), np.nan)
    for k, (of_first, of_second) in enumerate(views):
        for half, other in ((first, of_second), (~first, of_first)):
            deviations[k, half], distances[k, half] = other.compare(points[half])
    result = np.full((len(first), 2), np.nan)
    seen = (np.isfinite(deviations) & np.isfinite(distances)).any(axis=0)
    result[seen] = np.stack((np.nanmedian(deviations[:, seen], axis=0), np.nanmedian(distances[:, seen], axis=0)), -1)
    return result


@dataclass(frozen=True)
class Limits:
    """The typical deviation exp(constant + slope log d) of measurements at distance d from the nearest one."""

    constant: float
    slope: float

    @classmethod
    def fit(cls, compared: Iterable[Float64Array]) -> Limits | None:
        """From the results of `compare_with_halves` for all views; None if there are too few measurements."""
        table = np.concatenate([np.empty((0, 2)), *compared])
        table = table[np.isfinite(table).all(axis=1)]
        if len(table) < _MIN_MEASUREMENTS:
            return None
        logs = np.log(np.maximum(np.abs(table[:, 0]), _MIN_DEVIATION))
        slope, constant = np.polyfit(np.log(np.maximum(table[:, 1], 1.0)), logs, 1)
        if slope < 0:
            slope, constant = 0.0, logs.mean()
        return cls(float(constant), float(slope))

    def trusted(self, compared: Float64Array, relative: FloatArray) -> BoolArray:
        """Which measurements are right, (n,); `relative` is their standard deviation relative to the depth."""
        typical = np.exp(self.constant + self.slope * np.log(np.maximum(compared[:, 1], 1.0)))
        with np.errstate(invalid="ignore"):
            found: BoolArray = ~(np.abs(compared[:, 0]) > LIMIT * np.hypot(typical, relative))
        return found
