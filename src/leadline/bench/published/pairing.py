"""The numbers of a run beside those of the published tables, paired by their labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.bench.published.reference_tables import GEOMETRY_COLUMNS
from leadline.bench.results import MACRO, METRICS, Results
from leadline.bench.tables import HEADS, Block, Column, Row, Table


def compare_with_paper(run: Results, paper: Results) -> Table | None:
    """The scores of a run beside the published ones, wherever subset, prior and method have the same labels.

    The published scores are medians, and a few other percentiles. Macro is compared if the run has scores in all of
    the paper's subsets and in no other. None if there is no number in common.
    """
    comparable = set(run.subsets) == set(paper.subsets)
    blocks = []
    for prior in paper.priors:
        for method in paper.methods:
            rows = []
            for metric in METRICS:
                whole = comparable and set(run.macro_subsets(metric)) == set(paper.subsets)
                for subset in (*run.subsets, *([MACRO] if whole else [])):
                    for percentile in paper.percentiles(prior, method, subset, metric):
                        rows += _row(run, paper, (prior, method, subset, metric, percentile))
            if rows:
                blocks.append(Block(f"{method} with {prior}", tuple(rows)))
    columns = (Column("", "paper", "absrel"), Column("", "run", "absrel"), Column("", "difference %", "nmed"))
    table = Table("paper", "This run beside the paper", "subset, metric and percentile", columns, tuple(blocks))
    return table if blocks else None


def _row(run: Results, paper: Results, place: tuple[str, str, str, str, int]) -> list[Row]:
    theirs, ours = (source.value(*place) for source in (paper, run))
    if math.isnan(ours) or math.isnan(theirs):
        return []
    *_, subset, metric, percentile = place
    return [Row(f"{subset} {HEADS[metric]} p{percentile}", (theirs, ours, 100 * (ours / theirs - 1)))]


def compare_geometry_with_paper(run: Sequence[Mapping[str, str]], paper: Sequence[Mapping[str, str]]) -> Table | None:
    """The statistics of the reference depth of a run beside the published ones (tab:app-H-1 to H-3).

    Both are rows of ``reference_geometry.csv``. None if there is no subset in common.
    """
    known = {(row["subset"], row["percentile"]): row for row in run}
    blocks: dict[str, list[Row]] = {}
    for theirs in paper:
        ours = known.get((theirs["subset"], theirs["percentile"]))
        if ours is None:
            continue
        rows = blocks.setdefault(theirs["subset"], [])
        for name, head in {"images": "images", "valid_pixels": "valid pixels", **GEOMETRY_COLUMNS}.items():
            if name in GEOMETRY_COLUMNS or not any(row.label == head for row in rows):
                label = f"{head} p{theirs['percentile']}" if name in GEOMETRY_COLUMNS else head
                printed, measured = float(theirs[name]), float(ours[name])
                change = 100 * (measured / printed - 1) if printed else math.nan
                rows.append(Row(label, (printed, measured, change)))
    columns = (Column("", "paper", "share"), Column("", "run", "share"), Column("", "difference %", "nmed"))
    found = tuple(Block(subset, tuple(rows)) for subset, rows in blocks.items())
    return Table("paper-geometry", "The reference beside the paper's", "statistic", columns, found) if found else None


def missing_labels(run: Results, paper: Results) -> str:
    """A sentence about why a run has no number in common with the paper."""
    for what, theirs, ours in (
        ("subsets", paper.subsets, run.subsets),
        ("priors", paper.priors, run.priors),
        ("methods", paper.methods, run.methods),
    ):
        if not set(theirs) & set(ours):
            return (
                f"The run has none of the paper's {what} ({', '.join(theirs[:13])}); it has {', '.join(ours)}. Numbers "
                "are paired by these labels."
            )
    return "No record of the run with a label of the paper has a score."
