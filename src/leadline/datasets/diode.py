"""DIODE's validation images: laser depth, indoors and outdoors, at 1024x768.

    [val/]{indoors,outdoor}/scene_000xx/scan_00yyy/<id>.png
                                                   <id>_depth.npy       (768, 1024, 1) float, metres
                                                   <id>_depth_mask.npy  (768, 1024), 1 where valid

The paper uses the 325 images in ``indoors``, without a limit of depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leadline.base.errors import require_choice
from leadline.datasets import Scene, loading
from leadline.geometry.cameras import Camera
from leadline.io.depth import read_image, read_values

DEVKIT_INTRINSICS = (886.81, 927.06, 511.5, 383.5)
"""fx, fy, cx, cy of the 1024x768 images. The devkit's centre, 512 and 384, is measured from the image's corner."""

Part = Literal["indoors", "outdoor"]

_DEPTH, _MASK = "_depth", "_depth_mask"


@dataclass(frozen=True)
class Diode:
    """One half of DIODE's validation split.

    With intrinsics of fx = fy = 1321.4 in place of the devkit's, walls and floors of some images meet closer to a right
    angle, which matters for normals.
    """

    root: Path  # the folder with val, or val itself
    part: Part
    intrinsics: tuple[float, float, float, float] | None = DEVKIT_INTRINSICS  # None: no camera, and so no normals
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        require_choice("part", self.part, Part)
        loading.require_positive_or_none(max_depth=self.max_depth)
        if self.intrinsics is not None:
            Camera(1, 1, *self.intrinsics)  # raises now, rather than at the first image, if they are wrong

    @property
    def name(self) -> str:
        return "diode-indoor" if self.part == "indoors" else "diode-outdoor"

    @property
    def folder(self) -> Path:
        inner = self.root / "val" / self.part
        return inner if inner.is_dir() else self.root / self.part

    def names(self) -> list[str]:
        names = set()
        for scan in sorted(self.folder.glob("scene_*/scan_*")):
            # An image without depth and depth without an image are both listed: `load` reports the missing file.
            stems = loading.list_stems(scan, (".png",)) | loading.list_stems(scan, (".npy",), _DEPTH)
            names |= {f"{scan.parent.name}/{scan.name}/{stem}" for stem in stems}
        return loading.require_images(names, self.root, f"[val/]{self.part}/scene_*/scan_*/*.png")

    def files(self, name: str) -> list[Path]:
        stem = self.folder / name
        return [stem.with_name(stem.name + ending) for ending in (".png", f"{_DEPTH}.npy", f"{_MASK}.npy")]

    def load(self, name: str) -> Scene:
        image_file, depth_file, mask_file = self.files(name)
        image = read_image(image_file)
        depth, mask = read_values(depth_file), read_values(mask_file)
        loading.require_shape(depth, image.shape, depth_file, image_file)
        loading.require_shape(mask, image.shape, mask_file, image_file)
        height, width = image.shape[:2]
        camera = None if self.intrinsics is None else Camera(width, height, *self.intrinsics)
        return Scene(name, image, loading.clean_reference(depth, self.max_depth, mask > 0), camera)
