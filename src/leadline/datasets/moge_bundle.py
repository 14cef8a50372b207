"""One data set of the MoGe evaluation bundle (DIODE, ETH3D, iBims-1 and others, undistorted, with intrinsics).

    .index.txt                                  one <id> per line
    <id>/image.jpg, <id>/depth.png, <id>/meta.json

Depth is 16-bit and logarithmic between the ``near`` and ``far`` in the PNG's text chunks; 0 is unknown and 65535
infinite; both count as missing. ``meta.json`` holds a 3x3 matrix of *normalised* intrinsics: fx and cx as fractions of
the width, fy and cy as fractions of the height, measured from the image's corner.

Images are used as stored. (The bundle's own evaluation crops and warps them first, which is not done here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import FileError
from leadline.datasets.loading import clean_reference, require_images, require_positive_or_none, require_shape
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera
from leadline.io.depth.files import read_depth, read_image
from leadline.io.reading import read_json, read_text, reading

_INDEX = ".index.txt"


@dataclass(frozen=True)
class MogeBundle:
    """The images that the index of a bundle lists.

    Parameters
    ----------
    root : Path
        The folder with ``.index.txt``, e.g. ``eval/ETH3D``.
    metres_per_unit : float
        Unit of the stored depth. Most sets are metric; for the others the configuration of the bundle's authors has a
        factor.
    max_depth : float, optional
        Metres beyond which the reference is not used.
    """

    root: Path
    metres_per_unit: float = 1.0
    max_depth: float | None = None

    def __post_init__(self) -> None:
        require_positive_or_none(metres_per_unit=self.metres_per_unit, max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"moge-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        lines = read_text(self.root / _INDEX, "the bundle's list of images").splitlines()
        names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        require_images(names, self.root / _INDEX, "one image folder per line")
        return names  # in the order of the index

    def files(self, name: str) -> list[Path]:
        return [self.root / name / part for part in ("image.jpg", "depth.png", "meta.json")]

    def load(self, name: str) -> Scene:
        image_file, depth_file, meta = self.files(name)
        image = read_image(image_file)
        depth = read_depth(depth_file, "moge-log").values
        require_shape(depth, image.shape, depth_file, image_file)
        camera = _camera(meta, image.shape[1], image.shape[0])
        return Scene(name, image, clean_reference(depth * np.float32(self.metres_per_unit), self.max_depth), camera)


def _camera(meta: Path, width: int, height: int) -> Camera:
    content = read_json(meta, "the image's meta data")
    with reading(meta, "the image's meta data"):
        matrix = np.asarray(content["intrinsics"], dtype=np.float64)
    if matrix.shape != (3, 3):
        raise FileError(f"{meta}: `intrinsics` must be a 3x3 matrix, got shape {matrix.shape} instead.")
    focal, centre = matrix[[0, 1], [0, 1]], matrix[:2, 2]
    if not (np.isfinite(matrix).all() and (focal > 0).all() and (focal < 100).all()):
        raise FileError(f"{meta}: `intrinsics` must be normalised by the image's size, got {matrix.tolist()}.")
    fx, cx = float(focal[0]) * width, float(centre[0]) * width - 0.5
    fy, cy = float(focal[1]) * height, float(centre[1]) * height - 0.5
    return Camera(width, height, fx, fy, cx, cy)
