"""`leadline demo`: a rendered room with a faulty prior, completed by several methods from the paper's measurements."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import leadline.methods as registry
from leadline.base.arrays import FloatArray
from leadline.base.strict_json import dump_json
from leadline.batch.outputs import write_cloud
from leadline.bench.metrics import DepthScores, NormalScores, depth_scores, normal_scores, normals, relative_error
from leadline.bench.observations import CASES, Case, Observations, observe
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.datasets import Scene
from leadline.datasets.rendered import network_like_prior, render
from leadline.geometry.cameras import Camera
from leadline.io.depth import write_depth
from leadline.io.files import atomic_write, make_folder, write_text
from leadline.methods import MethodResult
from leadline.report.colour import Picture, colour_range, colourise, draw_measurements, normals_picture
from leadline.report.tiles import ColourBar, Tile, draw_panel

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DEMO_METHODS = {
    "raw": "prior, not metric",
    "gdisp": "affine in disparity",
    "gmetric": "affine in depth",
    "glog": "affine in log depth",
    "response": "adaptive response",
    "ours": "the paper's method",
    "best": "leadline's default",
}
_SHOWN = ("gdisp", "ours", "best")
_DEFAULT = "best"
_LARGEST_ERROR_SHOWN = 0.06  # relative error at the dark end of every error map


@dataclass(frozen=True)
class DemoScore:
    """One method on one case."""

    case: Case
    method: str
    depth: DepthScores
    normals: NormalScores
    status: str
    seconds: float
    parameters: dict[str, float]


@dataclass(frozen=True)
class DemoResult:
    """The scores of the demo, and the files it wrote."""

    scores: tuple[DemoScore, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Run:
    """The inputs and results that the outputs are made from."""

    scene: Scene
    reference: FloatArray
    camera: Camera
    prior: Prior
    observed: dict[Case, Observations]
    results: dict[tuple[Case, str], MethodResult]


def run_demo(output: Path, *, width: int = 640, height: int = 480, seed: int = 0, console: Console) -> DemoResult:
    """Run every method of the demo on the three cases, print a table, and write pictures, depth, cloud and numbers.

    Written into `output`, which is made if needed: ``demo.png`` (a panel of pictures), ``demo_depth.png`` (16-bit
    millimetres), ``cloud.ply`` (the completed depth as coloured points) and ``demo.json`` (options and scores).

    `seed` is that of the room and of the errors of the prior; the measurements are a fixed grid.
    """
    output = Path(output)
    make_folder(output)
    run = _run(width, height, seed)
    scores = tuple(_score(run, case, name) for case, name in run.results)
    console.print(_table(scores))
    files = _write(output, run, scores, {"width": width, "height": height, "seed": seed})
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return DemoResult(scores, files)


def _run(width: int, height: int, seed: int) -> _Run:
    scene = render(width, height, seed=seed)
    if scene.reference is None or not isinstance(scene.camera, Camera):
        raise TypeError("a rendered scene has a reference and a pinhole camera")
    prior = Prior(network_like_prior(scene.reference, seed=seed))
    observed = {case: observe(scene.reference, case) for case in CASES}
    results = {
        (case, name): registry.run_method(registry.method(name), prior, observed[case].sparse)
        for case in CASES
        for name in DEMO_METHODS
    }
    return _Run(scene, scene.reference, scene.camera, prior, observed, results)


def _score(run: _Run, case: Case, name: str) -> DemoScore:
    result, scored = run.results[case, name], run.observed[case].scored
    depth = depth_scores(result.depth, run.reference, scored)
    angles = normal_scores(result.depth, run.reference, run.camera, scored)
    return DemoScore(case, name, depth, angles, result.status, result.seconds, result.parameters)


def _table(scores: tuple[DemoScore, ...]) -> Table:
    from rich import box
    from rich.table import Table

    values = {}
    for score in scores:
        values[score.method, score.case, "AbsRel"] = score.depth.absrel
        values[score.method, score.case, "NMed"] = score.normals.median_deg
    columns = [(case, kind) for case in CASES for kind in ("AbsRel", "NMed")]
    best = {(case, kind): np.nanmin([values[name, case, kind] for name in DEMO_METHODS]) for case, kind in columns}
    table = Table(
        title="Error where nothing was measured: AbsRel, and the median normal error NMed in degrees",
        caption="Lower is better; the lowest is bold. The prior is artificial and the room rendered, so this is only "
        "an illustration. MAE and more are in demo.json.",
        box=box.SIMPLE_HEAD,  # fits a terminal of 80 columns
        padding=(0, 1, 0, 0),
    )
    table.add_column("\nmethod", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    for case, kind in columns:
        table.add_column(f"{case if kind == 'AbsRel' else ''}\n{kind}", justify="right", no_wrap=True)
    for name, meaning in DEMO_METHODS.items():
        cells = []
        for case, kind in columns:
            value = values[name, case, kind]
            text = "-" if math.isnan(value) else f"{value:.2f}" if kind == "NMed" else f"{value:.4f}"
            cells.append(f"[bold]{text}[/bold]" if value == best[case, kind] else text)
        table.add_row(name, meaning, *cells)
    return table


def _write(output: Path, run: _Run, scores: tuple[DemoScore, ...], options: dict[str, int]) -> tuple[Path, ...]:
    picture, depth_file, cloud, numbers = (
        output / name for name in ("demo.png", "demo_depth.png", "cloud.ply", "demo.json")
    )
    image = draw_panel(_tiles(run, scores), heading="leadline demo", note=_note(run))
    atomic_write(picture, lambda path: image.save(path, format="PNG"))

    depth = run.results["distributed", _DEFAULT].depth
    write_depth(depth_file, depth, "mm")
    write_cloud(cloud, run.camera, depth, run.scene.image)

    record = {
        "scene": {**options, "camera": asdict(run.camera)},
        "options": asdict(CompletionOptions.paper()),
        "measurements": {case: int(np.isfinite(run.observed[case].sparse).sum()) for case in CASES},
        "scores": [asdict(score) for score in scores],
    }
    write_text(numbers, dump_json(record))
    return picture, depth_file, cloud, numbers


def _note(run: _Run) -> str:
    count = int(np.isfinite(run.observed["distributed"].sparse).sum())
    return (
        f"A rendered room, {run.camera.width} x {run.camera.height}; {count} measurements "
        f"({count / run.reference.size:.1%} of the pixels); errors are |D - reference| / reference where scored."
    )


def _tiles(run: _Run, scores: tuple[DemoScore, ...]) -> list[list[Tile]]:
    low, high = colour_range(run.reference)
    metres = ColourBar("depth", f"{low:.1f} m", f"{high:.1f} m")
    relative = ColourBar("depth", "near", "far")
    found = {(score.case, score.method): score for score in scores}
    result = run.results["distributed", _DEFAULT].depth
    scene = [
        Tile(run.scene.image, "Image"),
        _measurements(run, "distributed", "Measurements", metres, low, high),
        Tile(colourise(run.prior.depth()), "Prior", "relative, with errors", relative),
        Tile(colourise(result, low=low, high=high), "Completed depth", "leadline's default, best", metres),
    ]
    orientation = [Tile(_normals(run.reference, run.camera), "Normals of the reference")]
    for name in _SHOWN:
        angle = found["distributed", name].normals.median_deg
        picture = _normals(run.results["distributed", name].depth, run.camera)
        orientation.append(Tile(picture, f"Normals: {DEMO_METHODS[name]}", f"median error {angle:.2f} degrees"))
    reference = Tile(colourise(run.reference, low=low, high=high), "Reference depth", "", metres)
    rows = [scene, [reference, *_errors(run, found, "distributed")], orientation]
    for case, title in (("central", "Measured outside the centre"), ("outer", "Measured in the centre only")):
        rows.append([_measurements(run, case, title, metres, low, high), *_errors(run, found, case)])  # type: ignore[arg-type]
    return rows


def _measurements(run: _Run, case: Case, title: str, bar: ColourBar, low: float, high: float) -> Tile:
    sparse = run.observed[case].sparse
    picture = draw_measurements(sparse, run.scene.image, low=low, high=high)
    return Tile(picture, title, f"{int(np.isfinite(sparse).sum())} pixels, enlarged", bar)


def _errors(run: _Run, found: dict[tuple[Case, str], DemoScore], case: Case) -> list[Tile]:
    bar = ColourBar("error", "0", f"{_LARGEST_ERROR_SHOWN:.0%}")
    tiles = []
    for name in _SHOWN:
        error = relative_error(run.results[case, name].depth, run.reference)
        if case != "distributed":  # there only single pixels are not scored, and leaving them out would speckle the map
            error[~run.observed[case].scored] = np.nan
        picture = colourise(error, low=0.0, high=_LARGEST_ERROR_SHOWN, scheme="error")
        tiles.append(Tile(picture, f"Error: {DEMO_METHODS[name]}", f"AbsRel {found[case, name].depth.absrel:.2%}", bar))
    return tiles


def _normals(depth: FloatArray, camera: Camera) -> Picture:
    return normals_picture(normals(depth, camera))
