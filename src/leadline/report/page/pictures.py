"""The pictures of the HTML report: which records get them, and the pictures, kept in the run's cache.

A record's pictures are drawn once: the maps are computed again by `recompute`, coloured, made small and written under
``cache/thumbnails`` by what decides them, so that a second report only reads files.
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

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError
from leadline.bench.metrics import normals, relative_error
from leadline.bench.records import Record
from leadline.bench.run import CACHE, reason_of, versions
from leadline.io.atomic import write_text
from leadline.priors.cache import content_hash
from leadline.report.colour import Picture, colourise, dots, limits, normals_picture
from leadline.report.panel import Bar
from leadline.report.trial import Place, Trial, recompute

METRIC = "absrel"  # by which images are best and worst
FOLDER = "thumbnails"  # in the run's cache
FEW, FINE, COARSE = 100, 640, 360
"""Pictures are `FINE` pixels wide if at most `FEW` records have them, else `COARSE`: a page stays below some 30 MB."""
_QUALITY, _NOISY = 60, 35  # WebP's scale; normals amplify every pixel's noise, which would be most of the page
_DOT_COLOURS = 24
_DRAWING = "1"  # to be changed with the way in which pictures are drawn, so that old ones are not shown as new
_STEPS = (1, 2, 5)
_PREFIX = "data:image/webp;base64,"
# Files of a cache may come from anywhere, and this goes into a page: nothing but a picture gets through.
_PICTURE = re.compile(re.escape(_PREFIX) + r"[A-Za-z0-9+/]+=*", re.ASCII)


@dataclass(frozen=True)
class Choice:
    """The records of one method on one subset that are shown, best first and worst first."""

    subset: str
    method: str
    best: tuple[Record, ...]
    worst: tuple[Record, ...]


@dataclass(frozen=True)
class Shown:
    """One picture as it goes into the page: a data URI, and what its colours mean."""

    title: str
    uri: str
    bar: Bar | None


@dataclass(frozen=True)
class Album:
    """Pictures by the key of their record, and for records that have none the reason."""

    pictures: dict[str, tuple[Shown, ...]]
    reasons: dict[str, str]


def choose_records(records: Iterable[Record], prior: str, count: int) -> list[Choice]:
    """The best and worst `count` images of every method on every subset with one prior, in the run's order.

    An image stands at most once in either list, with the case in which it did best or worst, and no record in both.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.prior == prior and record.status == "ok" and math.isfinite(getattr(record, METRIC)):
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
    """Per subset the relative error at which the colours end: shared by all methods and images, so they compare.

    It is thrice the median score, rounded up to 1, 2 or 5 of a decade.
    """
    found: dict[str, list[float]] = {}
    for record in records:
        if record.prior == prior and math.isfinite(getattr(record, METRIC)):
            found.setdefault(record.dataset, []).append(float(getattr(record, METRIC)))
    return {subset: _rounded_up(3 * float(np.median(values))) for subset, values in found.items()}


def _rounded_up(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(max(value, 1e-4)))
    return next((step * decade for step in _STEPS if step * decade >= value * (1 - 1e-9)), 10 * decade)


def make_album(
    folder: Path,
    chosen: Iterable[Record],
    scales: Mapping[str, float],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Album:
    """Pictures of records, from the cache of the run or drawn now.

    What cannot be drawn, e.g. as the data are on another machine, is left out with a reason: a report is never lost
    for a picture.

    Parameters
    ----------
    folder : path
        Of the run.
    chosen : records
        Of this run, each with a score.
    scales : mapping
        Of `error_scales`.
    progress : callable, optional
        Called with the number of images done so far and in all.
    """
    chosen = list(chosen)
    width = FINE if len(chosen) <= FEW else COARSE
    places: dict[Place, dict[str, Record]] = {}
    for record in chosen:
        place = Place(record.dataset, record.image, record.case, record.prior)
        places.setdefault(place, {})[record.method] = record
    pictures: dict[str, tuple[Shown, ...]] = {}
    reasons: dict[str, str] = {}
    for done, (place, there) in enumerate(places.items()):
        scale = scales[place.dataset]
        files = {method: _file(folder, record, scale, width) for method, record in there.items()}
        kept = {method: _read(path) for method, path in files.items()}
        missing = [method for method, shown in kept.items() if shown is None]
        drawn = _draw(folder, place, missing, scale, width) if missing else {}
        for method, record in there.items():
            found = kept[method] or drawn[method]
            if isinstance(found, str):
                reasons[record.key] = found
                continue
            pictures[record.key] = found
            if method in drawn:
                _keep(files[method], found)
        if progress is not None:
            progress(done + 1, len(places))
    return Album(pictures, reasons)


def _draw(
    folder: Path, place: Place, methods: Sequence[str], scale: float, width: int
) -> dict[str, tuple[Shown, ...] | str]:
    """Per method its pictures, or why there are none."""
    try:
        trial = recompute(folder, place, methods)
        brush = _Brush(trial, limits(trial.reference), scale, width)
        before, after = brush.scene(), brush.normals("reference normals", trial.reference)
        return {method: (*before, *brush.method(method), *after) for method in methods}
    except Exception as error:  # whatever a data set, a network or a method may raise: the reason says which
        if len(methods) == 1:
            return {methods[0]: reason_of(error)}
    # One of them cannot be computed here, say a system that is not set up; the others still can.
    return {method: found for name in methods for method, found in _draw(folder, place, [name], scale, width).items()}


@dataclass(frozen=True)
class _Brush:
    """Draws a trial; like stands beside like: the reference before the depth, its normals after the method's."""

    trial: Trial
    range_m: tuple[float, float]  # of depth, for all pictures of the trial
    scale: float  # the relative error at which the colours end
    width: int  # pixels, at most

    def scene(self) -> tuple[Shown, ...]:
        """What all methods share."""
        trial = self.trial
        return (
            Shown("image", _encoded(trial.image, self.width), None),
            self._measurements(),
            Shown("prior", _encoded(colourise(trial.relative()), self.width), Bar("depth", "near", "far")),
            self._depth("reference", trial.reference),
        )

    def method(self, name: str) -> tuple[Shown, ...]:
        """What one method made of it."""
        depth = self.trial.predictions[name].depth
        error = relative_error(depth, self.trial.reference)
        picture = colourise(error, low=0.0, high=self.scale, scheme="error")
        bar = Bar("error", "0 %", f"{100 * self.scale:g} %")
        shown = Shown("relative error", _encoded(picture, self.width), bar)
        return self._depth("depth", depth), shown, *self.normals("normals", depth)

    def normals(self, title: str, depth: FloatArray) -> tuple[Shown, ...]:
        """One picture, or none without a camera."""
        if self.trial.camera is None:
            return ()
        picture = normals_picture(normals(depth, self.trial.camera))
        return (Shown(title, _encoded(picture, self.width, _NOISY), None),)

    def _depth(self, title: str, depth: FloatArray) -> Shown:
        low, high = self.range_m
        return Shown(title, _encoded(colourise(depth, low=low, high=high), self.width), self._metres())

    def _measurements(self) -> Shown:
        """Drawn at the size that is shown, where dots stay dots, in few flat colours, which compress to a tenth."""
        sparse = self.trial.sparse
        height, width = sparse.shape
        factor = min(1.0, self.width / width)
        small = np.full((max(1, round(height * factor)), max(1, round(width * factor))), np.nan)
        rows, columns = np.nonzero(np.isfinite(sparse))
        small[(rows * len(small)) // height, (columns * small.shape[1]) // width] = sparse[rows, columns]
        low, high = self.range_m
        picture = dots(small, np.full((*small.shape, 3), 200, np.uint8), low=low, high=high)
        return Shown("measurements", _encoded(picture, self.width, None), self._metres())

    def _metres(self) -> Bar:
        low, high = self.range_m
        return Bar("depth", f"{low:.3g} m", f"{high:.3g} m")


def _encoded(picture: Picture, width: int, quality: int | None = _QUALITY) -> str:
    """The picture, at most `width` pixels wide, as a data URI; without a quality, exact in a few colours."""
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
    # The versions are those that compute the maps now: an update must not show old pixels as new.
    hashes = (record.image_hash, record.reference_hash, record.prior_hash)
    key = content_hash(record.key, *hashes, versions(), repr(scale), str(width), _DRAWING)
    return folder / CACHE / FOLDER / key[:2] / f"{key}.json"


def _read(path: Path) -> tuple[Shown, ...] | None:
    """The pictures in a file; None if it is not there or not one of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        shown = tuple(
            Shown(str(item["title"]), item["uri"], None if item["bar"] is None else Bar(*map(str, item["bar"])))  # type: ignore[arg-type]
            for item in content
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    schemes = all(item.bar is None or item.bar.scheme in ("depth", "error") for item in shown)
    return shown if shown and schemes and all(_PICTURE.fullmatch(item.uri) for item in shown) else None


def _keep(path: Path, shown: Sequence[Shown]) -> None:
    bars = [None if item.bar is None else (item.bar.scheme, item.bar.left, item.bar.right) for item in shown]
    text = json.dumps(
        [{"title": item.title, "uri": item.uri, "bar": bar} for item, bar in zip(shown, bars, strict=True)]
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except (OSError, FileError):
        return  # a folder that cannot be written is no reason to stop: the next report draws them again
