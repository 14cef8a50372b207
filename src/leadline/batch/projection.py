"""A point cloud projected into an image and written as sparse depth, with a picture and a sidecar."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.batch.outcome import package_version
from leadline.batch.outputs import OutputOptions, write_in_fitting_unit
from leadline.io.cloud_projection import CloudProjection, project_cloud, projection_sidecar
from leadline.io.files import file_hash
from leadline.io.notes import Note, NoteKind, as_texts
from leadline.io.placement import CloudFiles, ProjectionOptions


@dataclass(frozen=True, eq=False)
class ProjectionResult:
    """A written projection."""

    projection: CloudProjection
    aligned: bool  # False if the points are known not to line up with the image
    notes: tuple[Note, ...]
    files: tuple[Path, ...]


def write_projection(
    files: CloudFiles,
    options: ProjectionOptions,
    output: Path,
    *,
    image: Path | None = None,
    output_unit: str | None = None,
) -> ProjectionResult:
    """Project a point cloud and write the depth, a sidecar and, if there is an image, a picture of the points.

    The suffix of `output` is the format. The default unit is metres; for PNG millimetres, or 1/256 m for depth beyond
    65 m.
    """
    from leadline.geometry.registration import check_registration
    from leadline.io.depth import read_image
    from leadline.io.files import atomic_write, write_text
    from leadline.report.tiles import draw_projected_points

    OutputOptions(output_unit=output_unit)  # refuses an unknown unit
    paths = _output_paths(output, image, files.cloud)
    pixels = None if image is None else read_image(image)
    size = None if pixels is None else (pixels.shape[1], pixels.shape[0])
    found = project_cloud(files, options, image=image, size=size)
    alignment = None if pixels is None else check_registration(found.depth, pixels)
    png = output.suffix.lower() == ".png"
    units = (output_unit,) if output_unit is not None else ("mm", "kitti") if png else ("m",)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{param('output')} {output}: its folder cannot be made ({error.strerror}).") from error
    unit = write_in_fitting_unit({paths["depth"]: found.depth}, units)
    notes = list(found.notes)
    if unit != units[0]:
        text = f"the depth reaches beyond 65.5 m and was written in 1/256 m: read it with {param('unit', 'kitti')}."
        notes.append(Note(NoteKind.OUTPUT_UNIT, text))
    if alignment is not None and not (alignment.aligned and alignment.known):
        notes.append(Note(NoteKind.ALIGNMENT, str(alignment)))
    if pixels is not None and alignment is not None:
        drawn = draw_projected_points(
            pixels, found.depth, found.dropped(), heading=paths["picture"].stem, note=alignment.verdict
        )
        atomic_write(paths["picture"], lambda part: drawn.save(part, format="PNG"))
    inputs = {"image": image, **asdict(files)}
    record = {
        "leadline": package_version(),
        "inputs": {name: str(path) for name, path in inputs.items() if path is not None},
        "outputs": {name: path.name for name, path in paths.items() if name != "sidecar"},
        "unit": unit,
        "depth_sha256": file_hash(paths["depth"]),
        "range": [float(np.nanmin(found.depth)), float(np.nanmax(found.depth))],
        **found.record(),
        "alignment": None if alignment is None else {**asdict(alignment), "aligned": alignment.aligned},
        "options": asdict(options),
        "notes": as_texts(notes),
    }
    write_text(paths["sidecar"], dump_json(record))
    return ProjectionResult(found, alignment is None or alignment.aligned, tuple(notes), tuple(paths.values()))


def _output_paths(output: Path, image: Path | None, cloud: Path) -> dict[str, Path]:
    from leadline.io.depth import DEPTH_SUFFIXES

    if output.suffix.lower() not in DEPTH_SUFFIXES:
        raise InputError(
            f"{param('output')} {output}: give a file with one of the suffixes {', '.join(DEPTH_SUFFIXES)}."
        )
    paths = {"depth": output}
    if image is not None:
        paths["picture"] = output.with_name(f"{output.stem}_points.png")
    paths["sidecar"] = projection_sidecar(output)
    inputs = {path.resolve() for path in (image, cloud) if path is not None}
    for path in paths.values():
        if path.resolve() in inputs:
            raise InputError(f"{path}: would overwrite an input; choose another {param('output')}.")
    return paths
