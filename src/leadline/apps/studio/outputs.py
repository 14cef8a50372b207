"""Views of a result for the browser, and files to download: the depth, and a record of how it was made."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from leadline.apps.cli import version
from leadline.apps.studio.scene import Result
from leadline.apps.studio.sessions import Session
from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.base.strict_json import dump_json
from leadline.batch.sidecar import file_hash
from leadline.report.colour import Picture, Scheme, colour_bar
from leadline.report.scene_views import draw_view, point_cloud_bytes

MAX_VIEW_SIZE = 1600
"""Pixels along the longer side of a picture on the page. Downloads have the full size."""
_TITLES = {
    "depth.npy": "Depth in metres (npy)",
    "depth.png": "Depth, 16-bit PNG",
    "sigma.npy": "Uncertainty in metres (npy)",
    "cloud.ply": "Point cloud (PLY)",
    "report.json": "Record of settings and results (JSON)",
    "sparse.npy": "Measurements as used",
    "prior.npy": "Prior as used",
}
"""The kinds of files by the end of their names."""
_OF_THE_DEPTH = ("depth.npy", "depth.png", "cloud.ply")
_MEDIA_TYPES = {".png": "image/png", ".json": "application/json"}


@dataclass(frozen=True)
class Download:
    """A file to send."""

    name: str
    media_type: str
    content: bytes


def download_titles(result: Result) -> dict[str, str]:
    """What can be downloaded of a result, by kind. With an exponent set by hand, the depth is the one at it."""
    titles = dict(_TITLES)
    if result.scene.completion.sigma is None:
        del titles["sigma.npy"]
    if result.held is not None:
        at = f" at λ = {result.held.response.exponent:.2f}"
        titles |= {kind: titles[kind] + at for kind in _OF_THE_DEPTH}
    return titles


def make_download(session: Session, result: Result, kind: str) -> Download:
    """A file of that kind.

    Raises
    ------
    InputError
        There is no such kind, or the depth does not fit into the format.
    """
    known = download_titles(result)
    if kind not in known:
        raise InputError(f"there is no download {kind!r}; {suggestion(kind, known)}")
    held = "" if result.held is None else f"_lambda{result.held.response.exponent:.2f}"
    name = f"{result.stem}{held if kind in _OF_THE_DEPTH else ''}_{kind}"
    media_type = _MEDIA_TYPES.get(Path(kind).suffix, "application/octet-stream")
    if kind == "report.json":
        return Download(name, media_type, dump_json(_record(session, result)).encode())
    path = session.folder / f"out-{secrets.token_hex(4)}{Path(kind).suffix}"
    try:
        _writers(result)[kind](path)
        return Download(name, media_type, path.read_bytes())
    finally:
        path.unlink(missing_ok=True)


def _writers(result: Result) -> dict[str, Callable[[Path], object]]:
    from leadline.io.depth.files import write_depth

    scene = result.scene
    sigma = scene.completion.sigma
    return {
        "depth.npy": lambda path: write_depth(path, result.depth, "m"),
        "depth.png": lambda path: _write_png(path, result),
        "cloud.ply": lambda path: _write_cloud(path, result),
        "sigma.npy": lambda path: None if sigma is None else np.save(path, sigma),
        "sparse.npy": lambda path: write_depth(path, scene.sparse, "m"),
        "prior.npy": lambda path: np.save(path, scene.prior.values),
    }


def _write_png(path: Path, result: Result) -> None:
    """16-bit PNG in the unit of the measurements, or in millimetres if the depth does not fit into it."""
    from leadline.io.depth.files import write_depth
    from leadline.io.depth.units import png_units

    units = png_units(result.inputs.unit)
    for unit in units:
        try:
            return write_depth(path, result.depth, unit)
        except InputError:
            if unit == units[-1]:
                raise
    return None


def _write_cloud(path: Path, result: Result) -> None:
    from leadline.io.clouds.ply import write_ply

    points = result.scene.camera.points(result.depth)
    known = np.isfinite(points).all(axis=-1)
    write_ply(path, points[known], result.scene.image[known])


def _record(session: Session, result: Result) -> dict[str, Any]:
    held = result.held
    return {
        "leadline": version(),
        "frame": result.stem,
        "inputs": {
            role.value: {"name": upload.name, "sha256": file_hash(upload.path)}
            for role, upload in session.files.items()
        },
        **result.inputs.record,
        "prior_source": result.request.prior,
        "camera_source": result.camera_source.value,
        "measurements_removed_by_hand": result.measurements_removed,
        "notes": [session.render(note.text) for note in result.notes],
        "result": result.scene.completion.to_dict(),
        "exponent_set_by_hand": None if held is None else {**vars(held.response), "rmse": held.rmse},
    }


def encode_view(result: Result, name: str) -> tuple[bytes, str]:
    """A view of `draw_view` and its media type: JPEG for the image itself, PNG for maps.

    Raises
    ------
    InputError
        There is no such view of this result.
    """
    picture = draw_view(result.scene, name, held=result.held, methods=result.methods)
    return (_encode(picture, "JPEG"), "image/jpeg") if name == "image" else (_encode(picture, "PNG"), "image/png")


def encode_points(result: Result) -> bytes:
    """The depth as points; see `point_cloud_bytes`."""
    return point_cloud_bytes(result.scene, result.depth)


def colour_ramp(scheme: str) -> bytes:
    """A colour ramp as a PNG, with the nearest depth or no error at the left.

    Raises
    ------
    InputError
        There is no such ramp.
    """
    for known in get_args(Scheme):
        if known == scheme:
            return _encode(colour_bar(256, 4, known), "PNG")
    raise InputError(f"there is no colour ramp {scheme!r}; {suggestion(scheme, get_args(Scheme))}")


def _encode(picture: Picture, image_format: str) -> bytes:
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((MAX_VIEW_SIZE, MAX_VIEW_SIZE))
    stream = io.BytesIO()
    image.save(stream, image_format, **({"quality": 92} if image_format == "JPEG" else {"compress_level": 3}))
    return stream.getvalue()
