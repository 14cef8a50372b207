"""A session's files to a result: read, projected or predicted where need be, completed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.apps.studio.choices import FILE, Choice
from leadline.apps.studio.jobs import Job
from leadline.apps.studio.sessions import Session
from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, LeadlineError
from leadline.geometry.cameras import Camera, RayCamera
from leadline.io.frames import Frame, Maps, Settings, read_maps

if TYPE_CHECKING:
    from leadline.apps.network import Network
    from leadline.core.fit.response import Response
    from leadline.core.pipeline import Completion
    from leadline.methods import MethodResult
    from leadline.report.trial import Trial

OURS = "ours"
CLOUDS = (".ply", ".pcd", ".las", ".laz", ".bin")
"""Suffixes that are a point cloud here. Clouds in npy and npz are for `leadline project`: here these are maps."""
_VIEW = 60.0  # degrees across, where nobody says what the camera is: between a phone's and a webcam's
_REVISIONS = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Moved:
    """The completion at an exponent chosen by hand."""

    response: Response
    rmse: float  # metres, at the measurements that were fitted, before the residual is spread
    depth: FloatArray


@dataclass(eq=False)
class Result:
    """A completed scene, and what else was computed from it since."""

    revision: int
    stem: str
    choice: Choice
    settings: Settings
    maps: Maps
    sparse: FloatArray  # (H, W) metres: as used, without what was painted over
    removed: int  # measurements painted over
    reference: FloatArray | None
    camera: Camera | RayCamera
    camera_from: str  # "file", "prior" or "assumed"
    completion: Completion
    notes: tuple[str, ...]
    facts: dict[str, Any]  # what is told of the inputs
    moved: Moved | None = None
    methods: dict[str, MethodResult] = field(default_factory=dict)

    def trial(self) -> Trial:
        """The same as the diagnostics take it; without a reference nothing is held out."""
        from leadline.bench.protocol import LABELS
        from leadline.report.trial import Prediction, Trial

        shape = self.completion.depth.shape
        reference = np.full(shape, np.nan, np.float32) if self.reference is None else self.reference
        predictions = {LABELS[OURS]: Prediction(np.asarray(self.completion.depth, np.float32), {})}
        return Trial(
            self.stem, self.maps.image, self.maps.prior, self.sparse, reference, self.scored(), self.camera, predictions
        )

    def pairs(self) -> tuple[NDArray[np.intp], BoolArray]:
        """Flat indices of the measurements that meet the prior and were not rejected; and which of them were fitted."""
        from leadline.core.fit.calibration import SMALLEST

        h = self.trial().relative()
        where = np.flatnonzero((h >= SMALLEST) & (self.sparse > 0) & np.isfinite(self.sparse))
        if self.completion.rejected is not None:
            where = np.setdiff1d(where, self.completion.rejected.where)
        return where, self.completion.fit.weights > 0

    def scored(self) -> BoolArray:
        """Where the result is compared with the reference: what has one and was not measured."""
        if self.reference is None:
            return np.zeros(self.completion.depth.shape, dtype=bool)
        scored: BoolArray = (self.reference > 0) & np.isfinite(self.reference) & ~(self.sparse > 0)
        return scored


def inspect(session: Session, role: str, unit: str | None) -> dict[str, Any]:
    """What a file that was just given turns out to be, for its owner to see.

    Raises
    ------
    LeadlineError
        It cannot be read as what it is meant to be.
    """
    from leadline.io.cameras import read_camera, read_extrinsics
    from leadline.io.clouds.files import read_cloud
    from leadline.io.depth.files import read_depth, read_image, read_values

    path = session.files[role].path
    if role == "sparse" and path.suffix in CLOUDS:
        return {"cloud": True, "points": len(read_cloud(path))}
    if role in ("sparse", "reference"):
        measured = read_depth(path, unit)
        known = measured.values[np.isfinite(measured.values)]
        ends = [float(end) for end in np.percentile(known, (1, 99))] if known.size else [math.nan, math.nan]
        return {
            "size": list(measured.values.shape[::-1]),
            "count": int(known.size),
            "unit": measured.unit,
            "guessed": measured.guessed,
            "near": ends[0],
            "far": ends[1],
        }
    if role == "image":
        return {"size": list(read_image(path).shape[1::-1])}
    if role == "prior":
        return {"size": list(read_values(path).shape[::-1])}
    if role == "camera":
        camera = read_camera(path)
        return {"size": [camera.width, camera.height]}
    if role == "extrinsics":
        read_extrinsics(path)
    return {}


def complete_scene(session: Session, choice: Choice, networks: Mapping[str, Network], job: Job) -> Result:
    """Complete what the session holds.

    Raises
    ------
    LeadlineError
        A file is missing, cannot be read or does not fit the others, or there is nothing to work with.
    """
    from leadline.io.depth.files import read_image

    job.say("Reading the files")
    needed = {"image": "a picture", "sparse": "measurements"} | ({"prior": "a prior"} if choice.prior == FILE else {})
    missing = [text for role, text in needed.items() if role not in session.files]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: drop the file onto its place, or try an example.")
    picture = session.files["image"]
    notes: tuple[str, ...] = ()
    shape = read_image(picture.path).shape[:2]
    sparse = session.files["sparse"].path
    unit: str | None = choice.unit
    if sparse.suffix in CLOUDS:
        job.say("Projecting the points")
        sparse, notes = _projected(session, (shape[1], shape[0]))
        unit = "m"
    prior = session.files["prior"].path if choice.prior == FILE else _predicted(session, choice.prior, networks, job)
    settings = Settings(
        unit=unit,
        prior_kind=choice.prior_kind if choice.prior == FILE else None,
        resize_prior=True,
        scatter_sparse=True,
        sigma=choice.uncertainty,
        completion=choice.options,
    )
    stem = Path(picture.name).stem
    maps = read_maps(Frame(stem, picture.path, sparse, prior), settings)
    used, removed = _unpainted(session, maps)
    reference, told = _reference(session, choice, shape)
    camera, source, about = _camera(session, maps)

    from leadline.batch.frame import compile_kernels, kernels_compiled

    if not kernels_compiled(choice.options):
        job.say("Compiling, once per installation: half a minute or so")
        compile_kernels(choice.options, quiet=True)
    from leadline.core import pipeline

    job.say("Completing")
    completion = pipeline.complete(maps.prior, used, uncertainty=choice.uncertainty, options=choice.options)
    if completion.fit.count == 0:
        raise InputError(f"{completion.fit.status}.")
    notes = (*notes, *(note for note in maps.notes if "unit guessed" not in note), *told, *about)
    facts = {"unit": maps.recorded["units"]["sparse"], "sizes": maps.recorded["sizes"], "kind": maps.prior.kind}
    return Result(
        next(_REVISIONS),
        stem,
        choice,
        settings,
        maps,
        used,
        removed,
        reference,
        camera,
        source,
        completion,
        notes,
        facts,
    )


def move_exponent(result: Result, exponent: float) -> Moved:
    """The completion with the exponent held there and gain and offset fitted anew.

    Raises
    ------
    InputError
        The prior spans too wide a range for this exponent.
    """
    from leadline.base.jit import one_caller
    from leadline.core.solve.reconstruction import reconstruct
    from leadline.report.profile import fit_at

    if not (math.isfinite(exponent) and abs(exponent) <= 20):
        raise InputError(f"the exponent must lie between -20 and 20, got {exponent}.")
    h = result.trial().relative()
    known = h[np.isfinite(h)]
    where, fitted = result.pairs()
    measured = result.sparse.flat[where]
    response = fit_at(exponent, h.flat[where[fitted]], measured[fitted], (float(known.min()), float(known.max())))
    with one_caller():
        calibrated = np.ascontiguousarray(response(h), np.float32)
        depth, _ = reconstruct(calibrated, where, measured, result.choice.options.reconstruction)
    off = (np.asarray(calibrated.flat[where], np.float64) - measured)[fitted]
    return Moved(response, float(np.sqrt(np.mean(off * off))), depth)


def run_other(result: Result, name: str) -> MethodResult:
    """A method of the registry on the same prior and measurements; computed once.

    Raises
    ------
    LeadlineError
        There is no such method here, or it fails.
    """
    from leadline.methods import method, run_method

    if name not in ready_methods():
        raise InputError(f"the method {name!r} is not ready here; there are {', '.join(ready_methods())}.")
    if name not in result.methods:
        context = {"image": result.maps.image, "camera": result.camera, "name": result.stem, "dataset": None}
        options = {"options": result.choice.options} if name in (OURS, "response") else {}
        result.methods[name] = run_method(method(name), result.maps.prior, result.sparse, **context, **options)
    return result.methods[name]


def ready_methods() -> dict[str, str]:
    """Methods that can run here, and what each is."""
    from leadline.methods import METHODS
    from leadline.methods.systems import readiness

    return {name: facts.summary for name, facts in METHODS.items() if facts.argument is None and not readiness(name)}


def _projected(session: Session, size: tuple[int, int]) -> tuple[Path, tuple[str, ...]]:
    """The session's cloud as a depth map of that size, in a file as any other."""
    from leadline.apps.placement import fitted, place
    from leadline.geometry.projection import project
    from leadline.io.depth.files import write_depth

    upload = session.files["sparse"]
    if "camera" not in session.files:
        raise InputError(f"{upload.name}: a point cloud needs the camera it is seen by: add its JSON file as Camera.")
    files = {role: session.files[role].path if role in session.files else None for role in ("camera", "extrinsics")}
    unused = dict.fromkeys(("kitti", "colmap_image", "depth_camera", "key"))
    placed = place(upload.path, None, {**files, **unused})
    camera, notes = fitted(placed.camera, size)
    found = project(placed.cloud.points, placed.transform, camera)
    if not found.covered:
        raise InputError(
            f"{upload.name}: none of its {len(placed.cloud)} points falls into the picture; give the extrinsics from "
            "the cloud's frame to the camera's (x right, y down, z forward), or check them."
        )
    path = session.folder / "projected.npy"
    write_depth(path, found.depth, "m")
    left = int(np.isfinite(found.depth).sum())
    told = f"{len(placed.cloud)} points gave {left} measured pixels; {found.covered - left} were seen through."
    spoken = tuple(note.replace("no --extrinsics", "no extrinsics") for note in (*placed.notes, *notes))
    return path, (told, *spoken)


def _predicted(session: Session, name: str, networks: Mapping[str, Network], job: Job) -> Path:
    """A network's prediction for the session's picture, kept with its files until there is another picture."""
    from leadline.io.depth.files import read_image
    from leadline.io.priors import write_prior

    if name not in networks:
        raise InputError(f"the prior {name!r} is not ready here; there are {', '.join(networks) or 'none'}.")
    path = session.folder / f"predicted-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.npy"
    if not path.exists():
        job.say(f"Predicting with {name}")
        picture = session.files["image"]
        network = networks[name]
        try:
            prior, about = network.predict(read_image(picture.path), Path(picture.name).stem)
        except LeadlineError as error:  # a visitor need not learn where this machine keeps its models
            _, _, model = network.spec.partition(":")
            raise InputError(str(error).replace(model, Path(model).name) if model else str(error)) from error
        write_prior(path, prior, about)
    return path


def _unpainted(session: Session, maps: Maps) -> tuple[FloatArray, int]:
    """The measurements without those that were painted over, and how many these were."""
    from leadline.io.depth.files import read_image

    if "mask" not in session.files:
        return maps.sparse, 0
    painted = read_image(session.files["mask"].path).max(axis=2) > 0
    if painted.shape != maps.sparse.shape:
        raise InputError("the drawn mask belongs to a picture of another size; clear it and draw it again.")
    gone = painted & (maps.sparse > 0)
    used = np.where(painted, maps.sparse.dtype.type(np.nan), maps.sparse)
    if not (used > 0).any():
        raise InputError("the drawn mask removes every measurement; clear a part of it.")
    return used, int(np.count_nonzero(gone))


def _reference(
    session: Session, choice: Choice, shape: tuple[int, ...]
) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    from leadline.io.depth.files import read_depth

    if "reference" not in session.files:
        return None, ()
    upload = session.files["reference"]
    measured = read_depth(upload.path, choice.reference_unit)
    if measured.values.shape != shape:
        sizes = [f"{size[1]}x{size[0]}" for size in (measured.values.shape, shape)]
        raise InputError(f"{upload.name}: the reference is {sizes[0]} and the picture {sizes[1]}; make them equal.")
    return measured.values, (f"reference: read in the unit {measured.unit}, a guess.",) if measured.guessed else ()


def _camera(session: Session, maps: Maps) -> tuple[Camera | RayCamera, str, tuple[str, ...]]:
    """The camera of the point cloud: of a file, the network's, or assumed."""
    from leadline.apps.placement import fitted
    from leadline.geometry.lenses import camera_rays
    from leadline.io.cameras import read_camera

    height, width = maps.sparse.shape
    if "camera" in session.files:
        camera, notes = fitted(read_camera(session.files["camera"].path), (width, height))
        if isinstance(camera, Camera):
            return camera, "file", notes
        return camera_rays(camera.model, camera.params, camera.width, camera.height), "file", notes
    if maps.prior.camera is not None:
        return maps.prior.camera, "prior", ()
    focal = width / (2 * math.tan(math.radians(_VIEW / 2)))
    return Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2), "assumed", ()
