"""The tables of the paper, from the results of a run or from the published results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.bench.protocol import LABELS
from leadline.bench.results import MACRO, NORMAL_METRICS, PERCENTILES, Results
from leadline.bench.scoring import PAPER_SCORING

HEADS = {
    "absrel": "AbsRel",
    "mae": "MAE (m)",
    "rmse": "RMSE (m)",
    "delta1": "δ1",
    "delta2": "δ2",
    "delta3": "δ3",
    "irmse": "iRMSE (1/km)",
    "imae": "iMAE (1/km)",
    "delta102": "δ1.02",
    "delta105": "δ1.05",
    "delta110": "δ1.10",
    "nmean": "NMean (°)",
    "nmed": "NMed (°)",
}
DEPTH_METRICS = tuple(metric for metric in HEADS if metric not in NORMAL_METRICS)
DIGITS = {"nmean": 2, "nmed": 2, "irmse": 3, "imae": 3, "depth": 3, "ratio": 3}  # decimals; 4 for all other metrics
RAW, RESPONSE, OURS, BEST = (LABELS[name] for name in ("raw", "response", "ours", "best"))
FIXED = tuple(LABELS[name] for name in ("gdisp", "gmetric", "glog"))
PARTIAL = (RAW, *FIXED, RESPONSE, *(LABELS[name] for name in ("knn", "lwlr", "poisson")))
"""Methods that the main table does not show."""

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
    is_text: bool = False  # its values are sentences, which are aligned on the left and may be wrapped


@dataclass(frozen=True)
class Row:
    label: str
    values: tuple[float | str, ...]  # numbers, or texts that are shown as they are


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
    notes: tuple[str, ...] = ()  # sentences below the table: failures, fits that did not converge, subsets left out
    convention: str = ""  # how its numbers were scored, for the caption; empty if it shows no scores

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


def _rank(value: float | str, metric: str) -> float:
    """The rounded number, so that all numbers that print the same are marked; negative if large is best."""
    if isinstance(value, str):
        return math.nan
    rounded = round(value, digits(metric))
    return -rounded if metric.startswith("delta") else rounded


def _best(candidates: list[tuple[int, float]]) -> list[int]:
    usable = [(place, value) for place, value in candidates if not math.isnan(value)]
    lowest = min((value for _, value in usable), default=math.nan)
    return [place for place, value in usable if value == lowest] if len(usable) > 1 else []


def main_table(results: Results, prior: str) -> Table | None:
    """Methods with all stages: p50 AbsRel and NMed per subset and Macro (tab:main)."""
    return _by_subset(
        results,
        prior,
        "main",
        f"Complete methods, {results.scoring.statistic}",
        _complete(results, prior),
        ("absrel", "nmed"),
    )


def baselines_table(results: Results, prior: str) -> Table | None:
    """All methods: p50 AbsRel and NMean, subsets as columns (tab:app-F-1)."""
    methods, subsets = _methods_of(results, prior), (*results.subsets, MACRO)
    blocks = []
    for metric in ("absrel", "nmean"):
        if any(results.has_scores(prior, name, metric) for name in methods):
            numbers = {name: [results.value(prior, name, subset, metric) for subset in subsets] for name in methods}
            blocks.append(_block(HEADS[metric], numbers, metric))
    columns = tuple(Column("", subset) for subset in subsets)
    title = f"All methods with the prior {prior}, {results.scoring.statistic}"
    table = Table("baselines", title, "method", columns, tuple(blocks), "down")
    return _with_notes(results, table, product([prior], methods), ("absrel", "nmean")) if methods else None


def stages_table(results: Results, prior: str) -> Table | None:
    """The response alone and the whole method: p50 AbsRel and MAE (tab:app-B-1)."""
    methods = [name for name in (RESPONSE, OURS, BEST) if name in _methods_of(results, prior)]
    if len(methods) < 2:
        return None
    return _by_subset(results, prior, "stages", f"Stages, {results.scoring.statistic}", methods, ("absrel", "mae"))


def normals_mean_table(results: Results, prior: str) -> Table | None:
    """Complete methods and the response alone: p50 of the mean normal error (tab:app-C-1)."""
    methods = _complete(results, prior, RESPONSE)
    return _by_subset(
        results, prior, "normals-mean", f"Mean normal error, {results.scoring.statistic}", methods, ("nmean",)
    )


def normals_median_table(results: Results, prior: str) -> Table | None:
    """Complete methods and the response alone: p50 of the median normal error (tab:app-C-2)."""
    methods = _complete(results, prior, RESPONSE)
    return _by_subset(
        results, prior, "normals-median", f"Median normal error, {results.scoring.statistic}", methods, ("nmed",)
    )


def weights_table(results: Results, prior: str) -> Table | None:
    """Macro p50 MAE and NMed of the methods with a weight among their options (tab:app-D-1)."""
    varied = sorted(
        (options.get("weight_data", 1e-3), options.get("weight_laplacian", 1e-3), name)
        for name, options in results.options.items()
        if name in _swept(results) and results.has_run(prior, name)
    )
    numbers = {
        f"data {_power(data)}, laplacian {_power(laplacian)}": [
            results.value(prior, name, MACRO, metric) for metric in ("mae", "nmed")
        ]
        for data, laplacian, name in varied
    }
    columns = tuple(Column("", HEADS[metric], metric) for metric in ("mae", "nmed"))
    table = Table(
        "weights",
        f"Weights of the reconstruction, Macro of {results.scoring.statistic}",
        "weights",
        columns,
        (_block("", numbers),),
        "down",
    )
    runs = ((prior, name) for *_, name in varied)
    return _with_notes(results, table, runs, ("mae", "nmed")) if varied else None


def priors_table(results: Results, prior: str) -> Table | None:
    """Raw, response and the whole method with each prior: p50 AbsRel and NMean (tab:app-E-1, E-2)."""
    return _by_prior(results, "priors", f"Across priors, {results.scoring.statistic}", (RAW, RESPONSE, OURS, BEST))


def fixed_table(results: Results, prior: str) -> Table | None:
    """Fitted and fixed coordinates with each prior: p50 AbsRel and NMean (tab:app-G-1, G-2)."""
    if not set(FIXED) & set(results.methods):
        return None
    return _by_prior(
        results, "fixed", f"Fitted and fixed coordinates, {results.scoring.statistic}", (*FIXED, RESPONSE, OURS, BEST)
    )


def percentiles_table(results: Results, prior: str) -> Table | None:
    """Seven percentiles of AbsRel and NMed per subset and method, with the numbers of scores (fig:percentiles)."""
    metrics = ("absrel", "nmed")
    methods = [  # the published tables have few percentiles other than the median
        name
        for name in _methods_of(results, prior)
        if any(math.isfinite(results.value(prior, name, subset, "absrel", 7)) for subset in results.subsets)
    ]
    columns = tuple(
        column
        for metric in metrics
        for column in (
            *(Column(HEADS[metric], f"p{percentile}", metric) for percentile in PERCENTILES),
            *(Column(HEADS[metric], head) for head in ("scores", "failed")),
        )
    )

    def cells(name: str, subset: str) -> list[float]:
        found: list[float] = []
        for metric in metrics:
            found += [results.value(prior, name, subset, metric, percentile) for percentile in PERCENTILES]
            found += [f(prior, name, subset, metric) for f in (results.count, results.failures)]
        return found

    blocks = [_block(subset, {name: cells(name, subset) for name in methods}) for subset in results.subsets]
    title = f"Percentiles over images and cases (prior: {prior})"
    table = Table("percentiles", title, "method", columns, tuple(blocks))
    return _with_notes(results, table, product([prior], methods), ()) if methods else None


def failures_table(results: Results, prior: str) -> Table | None:
    """Number of records without a score per metric, and of those that did not converge; None if there are none."""
    metrics = ("absrel", "mae", "nmean", "nmed")
    blocks = []
    for name in results.priors:
        numbers: dict[str, list[float]] = {}
        for subset, method in product(results.subsets, results.methods):
            failed = [results.failures(name, method, subset, metric) for metric in metrics]
            unconverged = results.unconverged(name, method, subset, "absrel")
            if any(failed) or unconverged:
                total = results.count(name, method, subset, "absrel") + failed[0]
                numbers[f"{subset}: {method}"] = [total, *failed, unconverged]
        if numbers:
            blocks.append(_block(name if len(results.priors) > 1 else "", numbers))
    no_score = (Column("no score", HEADS[metric]) for metric in metrics)
    columns = (Column("", "records"), *no_score, Column("", "not converged"))
    title = "Records without a score, and records whose method did not converge"
    return Table("failures", title, "subset: method", columns, tuple(blocks)) if blocks else None


def scores_table(results: Results, prior: str) -> Table | None:
    """All depth scores of all methods per subset, as benchmarks of depth completion report them."""
    methods = [name for name in _methods_of(results, prior) if results.has_scores(prior, name, "rmse")]

    def cells(name: str, subset: str) -> list[float]:
        found = [results.value(prior, name, subset, metric) for metric in DEPTH_METRICS]
        return [*found, results.count(prior, name, subset, "rmse")]

    blocks = [_block(subset, {name: cells(name, subset) for name in methods}) for subset in results.subsets]
    columns = (*(Column("", HEADS[metric], metric) for metric in DEPTH_METRICS), Column("", "images"))
    title = f"Depth scores with the prior {prior}, {results.scoring.statistic}"
    table = Table("scores", title, "method", columns, tuple(blocks), "down")
    return _with_notes(results, table, product([prior], methods), ()) if methods else None


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
    "scores": scores_table,
    "failures": failures_table,
}
ON_REQUEST = ("percentiles", "scores")  # of a run that is scored as the paper's are
FIELD_TABLES = ("scores", "failures")  # of a run with another convention


def tables_of(results: Results, *, names: Sequence[str] = (), prior: str | None = None) -> list[Table]:
    """All tables that the results have numbers for, or the named ones among them.

    By default these are the tables of the paper, without the percentiles, which are long; and the table of all depth
    scores for a run whose convention is not the paper's. A table about one prior is about `prior`, by default about the
    first one that has scores.
    """
    if prior is not None and prior not in results.priors:
        raise InputError(f"The results have no prior {prior!r}; {suggestion(prior, results.priors)}")
    for name in names:
        if name not in TABLES:
            raise InputError(f"There is no table {name!r}; {suggestion(name, TABLES)}")
    paper = [name for name in TABLES if name not in ON_REQUEST]
    chosen = names or (paper if results.scoring == PAPER_SCORING else FIELD_TABLES)
    one, convention = prior or results.first_prior, results.scoring.describe()
    found = [TABLES[name](results, one) for name in chosen]
    return [replace(table, convention=convention) for table in found if table is not None]


def _swept(results: Results) -> set[str]:
    """Methods of a sweep over weights."""
    return {name for name, options in results.options.items() if {"weight_data", "weight_laplacian"} & options.keys()}


def _methods_of(results: Results, prior: str) -> list[str]:
    """Methods that were run with this prior, without those of a sweep over weights."""
    ran = {series.method for series in results.distributions if series.prior == prior} - _swept(results)
    return [name for name in results.methods if name in ran]


def _complete(results: Results, prior: str, *others: str) -> list[str]:
    """Methods with all stages that were run with this prior, and then those of the others that were."""
    ran = _methods_of(results, prior)
    return [*(name for name in ran if name not in PARTIAL), *(name for name in others if name in ran)]


def _power(value: float) -> str:
    """A weight as the paper prints it, e.g. 1e-4."""
    digit, _, exponent = f"{value:.0e}".partition("e")
    return f"{digit}e{int(exponent)}" if value else "0"


def _with_notes(results: Results, table: Table, runs: Iterable[tuple[str, str]], metrics: Sequence[str]) -> Table:
    """The table with sentences about the records behind its numbers.

    `runs` are the priors and methods that it shows, and `metrics` those of which it shows Macro.
    """
    failed, unconverged = [], []
    runs = list(runs)
    named = len({prior for prior, _ in runs}) > 1
    for prior, method in runs:
        label = f"{method} with {prior}" if named else method
        failures, scores = (f(prior, method, MACRO, "absrel") for f in (results.failures, results.count))
        if failures:
            failed.append(f"{label} {failures} of {failures + scores}")
        if stopped := results.unconverged(prior, method, MACRO, "absrel"):
            unconverged.append(f"{label} {stopped} of {scores}")
    notes = [f"Records without a depth score: {', '.join(failed)}."] if failed else []
    if unconverged:
        notes.append(f"Scored although the method did not converge: {', '.join(unconverged)}.")
    for metric in metrics:
        if missing := [name for name in results.subsets if name not in results.macro_subsets(metric)]:
            notes.append(f"{MACRO} of {HEADS[metric]} leaves out {', '.join(missing)}, where nothing has such a score.")
    return replace(table, notes=tuple(notes))


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
    table = Table(name, f"{title} (prior: {prior})", "subset", columns, (_block("", numbers), macro), "across")
    return _with_notes(results, table, product([prior], methods), metrics)


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
    table = Table(name, title, "method", columns, tuple(blocks), "down")
    return _with_notes(results, table, product(results.priors, methods), ("absrel", "nmean"))
