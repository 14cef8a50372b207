"""The distributions of scores from the four CSV files that ``leadline bench report`` exports.

With them the figures of aggregated numbers can be drawn again without the run and its data, as the paper's own script
does from the CSV files that accompany it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError
from leadline.bench.results import MACRO, PERCENTILES, Distribution, Results, Series
from leadline.bench.tables import CSV_METRICS
from leadline.io.files import why_no_folder

LABELS = ("subset", "prior", "method")
MEDIAN = "p50"
_EXPORT = "'leadline bench report RUN' with the format csv"
_COUNTS = ("count", "failures")
_ROUNDING = 2e-6  # the files have six decimals
# The methods of a sweep over weights, in the protocol 'weights' and in the paper's table.
_NUMBER = r"([0-9.]+(?:e[-+]?[0-9]+)?)"
_WEIGHTS = re.compile(rf"(?:data )?{_NUMBER}, (?:laplacian )?{_NUMBER}")


def read_exported(folder: Path) -> tuple[Results, tuple[str, ...]]:
    """The distributions in the CSV files of a folder, and the names of the files that are missing.

    Each file has the columns subset, prior, method and p50, and may have the other percentiles, count and failures;
    further columns are ignored. An empty percentile is unknown. Macro is computed from the subsets, as from a run; a
    method of which a file has the row Macro alone keeps it.

    Raises
    ------
    FileError
        The folder has none of the files, or a file is not as expected; the message names its line.
    """
    if not folder.is_dir():
        raise FileError(f"{folder}: {why_no_folder(folder)}; {_EXPORT} writes them.")
    paths = {metric: folder / f"{name}.csv" for name, metric in CSV_METRICS.items()}
    missing = tuple(path.name for path in paths.values() if not path.is_file())
    if len(missing) == len(paths):
        raise FileError(f"{folder}: the folder has none of {', '.join(missing)}; {_EXPORT} writes them.")
    found: dict[Series, Distribution] = {}
    for metric, path in paths.items():
        if path.is_file():
            found |= _read_file(path, metric)
    # The Macro of a subset's methods is computed again, so that figures can restrict it to some of the subsets.
    parts = {series._replace(subset=MACRO) for series in found if series.subset != MACRO}
    kept = {series: entry for series, entry in found.items() if series not in parts}
    labels = [tuple(dict.fromkeys(getattr(series, name) for series in found)) for name in LABELS]
    subsets, priors, methods = labels
    return Results(tuple(name for name in subsets if name != MACRO), priors, methods, kept, _weights(methods)), missing


def _read_file(path: Path, metric: str) -> dict[Series, Distribution]:
    found: dict[Series, Distribution] = {}
    for place, row in _rows(path):
        labels = {name: (row[name] or "").strip() for name in LABELS}
        empty = [name for name, label in labels.items() if not label]
        if empty:
            raise FileError(f"{place}: {' and '.join(empty)} must not be empty; {_EXPORT} writes it again.")
        series = Series(metric=metric, **labels)
        if series in found:
            raise FileError(
                f"{place}: there is a second row of {series.method} with {series.prior} on {series.subset}; "
                "each may be there once. Remove one of them."
            )
        values = {p: _number(row, f"p{p}", place) for p in PERCENTILES}
        known = [value for value in values.values() if not math.isnan(value)]
        if any(later < earlier - _ROUNDING for earlier, later in pairwise(known)):
            raise FileError(f"{place}: the percentiles must not decrease, got {known}; {_EXPORT} writes it again.")
        count, failures = (_number(row, name, place) for name in _COUNTS)
        found[series] = Distribution(values, *(0 if math.isnan(n) else int(n) for n in (count, failures)))
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with the file and line that an error message names."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            missing = [name for name in (*LABELS, MEDIAN) if name not in (reader.fieldnames or ())]
            if missing:
                raise FileError(
                    f"{path}: the file lacks the column {' and '.join(missing)}; {_EXPORT} writes it again."
                )
            for row in reader:
                if None in row:  # csv collects the fields beyond the last column here
                    raise FileError(
                        f"{path}, line {reader.line_num}: more fields than columns; {_EXPORT} writes it again."
                    )
                yield f"{path}, line {reader.line_num}", row
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: the file is not a CSV file in UTF-8 ({error}); {_EXPORT} writes it again.") from error
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: the file cannot be read ({error.strerror}).") from error


def _number(row: dict[str, Any], column: str, place: str) -> float:
    """The number in a column; NaN if it is empty or there is no such column."""
    text = (row.get(column) or "").strip()
    try:
        value = float(text) if text else math.nan
    except ValueError:
        value = -1.0
    if value < 0 or math.isinf(value):
        raise FileError(f"{place}: {column} must be a number of at least 0, or empty, got {text!r}.")
    return value


def _weights(methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The options of the methods whose label states the weights of the reconstruction, since the files have no options.

    Examples
    --------
    >>> _weights(("Ours", "data 1e-4, laplacian 1e-2"))
    {'data 1e-4, laplacian 1e-2': {'weight_data': 0.0001, 'weight_laplacian': 0.01}}
    """
    options = {}
    for name in methods:
        stated = _WEIGHTS.fullmatch(name)
        if stated:
            options[name] = dict(zip(("weight_data", "weight_laplacian"), map(float, stated.groups()), strict=True))
    return options
