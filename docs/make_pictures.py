"""The pictures of the README and the docs that need no browser: the rendered room, through the command line.

    python docs/make_pictures.py [FOLDER]

Nothing is downloaded, and the same pictures come out each time. FOLDER is docs/images by default. ``make pictures``
runs this script and the others beside it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from picture_files import Pictures, draw_pictures, output_folder, run_command, write_scene
from PIL import Image

from leadline.base.arrays import FloatArray
from leadline.batch.outputs import PixelOrigin
from leadline.bench.metrics import normals, relative_error
from leadline.bench.observations import observe
from leadline.datasets import Scene, rendered
from leadline.datasets.rendered.renderer import render_setting
from leadline.datasets.rendered.room import ROOM
from leadline.geometry.cameras import Camera
from leadline.geometry.grids import scatter_nearest
from leadline.geometry.surface import EdgeLimits, surface_from_depth
from leadline.io.depth import read_depth, write_depth
from leadline.report.colour import colour_range, colourise, draw_measurements, normals_picture
from leadline.report.tiles import ColourBar, Tile, draw_panel

WIDTH, HEIGHT = 640, 480
BESIDE, ABOVE = 0.35, 0.25  # metres from the camera to the LiDAR
BEAMS, STEPS = 64, 700
FORWARD = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])  # a LiDAR's axes to a camera's
ZONE = 10  # pixels of the picture across one of the phone's
PANEL_GAP, DEMO_ROWS = 22, 3  # pixels between the rows of a panel, and rows of the demo's panel to show
GLASS, WINDOW = np.s_[180:300, 60:200], np.s_[60:150, 380:520]  # rows and columns of two panes
ERROR = 0.06  # relative error at the dark end


def sweep() -> FloatArray:
    """Points of a LiDAR above and to the right of the camera, in its own axes, with a wider view than the camera's."""
    yaw, pitch = ROOM.yaw, ROOM.pitch
    right = np.array([math.cos(yaw), 0, -math.sin(yaw)])
    up = np.array([-math.sin(yaw) * math.sin(pitch), math.cos(pitch), -math.cos(yaw) * math.sin(pitch)])
    x, y, z = (np.array(ROOM.eye) + BESIDE * right + ABOVE * up).tolist()
    seen = render_setting(replace(ROOM, eye=(x, y, z)), STEPS, BEAMS * 7, focal=0.6)
    assert isinstance(seen.camera, Camera)
    assert seen.reference is not None
    points = seen.camera.points(seen.reference)[::7].reshape(-1, 3)
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = FORWARD, (BESIDE, -ABOVE, 0)
    Path("T.json").write_text(json.dumps(transform.tolist()), encoding="utf-8")
    turned: FloatArray = points @ FORWARD  # back into the LiDAR's axes: the inverse is the transpose
    return turned


def error_tile(path: str, reference: FloatArray, title: str) -> Tile:
    error = relative_error(np.load(path), reference)
    caption = f"AbsRel {100 * float(np.nanmean(error)):.2f} %"
    picture = colourise(error, low=0, high=ERROR, scheme="error")
    return Tile(picture, title, caption, ColourBar("error", "0", f"{ERROR:.0%}"))


def lidar(scene: Scene, reference: FloatArray) -> Pictures:
    np.save("sweep.npy", sweep().astype(np.float32))
    project = "project sweep.npy --camera cam.json --extrinsics T.json --image photo.png -o sparse.npy --quiet"
    run_command(f"{project} --max-range 5.5")
    found = {"sensor-points": Image.open("sparse_points.png").convert("RGB")}
    rows: list[list[Tile]] = [[], []]
    low, high = colour_range(reference)
    for title in ("--no-see-through", "default", "--see-through-radius 40"):
        run_command(f"{project} {'' if title == 'default' else title}")
        complete("--sparse sparse.npy --unit m", "lidar")
        sparse = np.load("sparse.npy")
        errors = relative_error(sparse, reference)
        off = float(np.mean(errors[np.isfinite(errors)] > 0.1))
        caption = f"{int(np.isfinite(sparse).sum())} pixels, {off:.1%} off by more than 10 %"
        rows[0].append(Tile(draw_measurements(sparse, scene.image, low=low, high=high), title, caption))
        rows[1].append(error_tile("lidar/photo_depth.npy", reference, "completed: error"))
    found["sensor-see-through"] = draw_panel(rows, tile_width=360)
    return found


def complete(options: str, output: str) -> None:
    run_command(f"complete photo.png {options} --prior prior.npy -o {output} --format npy --quiet --overwrite")


def phone(scene: Scene, reference: FloatArray) -> Pictures:
    """A map of 64x48 whose pixels are means, and which knows where these lie on two surfaces."""
    blocks = reference.reshape(HEIGHT // ZONE, ZONE, WIDTH // ZONE, ZONE).swapaxes(1, 2)
    mean, spread = blocks.mean(axis=(2, 3)), np.ptp(blocks, axis=(2, 3)) / blocks.mean(axis=(2, 3))
    levels = np.where(spread < 0.06, 2, np.where(spread < 0.2, 1, 0)).astype(np.uint8)
    write_depth("tof.png", mean, "mm")
    Image.fromarray(levels).save("levels.png")
    low, high = colour_range(reference)
    large = np.kron(mean, np.ones((ZONE, ZONE)))
    grey = np.repeat(np.kron(levels, np.ones((ZONE, ZONE)))[..., None] * 110 + 20, 3, axis=-1).astype(np.uint8)
    placed = scatter_nearest(mean, reference.shape)[0]
    first = [
        Tile(colourise(large, low=low, high=high), "a phone's map, 64x48", "means over 10x10 pixels"),
        Tile(grey, "its confidence", "black 0, grey 1, bright 2"),
        Tile(
            draw_measurements(placed, scene.image, low=low, high=high), "--scatter-sparse", "each at its zone's centre"
        ),
    ]
    second = []
    common = "--sparse tof.png --unit mm --scatter-sparse"
    for level in (0, 1, 2):
        complete(f"{common} --confidence levels.png --min-confidence {level}", "phone")
        title = f"--min-confidence {level}{': all' if not level else ''}"
        second.append(error_tile("phone/photo_depth.npy", reference, title))
    return {"sensor-confidence": draw_panel([first, second], tile_width=360)}


def stereo(scene: Scene, reference: FloatArray) -> Pictures:
    """An active stereo camera: noise that grows with the square of the distance, and holes."""
    random = np.random.default_rng(0)
    noisy = reference + random.normal(0, 1, reference.shape) * 0.006 * reference**2
    rows, columns = np.indices(reference.shape)
    hole = (np.hypot((rows - 230) / 90, (columns - 360) / 130) < 1) | (columns < 40)
    noisy[hole] = np.nan
    write_depth("depth.png", noisy, "mm")
    measured = read_depth("depth.png", "mm").values
    error = relative_error(measured, reference)
    tiles = [
        Tile(
            colourise(error, low=0, high=ERROR, scheme="error"),
            "measured: error",
            f"AbsRel {100 * float(np.nanmean(error)):.2f} %, and holes",
            ColourBar("error", "0", f"{ERROR:.0%}"),
        )
    ]
    for title, flags in {"completed": "", "--noise 0,0,0.006": "--noise 0,0,0.006"}.items():
        complete(f"--sparse depth.png --unit mm {flags}", "stereo")
        tiles.append(error_tile("stereo/photo_depth.npy", reference, title))
    return {"sensor-noise": draw_panel([tiles], tile_width=360)}


def glass(scene: Scene, reference: FloatArray) -> Pictures:
    """A stereo camera that measures what lies behind two panes of glass: a quarter too far, and a plane."""
    rows, columns = np.indices(reference.shape)
    measured = np.where((rows % 8 == 4) & (columns % 8 == 4), reference, np.nan)
    first, second = np.zeros((2, *reference.shape), np.bool_)
    first[GLASS], second[WINDOW] = True, True
    measured[first] *= 1.25
    measured[second & np.isfinite(measured)] = 1.2 * reference[second].max()
    np.save("glass.npy", measured)
    low, high = colour_range(reference)
    panes = draw_measurements(measured, scene.image, low=low, high=high)
    tiles = [Tile(panes, "measured, two regions too far", f"{int(np.isfinite(measured).sum())} pixels")]
    for policy in ("keep", "regions"):
        complete(f"--sparse glass.npy --unit m --outliers {policy} --mask", policy)
        tiles.append(error_tile(f"{policy}/photo_depth.npy", reference, f"--outliers {policy}: error"))
    mask = np.asarray(Image.open("regions/photo_mask.png"))
    left_out = np.where(mask == PixelOrigin.LEFT_OUT, measured, np.nan)
    found = draw_measurements(left_out, scene.image, low=low, high=high)
    correct = int(((first | second) & np.isfinite(left_out)).sum())
    wrong = int(((first | second) & np.isfinite(measured)).sum())
    caption = f"{correct} of {wrong} wrong ones, and {int(np.isfinite(left_out).sum()) - correct} others"
    tiles.insert(1, Tile(found, "left out", caption))
    dense = np.where(first, 1.25 * reference, np.where(second, 1.2 * reference[second].max(), reference))
    dense[:, :40] = np.nan
    np.save("dense.npy", dense)
    complete("--sparse dense.npy --unit m --outliers regions --mask", "dense")
    grey = np.repeat(np.asarray(Image.open("dense/photo_mask.png"))[..., None], 3, axis=-1)
    depths = [
        Tile(colourise(dense, low=low, high=high), "a dense sensor", "two regions too far, no depth at the left"),
        Tile(grey, "--mask", "white measured, light grey filled, dark grey left out"),
        Tile(colourise(np.load("dense/photo_depth.npy"), low=low, high=high), "--outliers regions: depth", ""),
    ]
    return {
        "outlier-regions": draw_panel([tiles[:2], tiles[2:]], tile_width=420),
        "outlier-mask": draw_panel([depths], tile_width=360),
    }


def refined(scene: Scene, reference: FloatArray) -> Pictures:
    """An RGB-D folder of three rooms: a sensor with holes, and one frame with a pane that it looks through."""
    random = np.random.default_rng(0)
    for name in ("scene/rgb", "scene/depth", "scene-priors"):
        Path(name).mkdir(parents=True)
    rows, columns = np.indices(reference.shape)
    for seed, name in enumerate(("frame-0", "frame-1", "frame-2")):
        room = rendered.render(WIDTH, HEIGHT, seed=seed)
        assert room.reference is not None
        measured = room.reference + random.normal(0, 0.0015, reference.shape) * room.reference**2
        if name == "frame-1":
            measured[GLASS] *= 1.25
        place = (120 + 90 * seed, 160 + 150 * seed)
        measured[np.hypot((rows - place[0]) / 60, (columns - place[1]) / 90) < 1] = np.nan
        measured[:, : 20 + 10 * seed] = np.nan
        Image.fromarray(room.image).save(f"scene/rgb/{name}.png")
        write_depth(f"scene/depth/{name}.png", measured, "mm")
        np.save(f"scene-priors/{name}.npy", rendered.network_like_prior(room.reference, seed=seed))
    run_command("refine scene --unit mm --prior scene-priors -o refined --outliers regions --quiet")
    return {"refine-sheet": Image.open("refined/contact_sheet.png").convert("RGB")}


def surfaces(scene: Scene, reference: FloatArray) -> Pictures:
    """Clouds with and without flying pixels, and a mesh, seen from the side."""
    assert isinstance(scene.camera, Camera)
    sparse = observe(reference, "distributed").sparse
    np.save("grid.npy", sparse)
    complete("--sparse grid.npy --unit m", "surface")
    depth = np.load("surface/photo_depth.npy")
    tiles = []
    for title, edges in (("--ply --no-edge-filter", None), ("--ply", EdgeLimits())):
        surface = surface_from_depth(depth, scene.camera, edges=edges)
        colours = scene.image.reshape(-1, 3)[surface.pixels]
        view = splat(surface.points, colours, scene.camera)
        tiles.append(Tile(view, title, f"{len(surface.points)} points"))
    weights = np.array([(i, j, 4 - i - j) for i in range(5) for j in range(5 - i)]) / 4
    corners, shades = surface.points[surface.triangles], colours[surface.triangles].astype(np.float32)
    filled, painted = (np.einsum("wk,tkc->wtc", weights, values).reshape(-1, 3) for values in (corners, shades))
    view = splat(filled, np.rint(painted).astype(np.uint8), scene.camera)
    tiles.append(Tile(view, "--mesh glb", f"{len(surface.triangles)} triangles"))
    return {"refine-surfaces": draw_panel([tiles], tile_width=420)}


def splat(points: FloatArray, colours: NDArray[np.uint8], camera: Camera) -> NDArray[np.uint8]:
    """Points as squares of two pixels, seen from 0.9 m to the right and 0.5 m above, by a camera that turns to them."""
    yaw, pitch = 0.32, 0.16
    across = np.array([[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]])
    down = np.array([[1, 0, 0], [0, math.cos(pitch), -math.sin(pitch)], [0, math.sin(pitch), math.cos(pitch)]])
    seen = (points - np.array([0.9, -0.5, 0.0])) @ (down @ across).T
    order = np.argsort(-seen[:, 2])
    pixels = camera.project(seen[order])
    inside = (pixels > 0).all(axis=1) & (pixels < (camera.width - 2, camera.height - 2)).all(axis=1)
    x, y = pixels[inside].astype(np.intp).T
    picture = np.full((camera.height, camera.width, 3), 255, np.uint8)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        picture[y + i, x + j] = colours[order][inside]
    return picture


def presets(scene: Scene, reference: FloatArray) -> Pictures:
    """Error and normals of both presets on the paper's grid of cell means."""
    assert isinstance(scene.camera, Camera)
    np.save("grid.npy", observe(reference, "distributed").sparse)
    errors, surfaces = [], []
    true = normals(reference, scene.camera)
    for preset in ("paper", "best"):
        complete(f"--sparse grid.npy --unit m --preset {preset}", preset)
        errors.append(error_tile(f"{preset}/photo_depth.npy", reference, f"--preset {preset}: error"))
        found = normals(np.load(f"{preset}/photo_depth.npy").astype(np.float64), scene.camera)
        angles = np.degrees(np.arccos(np.clip((found * true).sum(axis=-1), -1, 1)))
        caption = f"median {float(np.nanmedian(angles)):.1f} degrees off"
        surfaces.append(Tile(normals_picture(found), f"--preset {preset}: normals", caption))
    return {"beyond-presets": draw_panel([errors, surfaces], tile_width=420)}


def demo(scene: Scene, reference: FloatArray) -> Pictures:
    """The upper three rows of the panel that `leadline demo` writes."""
    run_command("demo -o demo")
    panel = Image.open("demo/demo.png").convert("RGB")
    blank = np.flatnonzero((np.asarray(panel) == 255).all(axis=(1, 2)))
    # The rows of the panel are separated by blank lines, the widest of which lie below the captions.
    starts = blank[np.flatnonzero(np.diff(blank, prepend=-2) > 1)]
    ends = np.append(blank[np.flatnonzero(np.diff(blank) > 1)], blank[-1])
    gaps = [int(start) for start, end in zip(starts, ends, strict=True) if end - start >= PANEL_GAP and start > 0]
    return {"demo": panel.crop((0, 0, panel.width, gaps[DEMO_ROWS - 1] + PANEL_GAP))}


def figures(scene: Scene, reference: FloatArray) -> Pictures:
    """Figures of a small run, and one of the paper's published numbers."""
    run_command("bench run smoke -o RUN")
    run_command("figures RUN regions qualitative -o FIGURES")
    run_command("figures --published macro -o FIGURES")
    names = ("regions", "qualitative", "macro")
    return {f"figure-{name}": Image.open(f"FIGURES/{name}.png").convert("RGB") for name in names}


def main(folder: Path) -> None:
    scene = rendered.render(WIDTH, HEIGHT)

    def prepared(make: Callable[[Scene, FloatArray], Pictures]) -> Pictures:
        reference, _ = write_scene(scene)
        return make(scene, reference)

    makers = (demo, lidar, phone, stereo, glass, refined, surfaces, presets, figures)
    draw_pictures((partial(prepared, make) for make in makers), folder)


if __name__ == "__main__":
    main(output_folder(sys.argv[1:]))
