"""Comparisons of scores of two runs or methods, paired by image and case.

A pair consists of two scores of the same image, case, subset and prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.bench.protocol import LABELS
from leadline.bench.records import SCORES, Record, RecordStore
from leadline.bench.scoring import require_same_scoring
from leadline.bench.tables import BEST, HEADS, OURS, Block, Column, Row, Table

CONFIDENCE = 0.95  # confidence level of all intervals
DIFFERENCE_RESAMPLES = 1000
RATIO_RESAMPLES = 2000
WORST = 10  # images listed in a comparison
HIGHER_IS_BETTER = ("delta1", "delta2", "delta3", "delta102", "delta105", "delta110")
RATIOS = "ratios"
WINS = "wins"
RATIO_METRICS = ("absrel", "nmed")


@dataclass(frozen=True)
class Pair:
    """Two scores of one image and case, and their difference, second minus first."""

    difference: float
    image: str
    case: str
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """One metric of one method on one subset, in two runs."""

    dataset: str
    prior: str
    method: str
    metric: str
    pairs: int
    median: float  # of the differences, second minus first
    low: float  # ends of the bootstrap interval of the median
    high: float
    wins: int  # pairs in which the second run is better
    losses: int  # pairs in which it is worse
    unpaired: int  # pairs in which only one of the runs has a score
    worst: tuple[Pair, ...]  # the pairs in which the second run is worse by most

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def compare_runs(
    first: Path,
    second: Path,
    *,
    metrics: Sequence[str] = ("absrel", "nmed"),
    method: str | None = None,
    against: str | None = None,
) -> list[Comparison]:
    """`compare` for two folders of runs, which must have been scored by the same convention."""
    with RecordStore(first) as before, RecordStore(second) as after:
        require_same_scoring(before.scoring(), after.scoring())
        return compare(before.records(), after.records(), metrics=metrics, method=method, against=against)


def compare(
    first: Iterable[Record],
    second: Iterable[Record],
    *,
    metrics: Sequence[str] = ("absrel", "nmed"),
    method: str | None = None,
    against: str | None = None,
) -> list[Comparison]:
    """Paired comparisons per subset, prior and method that both runs contain.

    The interval of the median difference is a percentile bootstrap that resamples *images* with all their cases,
    because the cases of one image are not independent. The seed is fixed.

    With `method` and `against`, one method of the first run is compared with another one of the second, which may be
    the same run. Each is a label, or the name of a method with its default label.
    """
    for metric in metrics:
        if metric not in SCORES:
            raise InputError(f"There is no metric {metric!r}; {suggestion(metric, SCORES)}")
    method, against = (None if name is None else LABELS.get(name, name) for name in (method, against))
    before = [record for record in first if method is None or record.method == method]
    wanted = against or method
    after = {
        (record.dataset, record.prior, record.method, record.image, record.case): record
        for record in second
        if wanted is None or record.method == wanted
    }
    groups: dict[tuple[str, str, str], list[tuple[Record, Record]]] = {}
    for record in before:
        name = record.method if wanted is None else wanted
        other = after.get((record.dataset, record.prior, name, record.image, record.case))
        if other is not None:
            label = record.method if name == record.method else f"{record.method} -> {name}"
            groups.setdefault((record.dataset, record.prior, label), []).append((record, other))
    if not groups:
        raise InputError(
            "The two runs have no records in common. Records are paired if subset, image, case, prior and method are "
            "the same."
        )
    return [_compare(group, metric, pairs) for metric in metrics for group, pairs in groups.items()]


def _compare(group: tuple[str, str, str], metric: str, records: list[tuple[Record, Record]]) -> Comparison:
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    pairs, unpaired = [], 0
    for first, second in records:
        a, b = getattr(first, metric), getattr(second, metric)
        if math.isnan(a) or math.isnan(b):
            unpaired += math.isnan(a) != math.isnan(b)
        else:
            pairs.append(Pair(b - a, first.image, first.case, a, b))
    differences = np.array([pair.difference for pair in pairs])
    low, high = _interval([pair.image for pair in pairs], differences)
    return Comparison(
        *group,
        metric,
        len(pairs),
        float(np.median(differences)) if pairs else math.nan,
        low,
        high,
        int(np.count_nonzero(sign * differences < 0)),
        int(np.count_nonzero(sign * differences > 0)),
        unpaired,
        tuple(sorted(pairs, key=lambda pair: -sign * pair.difference)[:WORST]),
    )


def _interval(images: list[str], differences: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile bootstrap of the median, resampling images."""
    if not images:
        return math.nan, math.nan
    _, owner = np.unique(images, return_inverse=True)
    count = int(owner.max()) + 1
    order = np.argsort(differences, kind="stable")
    owner = owner[order]
    ordered = differences[order]
    rng = np.random.default_rng(0)
    medians = np.empty(DIFFERENCE_RESAMPLES)
    for index in range(DIFFERENCE_RESAMPLES):
        # The weight of an image is how often it was sampled: a weighted median needs no copies of its differences.
        weights = np.bincount(rng.integers(0, count, count), minlength=count)[owner].cumsum()
        total = int(weights[-1])
        places = np.searchsorted(weights, ((total - 1) // 2, total // 2), side="right")
        medians[index] = ordered[places].mean() if total else math.nan
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(medians, (tail, 100 - tail))
    return float(low), float(high)


def ratios_table(records: Iterable[Record], *, base: str = OURS, convention: str = "") -> Table | None:
    """The ratio of each method's score to that of the method `base`; None if there are no pairs.

    A row is a prior, method and case. The mean over images is geometric, so that half and double cancel. Its interval
    is a 95 % percentile bootstrap over images with a fixed seed. `convention` is a sentence for the caption.
    """
    scores: dict[tuple[str, str, str], dict[tuple[str, str], Record]] = {}
    for record in records:
        group = scores.setdefault((record.prior, record.case, record.method), {})
        group[record.dataset, record.image] = record
    priors, cases, methods = (list(dict.fromkeys(names)) for names in zip(*scores, strict=True)) if scores else [[]] * 3
    blocks = []
    for prior in priors:
        rows = [
            Row(f"{method}, {case}", values)
            for method in methods
            for case in cases
            if method != base
            and (values := _ratio_row(scores.get((prior, case, method), {}), scores.get((prior, case, base), {})))
        ]
        if rows:
            blocks.append(Block(prior, tuple(rows)))
    heads = ("mean", "low", "high", "worst")
    columns = tuple(Column(HEADS[metric], head, "ratio") for metric in RATIO_METRICS for head in heads)
    title = f"Ratios to {base}: geometric mean over images, its 95 % interval, and the worst image"
    table = Table(RATIOS, title, "method, case", (Column("", "images"), *columns), tuple(blocks), convention=convention)
    return table if blocks else None


def wins_table(records: Iterable[Record], *, convention: str = "") -> Table | None:
    """Every method beside `best`, or beside `ours` in a run without it; None if that has no score.

    A row has the ratios of its AbsRel to that of the base: per case the geometric mean over images, then the lowest and
    the highest of a single image and case; then the number of images and cases in which the method is first, and its
    median time. A method that ran with one prior only, because it uses none, counts with every prior.
    """
    scored: dict[tuple[str, str], dict[tuple[str, str, str], Record]] = {}
    for record in records:
        found = scored.setdefault((record.prior, record.method), {})  # empty if every record failed
        if record.absrel > 0:  # false for NaN
            found[record.case, record.dataset, record.image] = record
    priors, methods = (list(dict.fromkeys(names)) for names in zip(*scored, strict=True)) if scored else [[]] * 2
    base = BEST if BEST in methods else OURS
    blocks, cases = [], list(dict.fromkeys(case for found in scored.values() for case, *_ in found))
    for prior in priors:
        reference, own = scored.get((prior, base), {}), {}
        for method in methods:
            ran = [name for name in priors if (name, method) in scored]
            if prior in ran or len(ran) == 1:
                own[method] = scored[prior if prior in ran else ran[0], method]
        first = [min((found[key].absrel, name) for name, found in own.items() if key in found)[1] for key in reference]
        rows = []
        for method, found in own.items():
            logs = {key: math.log(found[key].absrel / reference[key].absrel) for key in reference if key in found}
            if not logs:
                continue
            means = [_geometric_mean([log for key, log in logs.items() if key[0] == case]) for case in cases]
            ends = [math.exp(f(logs.values())) for f in (min, max)]
            seconds = float(np.median([found[key].seconds for key in logs]))
            row = Row(method, (*means, *ends, float(first.count(method)), seconds))
            rows.append((method != base, _geometric_mean(list(logs.values())), row))
        if rows:
            ordered = tuple(row for *_, row in sorted(rows, key=lambda entry: entry[:2]))
            blocks.append(Block(f"{prior}: {len(reference)} images and cases", ordered))
    columns = (
        *(Column("", case, "ratio") for case in cases),
        *(Column("", head, "ratio") for head in ("best", "worst")),
        Column("", "wins"),
        Column("", "time (s)", "ratio"),
    )
    title = f"Every method beside {base}: ratios of AbsRel, the number of images and cases in which it is first, time"
    return Table(WINS, title, "method", columns, tuple(blocks), convention=convention) if blocks else None


def _geometric_mean(logs: Sequence[float]) -> float:
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def _ratio_row(records: dict[tuple[str, str], Record], base: dict[tuple[str, str], Record]) -> tuple[float, ...] | None:
    """The number of pairs, then mean, interval and largest ratio of each metric; None if there are no pairs."""
    values: list[float] = []
    counts = []
    for metric in RATIO_METRICS:
        pairs = [(getattr(records[key], metric), getattr(base[key], metric)) for key in sorted(records.keys() & base)]
        logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]  # both comparisons are false for NaN
        counts.append(len(logs))
        values += _summarise_ratios(logs)
    return (float(max(counts)), *values) if max(counts) else None


def _summarise_ratios(logs: Sequence[float]) -> tuple[float, ...]:
    """Geometric mean, ends of its interval, and largest ratio."""
    if not logs:
        return (math.nan,) * 4
    array = np.array(logs)
    means = np.random.default_rng(0).choice(array, (RATIO_RESAMPLES, array.size)).mean(axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, (tail, 100 - tail))
    return tuple(math.exp(value) for value in (array.mean(), low, high, array.max()))
