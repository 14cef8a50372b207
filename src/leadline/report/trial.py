"""One image under one set of measurements, with what methods made of it: what pictures of pixels are drawn from.

A run keeps scores, not depth maps. `recompute` gets them back from the protocol that the run carries: the same data,
prior and measurements, checked against the hashes in the records, and the same methods. Depth maps are kept in the
run's own cache, so that a second figure of the same image need not compute them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError
from leadline.bench.campaign import protocol_of
from leadline.bench.patterns import Sensor
from leadline.bench.protocol import LABELS
from leadline.bench.records import Record, RecordStore
from leadline.bench.run import CACHE, versions
from leadline.bench.sources import cached, open_dataset, open_method, open_prior
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera, RayCamera
from leadline.methods import method, run_method
from leadline.priors.cache import PriorCache, content_hash, without_copies

DEPTHS = "depths"  # in the run's cache
TRIED = {name: LABELS[name] for name in ("gdisp", "gmetric", "glog", "response", "ours")}
"""What a diagnosis compares unless told otherwise, and the labels."""


class Place(NamedTuple):
    """Where in a run: its labels."""

    dataset: str
    image: str
    case: str
    prior: str

    def __str__(self) -> str:
        return f"{self.dataset}: {self.image}, {self.case}"


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a method made of a trial."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    parameters: dict[str, float]


@dataclass(frozen=True, eq=False)
class Trial:
    """An image, its prior, measurements and reference, and predictions by the methods' labels."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    prior: Prior
    sparse: FloatArray  # (H, W) metres, NaN where not measured
    reference: FloatArray  # (H, W) metres, NaN where unknown
    scored: BoolArray  # (H, W): held out
    camera: Camera | RayCamera | None
    predictions: dict[str, Prediction]

    def relative(self) -> NDArray[np.float64]:
        """The prior as relative depth, (H, W); NaN where it is not to be used."""
        h = np.asarray(self.prior.depth(), np.float64)
        return np.where(np.isfinite(h) & (h > 0), h, np.nan)

    def pairs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Prior and measured depth where both are known: two (n,) arrays."""
        h, s = self.relative(), np.asarray(self.sparse, np.float64)
        known = np.isfinite(h) & np.isfinite(s) & (s > 0)
        return h[known], s[known]


def try_methods(
    title: str,
    image: NDArray[np.uint8],
    prior: Prior,
    sparse: FloatArray,
    reference: FloatArray,
    *,
    valid: BoolArray | None = None,
    options: CompletionOptions | None = None,
) -> Trial:
    """A trial of the methods of `TRIED` on arrays; held out is what has a reference and was not measured.

    Parameters
    ----------
    title : str
    image : (H, W, 3) uint8 array
    prior : Prior
    sparse, reference : (H, W) arrays
        Metres; NaN, inf and values <= 0 are unknown.
    valid : (H, W) bool array, optional
        False where neither prior nor measurement is to be used.
    options : CompletionOptions, optional
        Of the response and of ours.
    """
    if valid is not None:
        prior = replace(prior, valid=valid if prior.valid is None else valid & prior.valid)
    measured = np.isfinite(sparse) & (sparse > 0) & (True if valid is None else valid)
    sparse = np.where(measured, sparse, np.nan)
    predictions = {}
    for name, label in TRIED.items():
        result = run_method(method(name), prior, sparse, options=options)
        predictions[label] = Prediction(result.depth, result.parameters)
    scored = np.isfinite(reference) & (reference > 0) & ~measured
    return Trial(title, image, prior, sparse, reference, scored, None, predictions)


def recompute(folder: Path, place: Place, methods: Sequence[str]) -> Trial:
    """The maps behind the records of a run at one place.

    Parameters
    ----------
    folder : path
        Of the run.
    place : Place
    methods : labels
        Each must have a record there that did not fail.

    Raises
    ------
    InputError
        There is no such record, it failed, or data, prior or model have changed since the run.
    LeadlineError
        The data cannot be read.
    """
    protocol = protocol_of(folder)
    records = _records(folder, place, methods)
    entry = _labelled(protocol.datasets, place.dataset)
    data = open_dataset(entry)
    scene = data.load(place.image)
    sensor = Sensor(scene, dataset=data.name, stride=protocol.stride)
    source_entry = _labelled(protocol.priors, place.prior)
    source = open_prior(source_entry)
    fingerprint = source.fingerprint() if cached(source_entry) else ""
    cache = PriorCache(folder / CACHE)
    prior = without_copies(cache.predict(source, scene.image, fingerprint, dataset=data, name=place.image))
    hashes = {
        "image": (content_hash(scene.image), "image_hash"),
        "reference": (content_hash(sensor.reference), "reference_hash"),
        "prior": (content_hash(prior.values, *(() if prior.valid is None else (prior.valid,))), "prior_hash"),
    }
    for what, (found, name) in hashes.items():
        if any(getattr(record, name) != found for record in records.values()):
            raise InputError(f"{place}: the {what} is not the one that the run was made with; run it again.")

    measured = sensor.measure(place.case)
    depths = PriorCache(folder / CACHE / DEPTHS)
    predictions = {}
    for label, record in records.items():
        # By what decides it and by the versions that compute it: an update must not show old pixels as new.
        key = content_hash(record.key, record.reference_hash, record.prior_hash, versions())
        kept = depths.get(key)
        if kept is None:
            found_method = open_method(_labelled(protocol.methods, label))
            context = {"image": scene.image, "camera": scene.camera, "dataset": data, "name": place.image}
            result = run_method(found_method, prior, measured.sparse, **context)
            kept = Prior(result.depth)  # depth in metres is a depth prior as well, and is stored as one
            depths.put(key, kept)
        predictions[label] = Prediction(np.asarray(kept.values, np.float32), json.loads(record.parameters))
    camera = scene.camera if entry.normals else None
    return Trial(
        str(place), scene.image, prior, measured.sparse, sensor.reference, measured.scored, camera, predictions
    )


def _records(folder: Path, place: Place, methods: Sequence[str]) -> dict[str, Record]:
    with RecordStore(folder) as store:
        there = {
            record.method: record
            for record in store.records()
            if (record.dataset, record.image, record.case, record.prior) == tuple(place)
        }
    for label in methods:
        if label not in there:
            known = f"it has {', '.join(there)}" if there else "it has no record of it"
            raise InputError(f"{folder}: the run has no {label!r} for {place} with the prior {place.prior}; {known}.")
        if there[label].status == "failed":
            raise InputError(f"{place}, {label}: the record failed ({there[label].reason})")
    return {label: there[label] for label in methods}


def _labelled(entries: tuple[Any, ...], label: str) -> Any:
    for entry in entries:
        if entry.label == label:
            return entry
    raise InputError(f"the run has no {label!r}; it has {', '.join(entry.label for entry in entries)}.")
