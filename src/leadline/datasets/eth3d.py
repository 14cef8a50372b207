"""ETH3D, high-resolution multi-view, training scenes: camera images of 6048x4032 with laser depth.

    <scene>/images/dslr_images/DSC_xxxx.JPG
    <scene>/ground_truth_depth/dslr_images/DSC_xxxx.JPG         raw float32, row by row, inf = no depth; not a JPEG
    <scene>/dslr_calibration_jpg/{cameras,images}.txt           COLMAP, THIN_PRISM_FISHEYE

or, as some tools repack it,

    rgb/<scene>/images/... and rgb/<scene>/dslr_calibration_jpg/...
    depth/<scene>_dslr_depth/<scene>/ground_truth_depth/...

Depth belongs to the *distorted* image, so the camera includes the lens distortion, as one ray per pixel. The paper's
454 images are read at a quarter of their size, 1512x1008, with averaged colours and selected depth. At full size most
pixels have no depth, since the image is finer than the scan. Selecting every fourth pixel would lose most points, so
each small pixel takes the valid depth nearest to its centre (``nearest-valid``). The paper does not describe this step,
but its valid fraction of about two thirds is larger than that of most images at full size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, require_choice
from leadline.datasets import Scene, loading
from leadline.datasets.downsampling import DepthRule, downsample_depth, downsample_image
from leadline.geometry.cameras import CameraModel, ColmapCamera
from leadline.io.colmap import ColmapModel, read_model
from leadline.io.depth import read_image
from leadline.io.files import reading

_IMAGES = Path("images", "dslr_images")
_DEPTH = Path("ground_truth_depth", "dslr_images")
_CALIBRATION = "dslr_calibration_jpg"


@dataclass(frozen=True)
class Eth3d:
    """The images of all scenes in a folder."""

    name = "eth3d"
    root: Path  # the folder with the scenes, or with rgb and depth
    size: tuple[int, int] | None = (1512, 1008)  # (width, height) of image and depth; None for the full size
    max_depth: float | None = None  # metres beyond which the reference is not used
    depth_rule: DepthRule = "nearest-valid"  # see downsample_depth
    with_camera: bool = True  # read the calibration; without a camera there are no normals

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)
        require_choice("depth_rule", self.depth_rule, DepthRule)
        object.__setattr__(self, "size", loading.require_size(self.size))

    def names(self) -> list[str]:
        folder = self.root / "rgb" if self._repacked else self.root
        names = set()
        for scene in sorted(path.name for path in folder.iterdir() if path.is_dir()):
            pictures, depth = self._folders(scene)
            stems = loading.list_stems(pictures / _IMAGES, (".jpg",)) | loading.list_stems(depth / _DEPTH, (".jpg",))
            names |= {f"{scene}/{stem}" for stem in stems}
        return loading.require_images(names, self.root, f"[rgb/]<scene>/{_IMAGES.as_posix()}/*.JPG")

    def files(self, name: str) -> list[Path]:
        scene, _, stem = name.partition("/")
        pictures, depth = self._folders(scene)
        paths = [pictures / _IMAGES / f"{stem}.JPG", depth / _DEPTH / f"{stem}.JPG"]
        calibration = [pictures / _CALIBRATION / f"{part}.txt" for part in ("cameras", "images")]
        return paths + calibration if self.with_camera else paths

    def load(self, name: str) -> Scene:
        image_file, depth_file = self.files(name)[:2]
        image = read_image(image_file)
        depth = _read_raw(depth_file, image.shape[1], image.shape[0])
        camera = self._camera(name, image_file, (image.shape[1], image.shape[0])) if self.with_camera else None
        if self.size is not None:
            shape = (self.size[1], self.size[0])
            image, depth = downsample_image(image, shape), downsample_depth(depth, shape, self.depth_rule)
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera)

    def read(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.float32], ColmapCamera]:
        """Image, depth (inf where there is none) and lens at full size."""
        image_file, depth_file = self.files(name)[:2]
        image = read_image(image_file)
        size = image.shape[1], image.shape[0]
        return image, _read_raw(depth_file, *size), self._lens(name, image_file, size)

    @property
    def _repacked(self) -> bool:
        return (self.root / "rgb").is_dir()

    def _folders(self, scene: str) -> tuple[Path, Path]:
        """The folder of a scene's images and calibration, and that of its depth."""
        if self._repacked:
            return self.root / "rgb" / scene, self.root / "depth" / f"{scene}_dslr_depth" / scene
        return self.root / scene, self.root / scene

    def _camera(self, name: str, image_file: Path, size: tuple[int, int]) -> CameraModel:
        camera = self._lens(name, image_file, size)
        camera = camera if self.size is None else camera.scaled(*self.size)
        return camera.pinhole() or camera.rays()

    def _lens(self, name: str, image_file: Path, size: tuple[int, int]) -> ColmapCamera:
        folder = self._folders(name.partition("/")[0])[0] / _CALIBRATION
        model = _model(folder, tuple(map(loading.file_state, self.files(name)[2:])))
        posed = model.images.get(f"dslr_images/{image_file.name}") or model.images.get(image_file.name)
        if posed is None:
            raise FileError(f"{folder / 'images.txt'}: does not list dslr_images/{image_file.name}. Another scene's?")
        camera = model.camera_of(posed)
        if (camera.width, camera.height) != size:
            raise FileError(
                f"{folder / 'cameras.txt'}: is for {camera.width}x{camera.height}, but {image_file.name} is "
                f"{size[0]}x{size[1]}."
            )
        return camera


@lru_cache(maxsize=32)
def _model(folder: Path, states: tuple[tuple[str, int, int], ...]) -> ColmapModel:
    """The calibration of one scene; `states` is part of the cache's key only."""
    return read_model(folder)


def _read_raw(file: Path, width: int, height: int) -> NDArray[np.float32]:
    with reading(file, "raw float32 depth"):
        expected, given = 4 * width * height, file.stat().st_size
        if given != expected:
            raise FileError(
                f"{file}: has {given} bytes, but {width}x{height} pixels of float32 take {expected}. It must be the "
                "raw depth of the image of the same name, neither a JPEG nor truncated."
            )
        return np.fromfile(file, dtype="<f4").reshape(height, width)
