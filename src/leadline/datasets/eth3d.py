"""ETH3D, high-resolution multi-view, training scenes: camera pictures of 6048x4032 with laser depth.

    <scene>/images/dslr_images/DSC_xxxx.JPG
    <scene>/ground_truth_depth/dslr_images/DSC_xxxx.JPG         raw float32, row by row, inf = none: no JPEG
    <scene>/dslr_calibration_jpg/{cameras,images}.txt           COLMAP, THIN_PRISM_FISHEYE

or, as some tools repack it,

    rgb/<scene>/images/... and rgb/<scene>/dslr_calibration_jpg/...
    depth/<scene>_dslr_depth/<scene>/ground_truth_depth/...

Depth belongs to the *distorted* picture, so the camera is that lens, as the ray of every pixel. The paper's 454 images
are read at a quarter of their size, 1512x1008. There the picture is averaged and depth picked. At full size most
pixels have no depth, as the picture is finer than the scan: taking every fourth pixel would throw most points away, so
each small pixel takes the measured one nearest to its middle (``nearest-valid``). The paper does not say what it
did, but its valid fraction of about two thirds is more than the full size has in most pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.datasets import tree
from leadline.datasets.resampling import DEPTH_RULES, DepthRule, shrink_depth, shrink_image
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera, RayCamera
from leadline.geometry.lenses import ColmapCamera
from leadline.io.colmap import ColmapModel, read_model
from leadline.io.depth.files import read_image
from leadline.io.reading import reading

_IMAGES = Path("images", "dslr_images")
_DEPTH = Path("ground_truth_depth", "dslr_images")
_CALIBRATION = "dslr_calibration_jpg"


@dataclass(frozen=True)
class Eth3d:
    """The pictures of all scenes that are there.

    Parameters
    ----------
    root : Path
        The folder with the scenes, or with ``rgb`` and ``depth``.
    size : (width, height), optional
        To which pictures and depth are shrunk. None for the full size.
    max_depth : float, optional
        Metres beyond which the reference is left out.
    depth_rule : {"nearest-valid", "nearest"}
        See `resampling.shrink_depth`.
    with_camera : bool
        Read the calibration, which takes pycolmap. Without a camera there are no normals.
    """

    root: Path
    size: tuple[int, int] | None = (1512, 1008)
    max_depth: float | None = None
    depth_rule: DepthRule = "nearest-valid"
    with_camera: bool = True

    def __post_init__(self) -> None:
        tree.require_positive(max_depth=self.max_depth)
        tree.require_choice("depth_rule", self.depth_rule, DEPTH_RULES)
        object.__setattr__(self, "size", tree.require_size(self.size))

    @property
    def name(self) -> str:
        return "eth3d"

    def names(self) -> list[str]:
        folder = self.root / "rgb" if self._repacked else self.root
        names = set()
        for scene in sorted(path.name for path in folder.iterdir() if path.is_dir()):
            pictures, depth = self._folders(scene)
            stems = tree.listed(pictures / _IMAGES, (".jpg",)) | tree.listed(depth / _DEPTH, (".jpg",))
            names |= {f"{scene}/{stem}" for stem in stems}
        return tree.found(names, self.root, f"[rgb/]<scene>/{_IMAGES.as_posix()}/*.JPG")

    def files(self, name: str) -> list[Path]:
        scene, _, stem = name.partition("/")
        pictures, depth = self._folders(scene)
        paths = [pictures / _IMAGES / f"{stem}.JPG", depth / _DEPTH / f"{stem}.JPG"]
        calibration = [pictures / _CALIBRATION / f"{part}.txt" for part in ("cameras", "images")]
        return paths + calibration if self.with_camera else paths

    def load(self, name: str) -> Scene:
        picture, depth_file = self.files(name)[:2]
        image = read_image(picture)
        depth = _read_raw(depth_file, image.shape[1], image.shape[0])
        camera = self._camera(name, picture, (image.shape[1], image.shape[0])) if self.with_camera else None
        if self.size is not None:
            shape = (self.size[1], self.size[0])
            image, depth = shrink_image(image, shape), shrink_depth(depth, shape, self.depth_rule)
        return Scene(name, image, tree.reference(depth, self.max_depth), camera)

    @property
    def _repacked(self) -> bool:
        return (self.root / "rgb").is_dir()

    def _folders(self, scene: str) -> tuple[Path, Path]:
        """Where a scene's pictures with their calibration lie, and where its depth."""
        if self._repacked:
            return self.root / "rgb" / scene, self.root / "depth" / f"{scene}_dslr_depth" / scene
        return self.root / scene, self.root / scene

    def _camera(self, name: str, picture: Path, size: tuple[int, int]) -> Camera | RayCamera:
        folder = self._folders(name.partition("/")[0])[0] / _CALIBRATION
        states = [file.stat().st_mtime_ns for file in self.files(name)[2:] if file.is_file()]
        model = _model(folder, tuple(states))
        posed = model.images.get(f"dslr_images/{picture.name}") or model.images.get(picture.name)
        if posed is None:
            raise FileError(f"{folder / 'images.txt'}: does not list dslr_images/{picture.name}. Is it of this scene?")
        camera = model.camera_of(posed)
        if (camera.width, camera.height) != size:
            raise FileError(
                f"{folder / 'cameras.txt'}: is for {camera.width}x{camera.height}, but {picture.name} is "
                f"{size[0]}x{size[1]}."
            )
        return _rays(camera, self.size)


@lru_cache(maxsize=32)
def _model(folder: Path, states: tuple[int, ...]) -> ColmapModel:
    """The calibration of one scene; `states` only tells one version of its files from another."""
    return read_model(folder)


@lru_cache(maxsize=2)
def _rays(camera: ColmapCamera, size: tuple[int, int] | None) -> Camera | RayCamera:
    """One lens serves a scene's pictures in a row, and its million rays take longer than reading a picture."""
    return camera.at_size(size)


def _read_raw(file: Path, width: int, height: int) -> NDArray[np.float32]:
    with reading(file, "raw float32 depth"):
        expected, given = 4 * width * height, file.stat().st_size
        if given != expected:
            raise FileError(
                f"{file}: has {given} bytes, but {width}x{height} pixels of float32 take {expected}. It must be the "
                "raw depth of the picture of the same name, neither a JPEG nor truncated."
            )
        return np.fromfile(file, dtype="<f4").reshape(height, width)
