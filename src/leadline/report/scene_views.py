"""Pictures and points of a completed scene, on colour scales that all its depth maps share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.bench.metrics import normals, relative_error
from leadline.report.colour import Picture, colour_range, colourise, draw_measurements, normals_picture
from leadline.report.completed_scene import CompletedScene, HeldExponent, even_subset

MAX_POINTS = 400_000
# Relative values at the dark end of the ramp are at least these, or noise would look like an error.
_LEAST_ERROR_RANGE = 0.02
_LEAST_CHANGE_RANGE = 0.01


def error_range(scene: CompletedScene) -> float:
    """The relative error at the dark end of the ramp, the same for every method; NaN without ground truth."""
    if scene.reference is None:
        return math.nan
    high = colour_range(relative_error(scene.completion.depth, scene.reference), "error")[1]
    return max(high, _LEAST_ERROR_RANGE) if math.isfinite(high) else _LEAST_ERROR_RANGE


def change_range(held: HeldExponent) -> float:
    """The relative change at the dark end of the ramp."""
    return max(colour_range(held.change, "error")[1], _LEAST_CHANGE_RANGE)


def draw_view(
    scene: CompletedScene, name: str, *, held: HeldExponent | None = None, methods: Mapping[str, FloatArray]
) -> Picture:
    """A view of the scene, (H, W, 3) uint8.

    Parameters
    ----------
    scene : CompletedScene
    name : str
        One of image, measurements, prior, depth, error, normals, uncertainty; held and change with `held`; and
        depth, error and normals followed by a hyphen and the name of one of `methods`.
    held : HeldExponent, optional
    methods : mapping
        Depth maps of other methods, by name.

    Raises
    ------
    InputError
        There is no such view of this scene.
    """
    completion = scene.completion
    low, high = colour_range(completion.depth)

    def depth_picture(depth: FloatArray) -> Picture:
        return colourise(depth, low=low, high=high)

    def error_picture(depth: FloatArray) -> Picture:
        if scene.reference is None:
            raise InputError("the error can be shown only with ground truth.")
        return colourise(relative_error(depth, scene.reference), low=0.0, high=error_range(scene), scheme="error")

    views: dict[str, Callable[[], Picture]] = {
        "image": lambda: scene.image,
        "measurements": lambda: draw_measurements(scene.sparse, scene.image, low=low, high=high),
        "prior": lambda: colourise(scene.results().prior_depth()),
    }
    if completion.sigma is not None:
        sigma = completion.sigma
        views["uncertainty"] = lambda: colourise(sigma, scheme="error")
    if held is not None:
        views["held"] = lambda: depth_picture(held.depth)
        views["change"] = lambda: colourise(held.change, low=0.0, high=change_range(held), scheme="error")
    kind, _, method = name.partition("-")
    depth = methods.get(method) if method else completion.depth
    if depth is not None:
        of_depth: dict[str, Callable[[FloatArray], Picture]] = {
            "depth": depth_picture,
            "normals": lambda depth: normals_picture(normals(depth, scene.camera)),
        }
        if scene.reference is not None:
            of_depth["error"] = error_picture
        if kind in of_depth:
            return of_depth[kind](depth)
    if name not in views:
        raise InputError(f"there is no view {name!r} of this result; {suggestion(name, [*views, 'depth', 'normals'])}")
    return views[name]()


def point_cloud_bytes(scene: CompletedScene, depth: FloatArray) -> bytes:
    """A depth map as coloured points for a page: little endian, thinned evenly to `MAX_POINTS`.

    Two uint32, the number of points n and of colourings c (image, depth and, if there is one, uncertainty); then (n, 3)
    float32 in metres, x right, y down, z forward; then c times (n, 3) uint8.
    """
    low, high = colour_range(scene.completion.depth)
    colours = [scene.image, colourise(depth, low=low, high=high)]
    if scene.completion.sigma is not None:
        colours.append(colourise(scene.completion.sigma, scheme="error"))
    points = scene.camera.points(depth)
    kept = np.flatnonzero(np.isfinite(points).all(axis=-1))
    kept = kept[even_subset(kept.size, MAX_POINTS)]
    parts = [np.array([kept.size, len(colours)], "<u4"), points.reshape(-1, 3)[kept].astype("<f4")]
    parts += [colour.reshape(-1, 3)[kept] for colour in colours]
    return b"".join(part.tobytes() for part in parts)
