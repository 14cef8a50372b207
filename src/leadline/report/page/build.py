"""The HTML report of a run: one file that opens from disk, with no network and nothing to install.

The page carries its style, script and pictures. A policy in its head lets the browser run that one script and load
nothing else, so a text that got into a record, say an image's name, stays a text.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from leadline.base.errors import FileError, InputError
from leadline.base.strict_json import json_ready
from leadline.bench.campaign import protocol_of
from leadline.bench.records import Record, RecordStore
from leadline.bench.results import METRICS, PERCENTILES, Results, pool
from leadline.bench.tables import HEADS, Table, digits
from leadline.io.atomic import atomic_write
from leadline.report.colour import colour_bar
from leadline.report.page.parts import failures_html, heat_map, plain_table, table_html, versions_html
from leadline.report.page.pictures import Album, Choice, choose_records, error_scales, make_album
from leadline.report.page.protocol import protocol_toml

PANELS = 3
"""Best and worst images of every method and subset with pictures, unless told otherwise."""
_LABELS = ("dataset", "image", "case", "prior", "method", "reason")
_NUMBERS = (*METRICS, "seconds")
_DIGITS = 5  # significant, of the scores in the page


@dataclass(frozen=True)
class Page:
    """What was written."""

    path: Path
    size: int  # bytes
    pictures: int  # records with pictures
    reasons: dict[str, int]  # why others have none, and how many


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
        Of the run; its cache keeps the pictures.
    path : path
        The file to write.
    tables : tables
        To be shown, e.g. those of `tables_of`.
    prior : label, optional
        Of the heat map, the distributions and the pictures; default: the first.
    cases : labels, optional
        Only these; default: all.
    panels : int
        Best and worst images of every method and subset that get pictures; 0 for none.
    progress : callable, optional
        Called with the number of images drawn so far and in all.

    Raises
    ------
    FileError
        The folder holds no run, or the page cannot be written.
    InputError
        The run has no such prior, no records yet, or `panels` is negative.
    """
    if panels < 0:
        raise InputError(f"`panels` must be 0 or more images, got {panels}.")
    if path.is_dir() or not path.parent.is_dir():  # said before the minutes that pictures may take
        raise FileError(f"{path}: cannot be written; give the name of a file in a folder that exists.")
    with RecordStore(folder) as store:
        labels = {name: store.labels(name) for name in ("dataset", "prior", "method")}
        records = [record for record in store.records() if not cases or record.case in cases]
        counts = store.counts()
    if not records:
        raise InputError(f"{folder}: the run has no records yet; 'leadline bench run' goes on with it.")
    if prior is not None and prior not in labels["prior"]:
        raise InputError(f"{folder}: the run has no prior {prior!r}; it has {', '.join(labels['prior'])}.")
    one = prior or labels["prior"][0]
    results = pool(records, subsets=labels["dataset"], priors=labels["prior"], methods=labels["method"])
    choices = choose_records(records, one, panels)
    chosen = [record for choice in choices for record in (*choice.best, *choice.worst)]
    album = make_album(folder, chosen, error_scales(records, one), progress=progress)
    text = _page(folder, records, counts, results, tables, one, choices, album)
    content = text.encode("utf-8", "replace")  # a folder's name need not be valid Unicode
    atomic_write(path, lambda temporary: _write(temporary, content))
    reasons: dict[str, int] = {}
    for reason in album.reasons.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return Page(path, len(content), len(album.pictures), reasons)


def _page(
    folder: Path,
    records: Sequence[Record],
    counts: Sequence[tuple[str, str, int, int, int, float]],
    results: Results,
    tables: Sequence[Table],
    prior: str,
    choices: Sequence[Choice],
    album: Album,
) -> str:
    assets = files("leadline.report") / "assets"
    style, script, frame = (
        (assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    bars = "".join(f"--{scheme}: url({_strip(scheme)}); " for scheme in ("depth", "error"))
    pictures = {uri: place for place, uri in enumerate(_uris(album))}
    data = {**_data(records, results, prior), **_gallery(records, choices, album, pictures)}
    shown = "".join(f'<script type="text/plain" id="p{place}">{uri}</script>\n' for uri, place in pictures.items())
    sections = "".join(
        f"<details{' open' if place == 0 else ''}><summary>{escape(table.title)}</summary>{table_html(table)}</details>"
        for place, table in enumerate(tables)
    )
    return Template(frame).substitute(
        title=escape(f"{folder.resolve().name}: leadline benchmark"),
        name=escape(folder.resolve().name),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=f":root {{ {bars}}}\n{style}",
        summary=_summary(records, counts, results),
        ran=_ran(counts),
        prior=escape(prior),
        heat=heat_map(results, prior),
        tables=sections or "<p>No table has a score yet.</p>",
        failures=failures_html(records),
        protocol=escape(protocol_toml(protocol_of(folder))),
        versions=versions_html(records),
        data=_json(data),
        pictures=shown,
        script=script,
    )


def _summary(
    records: Sequence[Record], counts: Sequence[tuple[str, str, int, int, int, float]], results: Results
) -> str:
    planned, done = sum(row[2] for row in counts), sum(row[3] for row in counts)
    failed = sum(record.status == "failed" for record in records)
    seconds = sum(row[5] for row in counts)
    images = {(record.dataset, record.image) for record in records}
    cases = dict.fromkeys(record.case for record in records)
    facts = {
        "records": f"{len(records):,}" if done == planned else f"{len(records):,} of {planned:,} planned",
        "failed": f"{failed:,}",
        "images": f"{len(images):,}",
        "time in the methods": _duration(seconds),
    }
    items = (
        f"<div{' class=bad' if name == 'failed' and failed else ''}><dt>{name}</dt><dd>{value}</dd></div>"
        for name, value in facts.items()
    )
    lists = {"subsets": results.subsets, "cases": tuple(cases), "priors": results.priors, "methods": results.methods}
    named = (f"<dt>{name}</dt><dd>{escape(_few(own))}</dd>" for name, own in lists.items())
    return f"<dl class=facts>{''.join(items)}</dl><dl class=lists>{''.join(named)}</dl>"


def _few(labels: Sequence[str]) -> str:
    return f"{len(labels)}: {', '.join(labels)}" if len(labels) > 1 else labels[0]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"


def _ran(counts: Sequence[tuple[str, str, int, int, int, float]]) -> str:
    rows = [
        (dataset, method, planned, done, bad, f"{seconds / (done - bad):.3f}" if done > bad else "--")
        for dataset, method, planned, done, bad, seconds in counts
    ]
    heads = ("subset", "method", "planned", "done", "failed", "s per image")
    return plain_table("What ran", heads, rows, texts=2)


def _data(records: Sequence[Record], results: Results, prior: str) -> dict[str, Any]:
    """The records as columns, with labels by their place in a list, and the percentiles of the distributions."""
    labels = {name: list(dict.fromkeys(getattr(record, name) for record in records)) for name in _LABELS}
    places = {name: {label: place for place, label in enumerate(own)} for name, own in labels.items()}
    columns: dict[str, list[Any]] = {
        name: [places[name][getattr(record, name)] for record in records] for name in _LABELS
    }
    for name in _NUMBERS:
        columns[name] = [float(f"{getattr(record, name):.{_DIGITS}g}") for record in records]
    columns["failed"] = [int(record.status == "failed") for record in records]
    spreads = [
        {"method": method, "subset": subset, "metric": metric, "values": list(spread.percentiles.values())}
        for (source, method, subset, metric), spread in results.spreads.items()
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
    records: Sequence[Record], choices: Sequence[Choice], album: Album, pictures: dict[str, int]
) -> dict[str, Any]:
    """Per record with pictures its tiles, and per method and subset which records are shown."""
    rows = {record.key: place for place, record in enumerate(records)}
    cards = {
        rows[key]: [
            {
                "title": item.title,
                "picture": pictures[item.uri],
                "bar": None if item.bar is None else [item.bar.scheme, item.bar.left, item.bar.right],
            }
            for item in shown
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


def _uris(album: Album) -> list[str]:
    """Each picture once: methods share the image, the measurements, the prior and the reference."""
    return list(dict.fromkeys(item.uri for shown in album.pictures.values() for item in shown))


def _json(data: dict[str, Any]) -> str:
    """JSON that may stand in a script element: no tag and no comment can begin in it."""
    text = json.dumps(json_ready(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _strip(scheme: Any) -> str:
    """The ramp of a colour scheme as a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(colour_bar(128, 1, scheme)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
