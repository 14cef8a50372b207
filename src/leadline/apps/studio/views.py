"""What the page shows of a result: pictures, points, curves and words."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.apps.studio.scene import Moved, Result, run_other
from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.base.strict_json import json_ready
from leadline.report.colour import Picture, Scheme, colour_bar, colourise, dots, limits, normals_picture

LARGEST_VIEW = 1600
"""Pixels along a picture's longer side on the page; what is downloaded is not made smaller."""
MOST_POINTS = 400_000
_SHOWN_PAIRS = 1500
_LEAST_ERROR = 0.02  # relative error at the dark end of the ramp is at least this, or noise would look like a fault
_LEAST_CHANGE = 0.01


def summary(result: Result) -> dict[str, Any]:
    """The words and numbers about a result."""
    completion, fit = result.completion, result.completion.fit
    low, high = limits(completion.depth)
    height, width = completion.depth.shape
    views = ["image", "measurements", "prior", "depth", *(["error"] if result.reference is not None else []), "normals"]
    sigma = completion.sigma
    if sigma is not None:
        views.append("uncertainty")
    told = {
        "revision": result.revision,
        "stem": result.stem,
        "width": width,
        "height": height,
        "views": views,
        "near": low,
        "far": high,
        "measurements": fit.count,
        "removed": result.removed,
        "exponent": fit.response.exponent,
        "gain": fit.response.gain,
        "offset": fit.response.offset,
        "scale": fit.response.scale,
        "rmse": fit.rmse,
        "fit": str(fit.status.value),
        "fit_ok": fit.status.name == "CONVERGED",
        "solve": str(completion.reconstruction.status.value),
        "solve_ok": completion.reconstruction.converged,
        "iterations": completion.reconstruction.iterations,
        "notes": list(result.notes),
        "unit": result.facts["unit"],
        "kind": result.facts["kind"],
        "camera": result.camera_from,
        "uncertainty": None
        if sigma is None
        else {"median": float(np.nanmedian(sigma)), "high": limits(sigma, "error")[1]},
        "rejected": 0 if completion.rejected is None else int(completion.rejected.where.size),
        "error_high": _error_high(result),
        "scores": _scores(result, completion.depth),
    }
    ready: dict[str, Any] = json_ready(told)
    return ready


def moved_summary(result: Result, moved: Moved) -> dict[str, Any]:
    """The words about an exponent chosen by hand."""
    change = _change(result)
    told = {
        "exponent": moved.response.exponent,
        "gain": moved.response.gain,
        "offset": moved.response.offset,
        "rmse": moved.rmse,
        "fitted_rmse": result.completion.fit.rmse,
        "median_change": float(np.nanmedian(change)),
        "largest_change": float(np.nanpercentile(change, 99)),
        "change_high": _change_high(result),
        "scores": _scores(result, moved.depth),
        "curve": _curve(result, moved.response),
    }
    ready: dict[str, Any] = json_ready(told)
    return ready


def method_summary(result: Result, name: str) -> dict[str, Any]:
    """The words about another method's result."""
    found = run_other(result, name)
    ready: dict[str, Any] = json_ready({"status": found.status, "scores": _scores(result, found.depth)})
    return ready


def diagnosis(result: Result) -> dict[str, Any]:
    """The curves: measurements over the prior, the error along the exponent, the gain and the residual along depth."""
    from leadline.report.diagnosis import ADAPTIVE
    from leadline.report.diagnostics import band, gain_curve, held_out_sample
    from leadline.report.profile import MEMBERS, exponent_profile, fit_at

    trial = result.trial()
    prior, measured = trial.pairs()
    response = result.completion.fit.response
    h = trial.relative()
    known = h[np.isfinite(h)]
    ends = (float(known.min()), float(known.max()))
    places = held_out_sample(trial.reference, trial.scored)
    places = places[np.isfinite(h.flat[places])]
    held_out = (h.flat[places], np.asarray(trial.reference.flat[places], np.float64)) if places.size else None
    where, fitted = result.pairs()
    few = where[fitted][_spread(int(fitted.sum()), 4000)]
    pairs = h.flat[few], np.asarray(result.sparse.flat[few], np.float64)
    profile = exponent_profile(*pairs, response.exponent, prior_range=ends, held_out=held_out)
    shown = _spread(prior.size, _SHOWN_PAIRS)
    gains = {}
    for name, exponent in {**MEMBERS, ADAPTIVE: response.exponent}.items():
        try:
            found = response if name == ADAPTIVE else fit_at(exponent, *pairs, ends)
            gains[name] = gain_curve(found, prior, points=60).to_dict()
        except InputError:
            continue  # out of range for this exponent
    if held_out is None:  # all there is to compare with is what the response was fitted to
        along, off = measured, np.asarray(response(prior), np.float64) - measured
    else:
        along = held_out[1]
        off = np.asarray(result.completion.depth.flat[places], np.float64) - along
    told = {
        "pairs": {"prior": _short(prior[shown]), "measured": _short(measured[shown])},
        "curve": _curve(result, response),
        "profile": {
            "exponents": _short(profile.exponents),
            "rmse": _short(profile.rmse),
            "held_out": _short(profile.held_out),
            "chosen": response.exponent,
        },
        "gains": {name: {key: _short(np.array(entry[key])) for key in entry} for name, entry in gains.items()},
        "residual": {"held_out": held_out is not None, **band(along, off).to_dict()},
        "scatter": None if held_out is None else _scatter(result, places),
    }
    ready: dict[str, Any] = json_ready(told)
    return ready


def picture(result: Result, name: str) -> bytes:
    """A view as PNG, or JPEG for the photograph, not larger than `LARGEST_VIEW`.

    `name` is one of image, measurements, prior, depth, calibrated, error, normals, moved, change; or a method's name
    after ``depth-`` or ``error-``.

    Raises
    ------
    InputError
        There is no such view of this result.
    """
    low, high = limits(result.completion.depth)
    known: dict[str, Callable[[], Picture]] = {
        "image": lambda: result.maps.image,
        "measurements": lambda: dots(result.sparse, result.maps.image, low=low, high=high),
        "prior": lambda: colourise(result.trial().relative()),
        "depth": lambda: colourise(result.completion.depth, low=low, high=high),
        "calibrated": lambda: colourise(result.completion.calibrated, low=low, high=high),
        "normals": lambda: _normals(result, result.completion.depth),
    }
    sigma = result.completion.sigma
    if sigma is not None:
        known["uncertainty"] = lambda: colourise(sigma, scheme="error")
    if result.reference is not None:
        known["error"] = lambda: _error(result, result.completion.depth)
    moved = result.moved
    if moved is not None:
        known["moved"] = lambda: colourise(moved.depth, low=low, high=high)
        known["change"] = lambda: colourise(_change(result), low=0.0, high=_change_high(result), scheme="error")
    for method, found in result.methods.items():
        known[f"depth-{method}"] = lambda depth=found.depth: colourise(depth, low=low, high=high)  # type: ignore[misc]
        known[f"normals-{method}"] = lambda depth=found.depth: _normals(result, depth)  # type: ignore[misc]
        if result.reference is not None:
            known[f"error-{method}"] = lambda depth=found.depth: _error(result, depth)  # type: ignore[misc]
    if name not in known:
        raise InputError(f"there is no view {name!r} of this result; there are {', '.join(known)}.")
    return _encoded(known[name](), "JPEG" if name == "image" else "PNG")


def points(result: Result) -> bytes:
    """The completed depth as points for the page: little endian, thinned evenly to `MOST_POINTS`.

    Two uint32, the number of points n and of colourings c (image, depth and, if there is one, uncertainty); then
    (n, 3) float32 in metres, x right, y down, z forward; then c times (n, 3) uint8.
    """
    depth = result.completion.depth
    low, high = limits(depth)
    colours = [result.maps.image, colourise(depth, low=low, high=high)]
    sigma = result.completion.sigma
    if sigma is not None:
        colours.append(colourise(sigma, scheme="error"))
    places = result.camera.points(depth)
    kept = np.flatnonzero(np.isfinite(places).all(axis=-1))
    kept = kept[_spread(kept.size, MOST_POINTS)]
    parts = [np.array([kept.size, len(colours)], "<u4"), places.reshape(-1, 3)[kept].astype("<f4")]
    parts += [colour.reshape(-1, 3)[kept] for colour in colours]
    return b"".join(part.tobytes() for part in parts)


def ramp(scheme: str) -> bytes:
    """A ramp of `report.colour` as a PNG, nearest or no error at the left.

    Raises
    ------
    InputError
        There is no such ramp.
    """
    for known in get_args(Scheme):
        if known == scheme:
            return _encoded(colour_bar(256, 4, known), "PNG")
    raise InputError(f"there is no colour ramp {scheme!r}.")


def _encoded(shown: Picture, form: str) -> bytes:
    from PIL import Image

    image = Image.fromarray(shown)
    image.thumbnail((LARGEST_VIEW, LARGEST_VIEW))
    stream = io.BytesIO()
    image.save(stream, form, **({"quality": 92} if form == "JPEG" else {"compress_level": 3}))
    return stream.getvalue()


def _normals(result: Result, depth: FloatArray) -> Picture:
    from leadline.bench.metrics import normals

    return normals_picture(normals(depth, result.camera))


def _error(result: Result, depth: FloatArray) -> Picture:
    from leadline.bench.metrics import relative_error

    if result.reference is None:
        raise InputError("there is no reference to compare with.")
    error = relative_error(depth, result.reference)
    return colourise(error, low=0.0, high=_error_high(result), scheme="error")


def _error_high(result: Result) -> float:
    """The relative error at the dark end, the same for every method."""
    from leadline.bench.metrics import relative_error

    if result.reference is None:
        return math.nan
    high = limits(relative_error(result.completion.depth, result.reference), "error")[1]
    return max(high, _LEAST_ERROR) if math.isfinite(high) else _LEAST_ERROR


def _change(result: Result) -> NDArray[np.float64]:
    from leadline.bench.metrics import relative_error

    if result.moved is None:
        raise InputError("the exponent is where the fit put it: nothing has changed.")
    return relative_error(result.moved.depth, result.completion.depth)


def _change_high(result: Result) -> float:
    return max(limits(_change(result), "error")[1], _LEAST_CHANGE)


def _scores(result: Result, depth: FloatArray) -> dict[str, float] | None:
    from leadline.bench.metrics import depth_scores, normal_scores

    if result.reference is None:
        return None
    scored = result.scored()
    found = depth_scores(depth, result.reference, scored)
    told = {"absrel": found.absrel, "mae": found.mae, "rmse": found.rmse, "pixels": float(found.support)}
    if result.camera_from == "file":  # of an assumed camera normals are a picture, not a measurement
        told["normal_deg"] = normal_scores(depth, result.reference, result.camera, scored).median_deg
    return told


def _curve(result: Result, response: Any) -> dict[str, list[float]]:
    prior, _ = result.trial().pairs()
    grid = np.geomspace(prior.min(), prior.max(), 80)
    return {"prior": _short(grid), "depth": _short(np.asarray(response(grid), np.float64))}


def _scatter(result: Result, places: NDArray[np.intp]) -> dict[str, list[float]]:
    chosen = places[_spread(places.size, _SHOWN_PAIRS)]
    reference = np.zeros(0) if result.reference is None else result.reference.flat[chosen]
    return {"reference": _short(reference), "predicted": _short(result.completion.depth.flat[chosen])}


def _short(values: FloatArray) -> list[float]:
    """With the digits that a curve on a screen needs."""
    return [float(f"{value:.5g}") for value in np.asarray(values).ravel()]


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """At most `most` indices, evenly spread over `count`."""
    return np.linspace(0, count - 1, most).astype(np.intp) if count > most else np.arange(count)
