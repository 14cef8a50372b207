"""A folder in the form that Marigold-DC evaluates.

rgb/<id>.png or .jpg        the picture
gt/<id>.npy                 reference depth in metres, 0 = missing
sparse/<id>.npy             optional: stored measurements in metres, 0 = missing
intrinsics/<id>.txt         optional: 3x3 matrix, or fx, fy, cx, cy; kept as published
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.datasets import tree
from leadline.datasets.scene import Scene
from leadline.datasets.scenes import SparseInput
from leadline.io.depth.files import read_image, read_values


@dataclass(frozen=True)
class MarigoldBundle:
    """The images of such a folder.

    Parameters
    ----------
    root : Path
        The folder with ``rgb`` and ``gt``.
    max_depth : float, optional
        Metres beyond which the reference is left out; stored measurements stay as they are.
    """

    root: Path
    max_depth: float | None = None

    def __post_init__(self) -> None:
        tree.require_positive(max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"marigold-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        stems = tree.listed(self.root / "rgb", tree.PICTURES) | tree.listed(self.root / "gt", (".npy",))
        return tree.found(stems, self.root, "rgb/*.png and gt/*.npy")

    def files(self, name: str) -> list[Path]:
        pictures = [self.root / "rgb" / f"{name}{suffix}" for suffix in tree.PICTURES]
        picture = next((path for path in pictures if path.is_file()), pictures[0])
        calibration = self.root / "intrinsics" / f"{name}.txt"
        paths = [picture, self.root / "gt" / f"{name}.npy"]
        return [*paths, calibration] if calibration.parent.is_dir() else paths

    def load(self, name: str) -> Scene:
        picture, depth_file, *calibration = self.files(name)
        image = read_image(picture)
        depth = read_values(depth_file)
        tree.require_shape(depth, image.shape, depth_file, picture)
        camera = None
        for file in calibration:
            numbers = tree.read_numbers(file, (4, 9), "a 3x3 matrix or fx, fy, cx, cy")
            camera = tree.pinhole(numbers, image.shape[1], image.shape[0], file)
        return Scene(name, image, tree.reference(depth, self.max_depth), camera)

    def scene_sparse(self, name: str) -> list[SparseInput]:
        """The stored measurements of an image: one map on its grid, or none where there is no ``sparse`` folder."""
        file = self.root / "sparse" / f"{name}.npy"
        if not file.parent.is_dir():
            return []
        return [SparseInput("sparse", "unknown", tree.reference(read_values(file), None), from_reference=False)]
