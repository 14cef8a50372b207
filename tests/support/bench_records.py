"""Records and results for the tests of tables and comparisons, small enough to check by hand."""

from __future__ import annotations

import math

from leadline.bench.records import Record, RecordStatus
from leadline.bench.results import Results, pool
from leadline.bench.tables import OURS

NAN = math.nan


def record(
    dataset: str, image: str, case: str, method: str, absrel: float, nmed: float = NAN, prior: str = "p", **more: object
) -> Record:
    key = "|".join((dataset, image, case, prior, method))
    scores = {"absrel": absrel, "mae": 2 * absrel, "nmed": nmed, "nmean": 1.5 * nmed, **more}
    status = RecordStatus.FAILED if math.isnan(absrel) else RecordStatus.OK
    return Record(key=key, dataset=dataset, image=image, case=case, prior=prior, method=method, status=status, **scores)  # type: ignore[arg-type]


def few_records() -> list[Record]:
    """Two subsets, two methods; in A seven scores over three cases and one failure, in B one score."""
    rows = []
    for place, score in enumerate([0.5, 0.1, 0.7, 0.3, 0.2, 0.6, 0.4, NAN]):
        case = ("distributed", "central", "outer")[place % 3]
        rows.append(record("A", f"i{place // 3}", case, OURS, score, nmed=NAN if place == 2 else 10.0 * score))
        rows.append(record("A", f"i{place // 3}", case, "KNN", 2 * score))
    rows += [record("B", "j", "outer", OURS, 0.9, 3.0), record("B", "j", "outer", "KNN", 0.8)]
    return rows


def pooled(rows: list[Record] | None = None, **more: object) -> Results:
    labels = {"subsets": ["A", "B"], "priors": ["p"], "methods": ["KNN", OURS], **more}
    return pool(few_records() if rows is None else rows, **labels)  # type: ignore[arg-type]
