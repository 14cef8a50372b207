"""Two runs, or two methods, paired by image and case: is the difference real, and where is it worst?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError
from leadline.bench.records import SCORES, Record

RESAMPLES = 1000
CONFIDENCE = 0.95
WORST = 10
HIGHER_IS_BETTER = ("delta1", "delta2", "delta3")


@dataclass(frozen=True)
class Pair:
    """The difference at one image and case, second minus first."""

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
    median: float  # of second minus first
    low: float  # ends of the bootstrap interval of that median
    high: float
    wins: int  # pairs at which the second run is better
    losses: int
    unpaired: int  # pairs at which only one of the runs has a score
    worst: tuple[Pair, ...]  # those at which the second run loses most

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def compare(
    first: Iterable[Record],
    second: Iterable[Record],
    *,
    metrics: Sequence[str] = ("absrel", "nmed"),
    method: str | None = None,
    against: str | None = None,
) -> list[Comparison]:
    """Paired comparisons per subset, prior and method that both runs have.

    The interval is of the median over pairs, by resampling *images* with their cases: the cases of one image are not
    independent. It is drawn with a fixed seed.

    Parameters
    ----------
    first, second : records
        Of two runs; may be the same one, if `method` and `against` differ.
    metrics : names
    method, against : str, optional
        Compare this method of the first run with that one of the second; without `against`, with itself.

    Raises
    ------
    InputError
        A metric is unknown, or the runs have no record in common.
    """
    for metric in metrics:
        if metric not in SCORES:
            raise InputError(f"There is no metric {metric!r}; there are {', '.join(SCORES)}.")
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
            "The two runs have no record in common: subset, image, case, prior and method must be the same."
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
    medians = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        # How often each image was drawn: a weighted median needs no copies of its differences.
        weights = np.bincount(rng.integers(0, count, count), minlength=count)[owner].cumsum()
        total = int(weights[-1])
        places = np.searchsorted(weights, ((total - 1) // 2, total // 2), side="right")
        medians[index] = ordered[places].mean() if total else math.nan
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(medians, (tail, 100 - tail))
    return float(low), float(high)
