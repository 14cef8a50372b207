"""The files that are written for a frame: depth, sigma, mask, preview, point cloud and mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, is_measured
from leadline.base.errors import InputError, param, require_choice
from leadline.batch.outcome import PixelCounts
from leadline.io.frames import FrameInputs
from leadline.io.mesh import MeshFormat
from leadline.io.notes import Note, NoteKind
from leadline.io.views.maps import DepthMaps, write_codes

if TYPE_CHECKING:
    from leadline.core.pipeline import Completion
    from leadline.geometry.cameras import CameraModel

# Formats of the written depth with the suffix of their files. All but PNG store floats.
FORMATS = {"png": ".png", "npy": ".npy", "npz": ".npz", "exr": ".exr", "pfm": ".pfm", "tiff": ".tiff"}
# Depth beyond this multiple of the farthest measurement is extrapolated by the response alone.
EXTRAPOLATION = 10.0


class PixelOrigin(IntEnum):
    """Grey values of the mask: they can be seen, and compared with."""

    NO_DEPTH = 0
    LEFT_OUT = 85  # measured, and filled because the measurement is an outlier
    FILLED = 170
    MEASURED = 255


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of the files that are written for a frame.

    Without `output_unit` the depth is in metres; for PNG in the unit of the measurements if that is a centimetre or
    finer and holds the depth, else in millimetres, or in 1/256 m for depth beyond 65 m.
    """

    format: str = "png"  # of the depth, see `FORMATS`
    output_unit: str | None = None
    calibrated: bool = False  # whether the calibrated prior is written, too
    sigma: bool = False  # whether the standard deviation of the depth is computed and written
    reliable: bool = False  # whether a map of the pixels with a small standard deviation is written; it needs sigma
    mask: bool = False  # whether a mask of measured, left out and filled pixels is written
    preview: bool = True  # whether a picture of image and depth is written
    ply: bool = False  # whether a point cloud with colours and normals is written; it needs a camera
    mesh: MeshFormat | None = None  # format of a mesh with the colours of the image; it needs a camera
    edge_filter: bool = True  # whether cloud and mesh leave out pixels between two objects; the depth keeps them

    def __post_init__(self) -> None:
        from leadline.base.registry import suggestion
        from leadline.io.notes import rename_parameter
        from leadline.io.units import as_unit

        if self.format not in FORMATS:
            raise InputError(
                f"{param('format')}: depth cannot be written as {self.format!r}; {suggestion(self.format, FORMATS)}"
            )
        if self.mesh is not None:
            require_choice("mesh", self.mesh, MeshFormat)
        if self.reliable and not self.sigma:
            raise InputError(
                f"{param('reliable', True)} follows from the standard deviation; add {param('sigma', True)}."
            )
        if not (self.edge_filter or self.ply or self.mesh):
            raise InputError(
                f"{param('edge_filter', False)} is for point clouds and meshes; add {param('ply', True)} or "
                f"{param('mesh')}, or leave it out."
            )
        if self.output_unit is not None:
            try:
                as_unit(self.output_unit)
            except InputError as error:
                raise InputError(rename_parameter(error.args[0], "unit", "output_unit")) from error

    def paths(self, folder: Path, stem: str, *, cloud: bool = False) -> dict[str, Path]:
        """The files of a frame by what they are, in the order in which they are written.

        With `cloud`, the measurements are a point cloud and its projection is written as well.
        """
        suffix = FORMATS[self.format]
        files = {"depth": folder / f"{stem}_depth{suffix}"}
        if self.calibrated:
            files["calibrated"] = folder / f"{stem}_calibrated{suffix}"
        if self.sigma:  # 16 bits of millimetres would lose most of it
            files["sigma"] = folder / f"{stem}_sigma{'.npy' if self.format == 'png' else suffix}"
        if self.reliable:
            files["reliable"] = folder / f"{stem}_reliable.png"
        if self.mask:
            files["mask"] = folder / f"{stem}_mask.png"
        if cloud:
            files["sparse"] = folder / f"{stem}_sparse{suffix}"
            files["points"] = folder / f"{stem}_points.png"
        if self.preview:
            files["preview"] = folder / f"{stem}_preview.png"
        if self.ply:
            files["cloud"] = folder / f"{stem}.ply"
        if self.mesh is not None:
            files["mesh"] = folder / f"{stem}_mesh.{self.mesh}"
        return {**files, "sidecar": folder / f"{stem}.json"}

    def units(self, measured: str) -> tuple[str, ...]:
        """Units for the depth, in the order in which they are tried; `measured` is the unit of the measurements.

        Where 16 bits in one unit do not reach the farthest depth, the next unit is used.
        """
        from leadline.io.units import png_units

        if self.output_unit is not None:
            return (self.output_unit,)
        return png_units(measured) if self.format == "png" else ("m",)


@dataclass(frozen=True)
class Written:
    """What was written: the unit of the depth with a note if it is not the first choice, and the pixels by origin."""

    unit: str
    pixels: PixelCounts
    notes: tuple[Note, ...]


def origin_mask(result: Completion, sparse: FloatArray, valid: BoolArray | None = None) -> NDArray[np.uint8]:
    """What each depth is, (H, W): a `PixelOrigin`. `valid` is False where measurements were not to be used."""
    mask = np.where(np.isfinite(result.depth), np.uint8(PixelOrigin.FILLED), np.uint8(PixelOrigin.NO_DEPTH))
    measured = is_measured(sparse) if valid is None else is_measured(sparse) & valid
    mask[measured] = PixelOrigin.MEASURED
    if result.outliers is not None:
        where = result.outliers.where  # in a view with neighbours these may be measurements of the neighbours
        mask.flat[where[measured.flat[where]]] = PixelOrigin.LEFT_OUT
    return mask


def _count_pixels(mask: NDArray[np.uint8]) -> PixelCounts:
    counts = np.bincount(mask.ravel(), minlength=256)
    return PixelCounts(**{origin.name.lower(): int(counts[origin]) for origin in PixelOrigin})


def write_in_fitting_unit(maps: Mapping[Path, FloatArray], units: tuple[str, ...]) -> str:
    """Write depth maps in the first of `units` whose 16 bits reach their farthest value; returns that unit."""
    from leadline.io.depth import write_depth

    for unit in units:
        try:
            for path, depth in maps.items():
                write_depth(path, depth, unit)
            break
        except InputError:  # the depth is beyond 16 bits in this unit
            if unit == units[-1]:
                raise
    return unit


def write_cloud(
    path: Path, camera: CameraModel, depth: FloatArray, image: NDArray[np.uint8], *, edge_filter: bool = True
) -> None:
    """Write the pixels with a depth as a point cloud with colours and normals in PLY.

    The `edge_filter` leaves out pixels that lie between two objects; see `leadline.geometry.surface`.
    """
    from leadline.geometry.surface import EdgeLimits, surface_from_depth
    from leadline.io.ply import write_ply

    surface = surface_from_depth(depth, camera, edges=EdgeLimits() if edge_filter else None)
    write_ply(path, surface.points, image.reshape(-1, 3)[surface.pixels], normals=surface.normals)


def write_results(paths: Mapping[str, Path], frame: FrameInputs, result: Completion, outputs: OutputOptions) -> Written:
    """Write all files but the sidecar."""
    from leadline.io.depth import write_sigma
    from leadline.io.files import atomic_write
    from leadline.report.tiles import draw_preview

    units = outputs.units(frame.unit)
    maps = {paths[name]: getattr(result, name) for name in ("depth", "calibrated") if name in paths}
    try:
        unit = write_in_fitting_unit(maps, units)
    except InputError as error:
        doubts = [note.text for note in frame.notes if note.kind is NoteKind.UNIT_IMPLAUSIBLE]
        if doubts:  # no format for the depth is the cure
            raise InputError(f"the depth cannot be written: {doubts[0]}") from error
        text = f"{extrapolation(result.depth, frame.sparse)} {error.args[0]}".strip()
        raise InputError(f"{text} The parameters are {param('output_unit')} and {param('format')}.") from error
    if result.sigma is not None:
        write_sigma(paths["sigma"], result.sigma)
    if "reliable" in paths:
        write_codes(paths["reliable"], DepthMaps(result.depth, result.sigma).reliable_codes())
    notes = []
    if unit != units[0]:
        text = f"16 bits in {units[0]} do not reach the farthest depth, so that it was written in {unit}: "
        text += f"read it with {param('unit', unit)}."
        notes.append(Note(NoteKind.OUTPUT_UNIT, text))
    cloud = frame.measurements.cloud
    if cloud is not None:
        from leadline.report.tiles import draw_projected_points

        write_in_fitting_unit({paths["sparse"]: frame.sparse}, units)
        picture = draw_projected_points(frame.image, frame.sparse, cloud.dropped(), heading=paths["points"].stem)
        atomic_write(paths["points"], lambda part: picture.save(part, format="PNG"))
    mask = origin_mask(result, frame.sparse, frame.valid)
    if "mask" in paths:
        write_codes(paths["mask"], mask)
    if "preview" in paths:
        preview = draw_preview(frame.image, result.depth)
        atomic_write(paths["preview"], lambda part: preview.save(part, format="PNG"))
    if frame.camera is not None:
        if "cloud" in paths:
            write_cloud(paths["cloud"], frame.camera, result.depth, frame.image, edge_filter=outputs.edge_filter)
        if "mesh" in paths:
            from leadline.geometry.surface import EdgeLimits
            from leadline.io.mesh import write_surface_mesh

            edges = EdgeLimits() if outputs.edge_filter else None
            write_surface_mesh(paths["mesh"], result.depth, frame.camera, frame.image, edges=edges)
    return Written(unit, _count_pixels(mask), tuple(notes))


def extrapolation(depth: FloatArray, sparse: FloatArray) -> str:
    """A sentence if the depth goes far beyond all measurements; empty if it does not."""
    most, farthest = (float(np.nanmax(values)) for values in (depth, sparse))
    if not most > EXTRAPOLATION * farthest:
        return ""
    return (
        f"the depth reaches {most:.3g} m and the farthest measurement is {farthest:.3g} m: the rest is extrapolated; "
        "measure farther away."
    )
