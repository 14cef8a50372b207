"""DDAD as public evaluations of depth completion prepare it: 3,950 front images of the validation split, 1936x1216.

    pregenerated/val/rgb/<number>.png, gt/<number>.png, hints/<number>.png, intrinsics/<number>.txt

The files are those of VPP4DC, which Marigold-DC uses as well; depth is 16-bit in 1/256 m. Both evaluations filter the
stored measurements ``lidar`` with a window of 7x7 pixels and 1.5 m first; the case ``stored+behind:7:1.5`` does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.datasets import Scene, SparseInput, loading
from leadline.io.depth import read_depth, read_image


@dataclass(frozen=True)
class Ddad:
    """The prepared images. The name of an image is its number, e.g. ``0000000012``."""

    name = "ddad"
    root: Path  # the folder with pregenerated, or that with rgb and gt
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)

    def names(self) -> list[str]:
        folder = self._folder
        stems = {stem for kind in ("rgb", "gt", "hints") for stem in loading.list_stems(folder / kind, (".png",))}
        return loading.require_images(stems, self.root, "[pregenerated/val/]{rgb,gt,hints}/*.png")

    def files(self, name: str) -> list[Path]:
        folder = self._folder
        return [*(folder / kind / f"{name}.png" for kind in ("rgb", "gt", "hints")), folder / f"intrinsics/{name}.txt"]

    def load(self, name: str) -> Scene:
        image_file, depth_file, sparse_file, calibration = self.files(name)
        image = read_image(image_file)
        depth, sparse = read_depth(depth_file, "kitti").values, read_depth(sparse_file, "kitti").values
        for values, file in ((depth, depth_file), (sparse, sparse_file)):
            loading.require_shape(values, image.shape, file, image_file)
        numbers = loading.read_numbers(calibration, (4, 9), "a 3x3 matrix")
        camera = loading.pinhole_camera(numbers, image.shape[1], image.shape[0], calibration)
        points = SparseInput(loading.clean_reference(sparse, None), "LiDAR of DDAD")
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera, {"lidar": points})

    @property
    def _folder(self) -> Path:
        return loading.first_folder(self.root, ("pregenerated/val", "val", "."), "rgb")
