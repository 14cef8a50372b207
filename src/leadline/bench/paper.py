"""The paper's published numbers, which come with leadline, in the form of results; and a run beside them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from importlib.resources import files

from leadline.base.errors import InputError
from leadline.bench.results import MACRO, Place, Results, Spread
from leadline.bench.tables import HEADS, Block, Column, Row, Table

SUBSETS = ("DIODE-in", "ETH3D", "iBims", "ARKit", "Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")
PRIOR = "MoGe-3"  # of every table that is not about priors
_METRICS = {"absrel": "absrel", "nmed_deg": "nmed", "nmean_deg": "nmean", "mae_m": "mae"}
_STAGES = {"response": "Ours w/o Dirichlet", "ours": "Ours"}


def published() -> Results:
    """Every p50 of the paper's tables: per subset, prior, method and metric, and the Macro where it is printed.

    Examples
    --------
    >>> published().value("MoGe-3", "Ours", "Macro", "absrel")
    0.0301
    """
    spreads: dict[Place, Spread] = {}
    for place, value in _numbers():
        spreads.setdefault(place, Spread({50: value}, 0, 0))
    sweep = {f"{row['lambda_data']}, {row['lambda_lap']}": row for row in _rows("weight_sweep")}
    for name, row in sweep.items():
        for column in ("mae_m", "nmed_deg"):
            spreads[PRIOR, name, MACRO, _METRICS[column]] = Spread({50: float(row[column])}, 0, 0)
    options = {
        name: {"weight_data": float(row["lambda_data"]), "weight_laplacian": float(row["lambda_lap"])}
        for name, row in sweep.items()
    }
    priors = dict.fromkeys(prior for prior, *_ in spreads)
    methods = dict.fromkeys(method for _, method, *_ in spreads)
    order = ["Raw", "PriorDA", "LDCM", "Any2Full", "PromptDA", "KNN", "LWLR", "Poisson", "GDisp", "GMetric", "GLog"]
    known = [name for name in (*order, *_STAGES.values(), *sweep) if name in methods]
    return Results(SUBSETS, tuple(priors), tuple(known), spreads, options)


def reference_geometry() -> list[dict[str, str]]:
    """The published statistics of the reference depth (tab:app-H-1 to H-3), a row per percentile and subset."""
    return list(_rows("reference_geometry"))


def beside(run: Results, paper: Results) -> Table:
    """A run's p50 beside the published one, wherever labels of subset, prior and method are the same.

    Raises
    ------
    InputError
        They have nothing in common.
    """
    blocks = []
    for prior, method in ((prior, method) for prior in paper.priors for method in paper.methods):
        rows = []
        for metric in ("absrel", "mae", "nmean", "nmed"):
            for subset in (*run.subsets, MACRO):
                if subset == MACRO and set(run.subsets) != set(paper.subsets):
                    continue  # a mean over other subsets
                ours, theirs = (source.value(prior, method, subset, metric) for source in (run, paper))
                if not (math.isnan(ours) or math.isnan(theirs)):
                    rows.append(Row(f"{subset} {HEADS[metric]}", (theirs, ours, 100 * (ours / theirs - 1))))
        if rows:
            blocks.append(Block(f"{method} with {prior}", tuple(rows)))
    if not blocks:
        raise InputError(
            "The run has no subset, prior and method in common with the paper, whose labels are "
            f"{', '.join(paper.subsets)}; {', '.join(paper.priors)}; {', '.join(paper.methods[:13])}. "
            "Give the run's protocol the same labels."
        )
    columns = (Column("", "paper", "absrel"), Column("", "run", "absrel"), Column("", "difference %", "nmed"))
    return Table("paper", "This run beside the paper, p50", "subset and metric", columns, tuple(blocks))


def _numbers() -> Iterator[tuple[Place, float]]:
    for row in _rows("main_p50"):
        for column in ("absrel", "nmed_deg"):
            yield (PRIOR, row["method"], row["subset"], _METRICS[column]), float(row[column])
    for row in _rows("baselines_p50"):
        method = "Raw" if row["method"] == f"Raw {PRIOR}" else row["method"]
        yield (PRIOR, method, row["subset"], _METRICS[row["metric"]]), float(row["value"])
    for name, metric in (("normals_mean_p50", "nmean"), ("normals_median_p50", "nmed")):
        for row in _rows(name):
            for method in row.keys() - {"subset"}:
                yield (PRIOR, method, row["subset"], metric), float(row[method])
    for row in _rows("stages_p50"):
        for stage, method in _STAGES.items():
            for column in ("absrel", "mae_m"):
                yield (PRIOR, method, row["subset"], _METRICS[column]), float(row[f"{stage}_{column}"])
    for row in _rows("priors_and_fixed_p50"):
        for column in ("absrel", "nmean_deg"):
            yield (row["prior"], row["method"], row["subset"], _METRICS[column]), float(row[column])


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("leadline.bench") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
