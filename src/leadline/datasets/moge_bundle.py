"""One data set of the MoGe evaluation bundle (DIODE, ETH3D, iBims-1 and others, undistorted, with intrinsics).

    .index.txt                                  one <id> a line
    <id>/image.jpg, <id>/depth.png, <id>/meta.json

Depth is 16-bit and logarithmic between the ``near`` and ``far`` in the PNG's text chunks; 0 is unknown and 65535
infinite, both missing here. ``meta.json`` holds a 3x3 matrix of *normalised* intrinsics: fx and cx as shares of the
width, fy and cy of the height, counted from the picture's corner.

Pictures come as stored. (The bundle's own scores are for a view cropped and warped from it, which is not done here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import FileError
from leadline.datasets import tree
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera
from leadline.io.depth.files import read_depth, read_image
from leadline.io.reading import reading

_INDEX = ".index.txt"


@dataclass(frozen=True)
class MogeBundle:
    """The images that a bundle's index lists.

    Parameters
    ----------
    root : Path
        The folder with ``.index.txt``, e.g. ``eval/ETH3D``.
    metres : float
        Metres per unit of the stored depth. Most sets are metric; for the others the bundle's authors keep a
        factor in their configuration.
    max_depth : float, optional
        Metres beyond which the reference is left out.
    """

    root: Path
    metres: float = 1.0
    max_depth: float | None = None

    def __post_init__(self) -> None:
        tree.require_positive(metres=self.metres, max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"moge-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        lines = tree.read_text(self.root / _INDEX, "the bundle's list of images").splitlines()
        names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        tree.found(names, self.root / _INDEX, "one image folder a line")
        return names  # the index is an order already

    def files(self, name: str) -> list[Path]:
        return [self.root / name / part for part in ("image.jpg", "depth.png", "meta.json")]

    def load(self, name: str) -> Scene:
        picture, depth_file, meta = self.files(name)
        image = read_image(picture)
        depth = read_depth(depth_file, "moge-log").values
        tree.require_shape(depth, image.shape, depth_file, picture)
        camera = _camera(meta, image.shape[1], image.shape[0])
        return Scene(name, image, tree.reference(depth * np.float32(self.metres), self.max_depth), camera)


def _camera(meta: Path, width: int, height: int) -> Camera:
    content = tree.read_json(meta, "the image's meta data")
    with reading(meta, "the image's meta data"):
        matrix = np.asarray(content["intrinsics"], dtype=np.float64)
    if matrix.shape != (3, 3):
        raise FileError(f"{meta}: `intrinsics` must be a 3x3 matrix, got shape {matrix.shape} instead.")
    focal, centre = matrix[[0, 1], [0, 1]], matrix[:2, 2]
    if not (np.isfinite(matrix).all() and (focal > 0).all() and (focal < 100).all()):
        raise FileError(f"{meta}: `intrinsics` must be normalised by the picture's size, got {matrix.tolist()}.")
    fx, cx = float(focal[0]) * width, float(centre[0]) * width - 0.5
    fy, cy = float(focal[1]) * height, float(centre[1]) * height - 0.5
    return Camera(width, height, fx, fy, cx, cy)
