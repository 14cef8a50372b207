"""A frame's files read onto the image's grid, and refused where they cannot be what they are given as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import Camera, CompletionOptions, FileError, FloatArray, InputError, Prior, PriorKind

# A sparse map is dense, and a prior full of holes, past one half.
HALF = 0.5
# Medians outside of this range (metres) are what a wrong unit gives: mm read as m, or m read as mm.
PLAUSIBLE_MEDIAN = (1e-3, 1e3)
# Sizes that show the same view may still differ by a rounded pixel or two.
ASPECT_TOLERANCE = 0.02


@dataclass(frozen=True)
class Frame:
    """The files of one frame; `stem` names what is written."""

    stem: str
    image: Path
    sparse: Path
    prior: Path
    valid: Path | None = None

    def inputs(self) -> dict[str, Path]:
        """The files by what they are."""
        files = {"image": self.image, "sparse": self.sparse, "prior": self.prior}
        return files if self.valid is None else {**files, "valid": self.valid}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice that shapes a frame's outputs; the sidecar records it and a resumed run compares it."""

    unit: str | None = None
    prior_kind: PriorKind = "depth"
    prior_floor: float = 0.0
    resize_prior: bool = False
    scatter_sparse: bool = False
    form: str = "png"
    output_unit: str = "mm"
    calibrated: bool = False
    ply: bool = False
    intrinsics: tuple[float, ...] | None = None
    camera: Camera | None = None
    completion: CompletionOptions = field(default_factory=CompletionOptions)

    def record(self) -> dict[str, Any]:
        """As JSON gives it back, so that two records can be compared."""
        recorded: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return recorded

    def camera_for(self, shape: tuple[int, ...]) -> Camera:
        """The camera of an image of `shape`, from ``--camera`` or ``--intrinsics``.

        Raises
        ------
        InputError
            If there is none, or it belongs to another size.
        """
        height, width = shape[:2]
        if self.camera is None:
            if self.intrinsics is None or len(self.intrinsics) != 4:
                raise InputError("--ply needs the camera: --intrinsics with the four numbers fx,fy,cx,cy, or --camera.")
            return Camera(width, height, *self.intrinsics)
        if (self.camera.width, self.camera.height) != (width, height):
            raise InputError(
                f"--camera is for {self.camera.width}x{self.camera.height} pixels and the image has {width}x{height}; "
                "give the intrinsics of that size."
            )
        return self.camera


@dataclass(frozen=True)
class Maps:
    """A frame's arrays on the image's grid, and what a reader of the result should know about them."""

    image: NDArray[np.uint8]  # (H, W, 3)
    sparse: FloatArray  # (H, W) metres
    prior: Prior
    valid: NDArray[np.bool_] | None
    notes: tuple[str, ...]
    recorded: dict[str, Any]  # sizes and units, for the sidecar


def read_camera(path: Path) -> Camera:
    """`Camera` from a JSON file with the keys width, height, fx, fy, cx and cy."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(content[name]) for name in ("width", "height")]
        return Camera(sizes[0], sizes[1], *(float(content[name]) for name in ("fx", "fy", "cx", "cy")))
    except OSError as error:
        raise FileError(f"--camera {path}: cannot be read ({error.strerror}); check the path.") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise FileError(
            f"--camera {path}: must be a JSON object with the numbers width, height, fx, fy, cx and cy ({error!r})."
        ) from error


def read_maps(frame: Frame, settings: Settings) -> Maps:
    """The frame's maps on the image's grid.

    Raises
    ------
    LeadlineError
        If a file cannot be read, the sizes do not fit, or a map holds nothing to work with.
    """
    from leadline.sensors.depth_files import read_depth, read_image, read_values
    from leadline.sensors.grids import resize_bilinear, scatter_nearest

    image = read_image(frame.image)
    measured = read_depth(frame.sparse, settings.unit)
    sparse, values = measured.values, read_values(frame.prior)
    shape = image.shape[:2]
    sizes = {"image": shape, "sparse": sparse.shape, "prior": values.shape}
    _check_content(frame, sparse, values, settings.prior_kind)
    _check_sizes(sizes, settings)
    if settings.ply:
        settings.camera_for(shape)  # a wrong one is better refused before the work than after

    notes = [measured.note] if measured.guessed else []
    lost = 0
    if values.shape != shape:
        values = resize_bilinear(values, shape, _usable(values, settings.prior_kind))
    if sparse.shape != shape:
        sparse, lost = scatter_nearest(sparse, shape)
        notes.append("the sparse map has another size than the image: its measurements were moved, not interpolated.")
        if lost:
            notes.append("where several measurements fell into one pixel of the image, the nearest was kept.")
    notes += _strange_aspects(sizes) + _strange_median(sparse, measured.unit)
    recorded = {
        "sizes": {name: f"{_size(size)}" for name, size in sizes.items()},
        "units": {
            "sparse": {"unit": measured.unit, "guessed": measured.guessed, "note": measured.note},
            "depth": {"unit": settings.output_unit},
        },
        "measurements_lost_in_shared_pixels": lost,
    }
    valid = None if frame.valid is None else _read_mask(frame.valid, shape)
    prior = Prior(values, kind=settings.prior_kind, floor=settings.prior_floor)
    return Maps(image, sparse, prior, valid, tuple(notes), recorded)


def _read_mask(path: Path, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    from leadline.sensors.depth_files import read_image

    valid: NDArray[np.bool_] = read_image(path).max(axis=2) > 0
    if valid.shape != shape:
        raise InputError(f"--valid {path}: is {_size(valid.shape)} and the image {_size(shape)}; make them equal.")
    if not valid.any():
        raise InputError(
            f"--valid {path}: is 0 everywhere, so no pixel is valid; a mask is > 0 where there is something to use."
        )
    return valid


def _usable(values: FloatArray, kind: PriorKind) -> NDArray[np.bool_]:
    """Where a prior of this kind says anything: zero is a disparity and a log depth, but no depth."""
    finite = np.isfinite(values)
    return finite & (values > 0) if kind == "depth" else finite


def _check_content(frame: Frame, sparse: FloatArray, values: FloatArray, kind: PriorKind) -> None:
    """Refuse maps that are empty, or look like each other's."""
    usable = float(np.mean(_usable(values, kind)))
    measured = float(np.mean(sparse > 0))  # NaN compares as not measured
    if usable < HALF < measured:
        raise InputError(
            f"{frame.prior}: {1 - usable:.0%} of the prior is missing while {measured:.0%} of the sparse map "
            f"{frame.sparse} is measured; are --sparse and --prior swapped?"
        )
    if usable == 0:
        raise InputError(
            f"{frame.prior}: the prior has no usable pixel (all are NaN, infinite"
            f"{' or not positive' if kind == 'depth' else ''}); check the file and --prior-kind (now {kind})."
        )
    if measured == 0:
        raise InputError(
            f"{frame.sparse}: the sparse map has no measurement (all pixels are 0, NaN or infinite); "
            "check that this is the file of the measurements."
        )


def _check_sizes(sizes: Mapping[str, tuple[int, ...]], settings: Settings) -> None:
    """Refuse differing sizes that no flag allows, naming all of them and the flag."""
    flags = []
    if sizes["prior"] != sizes["image"] and not settings.resize_prior:
        flags.append("--resize-prior to interpolate the prior")
    if sizes["sparse"] != sizes["image"] and not settings.scatter_sparse:
        flags.append("--scatter-sparse to move each measurement to its nearest pixel")
    if flags:
        named = ", ".join(f"{name} {_size(size)}" for name, size in sizes.items())
        raise InputError(f"the sizes differ: {named}; if all show the same view, add {' and '.join(flags)}.")


def _strange_aspects(sizes: Mapping[str, tuple[int, ...]]) -> list[str]:
    height, width = sizes["image"]
    return [
        f"the {name} map is {_size(size)} and the image {width}x{height}: with other proportions they may not show "
        "the same view."
        for name, size in sizes.items()
        if abs(size[1] * height / (size[0] * width) - 1) > ASPECT_TOLERANCE
    ]


def _strange_median(sparse: FloatArray, unit: str) -> list[str]:
    median = float(np.nanmedian(sparse))
    nearest, farthest = PLAUSIBLE_MEDIAN
    if nearest <= median <= farthest:
        return []
    side = "within" if median < nearest else "beyond"
    return [f"half of the measurements lie {side} {median:.3g} m when read in the unit {unit}; is --unit right?"]


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"
