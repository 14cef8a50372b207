"""The pictures of the HTML report: the choice of records, and their pictures, which are cached in the run.

The pictures of a record are made once: `recompute_results` computes its maps, which are coloured, reduced and written
to ``cache/thumbnails`` under a hash of all they depend on. A second report reads these files.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError
from leadline.base.strict_json import canonical_json
from leadline.bench.metrics import normals, relative_error
from leadline.bench.records import Record, RecordStatus, failure_reason, software_versions
from leadline.bench.run import CACHE
from leadline.io.files import write_text
from leadline.priors.predictor import content_hash
from leadline.report.colour import (
    Picture,
    Scheme,
    colour_range,
    colourise,
    draw_measurements,
    normals_picture,
    round_up,
)
from leadline.report.image_results import ImageCase, ImageResults, recompute_results
from leadline.report.tiles import ColourBar

METRIC = "absrel"  # ranks the images
FOLDER = "thumbnails"  # in the cache of the run
FEW, FINE, COARSE = 100, 640, 360
"""Pictures are `FINE` pixels wide if at most `FEW` records have them, else `COARSE`, for a page of at most 30 MB."""
_QUALITY, _NORMALS_QUALITY = 60, 35  # of WebP; normals are noisy, so at 60 they would be most of the page
_DOT_COLOURS = 24
_DRAWING_VERSION = "3"  # must change with the drawing code, so that cached pictures are not used any more
_SCHEMES: dict[str, Scheme] = {"depth": "depth", "error": "error"}
_PREFIX = "data:image/webp;base64,"
# The cache may contain foreign files, and its content goes into a page: only data URIs of pictures are accepted.
_PICTURE = re.compile(re.escape(_PREFIX) + r"[A-Za-z0-9+/]+=*", re.ASCII)


@dataclass(frozen=True)
class Choice:
    """The records of one method on one subset that get pictures; the first of each is the best or worst."""

    subset: str
    method: str
    best: tuple[Record, ...]
    worst: tuple[Record, ...]


class Thumbnail(NamedTuple):
    """A picture of the page as a data URI, with its title and colour scale."""

    title: str
    uri: str
    bar: ColourBar | None


@dataclass(frozen=True)
class Album:
    """Pictures by the key of their record, and reasons by the key of records without pictures."""

    pictures: dict[str, tuple[Thumbnail, ...]]
    reasons: dict[str, str]


def choose_records(records: Iterable[Record], prior: str, count: int) -> list[Choice]:
    """The `count` best and worst images of each method on each subset with one prior, in the run's order.

    Each list has an image at most once, with the case of its lowest or highest error. No record is in both lists.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.prior == prior and record.status == RecordStatus.OK and math.isfinite(getattr(record, METRIC)):
            found.setdefault((record.dataset, record.method), []).append(record)
    choices = []
    for (subset, method), own in found.items():
        ranked = sorted(own, key=lambda record: float(getattr(record, METRIC)))
        best = _first_of_each_image(ranked, count)
        taken = {record.key for record in best}
        worst = [record for record in _first_of_each_image(ranked[::-1], count) if record.key not in taken]
        choices.append(Choice(subset, method, tuple(best), tuple(worst)))
    return choices


def _first_of_each_image(ranked: Sequence[Record], count: int) -> list[Record]:
    first: dict[str, Record] = {}
    for record in ranked:
        first.setdefault(record.image, record)
    return list(first.values())[:count]


def error_scales(records: Iterable[Record], prior: str) -> dict[str, float]:
    """For each subset the relative error at the end of the colour scale, the same for all its methods and images.

    It is three times the median score, rounded up.
    """
    found: dict[str, list[float]] = {}
    for record in records:
        if record.prior == prior and math.isfinite(getattr(record, METRIC)):
            found.setdefault(record.dataset, []).append(float(getattr(record, METRIC)))
    return {subset: round_up(3 * float(np.median(values))) for subset, values in found.items()}


def make_album(
    folder: Path,
    chosen: Sequence[Record],
    scales: Mapping[str, float],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Album:
    """Pictures of records that have a score, from the cache of the run or drawn now, with the `error_scales`.

    A record whose pictures cannot be drawn, e.g. because the data are on another machine, gets a reason instead, so
    that the report is written in any case. `progress` is called with the number of images done so far and the total.
    """
    width = FINE if len(chosen) <= FEW else COARSE
    image_cases: dict[ImageCase, dict[str, Record]] = {}
    for record in chosen:
        image_cases.setdefault(ImageCase.of(record), {})[record.method] = record
    pictures: dict[str, tuple[Thumbnail, ...]] = {}
    reasons: dict[str, str] = {}
    for done, (image_case, there) in enumerate(image_cases.items()):
        scale = scales[image_case.dataset]
        files = {method: _file(folder, record, scale, width) for method, record in there.items()}
        kept = {method: _read(path) for method, path in files.items()}
        missing = [method for method, shown in kept.items() if shown is None]
        drawn = _draw(folder, image_case, missing, scale, width) if missing else {}
        for method, record in there.items():
            found = kept[method] or drawn[method]
            if isinstance(found, str):
                reasons[record.key] = found
                continue
            pictures[record.key] = found
            if method in drawn:
                _write(files[method], found)
        if progress is not None:
            progress(done + 1, len(image_cases))
    return Album(pictures, reasons)


def _draw(
    folder: Path, image_case: ImageCase, methods: Sequence[str], scale: float, width: int
) -> dict[str, tuple[Thumbnail, ...] | str]:
    """For each method its pictures, or the reason why there are none."""
    try:
        results = recompute_results(folder, image_case, methods)
        painter = _Painter(results, colour_range(results.reference), scale, width)
        before, after = painter.scene(), painter.normals("ground-truth normals", results.reference)
        return {method: (*before, *painter.method(method), *after) for method in methods}
    except Exception as error:  # data sets, networks and methods may raise anything; the reason names it
        if len(methods) == 1:
            return {methods[0]: failure_reason(error)}
    # One method cannot be computed here, e.g. a system that is not set up; the others are tried one by one.
    return {
        method: found for name in methods for method, found in _draw(folder, image_case, [name], scale, width).items()
    }


@dataclass(frozen=True)
class _Painter:
    """Makes the pictures of one image; the ground truth is next to the depth, and its normals to the method's."""

    results: ImageResults
    depth_range: tuple[float, float]  # metres, the same for all pictures of the image
    scale: float  # relative error at the end of the colour scale
    width: int  # largest width in pixels

    def scene(self) -> tuple[Thumbnail, ...]:
        """The pictures that all methods share."""
        image, prior = self.results.image, colourise(self.results.prior_depth())
        return (
            Thumbnail("image", _encoded(image, self.width), None),
            Thumbnail("measurements", _encoded(self._measurements(), self.width, None), self._metres()),
            Thumbnail("prior", _encoded(prior, self.width), ColourBar("depth", "near", "far")),
            self._depth("ground truth", self.results.reference),
        )

    def method(self, name: str) -> tuple[Thumbnail, ...]:
        """The pictures of one method."""
        depth = self.results.predictions[name].depth
        error = relative_error(depth, self.results.reference)
        picture = colourise(error, low=0.0, high=self.scale, scheme="error")
        bar = ColourBar("error", "0 %", f"{100 * self.scale:g} %")
        shown = Thumbnail("relative error", _encoded(picture, self.width), bar)
        return self._depth("depth", depth), shown, *self.normals("normals", depth)

    def normals(self, title: str, depth: FloatArray) -> tuple[Thumbnail, ...]:
        """A picture of normals, or none without a camera."""
        if self.results.camera is None:
            return ()
        picture = normals_picture(normals(depth, self.results.camera))
        return (Thumbnail(title, _encoded(picture, self.width, _NORMALS_QUALITY), None),)

    def _depth(self, title: str, depth: FloatArray) -> Thumbnail:
        low, high = self.depth_range
        return Thumbnail(title, _encoded(colourise(depth, low=low, high=high), self.width), self._metres())

    def _measurements(self) -> Picture:
        """Drawn at the size of the thumbnail, where dots stay visible."""
        sparse = self.results.sparse
        height, width = sparse.shape
        factor = min(1.0, self.width / width)
        small = np.full((max(1, round(height * factor)), max(1, round(width * factor))), np.nan)
        rows, columns = np.nonzero(np.isfinite(sparse))
        small[(rows * len(small)) // height, (columns * small.shape[1]) // width] = sparse[rows, columns]
        low, high = self.depth_range
        return draw_measurements(small, np.full((*small.shape, 3), 200, np.uint8), low=low, high=high)

    def _metres(self) -> ColourBar:
        low, high = self.depth_range
        return ColourBar("depth", f"{low:.3g} m", f"{high:.3g} m")


def _encoded(picture: Picture, width: int, quality: int | None = _QUALITY) -> str:
    """A picture, at most `width` pixels wide, as a data URI; lossless with few colours, for dots, without a quality."""
    from PIL import Image

    image = Image.fromarray(picture)
    if image.width > width:
        image = image.resize((width, max(1, round(image.height * width / image.width))), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if quality is None:
        image.quantize(_DOT_COLOURS).convert("RGB").save(buffer, "WEBP", lossless=True)
    else:
        image.save(buffer, "WEBP", quality=quality)
    return _PREFIX + base64.b64encode(buffer.getvalue()).decode()


def _file(folder: Path, record: Record, scale: float, width: int) -> Path:
    # The current versions are part of the key, so that an update of leadline does not show pictures of an earlier one.
    hashes = (record.image_hash, record.reference_hash, record.prior_hash)
    key = content_hash(
        record.key, *hashes, canonical_json(software_versions()), repr(scale), str(width), _DRAWING_VERSION
    )
    return folder / CACHE / FOLDER / key[:2] / f"{key}.json"


def _read(path: Path) -> tuple[Thumbnail, ...] | None:
    """The pictures in a file; None if it does not exist or does not contain valid pictures."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        pictures = tuple(
            Thumbnail(str(title), str(uri), bar and ColourBar(_SCHEMES[bar[0]], str(bar[1]), str(bar[2])))
            for title, uri, bar in entries
        )
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return pictures if pictures and all(_PICTURE.fullmatch(picture.uri) for picture in pictures) else None


def _write(path: Path, shown: Sequence[Thumbnail]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(shown))
    except (OSError, FileError):
        return  # without a cache the next report renders the pictures again
