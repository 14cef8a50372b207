"""Scores of many images as distributions; `published.numbers` has those of the paper in the same form.

There is one distribution per subset, prior, method and metric, pooled over the cases or, if the convention of the run
says so, for each case. Percentiles are taken over the images that have a score and interpolated linearly; images
without a score are counted as failures of the metric. The number of a table is the median or a mean, see `Scoring`.
Macro is the mean of the subsets' numbers, NaN if a subset has none. A subset in which no method has a score of normals,
e.g. because its camera is not known, is left out of the Macro of normals.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.bench.records import SCORES, Record, RecordStore
from leadline.bench.scoring import PAPER_SCORING, Scoring
from leadline.bench.sources import open_dataset
from leadline.datasets.reference_statistics import Geometry, reference_geometry, write_reference_geometry

PERCENTILES = (7, 16, 31, 50, 69, 84, 93)
METRICS = SCORES
ROOT_METRICS = ("rmse", "irmse")  # roots of means: their squares are averaged over pixels
NORMAL_METRICS = ("nmean", "nmed")
MACRO = "Macro"
GEOMETRY_FILE = "reference_geometry.csv"


class Series(NamedTuple):
    """Labels of one distribution of scores."""

    prior: str
    method: str
    subset: str
    metric: str


@dataclass(frozen=True)
class Distribution:
    """The distribution of one metric."""

    percentiles: dict[int, float]
    count: int  # records with a score
    failures: int  # records without a score
    unconverged: int = 0  # records with a score whose method stopped before its tolerances were met
    mean: float = math.nan  # over the records with a score
    pixel_mean: float = math.nan  # over all their scored pixels; NaN for the median angle of normals


@dataclass(frozen=True)
class Results:
    """Distributions, and the labels in the order in which tables show them."""

    subsets: tuple[str, ...]
    priors: tuple[str, ...]
    methods: tuple[str, ...]
    distributions: dict[Series, Distribution]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method label, only methods that have any
    scoring: Scoring = PAPER_SCORING

    def value(self, prior: str, method: str, subset: str, metric: str, percentile: int | None = None) -> float:
        """One percentile, by default the number of the convention; NaN if there is none; `subset` may be Macro."""
        series = Series(prior, method, subset, metric)
        if subset == MACRO and series not in self.distributions:
            values = [self.value(prior, method, name, metric, percentile) for name in self.macro_subsets(metric)]
            return math.fsum(values) / len(values) if values else math.nan
        found = self.distributions.get(series)
        if found is None:
            return math.nan
        if percentile is None and self.scoring.aggregate != "median":
            return found.mean if self.scoring.aggregate == "mean-images" else found.pixel_mean
        return found.percentiles.get(percentile or 50, math.nan)

    def percentiles(self, prior: str, method: str, subset: str, metric: str) -> list[int]:
        """The percentiles that are known of a distribution; those of Macro are the median, or none."""
        found = self.distributions.get(Series(prior, method, subset, metric))
        if found is None and subset == MACRO:
            return [] if math.isnan(self.value(prior, method, subset, metric, 50)) else [50]
        return [] if found is None else sorted(found.percentiles)

    def macro_subsets(self, metric: str) -> tuple[str, ...]:
        """The subsets over which Macro is the mean."""
        return tuple(name for name in self.subsets if metric not in NORMAL_METRICS or name not in self._without_normals)

    @cached_property
    def _without_normals(self) -> set[str]:
        """Subsets in which some method has a score of depth and no method one of normals."""
        scored = {
            (series.subset, series.metric in NORMAL_METRICS)
            for series, found in self.distributions.items()
            if any(map(math.isfinite, found.percentiles.values()))
        }
        return {name for name in self.subsets if (name, False) in scored and (name, True) not in scored}

    def has_scores(self, prior: str, method: str, metric: str) -> bool:
        """Whether any subset has a score."""
        return any(not math.isnan(self.value(prior, method, subset, metric)) for subset in self.subsets)

    def has_run(self, prior: str, method: str) -> bool:
        """Whether there are records of the method with this prior, with or without scores."""
        return (prior, method) in self._runs

    @cached_property
    def _runs(self) -> set[tuple[str, str]]:
        return {(series.prior, series.method) for series in self.distributions}

    @property
    def first_prior(self) -> str:
        """The first prior with which a method has a depth score; the first of all if there are no scores."""
        scored = (
            prior for prior in self.priors if any(self.has_scores(prior, name, "absrel") for name in self.methods)
        )
        return next(scored, self.priors[0] if self.priors else "")

    def failures(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Number of records without a score; for Macro, of all subsets together."""
        return sum(found.failures for found in self._of(prior, method, subset, metric))

    def count(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Number of records with a score; for Macro, of all subsets together."""
        return sum(found.count for found in self._of(prior, method, subset, metric))

    def unconverged(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Number of records with a score whose method stopped early; for Macro, of all subsets together."""
        return sum(found.unconverged for found in self._of(prior, method, subset, metric))

    def _of(self, prior: str, method: str, subset: str, metric: str) -> list[Distribution]:
        subsets = self.subsets if subset == MACRO else (subset,)
        series = (Series(prior, method, name, metric) for name in subsets)
        return [self.distributions[name] for name in series if name in self.distributions]


def pool(
    records: Iterable[Record],
    *,
    subsets: Sequence[str],
    priors: Sequence[str],
    methods: Sequence[str],
    cases: Sequence[str] = (),
    scoring: Scoring = PAPER_SCORING,
) -> Results:
    """The distributions of records, pooled over all cases or over those in `cases`.

    If `scoring` keeps the cases separate, the subsets are pairs of data set and case, labelled ``LABEL, CASE``.

    Examples
    --------
    >>> scores = [0.1, 0.2, 0.4, math.nan]
    >>> labels = {"dataset": "d", "case": "outer", "prior": "p", "method": "m", "status": "ok"}
    >>> rows = [Record(key=str(i), image=str(i), absrel=x, **labels) for i, x in enumerate(scores)]
    >>> results = pool(rows, subsets=["d"], priors=["p"], methods=["m"])
    >>> results.value("p", "m", "d", "absrel"), results.failures("p", "m", "d", "absrel")
    (0.2, 1)
    """
    scores: dict[Series, list[tuple[float, int]]] = defaultdict(list)
    rows: dict[str, dict[str, None]] = {name: {} for name in subsets}  # the subsets of each data set, in order
    unconverged: dict[Series, int] = defaultdict(int)
    options: dict[str, dict[str, Any]] = {}
    for record in records:
        if cases and record.case not in cases:
            continue
        subset = record.dataset if scoring.cases == "pooled" else f"{record.dataset}, {record.case}"
        rows.setdefault(record.dataset, {})[subset] = None
        for metric in METRICS:
            series = Series(record.prior, record.method, subset, metric)
            pixels = record.normal_support if metric in NORMAL_METRICS else record.support
            scores[series].append((getattr(record, metric), pixels))
            unconverged[series] += record.is_unconverged and math.isfinite(getattr(record, metric))
        if record.method not in options:
            options[record.method] = json.loads(record.options)
    distributions = {}
    for series, pairs in scores.items():
        values = [value for value, _ in pairs]
        pooled = distribution(values)
        over_pixels = _mean_over_pixels(series.metric, values, [count for _, count in pairs])
        distributions[series] = replace(pooled, unconverged=unconverged[series], pixel_mean=over_pixels)
    separate = tuple(subset for found in rows.values() for subset in found)
    return Results(
        tuple(subsets) if scoring.cases == "pooled" else separate,
        tuple(priors),
        tuple(methods),
        distributions,
        {label: chosen for label, chosen in options.items() if chosen},
        scoring,
    )


def distribution(values: Sequence[float]) -> Distribution:
    """Percentiles and mean of the finite values; the others are counted as failures."""
    array = np.asarray(values, dtype=np.float64)
    valid = array[np.isfinite(array)]
    found = np.percentile(valid, PERCENTILES).tolist() if valid.size else [math.nan] * len(PERCENTILES)
    percentiles = dict(zip(PERCENTILES, found, strict=True))
    mean = float(valid.mean()) if valid.size else math.nan
    return Distribution(percentiles, valid.size, array.size - valid.size, mean=mean)


def _mean_over_pixels(metric: str, values: Sequence[float], pixels: Sequence[int]) -> float:
    """The score of all pixels of all images together, from the scores of images and their numbers of pixels."""
    array, weights = np.asarray(values, dtype=np.float64), np.asarray(pixels, dtype=np.float64)
    valid = np.isfinite(array) & (weights > 0)
    if metric == "nmed" or not valid.any():  # a median of all pixels does not follow from those of images
        return math.nan
    array, weights = array[valid], weights[valid]
    if metric in ROOT_METRICS:
        return math.sqrt(float((array**2 * weights).sum() / weights.sum()))
    return float((array * weights).sum() / weights.sum())


def read_results(folder: Path, *, cases: Sequence[str] = ()) -> Results:
    """The distributions of a run, pooled over all cases or over those in `cases`."""
    with RecordStore(folder) as store:
        known = store.labels("case")
        for case in cases:
            if case not in known:
                raise InputError(f"The run has no case {case!r}; {suggestion(case, known)}")
        return pool(
            store.records(),
            subsets=store.labels("dataset"),
            priors=store.labels("prior"),
            methods=store.labels("method"),
            cases=cases,
            scoring=store.scoring(),
        )


def measure_references(folder: Path, *, progress: Callable[[int, int], None] | None = None) -> tuple[str, ...]:
    """Write the statistics of all planned images of a run; returns the reasons why images were left out.

    They are ``reference_geometry.csv`` and ``reference_geometry_images.csv`` in its folder. `progress` is called with
    the number of images read and the number of all images.
    """
    with RecordStore(folder) as store:
        protocol = store.protocol()
        images = {entry.label: store.images(entry.label) for entry in protocol.datasets}
    total, before = sum(map(len, images.values())), 0
    parts = []
    for entry in protocol.datasets:

        def count(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        names = images[entry.label]
        parts.append(reference_geometry(open_dataset(entry), names=names, subset=entry.label, progress=count))
        before += len(names)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row.percentile)
    failures = tuple(failure for part in parts for failure in part.failures)
    whole = Geometry(tuple(rows), tuple(image for part in parts for image in part.images), failures)
    write_reference_geometry(whole, folder)
    return tuple(reason for _, reason in failures)


def read_references(folder: Path) -> list[dict[str, str]] | None:
    """The rows of ``reference_geometry.csv`` of a run; None if it does not exist."""
    path = folder / GEOMETRY_FILE
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
