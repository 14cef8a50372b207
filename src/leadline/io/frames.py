"""A frame's files read onto the image's grid, and refused where they cannot be what they are given as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera, RayCamera

if TYPE_CHECKING:
    from leadline.apps.network import Network
    from leadline.geometry.lenses import ColmapCamera

# A sparse map is dense, and a prior full of holes, past one half.
HALF = 0.5
# Medians outside of this range (metres) are what a wrong unit gives: mm read as m, or m read as mm.
PLAUSIBLE_MEDIAN = (1e-3, 1e3)
# Sizes that show the same view may still differ by a rounded pixel or two.
ASPECT_TOLERANCE = 0.02


@dataclass(frozen=True)
class Frame:
    """The files of one frame; `stem` names what is written. Without a file, the prior is a network's."""

    stem: str
    image: Path
    sparse: Path
    prior: Path | None = None
    valid: Path | None = None
    confidence: Path | None = None

    def inputs(self) -> dict[str, Path]:
        """The files by what they are."""
        from leadline.io.priors import sidecar_path

        facts = None if self.prior is None else sidecar_path(self.prior)
        files = {"image": self.image, "sparse": self.sparse, "prior": self.prior, "valid": self.valid}
        files["confidence"] = self.confidence
        files["prior_facts"] = facts if facts is not None and facts.exists() else None
        return {name: path for name, path in files.items() if path is not None}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice that shapes a frame's outputs; the sidecar records it and a resumed run compares it."""

    unit: str | None = None
    prior_kind: PriorKind | None = None
    prior_floor: float | None = None
    resize_prior: bool = False
    scatter_sparse: bool = False
    min_confidence: float | None = None
    form: str = "png"
    output_unit: str | None = None
    calibrated: bool = False
    sigma: bool = False
    noise: tuple[float, ...] | None = None
    ply: bool = False
    intrinsics: tuple[float, ...] | None = None
    camera: Camera | ColmapCamera | None = None
    completion: CompletionOptions = field(default_factory=CompletionOptions)

    def record(self) -> dict[str, Any]:
        """As JSON gives it back, so that two records can be compared."""
        recorded: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return recorded

    def camera_for(self, shape: tuple[int, ...]) -> Camera | ColmapCamera | None:
        """The camera of an image of `shape`, from ``--camera`` or ``--intrinsics``; None if neither was given.

        Raises
        ------
        InputError
            If it belongs to another size.
        """
        height, width = shape[:2]
        if self.camera is None:
            return None if self.intrinsics is None else Camera(width, height, *self.intrinsics)
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
    unit: str  # of the measurements' file
    camera: Camera | RayCamera | None  # for the point cloud, if one is to be made
    notes: tuple[str, ...]
    recorded: dict[str, Any]  # sizes, units, prior and camera, for the sidecar


def read_maps(frame: Frame, settings: Settings, network: Network | None = None) -> Maps:
    """The frame's maps on the image's grid; the prior is the network's word where the frame has no file of one.

    Raises
    ------
    LeadlineError
        If a file cannot be read, the sizes do not fit, a map holds nothing to work with, or the network fails.
    """
    from leadline.geometry.grids import scatter_nearest
    from leadline.io.cameras import camera_record
    from leadline.io.depth.files import read_depth, read_image

    image = read_image(frame.image)
    measured = read_depth(frame.sparse, settings.unit)
    sparse, doubted = _trusted(frame, measured.values, settings)
    shape = image.shape[:2]
    camera = settings.camera_for(shape)  # a wrong one is better refused before the work than after
    prior, about = _read_prior(frame, settings) if network is None else network.predict(image, frame.stem)
    sizes = {"image": shape, "sparse": sparse.shape, "prior": prior.shape}
    _check_content(frame, sparse, prior)
    _check_sizes(sizes, settings)
    believed = camera is None and prior.camera is not None
    prior = _resized(prior, shape)

    notes = ([measured.note] if measured.guessed else []) + ([network.note] if network and network.note else [])
    notes += doubted
    lost = 0
    if sparse.shape != shape:
        sparse, lost = scatter_nearest(sparse, shape)
        notes.append("the sparse map has another size than the image: its measurements were moved, not interpolated.")
        if lost:
            notes.append("where several measurements fell into one pixel of the image, the nearest was kept.")
    notes += _strange_aspects(sizes) + _strange_median(sparse, measured.unit)
    recorded = {
        "sizes": {name: f"{_size(size)}" for name, size in sizes.items()},
        "units": {"sparse": {"unit": measured.unit, "guessed": measured.guessed, "note": measured.note}},
        "measurements_lost_in_shared_pixels": lost,
        "prior": {"quantity": prior.kind, "floor": prior.floor, **about},
    }
    if settings.ply:
        camera = prior.camera if believed else camera
        if camera is None:
            raise InputError(
                "--ply needs one of --intrinsics fx,fy,cx,cy and --camera cam.json, or a prior that predicts its "
                "camera, such as moge-2."
            )
        recorded["camera"] = {**camera_record(camera), "source": "prior" if believed else "user"}
    rays = camera if camera is None or isinstance(camera, Camera) else camera.at_size()
    valid = None if frame.valid is None else _read_mask(frame.valid, shape)
    return Maps(image, sparse, prior, valid, measured.unit, rays, tuple(notes), recorded)


def _trusted(frame: Frame, sparse: FloatArray, settings: Settings) -> tuple[FloatArray, list[str]]:
    """The measurements whose confidence is high enough, and a note that counts the others."""
    from leadline.geometry.tof import confident
    from leadline.io.depth.files import read_values

    least = settings.min_confidence
    if frame.confidence is None or least is None:
        return sparse, []
    levels = read_values(frame.confidence)
    if levels.shape != sparse.shape:
        raise InputError(
            f"--confidence {frame.confidence}: is {_size(levels.shape)} and the sparse map {_size(sparse.shape)}; "
            "it must have one level for each of its pixels."
        )
    kept = confident(sparse, levels, least)
    before, after = (int(np.count_nonzero(values > 0)) for values in (sparse, kept))
    if before and not after:
        raise InputError(
            f"--confidence {frame.confidence}: no measurement has a confidence of {least:g} or more (the largest is "
            f"{float(np.nanmax(levels[sparse > 0])):g}); lower --min-confidence."
        )
    gone = f"{before - after} of {before} measurements have a confidence below {least:g} and were left out."
    return kept, [gone] if after < before else []


def _read_prior(frame: Frame, settings: Settings) -> tuple[Prior, dict[str, Any]]:
    """The prior of the frame's file, and what its sidecar says of where it came from."""
    from leadline.io.priors import read_facts, read_prior

    if frame.prior is None:
        raise InputError(f"{frame.stem}: has neither a file of a prior nor a network to predict one.")
    prior = read_prior(frame.prior, kind=settings.prior_kind)
    if settings.prior_floor is not None:
        if prior.kind != "disparity":
            raise InputError(f"--prior-floor is for --prior-kind disparity only, and {frame.prior} is {prior.kind}.")
        prior = replace(prior, floor=settings.prior_floor)
    facts = read_facts(frame.prior)
    return prior, {name: facts[name] for name in ("gauge", "model", "fingerprint") if name in facts}


def _resized(prior: Prior, shape: tuple[int, ...]) -> Prior:
    """The prior on a grid of `shape`, interpolated in its own numbers."""
    from leadline.geometry.grids import resize_bilinear

    if prior.shape == shape:
        return prior
    height, width = shape
    values = resize_bilinear(prior.values, (height, width), _usable(prior))
    return replace(prior, values=values, camera=None if prior.camera is None else prior.camera.scaled(width, height))


def _read_mask(path: Path, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    from leadline.io.depth.files import read_image

    valid: NDArray[np.bool_] = read_image(path).max(axis=2) > 0
    if valid.shape != shape:
        raise InputError(f"--valid {path}: is {_size(valid.shape)} and the image {_size(shape)}; make them equal.")
    if not valid.any():
        raise InputError(
            f"--valid {path}: is 0 everywhere, so no pixel is valid; a mask is > 0 where there is something to use."
        )
    return valid


def _usable(prior: Prior) -> NDArray[np.bool_]:
    """Where a prior says anything: zero is a disparity and a log depth, but no depth."""
    finite = np.isfinite(prior.values)
    usable = finite & (prior.values > 0) if prior.kind == "depth" else finite
    return usable if prior.valid is None else usable & prior.valid


def _check_content(frame: Frame, sparse: FloatArray, prior: Prior) -> None:
    """Refuse maps that are empty, or look like each other's."""
    usable = float(np.mean(_usable(prior)))
    measured = float(np.mean(sparse > 0))  # NaN compares as not measured
    if frame.prior is not None and usable < HALF < measured:
        raise InputError(
            f"{frame.prior}: {1 - usable:.0%} of the prior is missing while {measured:.0%} of the sparse map "
            f"{frame.sparse} is measured; are --sparse and --prior swapped?"
        )
    if usable == 0:
        raise InputError(
            f"{frame.prior or frame.image}: the prior has no usable pixel (all are NaN, infinite"
            f"{' or not positive' if prior.kind == 'depth' else ''}); check the file and --prior-kind (now "
            f"{prior.kind})."
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
