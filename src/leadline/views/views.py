"""Completion of many posed views in rounds, so that their depth agrees from view to view.

Round 0 completes each view alone. From it follow the neighbours of each view (`overlap`) and which of them agree with
it (`agreement`). In every later round a view is completed again with what its neighbours say, as soft measurements
(`evidence`). The rounds end when the views hardly move any more. With ``outliers="single"`` the measurements of all
views are checked against each other before the first round (`crosscheck`). Views with pictures get further
measurements of their own, by matching the pictures (`matching`).

**What a view knows of itself is never evidence for it.** The measurements of the neighbours are independent of the
view. Their completed depth is used from the second round on, when it contains the measurements of all. It then contains
some of the view's own depth, too; therefore its noise stays the same in all rounds, however well the views agree, and
the median over the neighbours limits the influence of each. The rounds thus resemble a block iteration for one energy,
in which the prior and the measurements of each view count once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import Float64Array, FloatArray, IndexArray, is_measured
from leadline.base.errors import InputError, param, warn_caller
from leadline.base.executors import processes, serial
from leadline.core.options import CompletionOptions, as_options
from leadline.core.pipeline import Completion, complete
from leadline.geometry.cameras import CameraModel
from leadline.views.agreement import Contradictions, agreeing, discrepancies, median_change
from leadline.views.crosscheck import CrossCheck
from leadline.views.evidence import (
    DepthMap,
    Evidence,
    Points,
    Tolerance,
    depth_points,
    from_depth,
    from_measurements,
    measured_points,
    merge,
    noise_map,
)
from leadline.views.inputs import MapInput, NoiseInput, PriorInput, View
from leadline.views.job import ViewJob, require_computed
from leadline.views.matching import ENOUGH, Matching
from leadline.views.overlap import Outline, coarse_points, find_neighbours
from leadline.views.pose_check import LOOKS_INVERTED, look_inverted, remaining_deviation, without_wrong_poses
from leadline.views.responses import depth_by_response, nearest_responses, response_numbers
from leadline.views.rounds import Round, with_round
from leadline.views.store import FolderStore, MemoryStore, Store, part_of, stored_points

POINT_NEIGHBOURS = 24
"""Neighbours whose measurements are carried over. A first version on real frames gained 3 to 5 % from 32, not 16."""
CLOSE_NEIGHBOURS, NEIGHBOUR_STEP = 4, 3
"""The completed depth of this many closest neighbours is carried over, so that the views agree, and that of every third
of all: the network errs in another way in views from farther away."""
MAX_ROUNDS = 6
"""Rounds after which the iteration ends even if views still move."""
SETTLED, SETTLED_MATCHED = 2e-3, 1e-3
"""Change of log depth in a round at which the rounds end; the next, last round changes still less. Views with pictures
start to exchange depth later, in round 2, and need the second limit to agree as well."""
_STEPS = dict(zip(CrossCheck.PARTS, ("halves of the points", "check of the points"), strict=True))
_STEPS |= dict(zip(Matching.PARTS, ("pictures", "matching", "check of the matches"), strict=True))
_ALONE = ("statistics", "points", "relative", "measured", "response")  # further arrays of round 0


class Views:
    """Completion of many posed views whose depth agrees from view to view.

    Parameters
    ----------
    options : "best", "paper" or CompletionOptions
        A preset or single options, for the completion of each view. With ``outliers="single"``, measurements that
        contradict the other ones in most views are left out; exact ones in their own view as `complete` does it.
    store : folder, optional
        Folder for the maps between rounds. With it memory does not grow with the number of views, and a run that was
        killed continues where it was if the same views are added again. Default: all maps stay in memory.
    on_progress : callable, optional
        Called with the name of a step before the last round, how many of its views are done, and how many it has.

    Attributes
    ----------
    rounds : list of Round
        Statistics of the rounds so far.
    look_inverted : bool
        Whether the poses seem to be from world to camera, of which a warning tells; known after the views alone.

    Examples
    --------
    >>> import leadline
    >>> camera = leadline.Camera(64, 48, 60.0, 60.0, 31.5, 23.5)
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> views = leadline.Views()
    >>> for name, start in (("left", 0), ("right", 4)):
    ...     sparse = np.zeros((48, 64))
    ...     sparse[start::8, start::8] = 3.0 * prior[start::8, start::8]
    ...     views.add(name, prior, sparse, camera, np.eye(4))
    >>> views.neighbours("left")
    ('right',)
    >>> for name, completion in views.complete():
    ...     print(name, bool(np.allclose(completion.depth, 3.0 * prior, rtol=1e-3)))
    left True
    right True
    """

    def __init__(
        self,
        options: CompletionOptions | str = "best",
        *,
        store: str | os.PathLike[str] | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.options = as_options(options)
        self._on_progress = on_progress
        self.rounds: list[Round] = []
        self.look_inverted = False
        self._views: dict[str, View] = {}
        self._folder = None if store is None else Path(store)
        self._store: Store = MemoryStore()
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._check: CrossCheck | None = None
        self._matching: Matching | None = None
        self._prepared = False

    def add(
        self,
        name: str,
        prior: PriorInput,
        sparse: MapInput,
        camera: CameraModel,
        camera_to_world: ArrayLike,
        noise: NoiseInput = None,
        valid: MapInput | None = None,
        image: MapInput | None = None,
    ) -> None:
        """Add a view; it is read when it is needed.

        Parameters
        ----------
        name : str
            A name of its own; with a store also the name of its files.
        prior, sparse, noise, valid
            The arguments of `complete` in metres: arrays, files that are read when they are needed, or functions
            without arguments that return them.
        camera : CameraModel
            Of the size of the maps, and able to project points.
        camera_to_world : (4, 4) array
            The pose: the transform from the camera's frame to that of the world, in metres; COLMAP's is its inverse.
        image : (H, W) or (H, W, 3) array, file or function, optional
            The picture, to which camera and pose must belong: further points are measured by matching it with those of
            the neighbours.

        Raises
        ------
        InputError
            The name occurs twice, or the pose is not a rotation and a translation.
        """
        if name in self._views:
            raise InputError(f"{param('name')} {name!r} was added before; every view needs a name of its own.")
        self._views[name] = View(name, prior, sparse, camera, camera_to_world, noise, valid, image)  # type: ignore[arg-type]
        self._prepared = False

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The views that `name` exchanges evidence with, those with the largest overlap first.

        The first call completes each view alone. A view without neighbours sees nothing that another one sees, or
        disagrees with all of them, which usually means that its pose is wrong.
        """
        if name not in self._views:
            raise InputError(f"{param('name')} must be that of a view that was added, got {name!r} instead.")
        self._prepare()
        return self._neighbours[name]

    def complete(
        self,
        rounds: int | None = None,
        *,
        only: Collection[str] | None = None,
        uncertainty: bool = False,
        workers: int = 1,
    ) -> Iterator[tuple[str, Completion]]:
        """The views with their completions, in the order in which they were added; computed while they are returned.

        Parameters
        ----------
        rounds : int, optional
            Rounds after the completion of each view alone; with 0 each is completed alone. Default: until the views
            hardly move.
        only : collection of str, optional
            Names of the views to return, e.g. those that an earlier run did not write. Default: all.
        uncertainty : bool
            Also estimate `Completion.sigma`.
        workers : int
            Processes that compute the rounds before the last one; more than one needs a store, and inputs that can be
            sent to them. A script must start them under ``if __name__ == "__main__":``, because each imports it.
        """
        if isinstance(only, str):
            raise InputError(f"{param('only')} must be a collection of names, got the string {only!r} instead.")
        if unknown := sorted(set(only or ()) - self._views.keys()):
            raise InputError(f"{param('only')} must be names of views that were added, got {unknown[0]!r} as well.")
        last = self.advance(rounds, workers=workers)
        chosen = [name for name in self._views if only is None or name in only]
        statistics = []
        for name in chosen:
            completion, numbers = self.complete_last(name, last, uncertainty=uncertainty)
            statistics.append(numbers)
            yield name, completion
        self.record(last, statistics)

    def advance(self, rounds: int | None = None, *, workers: int = 1) -> int:
        """Compute all rounds before the last one, as `complete` does; returns the number of the last."""
        if rounds is not None and (not isinstance(rounds, int) or rounds < 0):
            raise InputError(f"{param('rounds')} must be a whole number of at least 0, got {rounds!r} instead.")
        if workers != 1 and self._folder is None:
            raise InputError(f"{param('workers')} above 1 needs a {param('store')}, through which they share maps.")
        self._prepare(workers)
        done = 0
        while not self._is_last(done + 1, rounds):
            done += 1
            self._run(done, workers)
        return min(rounds, done + 1) if rounds is not None else done + bool(self._paired())

    def complete_last(
        self, name: str, last: int, *, uncertainty: bool = False
    ) -> tuple[Completion, NDArray[np.float64]]:
        """A view in the last round, and its numbers for `record`; worker processes may share the views for it."""
        return self._complete(name, last, uncertainty)

    def alone(self, name: str) -> FloatArray:
        """Depth of view `name` before the first round, (H, W) in metres."""
        self._prepare()
        return self._alone("depth", name)

    def _is_last(self, number: int, rounds: int | None) -> bool:
        """Whether this round, of those with neighbours, is the last one, or none is needed."""
        if rounds is not None:
            return number >= rounds
        limit = SETTLED if self._matching is None else SETTLED_MATCHED
        settled = number > 1 and self.rounds[number - 1].moved < limit
        return settled or number >= MAX_ROUNDS or not self._paired()

    def _paired(self) -> list[str]:
        return [name for name, others in self._neighbours.items() if others]

    @property
    def _checks(self) -> bool:
        """Whether the measurements are checked across views: none of them are if all are exact."""
        return self.options.outliers == "single" and any(view.noise is not None for view in self._views.values())

    def _prepare(self, workers: int = 1) -> None:
        """Complete each view alone, and choose the neighbours."""
        if self._prepared:
            return
        facts = {"options": asdict(self.options), "views": [view.facts() for view in self._views.values()]}
        self._store = MemoryStore() if self._folder is None else FolderStore(self._folder, facts)
        self._neighbours, self._check, self._matching = {}, None, None
        self._compute(0, self._views, workers)
        self._share_responses()
        outlines = {
            name: Outline(view.camera, view.camera_to_world, self._alone("outline", name))
            for name, view in self._views.items()
        }
        overlapping = find_neighbours(outlines, POINT_NEIGHBOURS)
        self.look_inverted = look_inverted(overlapping, outlines, self._alone)
        if self.look_inverted:
            warn_caller(LOOKS_INVERTED, "leadline.views")
        right = without_wrong_poses(overlapping, lambda *pairs: remaining_deviation(*self._compared(*pairs)))
        found = {name: discrepancies(*self._compared(name, others)) for name, others in right.items()}
        self._neighbours = agreeing(right, found)
        if self._checks and self._paired():
            self._check = CrossCheck(self._store, self._views, self._neighbours, self.options, outlines)
            for part in CrossCheck.PARTS:
                self._compute(0, self._views, workers, part)
            self._check.fit_limits()
        if self._paired() and any(view.image is not None for view in self._views.values()):
            self._matching = Matching(self._store, self._views, self._neighbours, outlines)
            for part in Matching.PARTS:
                self._compute(0, self._views, workers, part)
        self.rounds = [Round(0, math.nan, math.nan)]
        self._prepared = True

    def _share_responses(self) -> None:
        """Give views without any depth, for want of measurements, that of the response of the nearest other view."""
        responses = {name: self._store.get(part_of(0), name, "response") for name in self._views}
        for name, view in self._views.items():
            if np.isfinite(self._store.get(part_of(0), name, "depth")).any():
                continue
            prior, sparse, _, valid = view.load()
            depth = depth_by_response(prior, sparse, valid, nearest_responses(self._views, responses, name))
            arrays = {array: self._store.get(part_of(0), name, array) for array in _ALONE}
            outline = coarse_points(depth, view.camera, view.camera_to_world)
            arrays["surface"], arrays["known"] = depth_points(self._as_map(name, depth), arrays["measured"])
            self._store.put(part_of(0), name, {**arrays, "depth": depth, "outline": outline})

    def _run(self, number: int, workers: int) -> None:
        """Complete every view that has neighbours."""
        names = self._paired()
        self._compute(number, names, workers)
        self.record(number, [self._store.get(part_of(number), name, "statistics") for name in names])

    def _compute(self, number: int, names: Collection[str], workers: int, part: str = "") -> None:
        """Compute and store the views of a round, or of another part of the store, that the store does not have."""
        part = part or part_of(number)
        missing = [name for name in names if not self._store.has(part, name)]
        job = ViewJob(self, number, part)
        run = processes(job, missing, workers=workers) if min(workers, len(missing)) > 1 else serial(job, missing)
        for done, (name, result) in enumerate(run, start=len(names) - len(missing) + 1):
            require_computed(name, result)
            if self._on_progress is not None:
                step = f"round {number}" if number else "each picture alone"
                self._on_progress(_STEPS.get(part, step), done, len(names))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_on_progress": None}  # worker processes report to nobody

    def compute_one(self, number: int, name: str, part: str) -> None:
        """Compute and store one view of a round or of another part of the store."""
        for step in (self._check, self._matching):
            if step is not None and part in step.PARTS:
                self._store.put(part, name, step.compute(part, name))
                return
        view, (completion, numbers) = self._views[name], self._complete(name, number)
        depth = completion.depth.astype(np.float32)
        arrays: dict[str, NDArray[Any]] = {"depth": depth, "statistics": numbers}
        if number == 0:
            _, sparse, noise, _ = view.load()
            # What the view itself left out is no evidence for others, unless the check decides that.
            if completion.outliers is not None and not self._checks:
                sparse = sparse.copy()
                np.put(sparse, completion.outliers.where, 0)
            points = measured_points(sparse, noise_map(noise, sparse), view.camera, view.camera_to_world)
            arrays |= {"points": points.points, "relative": points.relative, "measured": points.where}
            outline = coarse_points(depth, view.camera, view.camera_to_world)
            arrays |= {"response": response_numbers(completion.fit), "outline": outline}
        measured = arrays["measured"] if number == 0 else self._store.get(part_of(0), name, "measured")
        arrays["surface"], arrays["known"] = depth_points(self._as_map(name, depth), measured)
        self._store.put(part, name, arrays)

    def record(self, number: int, statistics: list[Float64Array]) -> None:
        """Append the statistics of a round to `rounds`, from the numbers of its views."""
        self.rounds = with_round(self.rounds, number, statistics)

    def _complete(self, name: str, number: int, uncertainty: bool = False) -> tuple[Completion, Float64Array]:
        """A view in a round, its change since the last one, and its disagreement after and before it."""
        prior, sparse, noise, valid = self._views[name].load()
        options = self.options
        if number == 0 or not self._neighbours[name]:
            alone = complete(prior, sparse, noise=noise, valid=valid, uncertainty=uncertainty, options=options)
            return alone, np.full(3, np.nan)
        if self._check is not None and noise is not None:  # exact ones are left out, and reported, by the completion
            options, sparse = replace(options, outliers="keep"), self._check.without_failed(name, sparse)
        own = replace(self._map(name, number - 1), tolerance=Tolerance.around(sparse))
        carried, evidence = self._collect(name, own, sparse, number)
        sparse, sigma = merge(sparse, noise, evidence)
        result = complete(prior, sparse, noise=sigma, valid=valid, uncertainty=uncertainty, options=options)
        numbers = median_change(result.depth, own.depth), carried.distance(result.depth), carried.distance(own.depth)
        return result, np.array(numbers)

    def _collect(self, name: str, own: DepthMap, sparse: FloatArray, number: int) -> tuple[Evidence, list[Evidence]]:
        """The neighbours' depth, and all evidence of this round, the most reliable first."""
        neighbours = self._neighbours[name]
        surfaces = {k: self._after(number - 1, other, "surface") for k, other in enumerate(neighbours)}
        known = {k: surfaces[k][self._after(number - 1, other, "known")] for k, other in enumerate(neighbours)}
        trust = Contradictions(own, np.flatnonzero(is_measured(sparse)), known).trust
        close = range(min(CLOSE_NEIGHBOURS, len(neighbours)))
        chosen = {k: surfaces[k] for k in sorted({*close, *range(0, len(neighbours), NEIGHBOUR_STEP)})}
        carried = from_depth(own, chosen, trust)
        evidence = [] if self._matching is None else [self._matching.evidence(name, sparse)]
        if not evidence or evidence[0].where.size < ENOUGH:
            evidence.append(from_measurements(own, [self._points(other) for other in neighbours], trust))
        # Before the first round each depth contains its own measurements alone: as evidence it is worse than nothing.
        return carried, evidence if number == 1 else [*evidence, carried]

    def _compared(self, name: str, others: tuple[str, ...]) -> tuple[DepthMap, IndexArray, list[Float64Array]]:
        """What shows whether a pose is wrong: the depth of a view alone, where it is measured, and others' points."""
        measured = self._store.get(part_of(0), name, "measured")
        return self._map(name, 0), measured, [self._points(other).points for other in others]

    def _map(self, name: str, number: int) -> DepthMap:
        """The depth of a view after a round; that of round 0 if it has no neighbours."""
        return self._as_map(name, self._after(number, name, "depth"))

    def _after(self, number: int, name: str, array: str) -> NDArray[Any]:
        """An array of a view after a round; that of round 0 if it has no neighbours."""
        return self._store.get(part_of(number if self._neighbours.get(name) else 0), name, array)

    def _alone(self, array: str, name: str) -> NDArray[Any]:
        return self._store.get(part_of(0), name, array)

    def _as_map(self, name: str, depth: FloatArray) -> DepthMap:
        return DepthMap(depth, self._views[name].camera, self._views[name].camera_to_world)

    def _points(self, name: str) -> Points:
        """The measurements of a view that passed the check, if there is one."""
        return stored_points(self._store, name) if self._check is None else self._check.passed(name)
