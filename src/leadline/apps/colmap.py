"""`leadline colmap`: dense depth for every image of a COLMAP model, from the points that the image sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from leadline.apps.cli import say, version
from leadline.apps.complete import make_writable, prior_file
from leadline.apps.network import Network, given_flags, prior_flags
from leadline.apps.options import completion_flags, completion_options
from leadline.apps.placement import fitted
from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.batch.folder import Report, conclude, guarded
from leadline.batch.frame import FORMS, Outcome, compile_kernels, output_paths, run_frame
from leadline.geometry.cameras import RayCamera
from leadline.geometry.lenses import ColmapCamera
from leadline.io.atomic import write_text
from leadline.io.colmap import ColmapImage, ColmapModel, read_model
from leadline.io.depth.files import read_depth, read_image, write_depth
from leadline.io.exports import check_cameras, stem_of, write_3dgs, write_nerfstudio
from leadline.io.frames import Frame, Settings

if TYPE_CHECKING:
    from leadline.io.colmap import Tracks

EXAMPLES = """\b
Examples:
  leadline colmap sparse/0 --images images/ --prior onnx:model.onnx -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ --prior-kind disparity -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --scale 0.37
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --export 3dgs --export nerfstudio

\b
For each image NAME it writes sparse/NAME.npy, NAME_depth.npy, NAME_preview.png
and, last, NAME.json. Depth lies on the image as it is given: with the lens's
distortion, unless model and images are undistorted. Its unit is the model's, or
metres with --scale. A run that was stopped goes on where it was.

\b
Exports, in the model's unit whatever --scale is:
  3dgs        out/3dgs, to be copied over the scene's folder; train with -d depths
  nerfstudio  out/nerfstudio/transforms.json and depths

\b
Exit code: 0 all done; 1 an image failed or has too few points; 2 nothing could
be done; 130 stopped by Ctrl-C.
"""

_PATH = click.Path(path_type=Path)
_EXPORTS = ("3dgs", "nerfstudio")


@click.command(epilog=EXAMPLES)
@click.argument("model", type=_PATH)
@click.option("--images", type=_PATH, required=True, help="Folder with the images that the model names.")
@click.option(
    "--prior",
    required=True,
    metavar="DIR|NAME[:MODEL]",
    help="Dense relative depth: a folder with a file for each image, or a network, as for 'leadline complete'.",
)
@click.option("-o", "--output", type=_PATH, required=True, help="Folder for the results; made if it is not there.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Metres per unit of the model, if known.")
@click.option("--min-track", type=click.IntRange(2), default=3, show_default=True, help="Images that must see a point.")
@click.option(
    "--max-error", type=float, default=2.0, show_default=True, help="Largest reprojection error of a point, pixels."
)
@click.option(
    "--min-points", type=click.IntRange(1), default=10, show_default=True, help="Below, an image is left out."
)
@click.option("--export", "exports", type=click.Choice(_EXPORTS), multiple=True, help="May be repeated; see below.")
@click.option(
    "--transforms",
    type=_PATH,
    metavar="FILE",
    help="For --export nerfstudio: extend a copy of it.  [default: the transforms.json beside --images, or a new one]",
)
@prior_flags
@click.option("--resize-prior", is_flag=True, help="Interpolate a prior of another size to the image's.")
@click.option("--form", type=click.Choice(list(FORMS)), default="npy", show_default=True, help="Form of the depth.")
@click.option("--output-unit", help="Unit of the depth written.  [default: m, i.e. the model's or --scale's; png mm]")
@click.option("--calibrated", is_flag=True, help="Also write the response-only depth.")
@click.option("--overwrite", is_flag=True, help="Redo images that are complete already.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
@completion_flags
def command(model: Path, images: Path, prior: str, output: Path, **flags: Any) -> int:
    """Complete every image of MODEL, the folder of a COLMAP model, binary or text."""
    settings, network, priors = _choices(prior, images, output, flags)
    from leadline.io.colmap import read_tracks

    registered = read_model(model)
    beside = images.resolve().parent / "transforms.json"
    transforms = flags["transforms"] or (beside if beside.is_file() else None)
    for name in flags["exports"]:
        if name == "3dgs" or transforms is None:
            check_cameras(registered, name)  # better refused before the work than after
    tracks = read_tracks(model)
    make_writable(output)
    if network is not None:
        network.source  # noqa: B018  what is wrong with it is better said once than for each image
    work = Work(registered, tracks, images, output, settings, network, priors, flags)
    limits = {name: flags[name] for name in ("scale", "min_track", "max_error", "min_points")}
    _write_record(output / "colmap.json", {"leadline": version(), "model": str(model), **limits})
    if flags["scale"] == 1.0:
        say("note", "depth is in the model's own unit; --scale gives metres per unit.")
    report = Report(len(registered.images), output, flags["quiet"])

    def run() -> None:
        compile_kernels(settings.completion)
        with report:
            for name in sorted(registered.images):
                report.take(work(registered.images[name]))

    code = conclude(report, run)
    done = {outcome.stem for outcome in report.outcomes if outcome.state != "failed"}
    finished = [registered.images[name] for name in sorted(registered.images) if stem_of(name) in done]
    if finished and code != 130:
        _export(work, finished, transforms, flags)
    return code


def _choices(
    prior: str, images: Path, output: Path, flags: Mapping[str, Any]
) -> tuple[Settings, Network | None, Path | None]:
    """The flags as what they stand for; those that would be ignored are refused."""
    if not images.is_dir():
        raise FileError(f"--images {images}: there is no such folder; give the one that the model's names are in.")
    if output.resolve() == images.resolve():
        raise InputError(f"-o {output}: is the folder of the images; choose another.")
    if not 0 < flags["scale"] < np.inf:
        raise InputError(f"--scale must be a positive number of metres per unit, got {flags['scale']}.")
    if not flags["max_error"] > 0:
        raise InputError(f"--max-error must be a positive number of pixels, got {flags['max_error']}.")
    if flags["transforms"] is not None and "nerfstudio" not in flags["exports"]:
        raise InputError("--transforms is for --export nerfstudio; add it, or leave --transforms out.")
    priors, network = prior_file(prior), None
    kind = {"kind": flags["prior_kind"], "floor": flags["prior_floor"]}
    if priors is None:
        network = Network.from_flags(prior, flags, **{name: value for name, value in kind.items() if value is not None})
    elif not priors.is_dir():
        raise FileError(f"--prior {priors}: there is no such folder; a model's images need one with a file for each.")
    elif given_flags(flags):
        raise InputError(f"{given_flags(flags)[0]} is for a prior that is predicted, and --prior is a folder.")
    plain = ("prior_kind", "prior_floor", "resize_prior", "form", "output_unit", "calibrated")
    chosen = {name: flags[name] for name in plain}
    return Settings(unit="m", **chosen, completion=completion_options(flags)), network, priors


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be done with each image of a model."""

    model: ColmapModel
    tracks: Tracks
    pictures: Path
    output: Path
    settings: Settings
    network: Network | None
    priors: Path | None
    flags: Mapping[str, Any]

    def __call__(self, image: ColmapImage) -> Outcome:
        return guarded(stem_of(image.name), lambda: self._run(image))

    def frame(self, image: ColmapImage) -> Frame:
        """The image's files; its sparse depth and its prior need not be there yet."""
        stem = stem_of(image.name)
        return Frame(stem, self.pictures / image.name, self.output / "sparse" / f"{stem}.npy")

    def depth(self, image: ColmapImage) -> FloatArray:
        """The depth that was written, in the model's unit."""
        files = output_paths(self.frame(image), self.settings, self.output)
        try:
            unit = json.loads(files["sidecar"].read_text(encoding="utf-8"))["units"]["depth"]["unit"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{files['sidecar']}: is not a sidecar that leadline wrote; use --overwrite.") from error
        return read_depth(files["depth"], unit).values / np.float32(self.flags["scale"])

    def _run(self, image: ColmapImage) -> Outcome:
        from leadline.priors.stored import find_prediction

        frame = self.frame(image)
        self._check_name(image)
        size = read_image(frame.image).shape[1::-1]
        sparse, notes = self._sparse(image, (size[0], size[1]))
        points = int((sparse > 0).sum())
        if points < self.flags["min_points"]:
            seen = self.tracks.seen_by(image)
            raise InputError(
                f"has {points} usable points and --min-points is {self.flags['min_points']}; it sees {len(seen)} with "
                f"any --min-track and --max-error (now {self.flags['min_track']} and {self.flags['max_error']:g})."
            )
        for path in (frame.sparse, self.output / frame.stem):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_depth(frame.sparse, sparse, "m")
        prior = None if self.priors is None else find_prediction(self.priors, frame.stem)
        frame = Frame(frame.stem, frame.image, frame.sparse, prior)
        outcome = run_frame(frame, self.settings, self.output, network=self.network, overwrite=self.flags["overwrite"])
        return Outcome(outcome.stem, outcome.state, outcome.message, (*notes, *outcome.notes), outcome.outputs)

    def _sparse(self, image: ColmapImage, size: tuple[int, int]) -> tuple[FloatArray, tuple[str, ...]]:
        """Sparse depth on the picture's grid, distorted as the picture is."""
        from leadline.geometry.projection import z_buffer

        camera, notes = fitted(self.model.camera_of(image).plain(), size)
        limits = {name: self.flags[name] for name in ("min_track", "max_error")}
        points, scale = self.tracks.seen_by(image, **limits), self.flags["scale"]
        rays = _rays(camera) if isinstance(camera, ColmapCamera) else None
        return z_buffer(points * scale, image.rotation, image.translation * scale, camera, rays), notes

    def _check_name(self, image: ColmapImage) -> None:
        """Refuse names that leave the folders, or that two images share up to the suffix."""
        name = PurePosixPath(image.name)
        if name.is_absolute() or ".." in name.parts:
            raise InputError(f"the model's name {image.name!r} leaves --images; rename it in the model.")
        if Counter(map(stem_of, self.model.images))[stem_of(image.name)] > 1:
            raise InputError(f"{image.name!r} is not the only image of that name up to the suffix; rename one.")


@lru_cache(maxsize=1)
def _rays(camera: ColmapCamera) -> RayCamera:
    """Images of one camera follow each other, and undistorting every pixel takes longer than projecting the points."""
    return camera.rays()


def _export(work: Work, images: list[ColmapImage], transforms: Path | None, flags: Mapping[str, Any]) -> None:
    for name in dict.fromkeys(flags["exports"]):
        folder = work.output / name
        if name == "3dgs":
            notes = write_3dgs(folder, work.model, images, work.depth)
            advice = f"copy {folder} over the scene's folder and train with -d depths"
        else:
            notes = write_nerfstudio(folder, work.model, images, work.depth, work.pictures, transforms)
            origin = "made from the model" if transforms is None else f"a copy of {transforms}"
            advice = f"transforms.json is {origin}"
        for note in notes:
            say("note", note)
        if not flags["quiet"]:
            click.echo(f"{name}: {len(images)} images in {folder}; {advice}")


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2) + "\n"
    write_text(path, text)
