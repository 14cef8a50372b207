"""Statistics of the reference depth of a run (Appendix H): computed once, stored in the folder of the run."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from leadline.base.errors import FileError
from leadline.bench.records import RecordStore
from leadline.bench.sources import open_dataset
from leadline.bench.tables import Block, Column, Row, Table
from leadline.datasets.reference_statistics import Geometry, reference_geometry, write_reference_geometry

NAME = "geometry"
FILE = "reference_geometry.csv"
_COLUMNS = {"valid_fraction": "valid", "hole_fraction": "holes", "largest_component": "largest", "depth_m": "depth (m)"}


def measure_references(folder: Path, *, progress: Callable[[int, int], None] | None = None) -> tuple[str, ...]:
    """Write the statistics of all planned images of a run; returns the reasons why images were left out.

    Parameters
    ----------
    folder : path
        Of the run. ``reference_geometry.csv`` and ``reference_geometry_images.csv`` are written into it.
    progress : callable, optional
        Called with the number of images read and the number of all images.

    Raises
    ------
    LeadlineError
        The folder contains no run, or a data set cannot be read at all.
    """
    with RecordStore(folder) as store:
        protocol = store.protocol()
        images = {entry.label: store.images(entry.label) for entry in protocol.datasets}
    total, before = sum(map(len, images.values())), 0
    parts = []
    for entry in protocol.datasets:

        def count(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        names = images[entry.label]
        parts.append(reference_geometry(open_dataset(entry), names=names, subset=entry.label, progress=count))
        before += len(names)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row.percentile)
    failures = tuple(failure for part in parts for failure in part.failures)
    whole = Geometry(tuple(rows), tuple(image for part in parts for image in part.images), failures)
    write_reference_geometry(whole, folder)
    return tuple(reason for _, reason in failures)


def read_references(folder: Path) -> list[dict[str, str]] | None:
    """The rows of ``reference_geometry.csv`` of a run; None if it does not exist."""
    path = folder / FILE
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def geometry_table(rows: Iterable[Mapping[str, str]]) -> Table:
    """Coverage, holes, connectivity and depth per subset and percentile (tab:app-H-1 to H-3).

    Raises
    ------
    FileError
        A row lacks a column, or contains something that is not a number.
    """
    blocks: dict[str, list[Row]] = {}
    try:
        for row in rows:
            title = f"{row['subset']}: {int(row['images']):,} images, {int(row['valid_pixels']):,} valid pixels"
            values = tuple(float(row[name]) for name in _COLUMNS)
            blocks.setdefault(title, []).append(Row(f"p{row['percentile']}", values))
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(
            f"{FILE}: the file lacks expected columns or numbers ({error!r}); delete it to have it written again."
        ) from error
    columns = tuple(Column("", head, "depth" if name == "depth_m" else "share") for name, head in _COLUMNS.items())
    shown = tuple(Block(title, tuple(rows)) for title, rows in blocks.items())
    return Table(NAME, "Reference geometry over images; depth over all pixels", "percentile", columns, shown)
