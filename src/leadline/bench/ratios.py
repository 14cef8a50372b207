"""How much better than another method, image by image: geometric means of ratios, with the worst and an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from leadline.bench.records import Record
from leadline.bench.tables import HEADS, OURS, Block, Column, Row, Table

NAME = "ratios"
METRICS = ("absrel", "nmed")
RESAMPLES = 2000
TAIL = 2.5  # per cent, on each side of the interval


def ratios_table(records: Iterable[Record], *, base: str = OURS) -> Table | None:
    """Each method's score over that of `base` at the same image, case and prior; None where nothing can be paired.

    A row is a prior, method and case. The mean is geometric, so that half and double cancel; its interval is the 95 %
    bootstrap over images.
    """
    scores: dict[tuple[str, str, str], dict[tuple[str, str], Record]] = {}
    for record in records:
        place = scores.setdefault((record.prior, record.case, record.method), {})
        place[record.dataset, record.image] = record
    priors, cases, methods = (
        (list(dict.fromkeys(names)) for names in zip(*scores, strict=True)) if scores else ([],) * 3
    )
    blocks = []
    for prior in priors:
        rows = [
            Row(f"{method}, {case}", values)
            for method in methods
            for case in cases
            if method != base and (values := _row(scores, prior, case, method, base)) is not None
        ]
        if rows:
            blocks.append(Block(prior, tuple(rows)))
    heads = ("mean", "low", "high", "worst")
    columns = tuple(Column(HEADS[metric], head, "ratio") for metric in METRICS for head in heads)
    title = f"Ratios to {base}: geometric mean over images, its 95 % interval, and the worst"
    return Table(NAME, title, "method, case", (Column("", "images"), *columns), tuple(blocks)) if blocks else None


def _row(
    scores: dict[tuple[str, str, str], dict[tuple[str, str], Record]], prior: str, case: str, method: str, base: str
) -> tuple[float, ...] | None:
    first, second = scores.get((prior, case, base), {}), scores.get((prior, case, method), {})
    common = sorted(first.keys() & second.keys())
    values: list[float] = []
    counts = []
    for metric in METRICS:
        pairs = [(getattr(second[image], metric), getattr(first[image], metric)) for image in common]
        logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]  # NaN is left out
        counts.append(len(logs))
        values += _summary(logs)
    return (float(max(counts)), *values) if max(counts, default=0) else None


def _summary(logs: Sequence[float]) -> tuple[float, float, float, float]:
    if not logs:
        return (math.nan,) * 4
    array = np.array(logs)
    drawn = np.random.default_rng(0).choice(array, (RESAMPLES, array.size))
    low, high = np.percentile(drawn.mean(axis=1), (TAIL, 100 - TAIL))
    mean, low, high, worst = (math.exp(value) for value in (array.mean(), low, high, array.max()))
    return mean, low, high, worst
