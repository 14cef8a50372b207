"""The output of the page for a result: summary, views, files to download, and how to compute it without the page."""

from __future__ import annotations

import io
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from leadline.apps.cli import version
from leadline.apps.studio.scene import ASSUMED_VIEW_DEG, PRIOR_FILE, CameraSource, Result
from leadline.apps.studio.sessions import Role, Session
from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.base.strict_json import dump_json
from leadline.batch.outputs import write_cloud, write_in_fitting_unit
from leadline.core.fit.estimator import FitStatus
from leadline.core.options import CompletionOptions
from leadline.core.outliers import Outliers
from leadline.io.depth import write_depth
from leadline.io.files import file_hash
from leadline.io.mesh import write_surface_mesh
from leadline.io.notes import NoteKind
from leadline.io.units import png_units
from leadline.report.colour import Picture, Scheme, colour_bar, colour_range
from leadline.report.completed_scene import draw_view, error_range
from leadline.report.scene_geometry import map_regions
from leadline.report.tiles import depth_ticks

if TYPE_CHECKING:
    from leadline.priors.predictor import Predictor

MAX_VIEW_SIZE = 1600
"""Pixels along the longer side of a picture on the page. Downloads have the full size."""
_DOWNLOADS = {
    "depth.npy": "Depth in metres (npy)",
    "depth.png": "Depth, 16-bit PNG",
    "sigma.npy": "Uncertainty in metres (npy)",
    "cloud.ply": "Point cloud (PLY)",
    "mesh.glb": "Mesh with the image as its texture (GLB)",
    "report.json": "Record of settings and results (JSON)",
    "sparse.npy": "Measurements as used",
    "prior.npy": "Prior as used",
}
"""Titles of the files to download, by the end of their names."""
_OF_THE_DEPTH = ("depth.npy", "depth.png", "cloud.ply", "mesh.glb")
_MEDIA_TYPES = {".png": "image/png", ".json": "application/json", ".glb": "model/gltf-binary"}
_WARNINGS = {
    NoteKind.UNIT_GUESSED,
    NoteKind.REFERENCE_UNIT_GUESSED,
    NoteKind.UNIT_IMPLAUSIBLE,
    NoteKind.ALIGNMENT,
    NoteKind.ASPECT_RATIO,
}
"""Kinds of notes that are shown as warnings, because the user should check something."""


def summarize(
    session: Session, result: Result, predictors: Mapping[str, Predictor], *, show_folders: bool
) -> dict[str, Any]:
    """The numbers and texts about a completed scene. Lengths are in metres."""
    scene, completion = result.scene, result.scene.completion
    height, width = completion.depth.shape
    near, far = colour_range(completion.depth)
    regions = describe_regions(result)
    views = {"regions": bool(regions), "error": scene.reference is not None, "normals": True}
    views["uncertainty"] = completion.sigma is not None
    uncertainty = None
    if completion.sigma is not None:  # `high` is at the dark end of the colour ramp
        uncertainty = {"median": scene.median_sigma(), "high": colour_range(completion.sigma, "error")[1]}
    return {
        "relative": False,
        "revision": result.revision,
        "width": width,
        "height": height,
        "views": ["image", "measurements", "prior", "depth", *(name for name, shown in views.items() if shown)],
        "near": near,
        "far": far,
        "ticks": depth_ticks(near, far, closest=0.15),
        "regions": regions,
        "measurements": completion.fit.count,
        "measurements_removed": result.measurements_removed,
        "outliers": result.outliers,
        "exponent": completion.fit.response.exponent,
        "rmse": completion.fit.rmse,
        "converged": completion.converged,
        "notes": _notes(session, result),
        "camera": result.camera_source.value,
        "error_high": error_range(scene),
        "uncertainty": uncertainty,
        "scores": result.score(completion.depth),
        "downloads": download_titles(result),
        "inputs": session.names() if session.example else {},
        "recipe": make_recipe(session, result, predictors, show_folders=show_folders),
        "compare_as": result.method_name,
    }


def describe_regions(result: Result) -> list[dict[str, Any]]:
    """The regions of outliers that were found, in the order of their numbers, and whether each is used all the same."""
    regions = () if result.found is None else result.found.regions
    return [
        {"text": region.describe(), "count": region.count, "kept": label in result.request.kept_regions}
        for label, region in enumerate(regions, 1)
    ]


def encode_regions(result: Result) -> bytes:
    """The map of the regions of outliers: its width and height as two uint32, then (height, width) uint16."""
    labels = map_regions(result.found or Outliers.none(), result.scene.sparse)
    return np.array(labels.shape[::-1], "<u4").tobytes() + labels.astype("<u2").tobytes()


def values_at(result: Result, row: int, column: int) -> dict[str, float]:
    """The values of a result at a pixel in metres, those of compared methods as ``depth-NAME``."""
    height, width = result.scene.completion.depth.shape
    if not (0 <= row < height and 0 <= column < width):
        raise InputError(f"there is no such pixel; the image is {width}x{height}.")
    others = {} if result.held is None else {"held": result.held.depth}
    others |= {f"depth-{name}": depth for name, depth in result.methods.items()}
    more = {name: float(depth[row, column]) for name, depth in others.items()}
    return {**result.scene.values_at(row, column), **more}


def _notes(session: Session, result: Result) -> list[dict[str, Any]]:
    """Remarks about a result, and whether each is shown as a warning."""
    completion = result.scene.completion
    notes = [(session.render(note.text), note.kind in _WARNINGS) for note in result.notes]
    # Without a prior, which is the user's choice, there is only a scale to fit.
    expected = (FitStatus.CONVERGED, FitStatus.SCALE_ONLY) if result.request.prior == "none" else (FitStatus.CONVERGED,)
    if completion.fit.status not in expected:
        notes.append((f"Fit: {_sentence(session.render(completion.fit.status.value))}", True))
    if not completion.reconstruction.converged:
        notes.append((f"Solve: {_sentence(session.render(completion.reconstruction.status.value))}", True))
    if result.measurements_removed:
        notes.append((f"{result.measurements_removed:,} measurements under the drawn mask were removed.", False))
    if completion.outliers is not None and completion.outliers.prior_error is not None:
        lines = (line.removeprefix("region ") for line in completion.outliers.describe_regions())
        notes += [(f"Outlier region: {line}.", bool(result.outliers)) for line in lines]
        for region in describe_regions(result):
            notes += [(f"Region kept by hand: {region['text']}.", True)] if region["kept"] else []
    elif result.outliers:
        notes.append((f"{result.outliers:,} outliers were removed: they contradict all their neighbours.", True))
    if result.camera_source is CameraSource.ASSUMED:
        text = "No camera was given: the 3D view and the normals assume a field of view of "
        notes.append((f"{text}{ASSUMED_VIEW_DEG:g}°. The depth does not depend on it.", False))
    return [{"text": text, "warning": warning} for text, warning in notes]


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def encode_view(result: Result, name: str) -> tuple[bytes, str]:
    """A view of `draw_view` and its media type."""
    return encode_picture(draw_view(result.scene, name, held=result.held, methods=result.methods), name)


def colour_ramp(scheme: str) -> bytes:
    """A colour ramp as a PNG, with the nearest depth or no error at the left."""
    for known in get_args(Scheme):
        if known == scheme:
            return _encode(colour_bar(256, 4, known), "PNG")
    raise InputError(f"there is no colour ramp {scheme!r}; {suggestion(scheme, get_args(Scheme))}")


def encode_picture(picture: Picture, name: str) -> tuple[bytes, str]:
    """The picture of a view and its media type: JPEG for the image itself, PNG for maps."""
    return (_encode(picture, "JPEG"), "image/jpeg") if name == "image" else (_encode(picture, "PNG"), "image/png")


def _encode(picture: Picture, image_format: str) -> bytes:
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((MAX_VIEW_SIZE, MAX_VIEW_SIZE))
    stream = io.BytesIO()
    image.save(stream, image_format, **({"quality": 92} if image_format == "JPEG" else {"compress_level": 3}))
    return stream.getvalue()


def download_titles(result: Result) -> dict[str, str]:
    """Titles of the downloads of a result, by kind. If an exponent was set by hand, the depth is for that exponent."""
    titles = dict(_DOWNLOADS)
    if result.scene.completion.sigma is None:
        del titles["sigma.npy"]
    if result.held is not None:
        at = f" at λ = {result.held.response.exponent:.2f}"
        titles |= {kind: titles[kind] + at for kind in _OF_THE_DEPTH}
    return titles


def make_download(session: Session, result: Result, kind: str) -> tuple[bytes, str, str]:
    """The content, the media type and the name of a file of that kind."""
    known = download_titles(result)
    if kind not in known:
        raise InputError(f"there is no download {kind!r}; {suggestion(kind, known)}")
    held = "" if result.held is None else f"_lambda{result.held.response.exponent:.2f}"
    name = f"{result.files.stem}{held if kind in _OF_THE_DEPTH else ''}_{kind}"
    media_type = _MEDIA_TYPES.get(Path(kind).suffix, "application/octet-stream")
    if kind == "report.json":
        return dump_json(_record(session, result)).encode(), media_type, name
    path = session.folder / f"out-{secrets.token_hex(4)}{Path(kind).suffix}"
    try:
        _write(path, result, kind)
        return path.read_bytes(), media_type, name
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, result: Result, kind: str) -> None:
    scene = result.scene
    if kind == "depth.png":
        write_in_fitting_unit({path: result.depth}, png_units(result.inputs.unit))
    elif kind == "cloud.ply":
        write_cloud(path, scene.camera, result.depth, scene.image)
    elif kind == "mesh.glb":
        write_surface_mesh(path, result.depth, scene.camera, scene.image)
    elif kind == "prior.npy":
        np.save(path, scene.prior.values)
    elif kind == "sigma.npy" and scene.completion.sigma is not None:
        np.save(path, scene.completion.sigma)
    else:
        write_depth(path, result.used if kind == "sparse.npy" else result.depth, "m")


def _record(session: Session, result: Result) -> dict[str, Any]:
    held = result.held
    return {
        "leadline": version(),
        "frame": result.files.stem,
        "inputs": {
            role.value: {"name": upload.name, "sha256": file_hash(upload.path)}
            for role, upload in session.files.items()
        },
        **result.inputs.record,
        "prior_source": result.request.prior,
        "camera_source": result.camera_source.value,
        "measurements_removed_by_hand": result.measurements_removed,
        "regions_kept_by_hand": sorted(result.request.kept_regions),
        "notes": [session.render(note.text) for note in result.notes],
        "result": result.scene.completion.to_dict(),
        "exponent_set_by_hand": None if held is None else {**vars(held.response), "rmse": held.rmse},
    }


def make_recipe(
    session: Session, result: Result, predictors: Mapping[str, Predictor], *, show_folders: bool
) -> dict[str, str]:
    """The command line and the Python program that compute the same depth as the page.

    With a drawn mask or kept regions both begin with the measurements as used, which can be downloaded. Without
    `show_folders` a network is named without the folder of its model, which visitors from elsewhere should not see.
    """
    names = session.names()
    inputs, options, head, spec = {"image": names[Role.IMAGE]}, dict[str, Any](), "", None
    sizes = result.inputs.record["sizes"]
    if result.measurements_removed or result.request.kept_regions:
        inputs["sparse"], options["unit"] = f"{result.files.stem}_sparse.npy", "m"
        head = f"# {inputs['sparse']}: “Measurements as used”, downloaded from the page\n"
    elif result.files.points is not None:
        inputs |= {"points": names[Role.SPARSE], "camera": names[Role.CAMERA]}
        if Role.EXTRINSICS in names:
            inputs["extrinsics"] = names[Role.EXTRINSICS]
    else:
        inputs["sparse"], options["unit"] = names[Role.SPARSE], result.inputs.unit
    if result.request.prior == PRIOR_FILE:
        inputs["prior"], options["prior_kind"] = names[Role.PRIOR], result.inputs.prior.kind
    else:
        spec = predictors[result.request.prior].spec if show_folders else result.request.prior.replace(": ", ":")
    if sizes["prior"] != sizes["image"]:
        options["resize_prior"] = True
    if sizes["sparse"] != sizes["image"] and not head:
        options["scatter_sparse"] = True
    return {
        "command": head + _command(inputs, options, spec, result),
        "python": head + _program(inputs, options, spec, result),
    }


def _command(inputs: Mapping[str, str], options: Mapping[str, Any], spec: str | None, result: Result) -> str:
    words = ["leadline", "complete", inputs["image"]]
    for name, value in {**inputs, **({} if spec is None else {"prior": spec}), **options}.items():
        if name != "image":
            flag = "--" + name.replace("_", "-")
            words += [flag] if value is True else [flag, value]
    words += ["--sigma"] if result.request.uncertainty else []
    flags = [flag for flag in result.flags if not (result.request.kept_regions and flag.startswith("--outliers"))]
    return shlex.join([*words, *flags, "-o", "out/"])


def _program(inputs: Mapping[str, str], options: Mapping[str, Any], spec: str | None, result: Result) -> str:
    paths = ", ".join(f"{name}=Path({value!r})" for name, value in inputs.items())
    settings = ", ".join(f"{name}={value!r}" for name, value in options.items())
    predict = "" if spec is None else f", Predictor({spec!r}).predict"
    options_used = replace(result.options, outliers="keep") if result.request.kept_regions else result.options
    arguments = "frame.prior, frame.sparse" + ", uncertainty=True" * result.request.uncertainty
    lines = [
        "from pathlib import Path",
        "",
        "import leadline",
        "from leadline.io import FrameFiles, FrameOptions, read_frame",
        *(["from leadline.priors.predictor import Predictor"] if spec else []),
        "",
        f"files = FrameFiles({paths})",
        f"frame = read_frame(files, FrameOptions({settings}){predict})",
        f"result = leadline.complete({arguments}, options={_options_source(options_used)})",
        "print(result)",
        "result.depth  # (H, W), metres",
    ]
    return "\n".join(lines)


def _options_source(options: CompletionOptions) -> str:
    """The options as Python source: a preset by name, or the fields that differ from the constructor's."""
    presets = {'"best"': CompletionOptions.best(), '"paper"': CompletionOptions.paper()}
    named = (name for name, preset in presets.items() if preset == options)
    return next(named, _source(options, CompletionOptions()))


def _source(value: Any, default: Any) -> str:
    """A dataclass as Python source with the fields that differ from those of `default`."""
    parts = []
    for entry in fields(value):
        own, usual = getattr(value, entry.name), getattr(default, entry.name)
        if own != usual:
            parts.append(f"{entry.name}={_source(own, usual) if is_dataclass(own) else repr(own)}")
    return f"leadline.{type(value).__name__}({', '.join(parts)})"
