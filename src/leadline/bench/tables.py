"""The tables of the paper, from the results of a run or from the published results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from leadline.base.errors import FileError, InputError
from leadline.base.registry import suggestion
from leadline.bench.protocol import LABELS
from leadline.bench.results import GEOMETRY_FILE, MACRO, PERCENTILES, Results

HEADS = {
    "absrel": "AbsRel",
    "mae": "MAE (m)",
    "rmse": "RMSE (m)",
    "delta1": "δ1",
    "delta2": "δ2",
    "delta3": "δ3",
    "nmean": "NMean (°)",
    "nmed": "NMed (°)",
}
DIGITS = {"nmean": 2, "nmed": 2, "depth": 3, "ratio": 3}  # decimals; 4 for all other metrics
RAW, RESPONSE, OURS, BEST = (LABELS[name] for name in ("raw", "response", "ours", "best"))
FIXED = tuple(LABELS[name] for name in ("gdisp", "gmetric", "glog"))
PARTIAL = (RAW, *FIXED, RESPONSE, *(LABELS[name] for name in ("knn", "lwlr", "poisson")))
"""Methods that the main table does not show."""
GEOMETRY = "geometry"
_GEOMETRY_COLUMNS = {
    "valid_fraction": "valid",
    "hole_fraction": "holes",
    "largest_component": "largest",
    "depth_m": "depth (m)",
}
CSV_METRICS = {
    "table1_normal_mean": "nmean",
    "table2_normal_median": "nmed",
    "table3_depth_absrel": "absrel",
    "table4_depth_mae": "mae",
}


@dataclass(frozen=True)
class Column:
    """A column of a table. Consecutive columns of the same group share a heading."""

    group: str
    head: str
    metric: str = ""  # determines the decimals and whether less is better; empty for counts


@dataclass(frozen=True)
class Row:
    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table, with an optional title."""

    title: str
    rows: tuple[Row, ...]
    metric: str = ""  # metric of all its numbers, instead of those of the columns


@dataclass(frozen=True)
class Table:
    """A table, independent of the output format.

    `best` is the direction in which the best number of a metric is marked: among the columns of a row ("across"), among
    the rows of a block ("down"), or not at all.
    """

    name: str
    title: str
    corner: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    best: Literal["across", "down", ""] = ""

    def marked(self) -> set[tuple[int, int, int]]:
        """Block, row and column of the best numbers: the largest deltas, the smallest of all other metrics."""
        found: set[tuple[int, int, int]] = set()
        for b, block in enumerate(self.blocks):
            metrics = [block.metric or column.metric for column in self.columns]
            shown = [[_rank(v, metric) for v, metric in zip(row.values, metrics, strict=True)] for row in block.rows]
            if self.best == "across":
                for metric in set(metrics) - {""}:
                    places = [c for c, own in enumerate(metrics) if own == metric]
                    for r, values in enumerate(shown):
                        found |= {(b, r, c) for c in _best([(c, values[c]) for c in places])}
            elif self.best == "down":
                for c, metric in enumerate(metrics):
                    if metric:
                        found |= {(b, r, c) for r in _best([(r, values[c]) for r, values in enumerate(shown)])}
        return found


def digits(metric: str) -> int:
    """Number of decimals of a metric."""
    return DIGITS.get(metric, 4) if metric else 0


def _rank(value: float, metric: str) -> float:
    """The rounded number, so that all numbers that print the same are marked; negative if large is best."""
    rounded = round(value, digits(metric))
    return -rounded if metric.startswith("delta") else rounded


def _best(candidates: list[tuple[int, float]]) -> list[int]:
    usable = [(place, value) for place, value in candidates if not math.isnan(value)]
    lowest = min((value for _, value in usable), default=math.nan)
    return [place for place, value in usable if value == lowest] if len(usable) > 1 else []


def main_table(results: Results, prior: str) -> Table | None:
    """Methods with all stages: p50 AbsRel and NMed per subset and Macro (tab:main)."""
    methods = [name for name in _methods_of(results, prior) if name not in PARTIAL]
    return _by_subset(results, prior, "main", "Complete methods, p50", methods, ("absrel", "nmed"))


def baselines_table(results: Results, prior: str) -> Table | None:
    """All methods: p50 AbsRel and NMean, subsets as columns (tab:app-F-1)."""
    methods, subsets = _methods_of(results, prior), (*results.subsets, MACRO)
    blocks = []
    for metric in ("absrel", "nmean"):
        if any(results.has_scores(prior, name, metric) for name in methods):
            numbers = {name: [results.value(prior, name, subset, metric) for subset in subsets] for name in methods}
            blocks.append(_block(HEADS[metric], numbers, metric))
    columns = tuple(Column("", subset) for subset in subsets)
    title = f"All methods with the prior {prior}, p50"
    return Table("baselines", title, "method", columns, tuple(blocks), "down") if methods else None


def stages_table(results: Results, prior: str) -> Table | None:
    """The response alone and the whole method: p50 AbsRel and MAE (tab:app-B-1)."""
    methods = [name for name in (RESPONSE, OURS, BEST) if name in _methods_of(results, prior)]
    if len(methods) < 2:
        return None
    return _by_subset(results, prior, "stages", "Stages, p50", methods, ("absrel", "mae"))


def normals_mean_table(results: Results, prior: str) -> Table | None:
    """p50 of the mean normal error (tab:app-C-1)."""
    return _by_subset(results, prior, "normals-mean", "Mean normal error, p50", _methods_of(results, prior), ("nmean",))


def normals_median_table(results: Results, prior: str) -> Table | None:
    """p50 of the median normal error (tab:app-C-2)."""
    methods = _methods_of(results, prior)
    return _by_subset(results, prior, "normals-median", "Median normal error, p50", methods, ("nmed",))


def weights_table(results: Results, prior: str) -> Table | None:
    """Macro p50 MAE and NMed of the methods with a weight among their options (tab:app-D-1)."""
    varied = sorted(
        (options.get("weight_data", 1e-3), options.get("weight_laplacian", 1e-3), name)
        for name, options in results.options.items()
        if name in _swept(results)
    )
    numbers = {
        f"data {data:.0e}, laplacian {laplacian:.0e}": [
            results.value(prior, name, MACRO, metric) for metric in ("mae", "nmed")
        ]
        for data, laplacian, name in varied
    }
    columns = tuple(Column("", HEADS[metric], metric) for metric in ("mae", "nmed"))
    title = "Weights of the reconstruction, Macro of p50"
    return Table("weights", title, "weights", columns, (_block("", numbers),), "down") if varied else None


def priors_table(results: Results, prior: str) -> Table | None:
    """Raw, response and the whole method with each prior: p50 AbsRel and NMean (tab:app-E-1, E-2)."""
    return _by_prior(results, "priors", "Across priors, p50", (RAW, RESPONSE, OURS, BEST))


def fixed_table(results: Results, prior: str) -> Table | None:
    """Fitted and fixed coordinates with each prior: p50 AbsRel and NMean (tab:app-G-1, G-2)."""
    if not set(FIXED) & set(results.methods):
        return None
    return _by_prior(results, "fixed", "Fitted and fixed coordinates, p50", (*FIXED, RESPONSE, OURS, BEST))


def percentiles_table(results: Results, prior: str) -> Table | None:
    """Seven percentiles of AbsRel and NMed per subset and method (fig:percentiles)."""
    shown = [(metric, percentile) for metric in ("absrel", "nmed") for percentile in PERCENTILES]
    columns = tuple(Column(HEADS[metric], f"p{percentile}", metric) for metric, percentile in shown)
    blocks = []
    for subset in results.subsets:
        numbers = {name: [results.value(prior, name, subset, *cell) for cell in shown] for name in results.methods}
        blocks.append(_block(subset, numbers))
    if all(math.isnan(value) for block in blocks for row in block.rows for value in row.values[:3]):
        return None  # the published tables have medians only
    return Table("percentiles", "Percentiles over images and cases", "method", columns, tuple(blocks))


def failures_table(results: Results, prior: str) -> Table | None:
    """Number of records without a score per metric; None if there are none."""
    metrics = ("absrel", "mae", "nmean", "nmed")
    blocks = []
    for name in results.priors:
        numbers: dict[str, list[float]] = {}
        for subset, method in product(results.subsets, results.methods):
            failed = [results.failures(name, method, subset, metric) for metric in metrics]
            if any(failed):
                total = results.count(name, method, subset, "absrel") + failed[0]
                numbers[f"{subset}: {method}"] = [total, *failed]
        if numbers:
            blocks.append(_block(name if len(results.priors) > 1 else "", numbers))
    columns = (Column("", "records"), *(Column("no score", HEADS[metric]) for metric in metrics))
    return Table("failures", "Records without a score", "subset: method", columns, tuple(blocks)) if blocks else None


def geometry_table(rows: Iterable[Mapping[str, str]]) -> Table:
    """Coverage, holes, connectivity and depth per subset and percentile (tab:app-H-1 to H-3)."""
    blocks: dict[str, list[Row]] = {}
    try:
        for row in rows:
            title = f"{row['subset']}: {int(row['images']):,} images, {int(row['valid_pixels']):,} valid pixels"
            values = tuple(float(row[name]) for name in _GEOMETRY_COLUMNS)
            blocks.setdefault(title, []).append(Row(f"p{row['percentile']}", values))
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(
            f"{GEOMETRY_FILE}: the file lacks expected columns or numbers ({error!r}); delete it to have it "
            "written again."
        ) from error
    columns = tuple(
        Column("", head, "depth" if name == "depth_m" else "share") for name, head in _GEOMETRY_COLUMNS.items()
    )
    shown = tuple(Block(title, tuple(rows)) for title, rows in blocks.items())
    return Table(GEOMETRY, "Reference geometry over images; depth over all pixels", "percentile", columns, shown)


TABLES: dict[str, Callable[[Results, str], Table | None]] = {
    "main": main_table,
    "baselines": baselines_table,
    "stages": stages_table,
    "normals-mean": normals_mean_table,
    "normals-median": normals_median_table,
    "weights": weights_table,
    "priors": priors_table,
    "fixed": fixed_table,
    "percentiles": percentiles_table,
    "failures": failures_table,
}


def tables_of(results: Results, *, names: Sequence[str] = (), prior: str | None = None) -> list[Table]:
    """All tables that the results have numbers for, or the named ones among them.

    By default these are all but the percentiles, which are long, and of the first prior where a table is about one.
    """
    if prior is not None and prior not in results.priors:
        raise InputError(f"The results have no prior {prior!r}; {suggestion(prior, results.priors)}")
    for name in names:
        if name not in TABLES:
            raise InputError(f"There is no table {name!r}; {suggestion(name, TABLES)}")
    chosen = names or [name for name in TABLES if name != "percentiles"]
    one = prior or (results.priors[0] if results.priors else "")
    return [table for name in chosen if (table := TABLES[name](results, one)) is not None]


def _swept(results: Results) -> set[str]:
    """Methods of a sweep over weights."""
    return {name for name, options in results.options.items() if {"weight_data", "weight_laplacian"} & options.keys()}


def _methods_of(results: Results, prior: str) -> list[str]:
    """Methods that were run with this prior, without those of a sweep over weights."""
    ran = {series.method for series in results.distributions if series.prior == prior} - _swept(results)
    return [name for name in results.methods if name in ran]


def _block(title: str, numbers: Mapping[str, Sequence[float]], metric: str = "") -> Block:
    """A block from the numbers of each row by its label."""
    return Block(title, tuple(Row(label, tuple(map(float, values))) for label, values in numbers.items()), metric)


def _by_subset(
    results: Results, prior: str, name: str, title: str, methods: Sequence[str], metrics: Sequence[str]
) -> Table | None:
    if not any(results.has_scores(prior, method, metrics[0]) for method in methods):
        return None
    cells = list(product(methods, metrics))
    columns = tuple(Column(method, HEADS[metric], metric) for method, metric in cells)
    numbers = {
        subset: [results.value(prior, method, subset, metric) for method, metric in cells]
        for subset in (*results.subsets, MACRO)
    }
    macro = _block("", {MACRO: numbers.pop(MACRO)})
    return Table(name, f"{title} (prior: {prior})", "subset", columns, (_block("", numbers), macro), "across")


def _by_prior(results: Results, name: str, title: str, wanted: Sequence[str]) -> Table | None:
    methods = [method for method in wanted if method in results.methods]
    if not methods or (name == "priors" and len(results.priors) < 2):
        return None
    cells = list(product(results.priors, ("absrel", "nmean")))
    columns = tuple(Column(prior, HEADS[metric], metric) for prior, metric in cells)
    blocks = []
    for subset in (*results.subsets, MACRO):
        numbers = {method: [results.value(p, method, subset, metric) for p, metric in cells] for method in methods}
        blocks.append(_block(subset, numbers))
    return Table(name, title, "method", columns, tuple(blocks), "down")
