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
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import json_ready
from leadline.bench.records import Counts, Record, RecordStatus, RecordStore, read_run_protocol
from leadline.bench.render import MISSING
from leadline.bench.results import METRICS, PERCENTILES, Results, pool
from leadline.bench.tables import HEADS, Table, digits
from leadline.io.files import atomic_write
from leadline.report.colour import Scheme, colour_bar
from leadline.report.page.sections import WORST_RATIO, failures, heat_maps, package_versions, protocol_toml, score_table
from leadline.report.page.thumbnails import Album, Choice, choose_records, error_scales, make_album

if TYPE_CHECKING:
    from jinja2 import Environment

PANELS = 3
"""Default number of best and of worst images per method and subset that get pictures."""
LISTED_FAILURES = 30  # records listed per reason; the table of all records has the others
_SCHEMES: tuple[Scheme, ...] = ("depth", "error")
_LABELS = ("dataset", "image", "case", "prior", "method", "reason")
_NUMBERS = (*METRICS, "seconds")
_DIGITS = 5  # significant digits of the scores in the page


@dataclass(frozen=True)
class Page:
    """A written page."""

    path: Path
    size: int  # bytes
    pictures: int  # records with pictures
    reasons: dict[str, int]  # why other records have none, and how many


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
    """Write the report of the run in `folder`, in which its pictures are cached, to the file `path`.

    It shows `tables`, e.g. those of `tables_of`, and the records of `cases`, by default all. Heat maps, distributions
    and pictures are of one `prior`, by default the first. `panels` best and as many worst images per method and subset
    get pictures. `progress` is called with the number of images drawn so far and the total.
    """
    if panels < 0:
        raise InputError(f"{param('panels')} must be 0 or more images, got {panels}.")
    if path.is_dir() or not path.parent.is_dir():  # checked before the pictures, which may take minutes
        raise FileError(f"{path}: cannot be written; give the name of a file in a folder that exists.")
    with RecordStore(folder) as store:
        labels = {name: store.labels(name) for name in ("dataset", "prior", "method")}
        records = [record for record in store.records() if not cases or record.case in cases]
        counts = store.counts()
        # The page pools the cases and shows medians of each data set; the tables are made by the run's own convention.
        scoring = replace(store.scoring(), aggregate="median", cases="pooled")
    if not records:
        raise InputError(f"{folder}: the run has no records yet; 'leadline bench run' continues it.")
    if prior is not None and prior not in labels["prior"]:
        raise InputError(
            f"{param('prior')}: {folder} has no prior {prior!r}; choose one of {', '.join(labels['prior'])}."
        )
    prior = prior or labels["prior"][0]
    results = pool(
        records, subsets=labels["dataset"], priors=labels["prior"], methods=labels["method"], scoring=scoring
    )
    choices = choose_records(records, prior, panels)
    chosen = [record for choice in choices for record in (*choice.best, *choice.worst)]
    album = make_album(folder, chosen, error_scales(records, prior), progress=progress)
    text = _render(folder, records, counts, results, tables, prior, choices, album)
    content = text.encode("utf-8", "replace")  # the name of a folder may be invalid Unicode
    atomic_write(path, partial(_write_bytes, content))
    return Page(path, len(content), len(album.pictures), dict(Counter(album.reasons.values())))


def _render(
    folder: Path,
    records: Sequence[Record],
    counts: Sequence[Counts],
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
            lists={
                "subsets": results.subsets,
                "cases": list(dict.fromkeys(record.case for record in records)),
                "priors": results.priors,
                "methods": results.methods,
            },
            counts=[
                (*row[:-1], f"{row.seconds / (row.done - row.failed):.3f}" if row.done > row.failed else MISSING)
                for row in counts
            ],
            prior=prior,
            convention=results.scoring.describe(),
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


def _environment() -> Environment:
    """The templates: every value is escaped, and a missing value is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    compact = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_kwargs"] = compact
    return environment


def _template_text(name: str) -> str:
    return (files("leadline.report.page") / "templates" / name).read_text(encoding="utf-8")


def _facts(records: Sequence[Record], counts: Sequence[Counts]) -> list[tuple[str, str, bool]]:
    """Names and values of the numbers in the summary, and whether they are bad."""
    planned, done = sum(row.planned for row in counts), sum(row.done for row in counts)
    failed = sum(record.status == RecordStatus.FAILED for record in records)
    unconverged = sum(record.is_unconverged for record in records)
    images = {(record.dataset, record.image) for record in records}
    seconds = sum(row.seconds for row in counts)
    divisor, unit = (1, "s") if seconds < 60 else (60, "min") if seconds < 3600 else (3600, "h")
    return [
        ("records", f"{len(records):,}" + (f" of {planned:,} planned" if done < planned else ""), False),
        ("failed records", f"{failed:,}", failed > 0),
        ("not converged", f"{unconverged:,}", unconverged > 0),
        ("images", f"{len(images):,}", False),
        ("run time of the methods", f"{seconds / divisor:.1f} {unit}", False),
    ]


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
        rows[key]: [{"title": picture.title, "picture": places[picture.uri], "bar": picture.bar} for picture in shown]
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


def _write_bytes(content: bytes, path: Path) -> None:
    path.write_bytes(content)
