"""Does a unit: loads the scene once, gets its prior once, then every case and method, and returns the records.

Whatever goes wrong on the way becomes the reason of failed records, and the rest goes on: a benchmark of a hundred
thousand records must not end at a damaged file.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from leadline.base.errors import InputError, LeadlineError
from leadline.bench.patterns import Measured, Sensor
from leadline.bench.plan import Task, Unit, canonical
from leadline.bench.protocol import Protocol
from leadline.bench.records import Record
from leadline.bench.sources import cached, open_dataset, open_method, open_prior
from leadline.core.prior import Prior
from leadline.datasets.scene import Scene
from leadline.methods import run_method
from leadline.priors.cache import PriorCache, content_hash, without_copies

if TYPE_CHECKING:
    from leadline.bench.scoring import Scorer
    from leadline.datasets import Dataset
    from leadline.methods import Method
    from leadline.priors import PriorSource

T = TypeVar("T")
CACHE = "cache"  # in the run's folder
COMPILED = ("ours", "best", "response", "knn", "lwlr", "poisson")  # a first call of these compiles or loads kernels
_LONGEST = 400  # characters of a reason


@dataclass(frozen=True)
class _Read:
    """A scene and what follows from it without a compiled kernel, which must not run in two threads at a time."""

    scene: Scene
    sensor: Sensor
    image_hash: str
    reference_hash: str


@dataclass(frozen=True)
class _Loaded(_Read):
    scorer: Scorer


class Runner:
    """Does the units of one protocol, one after the other, in one process.

    Parameters
    ----------
    protocol : Protocol
    cache : path
        Folder for the priors of networks.
    threads : int, optional
        For networks; default: their own choice. Compiled kernels follow ``numba.set_num_threads``.
    """

    def __init__(self, protocol: Protocol, cache: Path, threads: int | None = None) -> None:
        self.protocol = protocol
        self.cache = PriorCache(cache)
        self.threads = threads
        self._datasets: dict[str, Dataset] = {}
        self._sources: dict[str, tuple[PriorSource, str] | LeadlineError] = {}
        self._methods: dict[str, Method] = {}
        self._last: tuple[tuple[str, str], _Loaded] | None = None
        self._coming: tuple[tuple[str, str], Future[_Read]] | None = None
        self._reader: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the thread that reads ahead, if there is one."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    def run(self, unit: Unit, following: Unit | None = None) -> list[Record]:
        """The records of a unit's tasks, in their order.

        The scene of the unit that will be `following`, if given, is read while this one is computed.
        """
        try:
            try:
                loaded = self._load(unit.dataset, unit.image)
            finally:
                if following is not None:
                    self._read_ahead(following.dataset, following.image)
            prior = self._prior(unit, loaded)
        except Exception as error:  # a damaged file, a missing model, too little memory: the reason says which
            return failed(unit, reason_of(error))
        hashes = {
            "image_hash": loaded.image_hash,
            "reference_hash": loaded.reference_hash,
            "prior_hash": content_hash(prior.values, *(() if prior.valid is None else (prior.valid,))),
        }
        records = []
        cases: dict[str, Measured | str] = {}
        for task in unit.tasks:
            if task.case not in cases:  # tasks come case by case: one at a time is kept
                cases = {task.case: _measure(loaded.sensor, task.case)}
            measured = cases[task.case]
            if isinstance(measured, str):
                found: dict[str, Any] = {"status": "failed", "reason": measured}
            else:
                found = self._score(unit, task, prior, measured, loaded)
            records.append(_record(unit, task, **hashes, **found))
        return records

    def _load(self, label: str, image: str) -> _Loaded:
        from leadline.bench.scoring import Scorer

        place = label, image
        if self._last is None or self._last[0] != place:
            self._last = None  # before the next one is prepared, so that there are never two of them
            coming, self._coming = self._coming, None
            read = coming[1].result() if coming is not None and coming[0] == place else self._read(label, image)
            camera = read.scene.camera if _entry(self.protocol.datasets, label).normals else None
            scorer = Scorer(read.sensor.reference, camera)
            self._last = place, _Loaded(read.scene, read.sensor, read.image_hash, read.reference_hash, scorer)
        return self._last[1]

    def _read_ahead(self, label: str, image: str) -> None:
        if self._last is not None and self._last[0] == (label, image):
            return
        self._reader = self._reader or ThreadPoolExecutor(1, thread_name_prefix="leadline-reader")
        self._coming = (label, image), self._reader.submit(self._read, label, image)

    def _read(self, label: str, image: str) -> _Read:
        dataset = self._dataset(label)
        scene = dataset.load(image)
        sensor = Sensor(scene, dataset=dataset.name, stride=self.protocol.stride)
        if sensor.reference.shape != scene.image.shape[:2]:
            raise InputError(
                f"{image}: the reference is of shape {sensor.reference.shape}, "
                f"the image of {scene.image.shape[:2]}; they must be the same."
            )
        return _Read(scene, sensor, content_hash(scene.image), content_hash(sensor.reference))

    def _prior(self, unit: Unit, loaded: _Loaded) -> Prior:
        found = _kept(self._sources, unit.prior, lambda: self._open_prior(unit.prior))
        if isinstance(found, LeadlineError):
            raise found
        source, fingerprint = found
        prior = self.cache.predict(
            source,
            loaded.scene.image,
            fingerprint,
            image_hash=loaded.image_hash,
            dataset=self._dataset(unit.dataset),
            name=unit.image,
        )
        return without_copies(prior)

    def _open_prior(self, label: str) -> tuple[PriorSource, str] | LeadlineError:
        """The source and its fingerprint; or why there is none, kept for all images, since asking may try a network."""
        entry = _entry(self.protocol.priors, label)
        try:
            source = open_prior(entry, self.threads)
            return source, source.fingerprint() if cached(entry) else ""
        except LeadlineError as error:
            return error

    def _score(self, unit: Unit, task: Task, prior: Prior, measured: Measured, loaded: _Loaded) -> dict[str, Any]:
        count = int(np.count_nonzero(np.isfinite(measured.sparse)))
        try:
            result = run_method(
                self._method(task.method),
                prior,
                measured.sparse,
                image=loaded.scene.image,
                camera=loaded.scene.camera,
                dataset=self._dataset(unit.dataset),
                name=unit.image,
            )
            depth = loaded.scorer.depth(result.depth, measured.scored)
            normals = loaded.scorer.normals(result.depth, measured.scored)
        except Exception as error:
            return {"status": "failed", "reason": reason_of(error), "measured": count}
        reason = ""
        if depth.failed:
            bad = result.status.startswith("failed")
            reason = result.status if bad else "there is no pixel to score with both a reference and a prediction."
        return {
            **asdict(depth),
            "nmean": normals.mean_deg,
            "nmed": normals.median_deg,
            "normal_support": normals.support,
            "measured": count,
            "seconds": result.seconds,
            "status": "failed" if reason else "ok",
            "reason": reason,
            "detail": result.status,
            "parameters": canonical(result.parameters),
            "versions": canonical({**json.loads(versions()), **result.versions}),
        }

    def _dataset(self, label: str) -> Dataset:
        return _kept(self._datasets, label, lambda: open_dataset(_entry(self.protocol.datasets, label)))

    def _method(self, label: str) -> Method:
        return _kept(self._methods, label, lambda: open_method(_entry(self.protocol.methods, label)))


def _measure(sensor: Sensor, case: str) -> Measured | str:
    """The measurements, or why there are none."""
    try:
        return sensor.measure(case)
    except Exception as error:
        return reason_of(error)


def failed(unit: Unit, reason: str) -> list[Record]:
    """A failed record for each task of a unit."""
    return [_record(unit, task, status="failed", reason=reason) for task in unit.tasks]


def reason_of(error: BaseException) -> str:
    """One line that says what went wrong; for errors that are not leadline's own, also of what type and where."""
    if isinstance(error, LeadlineError):
        text = str(error)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        text = f"{type(error).__name__}: {error}{where}"
    return " ".join(text.split())[:_LONGEST]


def warm_up(protocol: Protocol) -> None:
    """Compile, or load, the kernels that the protocol needs, so that no record's time contains it."""
    from leadline.bench.scoring import Scorer
    from leadline.geometry.cameras import Camera

    ramp = np.linspace(1.0, 2.0, 96 * 80, dtype=np.float32).reshape(96, 80)
    sparse = np.full_like(ramp, np.nan)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    sparse[3, 3] = 1.5  # something for the solver to spread
    for name in {entry.name for entry in protocol.methods} & set(COMPILED):
        open_method(next(entry for entry in protocol.methods if entry.name == name))(Prior(ramp), sparse)
    scorer = Scorer(ramp, Camera(80, 96, 80.0, 80.0, 39.5, 47.5))
    mask = np.isnan(sparse)
    scorer.depth(ramp, mask)
    scorer.normals(ramp, mask)


def _record(unit: Unit, task: Task, **found: Any) -> Record:
    return Record(
        key=task.key,
        dataset=unit.dataset,
        image=unit.image,
        case=task.case,
        prior=unit.prior,
        method=task.method,
        options=task.options,
        **{"versions": versions(), **found},
    )


@lru_cache(maxsize=1)
def versions() -> str:
    """What the numbers may depend on, as JSON."""
    import numba

    from leadline import __version__

    found = {
        "leadline": __version__,
        "machine": platform.machine(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return canonical(found)


def _entry(entries: tuple[Any, ...], label: str) -> Any:
    return next(entry for entry in entries if entry.label == label)


def _kept(opened: dict[str, T], label: str, open_now: Callable[[], T]) -> T:
    if label not in opened:
        opened[label] = open_now()
    return opened[label]
