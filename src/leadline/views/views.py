"""Completion of many posed views in rounds, so that their depth agrees from view to view.

Round 0 completes each view alone. In every later round a view is completed again with what its neighbours say about it,
as soft measurements; see `evidence`. The rounds end when no view moves any more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import Float64Array, FloatArray, IndexArray, is_measured
from leadline.base.errors import InputError, param
from leadline.base.executors import processes, serial
from leadline.core.noise import Noise, sigma_at
from leadline.core.options import CompletionOptions, as_options
from leadline.core.pipeline import Completion, complete
from leadline.geometry.cameras import CameraModel
from leadline.views.agreement import agreeing, discrepancies
from leadline.views.evidence import (
    DepthMap,
    Evidence,
    Points,
    depth_points,
    from_depth,
    from_measurements,
    measured_points,
    tolerance_around,
)
from leadline.views.inputs import MapInput, NoiseInput, PriorInput, View
from leadline.views.overlap import Outline, coarse_points, find_neighbours
from leadline.views.store import FolderStore, MemoryStore, Store

POINT_NEIGHBOURS = 24
"""Neighbours whose measurements are carried over."""
DEPTH_NEIGHBOURS = 8
"""Neighbours whose completed depth is carried over."""
MAX_ROUNDS = 6
SETTLED = 1e-3
"""Mean change of log depth in a round at which the rounds end."""


@dataclass(frozen=True)
class Round:
    """Statistics of a round, averages over the views.

    Attributes
    ----------
    number : int
        0 for the completion of each view alone.
    moved : float
        Median change of log depth since the round before; NaN in round 0.
    disagreement : float
        Median of |log D - log carried depth of the neighbours|; NaN if no view has a neighbour.
    """

    number: int
    moved: float
    disagreement: float


class Views:
    """Completion of many posed views whose depth agrees from view to view.

    Parameters
    ----------
    options : "best", "paper" or CompletionOptions
    store : folder, optional
        Folder for the maps between rounds. With it memory does not grow with the number of views, and a run that was
        killed continues where it was. Default: all maps stay in memory.
    workers : int
        Processes that complete the views of a round; more than one need a `store`. Inputs that are functions are
        pickled for them.
    on_progress : callable, optional
        Called with the number of a round, 0 for each view alone, and how many of its views are done.
    """

    def __init__(
        self,
        options: CompletionOptions | str = "best",
        *,
        store: str | os.PathLike[str] | None = None,
        workers: int = 1,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if workers > 1 and store is None:
            raise InputError(f"{param('workers')} share their maps in files; give a {param('store')}.")
        self.options = as_options(options)
        self._workers, self._on_progress = workers, on_progress
        self.rounds: list[Round] = []
        self._views: dict[str, View] = {}
        self._folder = None if store is None else Path(store)
        self._store: Store = MemoryStore()
        self._neighbours: dict[str, tuple[str, ...]] = {}

    def add(
        self,
        name: str,
        prior: PriorInput,
        sparse: MapInput,
        camera: CameraModel,
        camera_to_world: ArrayLike,
        noise: NoiseInput = None,
        valid: MapInput | None = None,
    ) -> None:
        """Add a view.

        Parameters
        ----------
        name : str
        prior, sparse, noise, valid
            As for `complete`: arrays, files that are read when they are needed, or functions without arguments that
            return them.
        camera : CameraModel
        camera_to_world : (4, 4) array
            Pose: transform from the camera's frame to that of the world, in metres.
        """
        view = View(name, prior, sparse, camera, camera_to_world, noise, valid)  # type: ignore[arg-type]
        if name in self._views:
            raise InputError(f"{param('name')} {name!r} was added before; every view needs its own name.")
        self._views[name] = view

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The views that view `name` gets evidence from, those with the largest overlap first."""
        if name not in self._views:
            raise InputError(f"{param('name')} must be a view that was added, got {name!r} instead.")
        self._prepare()
        return self._neighbours[name]

    def complete(
        self, rounds: int | None = None, *, only: Collection[str] | None = None, uncertainty: bool = False
    ) -> Iterator[tuple[str, Completion]]:
        """The views with their completions, in the order in which they were added.

        Parameters
        ----------
        rounds : int, optional
            Rounds after the completion of each view alone; 0 for these alone. Default: until nothing moves.
        only : collection of str, optional
            Names of the views to return. Default: all.
        uncertainty : bool
            Also estimate `Completion.sigma`.
        """
        if rounds is not None and (not isinstance(rounds, int) or rounds < 0):
            raise InputError(f"{param('rounds')} must be a number of at least 0, got {rounds!r} instead.")
        last = self.advance(rounds)
        for name in self._views:
            if only is None or name in only:
                yield name, self.complete_last(name, last, uncertainty=uncertainty)

    def advance(self, rounds: int | None = None) -> int:
        """Run all rounds but the last; returns the number of the last, for `complete_last`."""
        self._prepare()
        number = 0
        while rounds != number and not self._settled(number):
            number += 1
            if number != rounds and not (rounds is None and self._settled(number)):
                self._run(number)
        return number

    def complete_last(self, name: str, last: int, *, uncertainty: bool = False) -> Completion:
        """The completion of one view in the last round; worker processes may share the views after `advance`."""
        return self._complete(name, last, uncertainty)[0]

    def alone(self, name: str) -> FloatArray:
        """Depth of view `name` without its neighbours, (H, W)."""
        self._prepare()
        return self._store.get("round-0", name, "depth")

    def _settled(self, number: int) -> bool:
        if number >= MAX_ROUNDS or not any(self._neighbours.values()):
            return True
        return len(self.rounds) > number > 0 and self.rounds[number].moved < SETTLED

    def _prepare(self) -> None:
        """Complete each view alone and choose the neighbours."""
        if self._neighbours.keys() == self._views.keys():
            return
        if self._folder is not None:
            store = FolderStore(self._folder)
            store.open({"options": asdict(self.options), "views": [view.facts() for view in self._views.values()]})
            self._store = store
        self._store_round(0)
        outlines = {}
        for name, view in self._views.items():
            outline = self._store.get("round-0", name, "outline")
            outlines[name] = Outline(view.camera, view.camera_to_world, outline)
        overlapping = find_neighbours(outlines, POINT_NEIGHBOURS)
        found = {name: self._discrepancies(name, others) for name, others in overlapping.items()}
        self._neighbours = agreeing(overlapping, found)
        self.rounds = [Round(0, math.nan, math.nan)]

    def _store_round(self, number: int) -> None:
        """Complete and store the views of a round that are not stored yet."""
        missing = [name for name in self._views if not self._store.has(f"round-{number}", name)]
        if not missing:
            return
        job = _RoundJob(self, number)
        run = serial(job, missing) if self._workers == 1 else processes(job, missing, workers=self._workers)
        for done, (name, stored) in enumerate(run, start=len(self._views) - len(missing) + 1):
            if stored is None:
                raise InputError(f"{name}: a worker process died twice; use fewer {param('workers')}.")
            if self._on_progress is not None:
                self._on_progress(number, done)

    def _store_view(self, name: str, number: int) -> bool:
        view = self._views[name]
        arrays: dict[str, NDArray[Any]]
        if number == 0:
            completion, points, measured = self._complete_alone(view)
            depth = completion.depth.astype(np.float32)
            outline = coarse_points(depth, view.camera, view.camera_to_world)
            arrays = {"depth": depth, "measured": measured, "outline": outline, **vars(points)}
        else:
            completion, moved, disagreement, before = self._complete(name, number)
            numbers = np.array([moved, disagreement, before])
            arrays = {"depth": completion.depth.astype(np.float32), "statistics": numbers}
        self._store.put(f"round-{number}", name, arrays)
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_on_progress": None}  # for worker processes

    def _discrepancies(self, name: str, others: tuple[str, ...]) -> Float64Array:
        measured = self._store.get("round-0", name, "measured")
        return discrepancies(self._map(name, "round-0"), measured, [self._points(other) for other in others])

    def _points(self, name: str) -> Points:
        return Points(*(self._store.get("round-0", name, part) for part in ("points", "relative")))

    def _complete_alone(self, view: View) -> tuple[Completion, Points, IndexArray]:
        prior, sparse, noise, valid = view.load()
        completion = complete(prior, sparse, noise=noise, valid=valid, options=self.options)
        points = measured_points(sparse, _noise_map(noise, sparse), view.camera, view.camera_to_world)
        return completion, points, np.flatnonzero(is_measured(sparse))

    def _run(self, number: int) -> None:
        """Complete every view in a round after the first."""
        part = f"round-{number}"
        self._store_round(number)
        statistics = [self._store.get(part, name, "statistics") for name in self._views]
        moved, disagreement, before = _column_means(np.array(statistics))
        self.rounds = [*self.rounds[:number], Round(number, moved, disagreement)]
        if number == 1:
            self.rounds[0] = Round(0, math.nan, before)

    def _complete(self, name: str, number: int, uncertainty: bool = False) -> tuple[Completion, float, float, float]:
        view = self._views[name]
        prior, sparse, noise, valid = view.load()
        if number == 0 or not self._neighbours[name]:
            completion = complete(
                prior, sparse, noise=noise, valid=valid, uncertainty=uncertainty, options=self.options
            )
            return completion, 0.0, math.nan, math.nan
        last = f"round-{number - 1}"
        own = replace(self._map(name, last), tolerance=tolerance_around(sparse))
        evidence, before = self._collect(name, own, last)
        merged, sigma = _merge(sparse, noise, evidence)
        completion = complete(prior, merged, noise=sigma, valid=valid, uncertainty=uncertainty, options=self.options)
        moved = _median_change(completion.depth, own.depth)
        return completion, moved, math.nan, before

    def _map(self, name: str, part: str) -> DepthMap:
        view = self._views[name]
        return DepthMap(self._store.get(part, name, "depth"), view.camera, view.camera_to_world)

    def _collect(self, name: str, own: DepthMap, last: str) -> tuple[list[Evidence], float]:
        neighbours = self._neighbours[name]
        points = [self._points(other) for other in neighbours]
        maps = [depth_points(self._map(other, last)) for other in neighbours[:DEPTH_NEIGHBOURS]]
        dense, before = from_depth(own, maps)
        return [from_measurements(own, points), *([] if last == "round-0" else [dense])], before


@dataclass(frozen=True, eq=False)
class _RoundJob:
    """Completes and stores views of one round; see `leadline.base.executors.Job`."""

    views: Views
    number: int

    def start(self, threads: int) -> Callable[[str], bool]:
        return lambda name: self.views._store_view(name, self.number)


def _column_means(values: Float64Array) -> list[float]:
    """Mean of the numbers of each column that are not NaN; NaN if there are none."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return (np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)).tolist()  # type: ignore[no-any-return]


def _noise_map(noise: Noise | ArrayLike | None, sparse: FloatArray) -> FloatArray:
    """Standard deviation in metres of each measurement, (H, W); 0 for exact ones and where nothing is measured."""
    result = np.zeros(sparse.shape)
    if noise is not None:
        where = np.flatnonzero(is_measured(sparse))
        result.flat[where] = sigma_at(noise, sparse.flat[where], where, (sparse.shape[0], sparse.shape[1]))
    return result


def _merge(
    sparse: FloatArray, noise: Noise | ArrayLike | None, evidence: list[Evidence]
) -> tuple[FloatArray, FloatArray]:
    """The view's own measurements and the evidence elsewhere, and the standard deviation of both."""
    merged, sigma = np.where(is_measured(sparse), sparse, np.nan), _noise_map(noise, sparse)
    for part in evidence:
        free = ~is_measured(merged.flat[part.where])
        merged.flat[part.where[free]] = part.depth[free]
        sigma.flat[part.where[free]] = part.sigma[free]
    return merged, sigma


def _median_change(new: FloatArray, old: FloatArray) -> float:
    both = is_measured(new) & is_measured(old)
    return float(np.median(np.abs(np.log(new[both] / old[both])))) if both.any() else math.nan
