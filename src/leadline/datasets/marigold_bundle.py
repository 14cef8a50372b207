"""A folder in the layout that Marigold-DC evaluates.

rgb/<id>.png or .jpg        the image
gt/<id>.npy                 reference depth in metres, 0 = missing
sparse/<id>.npy             optional: stored measurements in metres, 0 = missing
intrinsics/<id>.txt         optional: 3x3 matrix, or fx, fy, cx, cy, used unchanged
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.datasets.loading import (
    IMAGE_SUFFIXES,
    clean_reference,
    list_stems,
    pinhole_camera,
    read_numbers,
    require_images,
    require_positive_or_none,
    require_shape,
)
from leadline.datasets.scene import Scene
from leadline.datasets.scene_folders import SparseInput
from leadline.io.depth.files import read_image, read_values


@dataclass(frozen=True)
class MarigoldBundle:
    """The images of a folder in that layout.

    Parameters
    ----------
    root : Path
        The folder with ``rgb`` and ``gt``.
    max_depth : float, optional
        Metres beyond which the reference is not used; stored measurements are not limited.
    """

    root: Path
    max_depth: float | None = None

    def __post_init__(self) -> None:
        require_positive_or_none(max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"marigold-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        stems = list_stems(self.root / "rgb", IMAGE_SUFFIXES) | list_stems(self.root / "gt", (".npy",))
        return require_images(stems, self.root, "rgb/*.png and gt/*.npy")

    def files(self, name: str) -> list[Path]:
        pictures = [self.root / "rgb" / f"{name}{suffix}" for suffix in IMAGE_SUFFIXES]
        image_file = next((path for path in pictures if path.is_file()), pictures[0])
        calibration = self.root / "intrinsics" / f"{name}.txt"
        paths = [image_file, self.root / "gt" / f"{name}.npy"]
        return [*paths, calibration] if calibration.parent.is_dir() else paths

    def load(self, name: str) -> Scene:
        image_file, depth_file, *calibration = self.files(name)
        image = read_image(image_file)
        depth = read_values(depth_file)
        require_shape(depth, image.shape, depth_file, image_file)
        camera = None
        for file in calibration:
            numbers = read_numbers(file, (4, 9), "a 3x3 matrix or fx, fy, cx, cy")
            camera = pinhole_camera(numbers, image.shape[1], image.shape[0], file)
        return Scene(name, image, clean_reference(depth, self.max_depth), camera)

    def scene_sparse(self, name: str) -> list[SparseInput]:
        """The stored measurements of an image: one map of its size, or nothing if there is no ``sparse`` folder."""
        file = self.root / "sparse" / f"{name}.npy"
        if not file.parent.is_dir():
            return []
        return [SparseInput("sparse", "unknown", clean_reference(read_values(file), None), from_reference=False)]
