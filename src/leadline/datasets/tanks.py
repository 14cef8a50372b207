"""Tanks and Temples, training scenes: video frames with depth projected from a laser scan.

    <Scene>/<Scene>.ply                                 the scan, in metres
    <Scene>/<Scene>_trans.txt                           4x4, COLMAP's frame to the scan's, with scale
    TNT_GOF/TrainingSet/<Scene>/images/000001.jpg
    TNT_GOF/TrainingSet/<Scene>/sparse/0/{cameras,images}.bin or .txt, COLMAP, OPENCV

`root` may also be ``TNT_GOF`` or ``TrainingSet`` itself, and a scene's scan may lie beside its ``images``.

The depth of a frame is that of the nearest scan point in each pixel: the paper's references are "projected from laser
geometry into calibrated views", and it mentions no filter. Pixels where points of a farther surface are visible between
those of a nearer one can be removed (`projection.see_through`); this is an option of ours, off by default.

The paper has 410 frames of Barn, 383 of Caterpillar, 263 of Ignatius, 371 of Meetingroom and 251 of Truck. It does not
state their size; half that of the calibration, about 960x540, follows from its counts of valid pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.base.registry import suggestion
from leadline.datasets import Scene, loading
from leadline.datasets.downsampling import downsample_image
from leadline.geometry.cameras import ColmapCamera
from leadline.geometry.poses import transform_points
from leadline.geometry.projection import see_through, z_buffer
from leadline.io.colmap import ColmapImage, ColmapModel, read_model
from leadline.io.depth import read_image
from leadline.io.files import atomic_write
from leadline.io.ply import read_ply

SCENES = ("Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")
EXCLUDED = {
    "Church": "has no calibration in the bundle that the other scenes are projected with.",
    "Courthouse": (
        "has scan points behind foliage in pixels that show leaves: more than 10 % far pixels in a fifth of its frames "
        "(see `far_pixel_audit`)."
    ),
}

_TRAINING = ("TNT_GOF/TrainingSet", "TrainingSet", ".")
# Alignments are written with some 8 digits; a larger deviation means that the matrix is not a similarity.
_SIMILARITY_TOLERANCE = 1e-3
# Scan points that the audit projects one by one. The medians that it takes of them have a standard error of a percent.
_AUDITED_POINTS = 200_000


@dataclass(frozen=True, eq=False)
class ScanProjection:
    """One frame for the audit: its unfiltered reference, and scan points projected by COLMAP's own camera."""

    image: NDArray[np.uint8]  # (H, W, 3)
    reference: NDArray[np.float32]  # (H, W) metres, nearest point of each pixel, from the cache if there is one
    fine: NDArray[np.float32]  # (h, w) metres, the same at the full size of the calibration
    pixels: NDArray[np.int64]  # (N, 2) row and column in the reference of the sampled points
    depth: NDArray[np.float64]  # (N,) their depth in metres, visible or not
    colours: NDArray[np.uint8] | None  # (N, 3) their colours in the scan, None if it has none


@dataclass(frozen=True)
class TanksAndTemples:
    """The frames of the training scenes in a folder.

    By default those of `SCENES` whose images exist in `root`. Scenes of `EXCLUDED` are read only if named.
    """

    name = "tanks"
    root: Path
    scenes: Sequence[str] | None = None
    scale: float = 0.5  # size of images and depth relative to that of the calibration, at most 1
    # Pixels of the depth image within which `see_through` compares, e.g. 3. The paper mentions no such removal, and
    # every pixel that it removes is a hole of the support; by default, 0, nothing is removed.
    see_through_radius: int = 0
    see_through_ratio: float = 1.05  # a pixel is behind another if it is farther by more than this factor
    max_depth: float | None = None  # metres beyond which the reference is not used
    cache: Path | None = None  # folder in which projected depth is stored for later runs, 2 MB per frame

    def __post_init__(self) -> None:
        loading.require_positive_or_none(
            max_depth=self.max_depth, scale=self.scale, see_through_ratio=self.see_through_ratio
        )
        if self.scale > 1 or self.see_through_ratio <= 1:
            raise InputError(
                f"{param('scale')} must be at most 1 and {param('see_through_ratio')} above 1, "
                f"got {self.scale!r} and {self.see_through_ratio!r} instead."
            )
        if not isinstance(self.see_through_radius, int) or self.see_through_radius < 0:
            raise InputError(f"{param('see_through_radius')} must be in whole pixels, got {self.see_through_radius!r}.")
        if self.scenes is not None:
            named = (self.scenes,) if isinstance(self.scenes, str) else tuple(self.scenes)
            for scene in named:
                _require_known(scene)
            object.__setattr__(self, "scenes", named)
        object.__setattr__(self, "cache", None if self.cache is None else Path(self.cache))

    def subset(self, name: str) -> str:
        """The scene of an image; the paper's tables have a row for each."""
        return name.partition("/")[0]

    def names(self) -> list[str]:
        names: list[str] = []
        for scene in SCENES if self.scenes is None else self.scenes:
            stems = loading.list_stems(self._calibration(scene) / "images", loading.IMAGE_SUFFIXES)
            if not stems and self.scenes is not None:
                raise FileError(f"{self._calibration(scene) / 'images'}: holds no frames of the scene {scene}.")
            names += (f"{scene}/{stem}" for stem in sorted(stems))
        if not names:
            loading.require_images(names, self.root, f"{_TRAINING[0]}/<Scene>/images/*.jpg with {', '.join(SCENES)}")
        return names

    def files(self, name: str) -> list[Path]:
        scene, _, stem = name.partition("/")
        _require_known(scene)
        folder = self._calibration(scene)
        candidates = [folder / "images" / f"{stem}{suffix}" for suffix in (".jpg", ".png", ".jpeg", ".JPG", ".PNG")]
        image_file = next((path for path in candidates if path.is_file()), candidates[0])
        model = folder / "sparse" / "0"
        text = (model / "images.txt").is_file() and not (model / "images.bin").is_file()
        poses = [model / f"{part}{'.txt' if text else '.bin'}" for part in ("cameras", "images")]
        laser = folder if (folder / f"{scene}.ply").is_file() else self.root / scene
        return [image_file, laser / f"{scene}.ply", laser / f"{scene}_trans.txt", *poses]

    def load(self, name: str) -> Scene:
        image_file = self.files(name)[0]
        image = read_image(image_file)
        posed, camera = self._posed(name)
        width, height = size = max(1, round(camera.width * self.scale)), max(1, round(camera.height * self.scale))
        # A bundle may hold smaller images than it was calibrated with, but no other crop.
        across, down = image.shape[1] / camera.width, image.shape[0] / camera.height
        if abs(across - down) * max(image.shape[:2]) > 1:
            raise FileError(
                f"{image_file}: is {image.shape[1]}x{image.shape[0]}, which does not have the aspect ratio "
                f"of its calibration, {camera.width}x{camera.height}."
            )
        depth = self._projected(name, posed, camera, size)
        if self.see_through_radius:
            depth = np.where(see_through(depth, self.see_through_radius, self.see_through_ratio), np.nan, depth)
        small, camera = downsample_image(image, (height, width)), camera.scaled(*size)
        return Scene(name, small, loading.clean_reference(depth, self.max_depth), camera.pinhole() or camera.rays())

    def scan_projection(self, name: str) -> ScanProjection:
        """The unfiltered reference of a frame and the scan points behind it, whatever the options remove."""
        posed, camera = self._posed(name)
        size = max(1, round(camera.width * self.scale)), max(1, round(camera.height * self.scale))
        reference = self._projected(name, posed, camera, size)
        fine = self._project(name, posed, camera, (camera.width, camera.height))
        points, colours = self._scan(name)
        step = -(-len(points) // _AUDITED_POINTS)
        seen = transform_points(points[::step].astype(np.float64), self._scan_to_camera(name, posed))
        small = camera.scaled(*size)
        # Far outside the image a lens polynomial folds back, so points outside the box of the image's rays are left
        # out before they are projected.
        rays = small.points(np.ones((size[1], size[0])))[..., :2].reshape(-1, 2)
        with np.errstate(invalid="ignore", divide="ignore"):
            directions = seen[:, :2] / seen[:, 2:]
            inside = (seen[:, 2] > 0) & (directions >= np.nanmin(rays, axis=0)).all(axis=1)
            inside &= (directions <= np.nanmax(rays, axis=0)).all(axis=1)
            pixels = np.full((len(seen), 2), -1.0)
            pixels[inside] = np.floor(small.project(seen[inside]) + 0.5)
            inside &= ((pixels >= 0) & (pixels < size)).all(axis=1)
        image = downsample_image(read_image(self.files(name)[0]), (size[1], size[0]))
        places = pixels[inside, ::-1].astype(np.int64)
        return ScanProjection(
            image, reference, fine, places, seen[inside, 2], None if colours is None else colours[::step][inside]
        )

    def _calibration(self, scene: str) -> Path:
        folders = [self.root / folder / scene for folder in _TRAINING]
        return next((folder for folder in folders if (folder / "images").is_dir()), folders[0])

    def _posed(self, name: str) -> tuple[ColmapImage, ColmapCamera]:
        files = self.files(name)
        for file in files[3:]:
            if not file.is_file():
                raise FileError(f"{file}: no such file; it is needed for the pose of {name}.")
        model = _model(files[3].parent, tuple(map(loading.file_state, files[3:])))
        stem = name.partition("/")[2]
        posed = model.images.get(files[0].name) or next(
            (image for image in model.images.values() if Path(image.name).stem == stem), None
        )
        if posed is None:
            raise FileError(f"{files[4]}: has no pose of {files[0].name}, which is not part of the reconstruction.")
        return posed, model.camera_of(posed)

    def _project(
        self, name: str, posed: ColmapImage, camera: ColmapCamera, size: tuple[int, int]
    ) -> NDArray[np.float32]:
        transform = self._scan_to_camera(name, posed)  # before the scan: half a gigabyte is not read in vain
        return z_buffer(self._scan(name)[0], transform, camera.scaled(*size))

    def _scan(self, name: str) -> tuple[FloatArray, NDArray[np.uint8] | None]:
        cloud = self.files(name)[1]
        if not cloud.is_file():
            raise FileError(f"{cloud}: no such file; expected the laser scan of {self.subset(name)}.")
        return _cloud(cloud, loading.file_state(cloud))

    def _scan_to_camera(self, name: str, posed: ColmapImage) -> NDArray[np.float64]:
        scale, rotation, translation = read_alignment(self.files(name)[2])
        # scan = s A x + b and camera = R x + t give s camera = R A' (scan - b) + s t, in the metres of the scan.
        turned = posed.rotation @ rotation.T
        transform = np.eye(4)
        transform[:3, :3], transform[:3, 3] = turned, scale * posed.translation - turned @ translation
        return transform

    def _projected(
        self, name: str, posed: ColmapImage, camera: ColmapCamera, size: tuple[int, int]
    ) -> NDArray[np.float32]:
        """The nearest depth of each pixel without any removal, from the cache if there is one."""
        cached = None
        if self.cache is not None:
            scan = [loading.file_state(file) for file in self.files(name)[1:3]]
            pose = (camera, posed.rotation.tolist(), posed.translation.tolist(), size)
            key = hashlib.sha256(repr((scan, pose)).encode()).hexdigest()
            cached = self.cache / f"{name.replace('/', '_')}_{key[:16]}.npy"
            with suppress(OSError, ValueError):  # missing or damaged: it is projected again
                depth: NDArray[np.float32] = np.load(cached)
                if depth.shape == (size[1], size[0]) and depth.dtype == np.float32:
                    return depth
        depth = self._project(name, posed, camera, size)
        if cached is not None:
            with suppress(OSError):  # if the folder cannot be made, the next line reports it
                cached.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(cached, lambda temporary: _save(temporary, depth))
        return depth


def read_alignment(file: Path) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Scale s, rotation A and translation b of a ``_trans.txt``: scan = s A x + b for x in COLMAP's frame."""
    matrix = np.array(loading.read_numbers(file, (16,), "a 4x4 alignment")).reshape(4, 4)
    with np.errstate(all="ignore"):  # the check below rejects what overflows
        determinant = float(np.linalg.det(matrix[:3, :3]))
        scale = np.cbrt(determinant) if determinant > 0 else np.nan
        rotation = matrix[:3, :3] / scale
        off = np.abs(rotation @ rotation.T - np.eye(3)).max()
    if not (off < _SIMILARITY_TOLERANCE and np.allclose(matrix[3], (0, 0, 0, 1), atol=_SIMILARITY_TOLERANCE)):
        raise FileError(f"{file}: must hold a rotation with scale and a translation, by rows, got {matrix.tolist()}.")
    return float(scale), rotation, matrix[:3, 3]


def _require_known(scene: str) -> None:
    known = (*SCENES, *EXCLUDED)
    if scene not in known:
        raise InputError(f"{param('scenes')}: there is no scene {scene!r}; {suggestion(scene, known)}")


def _save(path: Path, depth: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:
        np.save(stream, depth)


@lru_cache(maxsize=2)
def _model(folder: Path, state: tuple[tuple[str, int, int], ...]) -> ColmapModel:
    return read_model(folder)


@lru_cache(maxsize=1)  # half a gigabyte each; frames are listed scene by scene
def _cloud(file: Path, state: tuple[str, int, int]) -> tuple[FloatArray, NDArray[np.uint8] | None]:
    points, colours = read_ply(file)
    if not len(points):
        raise FileError(f"{file}: holds no points.")
    return points, colours
