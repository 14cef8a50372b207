"""Runs a protocol: plans its work items, evaluates those without records, and writes the records.

`run_protocol` does a whole run. `Evaluator` evaluates single work items; a report that needs the depth maps behind a
record recomputes them with `Evaluator.load`, `Evaluator.observe` and `Evaluator.predict`.

A failure becomes the reason of failed records, and the run continues: a damaged file must not stop a long benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, LeadlineError, param, require_choice
from leadline.base.executors import available_cores, processes, serial, worker_count
from leadline.base.strict_json import canonical_json
from leadline.bench.changed_data import NO_CHANGES, Changes, SceneHashes, delete_changed, scene_hashes
from leadline.bench.observations import Observations, simulate
from leadline.bench.plan import Task, WorkItem, plan_work_items, remaining_items
from leadline.bench.protocol import MethodEntry, Protocol, find_entry
from leadline.bench.records import Record, RecordStatus, RecordStore, failure_reason, software_versions
from leadline.bench.scoring import Scoring
from leadline.bench.sources import is_cached, open_dataset, open_method, open_prior
from leadline.core.prior import Prior
from leadline.datasets import Scene
from leadline.geometry.cameras import Camera, CameraModel
from leadline.methods import MethodResult, run_method
from leadline.priors.predictor import PriorCache, content_hash, with_contiguous_arrays

if TYPE_CHECKING:
    from leadline.bench.compiled_metrics import Scorer
    from leadline.datasets import Dataset
    from leadline.methods import Method
    from leadline.priors import PriorSource

ExecutorName = Literal["serial", "processes", "ray"]

CACHE = "cache"  # folder of the cached priors, in the folder of the run
PRESETS = {"ours": "paper", "response": "paper", "best": "best"}  # options of our methods
COMPILED_BASELINES = ("knn", "lwlr", "poisson")
WORKER_DIED = "the worker process died repeatedly at this image (killed, perhaps because memory ran out)."


@dataclass(frozen=True)
class RunProgress:
    """Numbers of records: planned, done, failed and unconverged ones among those done, and done by the current call."""

    planned: int
    done: int
    failed: int
    new: int
    unconverged: int = 0  # scored, but the method stopped before its tolerances were met
    changed: Changes = NO_CHANGES  # images whose data have changed, and their records, which are computed again


def run_protocol(
    protocol: Protocol,
    folder: Path,
    *,
    executor: ExecutorName = "serial",
    workers: int | None = None,
    address: str | None = None,
    retry: bool = False,
    report: Callable[[RunProgress], None] = lambda progress: None,
) -> RunProgress:
    """Compute all records of a protocol that `folder` does not contain yet; returns the final numbers.

    A run that was killed continues with the first work item that has no records. Records of images whose data have
    changed since are computed again.

    Parameters
    ----------
    protocol : Protocol
    folder : path
        Folder of the run; created if it does not exist.
    executor : {"serial", "processes", "ray"}
    workers : int, optional
        Number of processes; for Ray the number of tasks that share the cores of this machine. Default: one per core.
    address : str, optional
        Address of a Ray cluster. Default: a new one on this machine.
    retry : bool
        Compute failed records again.
    report : callable, optional
        Called with the progress at the beginning and after each work item.
    """
    require_choice("executor", executor, ExecutorName)
    if workers is not None and executor == "serial":
        raise InputError(f"{param('workers')} needs {param('executor')} 'processes' or 'ray'; 'serial' has one worker.")
    if address is not None and executor != "ray":
        raise InputError(f"{param('address')} needs {param('executor', 'ray')}, got {executor!r}.")
    workers = worker_count(workers)
    items = plan_work_items(protocol)
    with RecordStore(folder, create=True) as store:
        store.set_plan(items, protocol)
        if retry:
            store.delete_failed()
        changed = delete_changed(store, protocol, items)
        items = remaining_items(items, store.keys())
        rows = store.counts()
        planned, done = sum(row.planned for row in rows), sum(row.done for row in rows)
        failed, unconverged = sum(row.failed for row in rows), sum(row.unconverged for row in rows)
        progress = RunProgress(planned, done, failed, 0, unconverged, changed)
        report(progress)
        for records in _execute(EvaluationJob(protocol, folder / CACHE), items, executor, workers, address):
            store.add(records)
            progress = RunProgress(
                planned,
                progress.done + len(records),
                progress.failed + sum(record.status is RecordStatus.FAILED for record in records),
                progress.new + len(records),
                progress.unconverged + sum(record.is_unconverged for record in records),
                changed,
            )
            report(progress)
    return progress


@dataclass(frozen=True)
class EvaluationJob:
    """The work of an executor: evaluates the work items of one protocol."""

    protocol: Protocol
    cache: Path

    def start(self, threads: int) -> Evaluator:
        """Compile in this process, so that no record's run time includes it, and open the evaluator."""
        compile_kernels(self.protocol)
        return Evaluator(self.protocol, self.cache, threads)


def _execute(
    job: EvaluationJob, items: list[WorkItem], executor: ExecutorName, workers: int, address: str | None
) -> Iterator[list[Record]]:
    if not items:
        return
    if executor == "serial":
        results = serial(job, items)
    else:
        compile_kernels(job.protocol)  # once, before workers start: they would all compile the same kernels
        if executor == "processes":
            results = processes(job, items, workers=workers)
        else:
            from leadline.base.ray_executor import on_ray

            results = on_ray(job, items, address=address, threads=max(1, available_cores() // workers))
    for item, records in results:
        yield _failed_records(item, item.tasks, WORKER_DIED) if records is None else records


def _presets(protocol: Protocol) -> set[str]:
    return {PRESETS[entry.name] for entry in protocol.methods if entry.name in PRESETS}


def must_compile(protocol: Protocol) -> bool:
    """Whether the first record has to wait for the kernels of a preset to be compiled."""
    from leadline.core.compilation import is_compiled

    return not all(map(is_compiled, _presets(protocol)))


def compile_kernels(protocol: Protocol) -> None:
    """Compile the kernels of the protocol's methods and of the scores, or load them from numba's cache."""
    from leadline.bench.compiled_metrics import Scorer
    from leadline.core.compilation import warm_up

    names = {entry.name for entry in protocol.methods}
    for preset in _presets(protocol):
        warm_up(preset)
    depth = np.linspace(1.0, 2.0, 240 * 200, dtype=np.float32).reshape(240, 200)
    sparse = np.full_like(depth, np.nan)
    sparse[::7, ::5] = np.sqrt(depth[::7, ::5])
    for name in names & set(COMPILED_BASELINES):
        open_method(MethodEntry(name))(Prior(depth), sparse)
    scorer = Scorer(depth, Camera(200, 240, 200.0, 200.0, 99.5, 119.5))
    scorer.depth(depth, np.isnan(sparse))
    scorer.normals(depth, np.isnan(sparse))


@dataclass(frozen=True, eq=False)
class LoadedScene:
    """A scene with its reference and the hashes that identify its content."""

    dataset: Dataset
    image: str  # name in the data set
    scene: Scene
    reference: FloatArray  # (H, W) metres
    camera: CameraModel | None  # for the scores of normals; None if they are not scored
    hashes: SceneHashes

    @cached_property
    def scorer(self) -> Scorer:
        """Built when it is first used, and not while reading ahead: it runs compiled kernels."""
        from leadline.bench.compiled_metrics import Scorer

        return Scorer(self.reference, self.camera)


@dataclass(frozen=True, eq=False)
class ItemInputs:
    """The inputs of a work item: a scene and its prior."""

    loaded: LoadedScene
    prior: Prior
    hashes: dict[str, str]  # the columns of a record that identify the inputs


class Evaluator:
    """Evaluates the work items of one protocol, one after the other, in one process.

    Data sets, networks and methods are opened when they are first used and stay open. The last scene stays in
    memory, because consecutive items often differ in the prior only.

    `cache` is the folder of predictions, `threads` the number of threads of networks, by default their own choice.
    Compiled kernels follow ``numba.set_num_threads``.

    Examples
    --------
    >>> from leadline.bench.protocol_files import read_protocol
    >>> evaluator = Evaluator(read_protocol("smoke"), Path("cache"))
    >>> inputs = evaluator.load("Rooms", "room-0", "rendered")
    >>> observations = evaluator.observe(inputs, "outer")
    >>> evaluator.predict(inputs, observations, "GLog").depth.shape
    (240, 320)
    """

    def __init__(self, protocol: Protocol, cache: Path, threads: int | None = None) -> None:
        self.protocol = protocol
        self.threads = threads
        self._cache = PriorCache(cache)
        self._datasets: dict[str, Dataset] = {}
        self._sources: dict[str, tuple[PriorSource, str] | LeadlineError] = {}
        self._methods: dict[str, Method] = {}
        self._last: tuple[tuple[str, str], LoadedScene] | None = None
        self._prefetched: dict[tuple[str, str], Future[LoadedScene]] = {}
        self._reader: ThreadPoolExecutor | None = None

    def __call__(self, item: WorkItem) -> list[Record]:
        """The records of the tasks of a work item, in their order."""
        try:
            inputs = self.load(item.dataset, item.image, item.prior)
        except Exception as error:  # a damaged file, a missing model, too little memory
            return _failed_records(item, item.tasks, failure_reason(error))
        records: list[Record] = []
        for case, tasks in groupby(item.tasks, key=lambda task: task.case):
            try:
                observations = self.observe(inputs, case)
            except Exception as error:
                records += _failed_records(item, tasks, failure_reason(error), **inputs.hashes)
                continue
            count = observations.count
            for task in tasks:
                try:
                    scores = self._score(inputs, observations, task.method)
                except Exception as error:
                    scores = {"status": RecordStatus.FAILED, "reason": failure_reason(error)}
                records.append(_record(item, task, measured=count, **inputs.hashes, **scores))
        return records

    def prefetch(self, item: WorkItem) -> None:
        """Start to read the scene of the next item in a thread, while the current one is computed."""
        import numba

        place = item.dataset, item.image
        is_known = place in self._prefetched or (self._last is not None and self._last[0] == place)
        # Reading may run compiled kernels, and numba's layer 'workqueue' aborts if two threads do so.
        if not is_known and numba.threading_layer() != "workqueue":
            self._reader = self._reader or ThreadPoolExecutor(1, thread_name_prefix="leadline-reader")
            self._prefetched[place] = self._reader.submit(self._read, *place)

    def load(self, dataset: str, image: str, prior: str) -> ItemInputs:
        """The inputs of a work item, by the labels of data set and prior."""
        loaded = self._load_scene(dataset, image)
        if prior not in self._sources:
            self._sources[prior] = self._open_prior(prior)
        opened = self._sources[prior]
        if isinstance(opened, LeadlineError):
            raise opened
        source, fingerprint = opened
        image_hash, data = loaded.hashes.image, loaded.dataset
        predicted = with_contiguous_arrays(
            self._cache.predict(
                source, loaded.scene.image, fingerprint, image_hash=image_hash, dataset=data, name=image
            )
        )
        arrays = [predicted.values] if predicted.valid is None else [predicted.values, predicted.valid]
        hashes = {
            "image_hash": image_hash,
            "reference_hash": loaded.hashes.reference,
            "prior_hash": content_hash(*arrays),
            "scene_hash": loaded.hashes.scene,
        }
        return ItemInputs(loaded, predicted, hashes)

    def observe(self, inputs: ItemInputs, case: str) -> Observations:
        """The measurements of a case (or another pattern), and the scored pixels."""
        loaded = inputs.loaded
        return simulate(loaded.scene, case, dataset=loaded.dataset.name, stride=self.protocol.stride)

    def predict(self, inputs: ItemInputs, observations: Observations, method: str) -> MethodResult:
        """The result of a method, by its label."""
        if method not in self._methods:
            self._methods[method] = open_method(find_entry(self.protocol.methods, method))
        scene = inputs.loaded.scene
        return run_method(
            self._methods[method],
            inputs.prior,
            observations.sparse,
            image=scene.image,
            camera=scene.camera,
            dataset=inputs.loaded.dataset,
            name=inputs.loaded.image,
        )

    def _load_scene(self, dataset: str, image: str) -> LoadedScene:
        place = dataset, image
        if self._last is None or self._last[0] != place:
            self._last = None  # released before the next scene is read, so that memory never holds a third one
            future = self._prefetched.pop(place, None)
            self._last = place, self._read(dataset, image) if future is None else future.result()
        return self._last[1]

    def _read(self, label: str, image: str) -> LoadedScene:
        entry = find_entry(self.protocol.datasets, label)
        if label not in self._datasets:
            self._datasets[label] = open_dataset(entry)
        scene = self._datasets[label].load(image)
        if scene.reference is None:
            raise InputError(f"{image}: the scene has no reference depth, so nothing can be measured or scored.")
        if scene.reference.shape != scene.image.shape[:2]:
            raise InputError(
                f"{image}: the reference has the shape {scene.reference.shape} and the image {scene.image.shape[:2]}; "
                f"they must be the same."
            )
        camera = scene.camera if entry.normals else None
        return LoadedScene(self._datasets[label], image, scene, scene.reference, camera, scene_hashes(scene))

    def _open_prior(self, label: str) -> tuple[PriorSource, str] | LeadlineError:
        """The source and its fingerprint, or the error, which is stored: opening again may access the network."""
        entry = find_entry(self.protocol.priors, label)
        try:
            source = open_prior(entry, self.threads)
            return source, source.fingerprint() if is_cached(entry) else ""
        except LeadlineError as error:
            return error

    def _score(self, inputs: ItemInputs, observations: Observations, method: str) -> dict[str, Any]:
        """The columns of a record that result from running a method."""
        result = self.predict(inputs, observations, method)
        scoring, scorer = self.protocol.scoring, inputs.loaded.scorer
        mask = scoring.mask(observations, scorer.reference)
        depth = scorer.depth(result.depth, mask, missing=scoring.missing)
        normals = scorer.normals(result.depth, mask)
        reason = ""
        if depth.failed:
            reason = result.status if result.failed else _unscored(depth.missing, scoring)
        return {
            **asdict(depth),
            "nmean": normals.mean_deg,
            "nmed": normals.median_deg,
            "normal_support": normals.support,
            "seconds": result.seconds,
            "status": RecordStatus.FAILED if depth.failed else RecordStatus.OK,
            "reason": reason,
            "detail": result.status,
            "converged": result.converged,
            "parameters": canonical_json(result.parameters),
            "versions": canonical_json({**software_versions(), **result.versions}),
        }


def _unscored(missing: int, scoring: Scoring) -> str:
    """Why a result without a failure of the method has no score."""
    if missing and scoring.missing == "fail":
        return f"{missing} scored pixels have no prediction, and the convention of the run fails such an image."
    return "no scored pixel has both a reference and a prediction."


def _failed_records(item: WorkItem, tasks: Iterable[Task], reason: str, **columns: Any) -> list[Record]:
    return [_record(item, task, status=RecordStatus.FAILED, reason=reason, **columns) for task in tasks]


def _record(item: WorkItem, task: Task, **columns: Any) -> Record:
    return Record(
        key=task.key,
        dataset=item.dataset,
        image=item.image,
        case=task.case,
        prior=item.prior,
        method=task.method,
        options=task.options,
        **{"versions": canonical_json(software_versions()), **columns},
    )
