"""The results of several methods on one image: the input of diagnostics, figures of single images and thumbnails.

A run stores scores but no depth maps. `recompute_results` computes the maps again with the evaluator of the benchmark,
from the protocol of the run, and compares the hashes of data and prior with those in the records. Depth maps are cached
in the folder of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError
from leadline.base.strict_json import canonical_json
from leadline.bench.protocol import LABELS
from leadline.bench.records import Record, RecordStatus, RecordStore, read_run_protocol, software_versions
from leadline.bench.run import CACHE, Evaluator
from leadline.core.options import CompletionOptions, PresetName, as_options
from leadline.core.prior import Prior
from leadline.geometry.cameras import CameraModel
from leadline.methods import MethodResult, method, run_method
from leadline.priors.predictor import PriorCache, content_hash

DEPTH_FOLDER = "depths"  # in the cache of the run
FIXED_COORDINATES = ("gdisp", "gmetric", "glog")
COMPARED_METHODS = tuple(LABELS[name] for name in (*FIXED_COORDINATES, "response", "ours", "best"))
"""Labels of the methods of a run that a diagnosis compares by default."""


class ImageCase(NamedTuple):
    """An image of a run with one case of measurements and one prior, by their labels."""

    dataset: str
    image: str
    case: str
    prior: str

    @classmethod
    def of(cls, record: Record) -> ImageCase:
        """The image and case that a record belongs to."""
        return cls(record.dataset, record.image, record.case, record.prior)

    def __str__(self) -> str:
        return f"{self.dataset}: {self.image}, {self.case}"


@dataclass(frozen=True, eq=False)
class ImageResults:
    """An image with its inputs, its ground truth and the predictions of methods."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    prior: Prior
    sparse: FloatArray  # (H, W) metres, NaN where not measured
    reference: FloatArray  # (H, W) metres, the ground truth; NaN where unknown
    scored: BoolArray  # (H, W), the held-out pixels
    camera: CameraModel | None  # for normals; None if there are none to show
    predictions: dict[str, MethodResult]  # by the labels of the methods

    def prior_depth(self) -> NDArray[np.float64]:
        """The prior as relative depth, (H, W) float64; NaN where it is invalid."""
        h = np.asarray(self.prior.depth(), np.float64)
        return np.where(np.isfinite(h) & (h > 0), h, np.nan)

    def prior_range(self) -> tuple[float, float]:
        """Lowest and highest relative depth of the prior; an `InputError` if it has no valid pixel."""
        h = self.prior_depth()
        if not np.isfinite(h).any():
            raise InputError(f"{self.title}: the prior has no valid pixel.")
        return float(np.nanmin(h)), float(np.nanmax(h))

    def pairs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Relative prior depth and measured depth (m) at the pixels that have both, two (n,) float64 arrays."""
        h, s = self.prior_depth(), np.asarray(self.sparse, np.float64)
        known = np.isfinite(h) & np.isfinite(s) & (s > 0)
        return h[known], s[known]


def compare_methods(
    title: str,
    image: NDArray[np.uint8],
    prior: Prior,
    sparse: FloatArray,
    reference: FloatArray,
    *,
    valid: BoolArray | None = None,
    options: CompletionOptions | PresetName = "best",
) -> ImageResults:
    """The results of fixed coordinates, the response and the completion; every unmeasured pixel with a truth is scored.

    Parameters
    ----------
    title : str
    image : (H, W, 3) uint8 array
    prior : Prior
    sparse, reference : (H, W) arrays
        Metres; NaN, inf and values <= 0 are unknown.
    valid : (H, W) bool array, optional
        False where neither prior nor measurements are used.
    options : CompletionOptions or {"best", "paper"}
        Options of the response and of the completion; the label of the completion names the preset.
    """
    options = as_options(options)
    presets = {LABELS["best"]: CompletionOptions.best(), LABELS["ours"]: CompletionOptions.paper()}
    own_label = next((label for label, preset in presets.items() if preset == options), "Ours")
    if valid is not None:
        prior = replace(prior, valid=valid if prior.valid is None else valid & prior.valid)
    measured = np.isfinite(sparse) & (sparse > 0) & (True if valid is None else valid)
    sparse = np.where(measured, sparse, np.nan)
    predictions = {LABELS[name]: run_method(method(name), prior, sparse) for name in FIXED_COORDINATES}
    for name, label in (("response", LABELS["response"]), ("ours", own_label)):
        predictions[label] = run_method(method(name), prior, sparse, options=options)
    scored = np.isfinite(reference) & (reference > 0) & ~measured
    return ImageResults(title, image, prior, sparse, reference, scored, None, predictions)


def recompute_results(folder: Path, image_case: ImageCase, methods: Sequence[str]) -> ImageResults:
    """The inputs and depth maps behind the records of a run for one image and case.

    `methods` are labels, or names of methods with their default label. An `InputError` says if there is no such record,
    it failed, or the data, the prior or the model have changed since the run.
    """
    with RecordStore(folder) as store:
        there = {record.method: record for record in store.records() if ImageCase.of(record) == image_case}
    records = {}
    for label in (LABELS.get(name, name) for name in methods):
        if label not in there:
            known = f"its methods are {', '.join(there)}" if there else "it has no record of this image and case"
            raise InputError(
                f"{folder}: the run has no {label!r} for {image_case} with the prior {image_case.prior}; {known}."
            )
        if there[label].status == RecordStatus.FAILED:
            raise InputError(f"{image_case}, {label}: the record failed: {there[label].reason}")
        records[label] = there[label]
    evaluator = Evaluator(read_run_protocol(folder), folder / CACHE)
    inputs = evaluator.load(image_case.dataset, image_case.image, image_case.prior)
    for name, found in inputs.hashes.items():
        if any(getattr(record, name) != found for record in records.values()):
            what = name.removesuffix("_hash")
            raise InputError(f"{image_case}: the {what} has changed since the run; run the benchmark again.")

    observations = evaluator.observe(inputs, image_case.case)
    depths = PriorCache(folder / CACHE / DEPTH_FOLDER)
    predictions = {}
    for label, record in records.items():
        # The versions are part of the key, so that an update of leadline does not show depth of an earlier version.
        versions = canonical_json(software_versions())
        key = content_hash(record.key, record.reference_hash, record.prior_hash, versions)
        stored = depths.get(key)
        if stored is None:
            # Depth in metres is a depth prior as well, and is stored as one.
            stored = Prior(evaluator.predict(inputs, observations, label).depth)
            depths.put(key, stored)
        depth = np.asarray(stored.values, np.float32)
        predictions[label] = MethodResult(depth, parameters=json.loads(record.parameters))
    loaded = inputs.loaded
    return ImageResults(
        str(image_case),
        loaded.scene.image,
        inputs.prior,
        observations.sparse,
        loaded.reference,
        observations.scored,
        loaded.camera,
        predictions,
    )
