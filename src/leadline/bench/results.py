"""Scores of many images as distributions, from the records of a run or from the published tables of the paper.

There is one distribution per subset, prior, method and metric, pooled over the cases. Percentiles are taken over the
images that have a score and interpolated linearly; images without a score are counted as failures of the metric. Macro
is the mean of the subsets' percentiles, NaN if a subset has none.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.bench.protocol import LABELS
from leadline.bench.records import Record, RecordStore
from leadline.bench.sources import open_dataset
from leadline.datasets.reference_statistics import Geometry, reference_geometry, write_reference_geometry

PERCENTILES = (7, 16, 31, 50, 69, 84, 93)
METRICS = ("absrel", "mae", "rmse", "delta1", "delta2", "delta3", "nmean", "nmed")
MACRO = "Macro"
GEOMETRY_FILE = "reference_geometry.csv"
PAPER_SUBSETS = ("DIODE-in", "ETH3D", "iBims", "ARKit", "Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")
PAPER_PRIOR = "MoGe-3"
"""Prior of all published tables that are not about priors."""


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


@dataclass(frozen=True)
class Results:
    """Distributions, and the labels in the order in which tables show them."""

    subsets: tuple[str, ...]
    priors: tuple[str, ...]
    methods: tuple[str, ...]
    distributions: dict[Series, Distribution]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method label, only methods that have any

    def value(self, prior: str, method: str, subset: str, metric: str, percentile: int = 50) -> float:
        """One percentile, NaN if there is none; `subset` may be Macro."""
        series = Series(prior, method, subset, metric)
        if subset == MACRO and series not in self.distributions:
            values = [self.value(prior, method, name, metric, percentile) for name in self.subsets]
            return math.fsum(values) / len(values) if values else math.nan
        found = self.distributions.get(series)
        return math.nan if found is None else found.percentiles.get(percentile, math.nan)

    def has_scores(self, prior: str, method: str, metric: str) -> bool:
        """Whether any subset has a score."""
        return any(not math.isnan(self.value(prior, method, subset, metric)) for subset in self.subsets)

    def failures(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Number of records without a score; for Macro, of all subsets together."""
        return sum(found.failures for found in self._of(prior, method, subset, metric))

    def count(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Number of records with a score; for Macro, of all subsets together."""
        return sum(found.count for found in self._of(prior, method, subset, metric))

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
) -> Results:
    """The distributions of records, pooled over all cases or over those in `cases`.

    Examples
    --------
    >>> scores = [0.1, 0.2, 0.4, math.nan]
    >>> labels = {"dataset": "d", "case": "outer", "prior": "p", "method": "m", "status": "ok"}
    >>> rows = [Record(key=str(i), image=str(i), absrel=x, **labels) for i, x in enumerate(scores)]
    >>> results = pool(rows, subsets=["d"], priors=["p"], methods=["m"])
    >>> results.value("p", "m", "d", "absrel"), results.failures("p", "m", "d", "absrel")
    (0.2, 1)
    """
    scores: dict[Series, list[float]] = defaultdict(list)
    options: dict[str, dict[str, Any]] = {}
    for record in records:
        if cases and record.case not in cases:
            continue
        for metric in METRICS:
            scores[Series(record.prior, record.method, record.dataset, metric)].append(getattr(record, metric))
        if record.method not in options:
            options[record.method] = json.loads(record.options)
    return Results(
        tuple(subsets),
        tuple(priors),
        tuple(methods),
        {series: distribution(values) for series, values in scores.items()},
        {label: chosen for label, chosen in options.items() if chosen},
    )


def distribution(values: Sequence[float]) -> Distribution:
    """Percentiles of the finite values; the others are counted as failures."""
    array = np.asarray(values, dtype=np.float64)
    valid = array[np.isfinite(array)]
    found = np.percentile(valid, PERCENTILES).tolist() if valid.size else [math.nan] * len(PERCENTILES)
    return Distribution(dict(zip(PERCENTILES, found, strict=True)), valid.size, array.size - valid.size)


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
        )


_COLUMNS = {"absrel": "absrel", "nmed_deg": "nmed", "nmean_deg": "nmean", "mae_m": "mae"}
_PAPER_METHODS = {"Ours": LABELS["ours"], f"Raw {PAPER_PRIOR}": LABELS["raw"]}  # other methods have the same label


def published_results() -> Results:
    """Every median (p50) in the tables of the paper: per subset, prior, method and metric, and the printed Macro.

    The methods have the labels of `protocol.LABELS`, so that they can be compared with a run.

    Examples
    --------
    >>> published_results().value("MoGe-3", "Ours (paper)", "Macro", "absrel")
    0.0301
    """
    distributions: dict[Series, Distribution] = {}
    for series, value in _published_medians():
        distributions.setdefault(series, Distribution({50: value}, 0, 0))
    options = {}
    for row in _published_rows("weight_sweep"):
        name = f"{row['lambda_data']}, {row['lambda_lap']}"
        options[name] = {"weight_data": float(row["lambda_data"]), "weight_laplacian": float(row["lambda_lap"])}
        for column in ("mae_m", "nmed_deg"):
            series = Series(PAPER_PRIOR, name, MACRO, _COLUMNS[column])
            distributions[series] = Distribution({50: float(row[column])}, 0, 0)
    priors = dict.fromkeys(series.prior for series in distributions)
    methods = {series.method for series in distributions}
    names = ("raw", "priorda", "ldcm", "any2full", "promptda", "knn", "lwlr", "poisson", "gdisp", "gmetric", "glog")
    order = [*(LABELS[name] for name in (*names, "response", "ours")), *options]
    return Results(
        PAPER_SUBSETS, tuple(priors), tuple(name for name in order if name in methods), distributions, options
    )


def published_reference_geometry() -> list[dict[str, str]]:
    """The published statistics of the reference depth (tab:app-H-1 to H-3), one row per percentile and subset."""
    return list(_published_rows("reference_geometry"))


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


def _published_medians() -> Iterator[tuple[Series, float]]:
    def series(prior: str, method: str, subset: str, metric: str) -> Series:
        return Series(prior, _PAPER_METHODS.get(method, method), subset, metric)

    for row in _published_rows("main_p50"):
        for column in ("absrel", "nmed_deg"):
            yield series(PAPER_PRIOR, row["method"], row["subset"], _COLUMNS[column]), float(row[column])
    for row in _published_rows("baselines_p50"):
        yield series(PAPER_PRIOR, row["method"], row["subset"], _COLUMNS[row["metric"]]), float(row["value"])
    for name, metric in (("normals_mean_p50", "nmean"), ("normals_median_p50", "nmed")):
        for row in _published_rows(name):
            for method in row.keys() - {"subset"}:
                yield series(PAPER_PRIOR, method, row["subset"], metric), float(row[method])
    for row in _published_rows("stages_p50"):
        for stage in ("response", "ours"):
            for column in ("absrel", "mae_m"):
                value = float(row[f"{stage}_{column}"])
                yield series(PAPER_PRIOR, LABELS[stage], row["subset"], _COLUMNS[column]), value
    for row in _published_rows("priors_and_fixed_p50"):
        for column in ("absrel", "nmean_deg"):
            yield series(row["prior"], row["method"], row["subset"], _COLUMNS[column]), float(row[column])


def _published_rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("leadline.bench") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
