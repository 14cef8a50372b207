"""Scores of many images as distributions: per subset, prior, method and metric, pooled over the cases.

A percentile is over the images that have a score, interpolated linearly between the two nearest; those without are
counted as failures of that metric. Macro is the plain mean of the subsets' percentiles, NaN if a subset has none.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.records import Record, RecordStore

PERCENTILES = (7, 16, 31, 50, 69, 84, 93)
METRICS = ("absrel", "mae", "rmse", "delta1", "delta2", "delta3", "nmean", "nmed")
MACRO = "Macro"

Place = tuple[str, str, str, str]  # prior, method, subset, metric


@dataclass(frozen=True)
class Spread:
    """The distribution of one metric."""

    percentiles: dict[int, float]
    count: int  # of scores
    failures: int  # records without one


@dataclass(frozen=True)
class Results:
    """Distributions, and the labels in the order in which tables show them."""

    subsets: tuple[str, ...]
    priors: tuple[str, ...]
    methods: tuple[str, ...]
    spreads: dict[Place, Spread]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # per method label, where it has any

    def value(self, prior: str, method: str, subset: str, metric: str, percentile: int = 50) -> float:
        """One percentile; `subset` may be Macro. NaN where there is none."""
        if subset == MACRO and (prior, method, MACRO, metric) not in self.spreads:
            values = [self.value(prior, method, name, metric, percentile) for name in self.subsets]
            return math.fsum(values) / len(values) if values else math.nan
        spread = self.spreads.get((prior, method, subset, metric))
        return math.nan if spread is None else spread.percentiles.get(percentile, math.nan)

    def scored(self, prior: str, method: str, metric: str) -> bool:
        """Whether any subset has a score."""
        return any(not math.isnan(self.value(prior, method, subset, metric)) for subset in self.subsets)

    def failures(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Records without that score; for Macro those of all subsets together."""
        subsets = self.subsets if subset == MACRO else (subset,)
        found = (self.spreads.get((prior, method, name, metric)) for name in subsets)
        return sum(spread.failures for spread in found if spread is not None)

    def count(self, prior: str, method: str, subset: str, metric: str) -> int:
        """Records with that score; for Macro those of all subsets together."""
        subsets = self.subsets if subset == MACRO else (subset,)
        found = (self.spreads.get((prior, method, name, metric)) for name in subsets)
        return sum(spread.count for spread in found if spread is not None)


def pool(
    records: Iterable[Record],
    *,
    subsets: Sequence[str],
    priors: Sequence[str],
    methods: Sequence[str],
    cases: Sequence[str] = (),
) -> Results:
    """The distributions of records, pooled over the cases (or over those given).

    Examples
    --------
    >>> scores = [0.1, 0.2, 0.4, math.nan]
    >>> labels = {"dataset": "d", "case": "outer", "prior": "p", "method": "m", "status": "ok"}
    >>> rows = [Record(key=str(i), image=str(i), absrel=x, **labels) for i, x in enumerate(scores)]
    >>> results = pool(rows, subsets=["d"], priors=["p"], methods=["m"])
    >>> results.value("p", "m", "d", "absrel"), results.failures("p", "m", "d", "absrel")
    (0.2, 1)
    """
    scores: dict[Place, list[float]] = defaultdict(list)
    options: dict[str, dict[str, Any]] = {}
    for record in records:
        if cases and record.case not in cases:
            continue
        for metric in METRICS:
            scores[record.prior, record.method, record.dataset, metric].append(getattr(record, metric))
        if record.method not in options:
            options[record.method] = json.loads(record.options)
    kept = {label: chosen for label, chosen in options.items() if chosen}
    return Results(
        tuple(subsets),
        tuple(priors),
        tuple(methods),
        {place: spread(values) for place, values in scores.items()},
        kept,
    )


def spread(values: Sequence[float]) -> Spread:
    """Percentiles of the numbers among `values`; the others are failures."""
    array = np.asarray(values, dtype=np.float64)
    valid = array[np.isfinite(array)]
    found = np.percentile(valid, PERCENTILES).tolist() if valid.size else [math.nan] * len(PERCENTILES)
    return Spread(dict(zip(PERCENTILES, found, strict=True)), valid.size, array.size - valid.size)


def read_results(folder: Path, *, cases: Sequence[str] = ()) -> Results:
    """The distributions of a run.

    Raises
    ------
    FileError
        The folder holds no run.
    InputError
        The run has no such case.
    """
    with RecordStore(folder) as store:
        known = store.labels("case")
        for case in cases:
            if case not in known:
                raise InputError(f"The run has no case {case!r}; it has {', '.join(known)}.")
        return pool(
            store.records(),
            subsets=store.labels("dataset"),
            priors=store.labels("prior"),
            methods=store.labels("method"),
            cases=cases,
        )
