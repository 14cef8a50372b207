"""The HTML page of a fused scene: a turntable, slices and single pictures, each picture alone beside all together."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.geometry.cameras import Camera, CameraModel
from leadline.geometry.poses import Transform, transform_points
from leadline.io.files import atomic_write
from leadline.report.colour import Picture, colour_range, colourise
from leadline.report.tiles import ColourBar, Tile, draw_panel
from leadline.report.turntable import (
    Mesh,
    draw_mesh,
    draw_slice,
    save_animation,
    slice_bounds,
    slice_points,
    swing_poses,
)

FRAMES = 36  # of the turntable
_TURNTABLE = (480, 360, 55.0)  # width, height, degrees across
SLICE_VOXELS = 4.0  # thickness of the slab that a slice shows
_STRIDE = 2  # pixels between the points of a slice


@dataclass(frozen=True, eq=False)
class ComparedView:
    """A picture with its depth alone and together with the others."""

    name: str
    image: Picture
    camera: CameraModel
    camera_to_world: Transform
    alone: FloatArray  # (H, W)
    depth: FloatArray  # (H, W)
    sigma: FloatArray | None  # (H, W)


@dataclass(frozen=True, eq=False)
class FusedScene:
    """What the page shows."""

    title: str
    unit: str  # of lengths, "m" or the model's
    alone: Mesh | None  # fused from the depth that each picture has by itself; None if there is none
    together: Mesh
    voxel: float
    views: Sequence[ComparedView]  # read one after the other, several times
    rounds: Sequence[dict[str, Any]]  # statistics: number, moved, disagreement


def write_views_page(path: Path, scene: FusedScene, *, panels: int = 3) -> None:
    """Write the page of a fused scene, one file that needs no network, to `path`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def text_of(name: str) -> str:
        return (files("leadline.report.page") / "templates" / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(text_of), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    chosen = [scene.views[index] for index in np.unique(np.linspace(0, len(scene.views) - 1, panels).astype(int))]
    content = environment.get_template("views.html.jinja").render(
        title=scene.title,
        style=Markup(text_of("page.css")),
        facts=_facts(scene),
        rounds=_rounds(scene.rounds),
        turntables=_turntables(scene),
        slices=_slices(scene),
        thickness=f"{SLICE_VOXELS * scene.voxel:.3g} {scene.unit}",
        panels=[(view.name, _uri(np.asarray(_panel(view, scene.unit)), "PNG")) for view in chosen],
    )
    atomic_write(path, partial(_write_bytes, content.encode("utf-8", "replace")))


def _facts(scene: FusedScene) -> list[tuple[str, str]]:
    known = [part["disagreement"] for part in scene.rounds if part.get("disagreement") is not None]
    facts = [("pictures", f"{len(scene.views):,}"), ("triangles", f"{len(scene.together.triangles):,}")]
    facts.append(("voxel", f"{scene.voxel:.3g} {scene.unit}"))
    if len(known) > 1:
        facts += [("disagreement alone", f"{known[0]:.2%}"), ("disagreement together", f"{known[-1]:.2%}")]
    return facts


def _rounds(rounds: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.3%}"

    return [(str(part["number"]), percent(part.get("moved")), percent(part.get("disagreement"))) for part in rounds]


def _meshes(scene: FusedScene) -> list[tuple[str, Mesh]]:
    both = [("each picture alone", scene.alone), ("all pictures together", scene.together)]
    return [(title, mesh) for title, mesh in both if mesh is not None]


def _turntables(scene: FusedScene) -> list[tuple[str, str]]:
    width, height, angle = _TURNTABLE
    camera = Camera.from_view_angle(width, height, angle)
    centre = np.median(scene.together.points, axis=0)
    poses = swing_poses([view.camera_to_world for view in scene.views], centre, FRAMES)
    shown = []
    for title, mesh in _meshes(scene):
        stream = io.BytesIO()
        save_animation(draw_mesh(mesh, camera, poses), stream)
        shown.append((title, f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"))
    return shown


def _slices(scene: FusedScene) -> list[tuple[str, str]]:
    """All depth maps cut by the horizontal plane of the picture in the middle of the list."""
    middle = scene.views[len(scene.views) // 2].camera_to_world
    thickness = SLICE_VOXELS * scene.voxel
    cuts: dict[str, list[NDArray[np.float64]]] = {"each picture alone": [], "all pictures together": []}
    for view in scene.views:
        for title, depth in zip(cuts, (view.alone, view.depth), strict=True):
            points = view.camera.points(depth)[::_STRIDE, ::_STRIDE].reshape(-1, 3)
            points = transform_points(points[np.isfinite(points).all(axis=1)], view.camera_to_world)
            cuts[title].append(slice_points(points, middle, thickness))
    joined = {title: np.concatenate(parts) for title, parts in cuts.items()}
    if not all(map(len, joined.values())):
        return []
    bounds = slice_bounds(joined["all pictures together"])
    return [(title, _uri(draw_slice(points, bounds), "PNG")) for title, points in joined.items()]


def _panel(view: ComparedView, unit: str) -> Any:
    low, high = colour_range(view.depth)
    ends = ColourBar("depth", f"{low:.2f} {unit}", f"{high:.2f} {unit}")
    tiles = [
        Tile(view.image, "picture"),
        Tile(colourise(view.alone, low=low, high=high), "depth, picture alone", bar=ends),
        Tile(colourise(view.depth, low=low, high=high), "depth, all together", bar=ends),
    ]
    if view.sigma is not None:
        with np.errstate(invalid="ignore"):
            relative = view.sigma / view.depth
        _, most = colour_range(relative, "error")
        bar = ColourBar("error", "0 %", f"{most:.1%}")
        tiles.append(Tile(colourise(relative, low=0.0, high=most, scheme="error"), "standard deviation", bar=bar))
    return draw_panel([tiles], tile_width=300)


def _uri(picture: Picture, file_format: str) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, file_format)
    return f"data:image/{file_format.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _write_bytes(content: bytes, path: Path) -> None:
    path.write_bytes(content)
