"""NYU Depth v2, the 654 images of the official test split, in its three public forms.

    nyudepthv2/val/official/<number>.h5       HDF5 of Ma & Karaman: rgb (3, 480, 640) and depth (480, 640) in metres
    nyu_depth_v2_labeled.mat, splits.mat      the authors' MATLAB files: images, depths (filled), rawDepths; testNdxs
    nyu_img_gt.h5, nyu_pred_with_500.h5       Conti's HDF5 at 304x228, with 500 stored points; Marigold-DC's source

Depth completion is evaluated at 304x228: 640x480 is resized to 320x240, then cropped at the centre. NLSPN, OMNI-DC and
others resize image *and depth* with Pillow's bilinear filter, which averages, missing values of 0 as well; Ma & Karaman
take the nearest pixel of both. A pixel with more than 0.1 mm is valid. The intrinsics are those of these evaluations:
half the published ones, minus the crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.datasets import Scene, SparseInput, loading
from leadline.datasets.downsampling import resize_as_pillow
from leadline.geometry.cameras import Camera
from leadline.io.files import reading

Resize = Literal["bilinear", "nearest"]
GroundTruth = Literal["filled", "raw"]

FULL_SIZE = (640, 480)
SIZE = (320, 240)
CROP = (304, 228)
_VALID_M = 1e-4
# fx, fy, cx, cy of the colour camera at 640x480, from the authors' toolbox.
_INTRINSICS = (5.1885790117450188e02, 5.1946961112127485e02, 3.2558244941119034e02, 2.5373616633400465e02)


@dataclass(frozen=True)
class NyuHdf5:
    """The form of Ma & Karaman. Its depth is what they stored; the data set does not state whether it was filled."""

    name = "nyu"
    root: Path  # the folder with nyudepthv2 or val, or that folder
    size: Sequence[int] | None = SIZE  # (width, height) before the crop; None for 640x480
    crop: Sequence[int] | None = CROP  # (width, height) of the centre; None for all of it
    resize: Resize = "bilinear"  # "nearest" as Ma & Karaman
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        _check(self)

    def names(self) -> list[str]:
        stems = loading.list_stems(self._folder, (".h5",))
        return loading.require_images(stems, self.root, "[nyudepthv2/]val/official/*.h5")

    def files(self, name: str) -> list[Path]:
        return [self._folder / f"{name}.h5"]

    def load(self, name: str) -> Scene:
        (file,) = self.files(name)
        image, depth = loading.read_hdf5(file, ("rgb", "depth"))
        if image.ndim != 3 or image.shape[0] != 3 or image.dtype != np.uint8 or depth.shape != image.shape[1:]:
            raise FileError(
                f"{file}: must hold rgb (3, H, W) uint8 and depth (H, W), got {image.dtype} {image.shape} and "
                f"{depth.shape} instead."
            )
        return _prepare(self, name, image.transpose(1, 2, 0), depth)

    @property
    def _folder(self) -> Path:
        places = ("nyudepthv2", "nyudepthv2_h5", ".")
        return loading.first_folder(self.root, places, "val/official") / "val" / "official"


@dataclass(frozen=True)
class NyuLabelled:
    """The authors' labelled images, with their own test split. Names are the numbers in the file, from 1."""

    name = "nyu-labelled"
    root: Path  # the folder with both files
    depth: GroundTruth = "filled"  # in-painted by the authors, or as measured
    size: Sequence[int] | None = SIZE
    crop: Sequence[int] | None = CROP
    resize: Resize = "bilinear"
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        require_choice("depth", self.depth, GroundTruth)
        _check(self)

    def names(self) -> list[str]:
        data, split = self.files("")
        if not (data.is_file() or split.is_file()):
            loading.require_images((), self.root, f"{data.name} and {split.name}")
        return [f"{number:04d}" for number in _test_numbers(split, loading.file_state(split))]

    def files(self, name: str) -> list[Path]:
        return [self.root / "nyu_depth_v2_labeled.mat", self.root / "splits.mat"]

    def load(self, name: str) -> Scene:
        file = self.files(name)[0]
        if not name.isdigit():
            raise InputError(f"The data set 'nyu-labelled' has numbers as names of images, got {name!r}.")
        key = "depths" if self.depth == "filled" else "rawDepths"
        # HDF5 lists axes in the opposite order of MATLAB: (number, channel, column, row).
        image, depth = loading.read_hdf5(file, ("images", key), int(name) - 1)
        if image.ndim != 3 or image.shape[0] != 3 or image.dtype != np.uint8 or depth.shape != image.shape[1:]:
            raise FileError(f"{file}: must hold images (N, 3, W, H) uint8 and {key} (N, W, H), got {image.shape}.")
        return _prepare(self, name, image.transpose(2, 1, 0), depth.T)


@dataclass(frozen=True)
class NyuConti:
    """Conti's files at 304x228, used as they are; the stored measurements are ``500``."""

    name = "nyu-conti"
    root: Path  # the folder with both files
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)

    def names(self) -> list[str]:
        images, points = self.files("")
        if not (images.is_file() or points.is_file()):
            loading.require_images((), self.root, f"{images.name} and {points.name}")
        h5py = loading.import_h5py("Reading HDF5 files")
        with reading(images, "an HDF5 file"), h5py.File(images, "r") as content:
            if "gt" not in content:
                raise FileError(f"{images}: has no array gt, only {', '.join(content) or 'nothing'}.")
            return [f"{index:04d}" for index in range(len(content["gt"]))]

    def files(self, name: str) -> list[Path]:
        return [self.root / "nyu_img_gt.h5", self.root / "nyu_pred_with_500.h5"]

    def load(self, name: str) -> Scene:
        if not name.isdigit():
            raise InputError(f"The data set 'nyu-conti' has numbers as names of images, got {name!r}.")
        images, points = self.files(name)
        image, depth = loading.read_hdf5(images, ("img", "gt"), int(name))
        (hints,) = loading.read_hdf5(points, ("hints",), int(name))
        depth, hints = depth.squeeze(), hints.squeeze()
        loading.require_shape(depth, image.shape, images, images)
        loading.require_shape(hints, image.shape, points, images)
        camera = _camera(image.shape[:2]) if image.shape[:2] == CROP[::-1] else None
        sparse = {"500": SparseInput(loading.clean_reference(hints, None), "sampled", from_reference=True)}
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera, sparse)


def _check(data: NyuHdf5 | NyuLabelled) -> None:
    require_choice("resize", data.resize, Resize)
    loading.require_positive_or_none(max_depth=data.max_depth)
    for option in ("size", "crop"):
        value: Any = getattr(data, option)
        object.__setattr__(data, option, loading.require_size(value))
    inside = data.size or FULL_SIZE
    if data.crop is not None and (data.crop[0] > inside[0] or data.crop[1] > inside[1]):
        raise InputError(f"{param('crop')} must fit into {inside[0]}x{inside[1]}, got {data.crop!r} instead.")


def _prepare(data: NyuHdf5 | NyuLabelled, name: str, image: NDArray[np.uint8], depth: NDArray[Any]) -> Scene:
    """Resize and crop as the options say."""
    image, depth = np.ascontiguousarray(image), np.ascontiguousarray(depth, dtype=np.float32)
    full = image.shape[1], image.shape[0]
    fx, fy, cx, cy = _INTRINSICS
    camera = Camera(*full, fx, fy, cx, cy)
    if data.size is not None:
        shape = data.size[1], data.size[0]
        image, depth = (resize_as_pillow(values, shape, data.resize) for values in (image, depth))
        x, y = data.size[0] / full[0], data.size[1] / full[1]
        camera = Camera(data.size[0], data.size[1], fx * x, fy * y, cx * x, cy * y)
    if data.crop is not None:
        width, height = data.crop
        # As torchvision's CenterCrop rounds.
        top, left = round((image.shape[0] - height) / 2), round((image.shape[1] - width) / 2)
        image, depth = (values[top : top + height, left : left + width] for values in (image, depth))
        camera = loading.crop_camera(camera, left, top, width, height)
    reference = loading.clean_reference(np.where(depth > _VALID_M, depth, 0), data.max_depth)
    return Scene(name, np.ascontiguousarray(image), reference, camera)


def _camera(shape: Sequence[int]) -> Camera:
    fx, fy, cx, cy = (number / 2 for number in _INTRINSICS)
    left, top = (SIZE[0] - CROP[0]) // 2, (SIZE[1] - CROP[1]) // 2
    return Camera(shape[1], shape[0], fx, fy, cx - left, cy - top)


@lru_cache(maxsize=2)
def _test_numbers(split: Path, state: tuple[str, int, int]) -> list[int]:
    """The numbers of the test images, from 1; `state` is part of the cache's key only."""
    from scipy.io import loadmat

    with reading(split, "the split of NYU Depth v2"):
        variables = loadmat(str(split), variable_names=["testNdxs"])
        if "testNdxs" not in variables:
            raise FileError(f"{split}: has no variable testNdxs. It must be the splits.mat of the data set's authors.")
        numbers = [int(number) for number in variables["testNdxs"].ravel()]
    if not numbers or min(numbers) < 1:
        raise FileError(f"{split}: testNdxs must list numbers of images from 1, got {numbers[:3]}.")
    return numbers
