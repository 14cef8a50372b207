"""The published tables of the paper, in the same form as the results of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files

from leadline.bench.observations import CASES
from leadline.bench.protocol import LABELS
from leadline.bench.results import MACRO, Distribution, Results, Series

PAPER_SUBSETS = ("DIODE-in", "ETH3D", "iBims", "ARKit", "Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")
PAPER_PRIOR = "MoGe-3"
"""Prior of all published tables that are not about priors."""
PROMPTDA = LABELS["promptda"]
SUPPORT_PERCENTILES = (16, 50, 84)
"""Percentiles of the tables about PromptDA and the support of the measurements (tab:app-H-4 to H-6)."""
SUPPORT_METRICS = ("absrel", "mae", "nmean", "nmed")
"""Their metrics, and the order of their failure counts."""

_COLUMNS = {"absrel": "absrel", "nmed_deg": "nmed", "nmean_deg": "nmean", "mae_m": "mae"}
_PAPER_METHODS = {f"Raw {PAPER_PRIOR}": LABELS["raw"]}  # other methods have the same label
_SUPPORT_SUBSETS = {"diode_in": "DIODE-in", "arkit": "ARKit"}  # other subsets have the same label


def published_results() -> Results:
    """Every score in the tables of the paper: per subset, prior, method and metric, and the printed Macro.

    They are medians (p50), and for PromptDA on four subsets also p16, p84 and the failures. Methods have the labels of
    `protocol.LABELS` and weights those of the protocol `weights`, so that they can be compared with a run.

    Examples
    --------
    >>> published_results().value("MoGe-3", "Ours", "Macro", "absrel")
    0.0301
    """
    distributions: dict[Series, Distribution] = {}
    for series, value in _published_medians():
        distributions.setdefault(series, Distribution({50: value}, 0, 0))
    distributions.update(_published_support(distributions))
    options = {}
    for row in _published_rows("weight_sweep"):
        name = f"data {row['lambda_data']}, laplacian {row['lambda_lap']}"
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


def _published_support(medians: dict[Series, Distribution]) -> dict[Series, Distribution]:
    """PromptDA at three percentiles with its failures (tab:app-H-4 to H-6); its other medians are in `medians`.

    The number of scores is what the failures leave of three cases per image.
    """
    entries = {row["subset"]: len(CASES) * int(row["images"]) for row in published_reference_geometry()}
    found: dict[Series, Distribution] = {}
    for row in _published_rows("promptda_support"):
        subset = _SUPPORT_SUBSETS.get(row["subset"], row["subset"])
        failures = dict(zip(SUPPORT_METRICS, map(int, row["failures"].split("/")), strict=True))
        for column, metric in _COLUMNS.items():
            series = Series(PAPER_PRIOR, row["method"], subset, metric)
            known = found.get(series) or medians.get(series) or Distribution({}, 0, 0)
            percentiles = {int(row["percentile"]): float(row[column]), **known.percentiles}
            found[series] = Distribution(percentiles, entries[subset] - failures[metric], failures[metric])
    return found


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
