"""Two layouts in which other projects publish evaluation images: the MoGe bundle and Marigold-DC's folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import FileError
from leadline.datasets import Scene, SparseInput, loading
from leadline.geometry.cameras import Camera
from leadline.io.depth import read_depth, read_image, read_values
from leadline.io.files import read_json, read_text, reading

_INDEX = ".index.txt"


@dataclass(frozen=True)
class MogeBundle:
    """One data set of the MoGe evaluation bundle (DIODE, ETH3D, iBims-1 and others, undistorted, with intrinsics).

        .index.txt                                  one <id> per line
        <id>/image.jpg, <id>/depth.png, <id>/meta.json

    Depth is 16-bit and logarithmic between the ``near`` and ``far`` in the PNG's text chunks; 0 is unknown and 65535
    infinite; both count as missing. ``meta.json`` holds a 3x3 matrix of *normalised* intrinsics: fx and cx as fractions
    of the width, fy and cy as fractions of the height, measured from the image's corner.

    Images are used as stored. (The bundle's own evaluation crops and warps them first, which is not done here.) Most
    sets are metric; for the others the configuration of the bundle's authors has a factor, `metres_per_unit`.
    """

    root: Path  # the folder with .index.txt, e.g. eval/ETH3D
    metres_per_unit: float = 1.0
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        loading.require_positive_or_none(metres_per_unit=self.metres_per_unit, max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"moge-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        lines = read_text(self.root / _INDEX, "the bundle's list of images").splitlines()
        names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        loading.require_images(names, self.root / _INDEX, "one image folder per line")
        return names  # in the order of the index

    def files(self, name: str) -> list[Path]:
        return [self.root / name / part for part in ("image.jpg", "depth.png", "meta.json")]

    def load(self, name: str) -> Scene:
        image_file, depth_file, meta = self.files(name)
        image = read_image(image_file)
        depth = read_depth(depth_file, "moge-log").values
        loading.require_shape(depth, image.shape, depth_file, image_file)
        camera = _camera(meta, image.shape[1], image.shape[0])
        metres = depth * np.float32(self.metres_per_unit)
        return Scene(name, image, loading.clean_reference(metres, self.max_depth), camera)


def _camera(meta: Path, width: int, height: int) -> Camera:
    content = read_json(meta, "the image's meta data")
    with reading(meta, "the image's meta data"):
        matrix = np.asarray(content["intrinsics"], dtype=np.float64)
    if matrix.shape != (3, 3):
        raise FileError(f"{meta}: `intrinsics` must be a 3x3 matrix, got shape {matrix.shape} instead.")
    (fx, _, cx), (_, fy, cy), _ = matrix.tolist()
    if not (np.isfinite(matrix).all() and 0 < fx < 100 and 0 < fy < 100):
        raise FileError(f"{meta}: `intrinsics` must be normalised by the image's size, got {matrix.tolist()}.")
    return Camera(width, height, fx * width, fy * height, cx * width - 0.5, cy * height - 0.5)


@dataclass(frozen=True)
class MarigoldBundle:
    """A folder in the layout that Marigold-DC evaluates.

    rgb/<id>.png or .jpg        the image
    gt/<id>.npy                 reference depth in metres, 0 = missing
    sparse/<id>.npy             optional: stored measurements in metres, 0 = missing
    intrinsics/<id>.txt         optional: 3x3 or 4x4 matrix, or fx, fy, cx, cy, used unchanged
    """

    root: Path  # the folder with rgb and gt
    max_depth: float | None = None  # metres beyond which the reference is not used; stored measurements are not limited

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"marigold-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        stems = loading.list_stems(self.root / "rgb", loading.IMAGE_SUFFIXES) | loading.list_stems(
            self.root / "gt", (".npy",)
        )
        return loading.require_images(stems, self.root, "rgb/*.png and gt/*.npy")

    def files(self, name: str) -> list[Path]:
        pictures = [self.root / "rgb" / f"{name}{suffix}" for suffix in loading.IMAGE_SUFFIXES]
        image_file = next((path for path in pictures if path.is_file()), pictures[0])
        calibration = self.root / "intrinsics" / f"{name}.txt"
        paths = [image_file, self.root / "gt" / f"{name}.npy"]
        measured = self.root / "sparse" / f"{name}.npy"
        return paths + [path for path in (measured, calibration) if path.parent.is_dir()]

    def load(self, name: str) -> Scene:
        image_file, depth_file, *further = self.files(name)
        image = read_image(image_file)
        depth = read_values(depth_file)
        loading.require_shape(depth, image.shape, depth_file, image_file)
        camera, sparse = None, {}
        for file in further:
            if file.suffix == ".npy":
                values = read_values(file)
                loading.require_shape(values, image.shape, file, image_file)
                sparse["sparse"] = SparseInput(loading.clean_reference(values, None))
            else:
                numbers = loading.read_numbers(file, (4, 9, 16), "a 3x3 or 4x4 matrix or fx, fy, cx, cy")
                camera = loading.pinhole_camera(numbers, image.shape[1], image.shape[0], file)
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera, sparse)
