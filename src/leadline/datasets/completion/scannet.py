"""ScanNet as Marigold-DC evaluates it: 745 images of 100 test scenes, at the size of the depth, 640x480.

    scannet_decotr_split.txt                                  one <scene>/<number> a line
    scannet_test_all/<scene>/color/0012.jpg                   1296x968
                             depth/0012.png                   640x480, 16-bit, mm
                             intrinsic/intrinsic_depth.txt    4x4 or 3x3, of the depth camera

Images are resized to the size of the depth with Pillow's Lanczos filter. Points are sampled: ``marigold:500``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.base.errors import FileError
from leadline.datasets import Scene, loading
from leadline.datasets.downsampling import resize_as_pillow
from leadline.io.depth import read_depth, read_image
from leadline.io.files import read_text

_LIST = "scannet_decotr_split.txt"


@dataclass(frozen=True)
class ScanNet:
    """The listed images, in the order of the list; without a list all images that there are, by name."""

    name = "scannet"
    root: Path  # the folder with scannet_test_all, or that with the scenes
    split: Path | None = None  # a list of <scene>/<number>; default: scannet_decotr_split.txt in root, if it exists
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)
        if self.split is not None:
            object.__setattr__(self, "split", Path(self.split))

    def names(self) -> list[str]:
        listed = self.split or self.root / _LIST
        if self.split is not None or listed.is_file():
            names = read_text(listed, "a list of images").split()
            wrong = next((name for name in names if not name.partition("/")[2].isdigit()), None)
            if wrong is not None or not names:
                raise FileError(f"{listed}: must have one <scene>/<number> a line, got {wrong!r}.")
            return [f"{name.partition('/')[0]}/{int(name.partition('/')[2]):04d}" for name in names]
        scenes = [path for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []
        found = {
            f"{scene.name}/{stem}"
            for scene in scenes
            for stem in loading.list_stems(scene / "color", (".jpg",)) | loading.list_stems(scene / "depth", (".png",))
        }
        return loading.require_images(found, self.root, "[scannet_test_all/]<scene>/color/*.jpg")

    def files(self, name: str) -> list[Path]:
        scene, _, number = name.partition("/")
        folder = self._folder / scene
        paths = [folder / "color" / f"{number}.jpg", folder / "depth" / f"{number}.png"]
        return [*paths, folder / "intrinsic" / "intrinsic_depth.txt"]

    def load(self, name: str) -> Scene:
        image_file, depth_file, calibration = self.files(name)
        depth = read_depth(depth_file, "mm").values
        image = resize_as_pillow(read_image(image_file), (depth.shape[0], depth.shape[1]), "lanczos")
        numbers = loading.read_numbers(calibration, (9, 16), "a 4x4 or 3x3 matrix")
        camera = loading.pinhole_camera(numbers, depth.shape[1], depth.shape[0], calibration)
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera)

    @property
    def _folder(self) -> Path:
        return loading.first_folder(self.root, ("scannet_test_all", "."), ".")
