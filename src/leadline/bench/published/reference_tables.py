"""Tables about the reference depth: its geometry, and what PromptDA makes of its support."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leadline.base.errors import FileError
from leadline.bench.published.numbers import PROMPTDA, SUPPORT_METRICS, SUPPORT_PERCENTILES
from leadline.bench.results import GEOMETRY_FILE, Results
from leadline.bench.tables import HEADS, Block, Column, Row, Table

GEOMETRY, SUPPORT = "geometry", "promptda"
SUPPORT_SUBSETS = ("DIODE-in", "ARKit", "Meetingroom", "Ignatius")
"""Subsets of the published tables about PromptDA; a run without any of them shows all of its own."""
GEOMETRY_COLUMNS = {
    "valid_fraction": "valid",
    "hole_fraction": "holes",
    "largest_component": "largest",
    "depth_m": "depth (m)",
}


def geometry_table(rows: Iterable[Mapping[str, str]]) -> Table:
    """Coverage, holes, connectivity and depth per subset and percentile (tab:app-H-1 to H-3)."""
    blocks: dict[str, list[Row]] = {}
    try:
        for row in rows:
            title = f"{row['subset']}: {int(row['images']):,} images, {int(row['valid_pixels']):,} valid pixels"
            values = tuple(float(row[name]) for name in GEOMETRY_COLUMNS)
            blocks.setdefault(title, []).append(Row(f"p{row['percentile']}", values))
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(
            f"{GEOMETRY_FILE}: the file lacks expected columns or numbers ({error!r}); delete it to have it "
            "written again."
        ) from error
    columns = tuple(
        Column("", head, "depth" if name == "depth_m" else "share") for name, head in GEOMETRY_COLUMNS.items()
    )
    shown = tuple(Block(title, tuple(rows)) for title, rows in blocks.items())
    return Table(GEOMETRY, "Reference geometry over images; depth over all pixels", "percentile", columns, shown)


def support_table(results: Results, prior: str, geometry: Iterable[Mapping[str, str]] | None) -> Table | None:
    """PromptDA at p16, p50 and p84, beside the median coverage and connectivity (tab:app-H-4 to H-6).

    `geometry` has the rows of ``reference_geometry.csv``, None if they were not computed. The failures are numbers of
    records without a score, in the order of `SUPPORT_METRICS`. None if PromptDA was not run.
    """
    if not results.has_run(prior, PROMPTDA):
        return None
    medians = {row["subset"]: row for row in geometry or () if row["percentile"] == "50"}
    subsets = [name for name in SUPPORT_SUBSETS if name in results.subsets] or list(results.subsets)
    blocks = []
    for percentile in SUPPORT_PERCENTILES:
        rows = []
        for subset in subsets:
            support = (medians.get(subset, {}).get(name, "nan") for name in ("valid_fraction", "largest_component"))
            scores = (results.value(prior, PROMPTDA, subset, metric, percentile) for metric in SUPPORT_METRICS)
            failures = (str(results.failures(prior, PROMPTDA, subset, metric)) for metric in SUPPORT_METRICS)
            rows.append(Row(subset, (*map(float, support), *scores, "/".join(failures))))
        blocks.append(Block(f"p{percentile}", tuple(rows)))
    columns = (
        *(Column("", head, "share") for head in ("valid p50", "LCC p50")),
        *(Column("", HEADS[metric], metric) for metric in SUPPORT_METRICS),
        Column("", "failures"),
    )
    return Table(
        SUPPORT,
        f"{PROMPTDA} and the support of the measurements (prior: {prior})",
        "subset",
        columns,
        tuple(blocks),
        notes=(f"Failures are in the order {' / '.join(HEADS[metric] for metric in SUPPORT_METRICS)}.",),
    )
