"""The HTML report of a run: one file that opens from disk and needs no network.

The page contains its style, script and pictures. A content security policy allows the browser to run that one script
and to load nothing else, and the templates escape every value, so a text from a record, such as an image's name, is
never interpreted as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import json_ready
from leadline.bench.records import Record, RecordStatus, RecordStore, read_run_protocol
from leadline.bench.results import METRICS, PERCENTILES, Results, pool
from leadline.bench.tables import HEADS, Table, digits
from leadline.io.atomic import atomic_write
from leadline.report.colour import Scheme, colour_bar
from leadline.report.page.protocol_toml import protocol_toml
from leadline.report.page.tables import WORST_RATIO, failures, heat_maps, package_versions, score_table
from leadline.report.page.thumbnails import Album, Choice, choose_records, error_scales, make_album

if TYPE_CHECKING:
    from jinja2 import Environment

PANELS = 3
"""Default number of best and of worst images per method and subset that get pictures."""
LISTED_FAILURES = 30  # records listed per reason; the table of all records has the others
_LABELS = ("dataset", "image", "case", "prior", "method", "reason")
_NUMBERS = (*METRICS, "seconds")
_DIGITS = 5  # significant digits of the scores in the page
_Counts = Sequence[tuple[str, str, int, int, int, float]]


@dataclass(frozen=True)
class Page:
    """A written page."""

    path: Path
    size: int  # bytes
    pictures: int  # records with pictures
    reasons: dict[str, int]  # why other records have none, and how many


@dataclass(frozen=True)
class _Fact:
    """A number of the summary."""

    name: str
    value: str
    bad: bool = False


def write_page(
    folder: Path,
    path: Path,
    tables: Sequence[Table],
    *,
    prior: str | None = None,
    cases: Sequence[str] = (),
    panels: int = PANELS,
    progress: Callable[[int, int], None] | None = None,
) -> Page:
    """Write the report of a run.

    Parameters
    ----------
    folder : path
        The run; pictures are cached in it.
    path : path
        The file to write.
    tables : tables
        Tables to show, e.g. those of `tables_of`.
    prior : label, optional
        Prior of the heat maps, the distributions and the pictures. Default: the first.
    cases : labels, optional
        Only these cases. Default: all.
    panels : int
        Number of best and of worst images per method and subset that get pictures; 0 for none.
    progress : callable, optional
        Called with the number of images drawn so far and the total.

    Raises
    ------
    FileError
        The folder holds no run, or the page cannot be written.
    InputError
        The run has no such prior or no records yet, or `panels` is negative.
    """
    if panels < 0:
        raise InputError(f"{param('panels')} must be 0 or more images, got {panels}.")
    if path.is_dir() or not path.parent.is_dir():  # checked before the pictures, which may take minutes
        raise FileError(f"{path}: cannot be written; give the name of a file in a folder that exists.")
    with RecordStore(folder) as store:
        labels = {name: store.labels(name) for name in ("dataset", "prior", "method")}
        records = [record for record in store.records() if not cases or record.case in cases]
        counts = store.counts()
    if not records:
        raise InputError(f"{folder}: the run has no records yet; 'leadline bench run' continues it.")
    if prior is not None and prior not in labels["prior"]:
        raise InputError(
            f"{param('prior')}: {folder} has no prior {prior!r}; choose one of {', '.join(labels['prior'])}."
        )
    prior = prior or labels["prior"][0]
    results = pool(records, subsets=labels["dataset"], priors=labels["prior"], methods=labels["method"])
    choices = choose_records(records, prior, panels)
    chosen = [record for choice in choices for record in (*choice.best, *choice.worst)]
    album = make_album(folder, chosen, error_scales(records, prior), progress=progress)
    text = _render(folder, records, counts, results, tables, prior, choices, album)
    content = text.encode("utf-8", "replace")  # the name of a folder may be invalid Unicode
    atomic_write(path, lambda temporary: _write(temporary, content))
    return Page(path, len(content), len(album.pictures), dict(Counter(album.reasons.values())))


def _render(
    folder: Path,
    records: Sequence[Record],
    counts: _Counts,
    results: Results,
    tables: Sequence[Table],
    prior: str,
    choices: Sequence[Choice],
    album: Album,
) -> str:
    from markupsafe import Markup

    style, script = (_template_text(name) for name in ("page.css", "page.js"))
    colour_bars = "".join(f"--{scheme}: url({_colour_bar_uri(scheme)}); " for scheme in _SCHEMES)
    # Each picture is stored once: methods share the image, the measurements, the prior and the ground truth.
    pictures = list(dict.fromkeys(picture.uri for shown in album.pictures.values() for picture in shown))
    data = {**_scores(records, results, prior), **_gallery(records, choices, album, pictures)}
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            name=folder.resolve().name,
            # The browser runs the script only if its bytes have this hash, so neither it nor the style may be escaped.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            script=Markup(script),
            style=Markup(f":root {{ {colour_bars}}}\n{style}"),
            facts=_facts(records, counts),
            lists=_label_lists(records, results),
            counts=[
                (subset, method, planned, done, failed, f"{seconds / (done - failed):.3f}" if done > failed else "--")
                for subset, method, planned, done, failed, seconds in counts
            ],
            prior=prior,
            heat_maps=heat_maps(results, prior),
            worst_ratio=f"{WORST_RATIO:g}",
            tables=[score_table(table) for table in tables],
            failures=failures(records),
            listed_failures=LISTED_FAILURES,
            protocol=protocol_toml(read_run_protocol(folder)),
            versions=package_versions(records),
            data=json_ready(data),
            pictures=pictures,
        )
    )


_SCHEMES: tuple[Scheme, ...] = ("depth", "error")


def _environment() -> Environment:
    """The templates: every value is escaped, and a missing value is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment


def _template_text(name: str) -> str:
    return (files("leadline.report.page") / "templates" / name).read_text(encoding="utf-8")


def _facts(records: Sequence[Record], counts: _Counts) -> list[_Fact]:
    planned, done = sum(row[2] for row in counts), sum(row[3] for row in counts)
    failed = sum(record.status == RecordStatus.FAILED for record in records)
    images = {(record.dataset, record.image) for record in records}
    return [
        _Fact("records", f"{len(records):,}" if done == planned else f"{len(records):,} of {planned:,} planned"),
        _Fact("failed records", f"{failed:,}", bad=failed > 0),
        _Fact("images", f"{len(images):,}"),
        _Fact("run time of the methods", _duration(sum(row[5] for row in counts))),
    ]


def _label_lists(records: Sequence[Record], results: Results) -> dict[str, Sequence[str]]:
    cases = list(dict.fromkeys(record.case for record in records))
    return {"subsets": results.subsets, "cases": cases, "priors": results.priors, "methods": results.methods}


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _scores(records: Sequence[Record], results: Results, prior: str) -> dict[str, Any]:
    """The records as columns, with labels as indices into lists, and the percentiles of the distributions."""
    labels = {name: list(dict.fromkeys(getattr(record, name) for record in records)) for name in _LABELS}
    places = {name: {label: place for place, label in enumerate(own)} for name, own in labels.items()}
    columns: dict[str, list[Any]] = {
        name: [places[name][getattr(record, name)] for record in records] for name in _LABELS
    }
    for name in _NUMBERS:
        columns[name] = [float(f"{getattr(record, name):.{_DIGITS}g}") for record in records]
    columns["failed"] = [int(record.status == RecordStatus.FAILED) for record in records]
    spreads = [
        {"method": method, "subset": subset, "metric": metric, "values": list(spread.percentiles.values())}
        for (source, method, subset, metric), spread in results.distributions.items()
        if source == prior and spread.count
    ]
    metrics = [metric for metric in METRICS if any(spread["metric"] == metric for spread in spreads)]
    return {
        "labels": labels,
        "columns": columns,
        "metrics": [{"name": metric, "head": HEADS[metric], "digits": digits(metric)} for metric in metrics],
        "percentiles": PERCENTILES,
        "spreads": spreads,
        "prior": prior,
        "methods": results.methods,
        "subsets": results.subsets,
    }


def _gallery(
    records: Sequence[Record], choices: Sequence[Choice], album: Album, pictures: Sequence[str]
) -> dict[str, Any]:
    """For each record with pictures its tiles, and for each method and subset the records to show."""
    rows = {record.key: place for place, record in enumerate(records)}
    places = {uri: place for place, uri in enumerate(pictures)}
    cards = {
        rows[key]: [
            {
                "title": picture.title,
                "picture": places[picture.uri],
                "bar": None if picture.bar is None else [picture.bar.scheme, picture.bar.left, picture.bar.right],
            }
            for picture in shown
        ]
        for key, shown in album.pictures.items()
    }
    gallery = [
        {
            "method": choice.method,
            "subset": choice.subset,
            "best": [rows[record.key] for record in choice.best],
            "worst": [rows[record.key] for record in choice.worst],
        }
        for choice in choices
        if choice.best
    ]
    return {"cards": cards, "gallery": gallery, "absent": {rows[key]: text for key, text in album.reasons.items()}}


def _colour_bar_uri(scheme: Scheme) -> str:
    """The colours of a scheme as a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(colour_bar(128, 1, scheme)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
