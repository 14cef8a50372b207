"""KITTI depth completion: the 1,000 selected validation crops, and the full validation set of 6,852 images.

    depth_selection/val_selection_cropped/image/<drive>_image_<frame>_image_02.png                      1216x352
                                          velodyne_raw/<drive>_velodyne_raw_<frame>_image_02.png        16-bit, 1/256 m
                                          groundtruth_depth/<drive>_groundtruth_depth_<frame>_image_02.png
                                          intrinsics/<drive>_image_<frame>_image_02.txt                 3x3, row by row

    [data_depth_annotated/]val/<drive>/proj_depth/groundtruth/image_02/<frame>.png
    [data_depth_velodyne/]val/<drive>/proj_depth/velodyne_raw/image_02/<frame>.png
    [kitti_raw/]<date>/<drive>/image_02/data/<frame>.png, <date>/calib_cam_to_cam.txt

The stored measurements ``lidar`` are the projected sweep. `lines` thins it as OMNI-DC does, before `crop_top` removes
rows: its prepared files have the top 96 rows removed, which contain no ground truth. The full set is cropped at the
bottom and in the middle to 1216x352, as Ma et al. do; None keeps the whole image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param
from leadline.datasets import Scene, SparseInput, loading
from leadline.datasets.completion.sweeps import SWEEP_LINES, thin_lines
from leadline.geometry.cameras import Camera
from leadline.io.depth import read_depth, read_image
from leadline.io.files import read_text, reading

CROP = (1216, 352)
SENSOR = "Velodyne HDL-64E"
_CAMERAS = ("image_02", "image_03")


@dataclass(frozen=True)
class KittiSelection:
    """The selected validation crops. The name of an image is that of its file, without the suffix."""

    name = "kitti-dc"
    root: Path  # val_selection_cropped, or a folder above it
    lines: int = SWEEP_LINES  # of the sweep that are kept
    crop_top: int = 0  # rows that are removed; 96 in OMNI-DC's prepared files
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        _check(self.lines, self.crop_top, self.max_depth)

    def names(self) -> list[str]:
        stems = loading.list_stems(self._folder / "image", (".png",))
        for kind, mark in (("velodyne_raw", "_velodyne_raw_"), ("groundtruth_depth", "_groundtruth_depth_")):
            stems |= {stem.replace(mark, "_image_", 1) for stem in loading.list_stems(self._folder / kind, (".png",))}
        return loading.require_images(stems, self.root, "[depth_selection/]val_selection_cropped/image/*.png")

    def files(self, name: str) -> list[Path]:
        folder = self._folder
        return [
            folder / "image" / f"{name}.png",
            folder / "groundtruth_depth" / f"{name.replace('_image_', '_groundtruth_depth_', 1)}.png",
            folder / "velodyne_raw" / f"{name.replace('_image_', '_velodyne_raw_', 1)}.png",
            folder / "intrinsics" / f"{name}.txt",
        ]

    def load(self, name: str) -> Scene:
        image, depth, sweep, calibration = self.files(name)
        numbers = loading.read_numbers(calibration, (9,), "a 3x3 matrix")
        pixels = read_image(image)
        camera = loading.pinhole_camera(numbers, pixels.shape[1], pixels.shape[0], calibration)
        return _scene(name, pixels, camera, (image, depth, sweep), self.lines, self.crop_top, self.max_depth)

    @property
    def _folder(self) -> Path:
        places = (
            "depth_selection/val_selection_cropped",
            "data_depth_selection/val_selection_cropped",
            "data_depth_selection/depth_selection/val_selection_cropped",
            "val_selection_cropped",
            ".",
        )
        return loading.first_folder(self.root, places, "image")


@dataclass(frozen=True)
class KittiValidation:
    """The full validation set. The name of an image is ``<drive>/image_02/<frame>``."""

    name = "kitti-dc-val"
    root: Path  # the folder with the three parts
    crop: tuple[int, int] | None = CROP  # (width, height) at the bottom, in the middle; None for the whole image
    lines: int = SWEEP_LINES  # of the sweep that are kept
    crop_top: int = 0  # further rows that are removed
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        _check(self.lines, self.crop_top, self.max_depth)
        object.__setattr__(self, "crop", loading.require_size(self.crop))

    def names(self) -> list[str]:
        names = set()
        for part, kind in (("data_depth_annotated", "groundtruth"), ("data_depth_velodyne", "velodyne_raw")):
            folder = self._part(part)
            for drive in sorted(folder.iterdir()) if folder.is_dir() else []:
                for camera in _CAMERAS:
                    stems = loading.list_stems(drive / "proj_depth" / kind / camera, (".png",))
                    names |= {f"{drive.name}/{camera}/{stem}" for stem in stems}
        expected = "[data_depth_annotated/]val/<drive>/proj_depth/groundtruth/image_02/*.png"
        return loading.require_images(names, self.root, expected)

    def files(self, name: str) -> list[Path]:
        drive, _, rest = name.partition("/")
        camera, _, stem = rest.partition("/")
        raw = loading.first_folder(self.root, ("kitti_raw", "raw", "rawdata", "."), drive[:10]) / drive[:10]
        return [
            raw / drive / camera / "data" / f"{stem}.png",
            self._part("data_depth_annotated") / drive / "proj_depth" / "groundtruth" / camera / f"{stem}.png",
            self._part("data_depth_velodyne") / drive / "proj_depth" / "velodyne_raw" / camera / f"{stem}.png",
            raw / "calib_cam_to_cam.txt",
        ]

    def load(self, name: str) -> Scene:
        image, depth, sweep, calibration = self.files(name)
        pixels = read_image(image)
        number = name.split("/")[1][-2:]
        matrix = _projection(calibration, f"P_rect_{number}", loading.file_state(calibration))
        numbers = [matrix[0], matrix[5], matrix[2], matrix[6]]
        camera = loading.pinhole_camera(numbers, pixels.shape[1], pixels.shape[0], calibration)
        files = (image, depth, sweep)
        return _scene(name, pixels, camera, files, self.lines, self.crop_top, self.max_depth, self.crop)

    def _part(self, part: str) -> Path:
        return loading.first_folder(self.root, (part, "."), "val") / "val"


def _scene(
    name: str,
    image: NDArray[np.uint8],
    camera: Camera,
    files: tuple[Path, Path, Path],
    lines: int,
    crop_top: int,
    max_depth: float | None,
    crop: tuple[int, int] | None = None,
) -> Scene:
    image_file, depth_file, sweep_file = files
    depth, sweep = read_depth(depth_file, "kitti").values, read_depth(sweep_file, "kitti").values
    for values, file in ((depth, depth_file), (sweep, sweep_file)):
        loading.require_shape(values, image.shape, file, image_file)
    if crop is not None:
        width, height = crop
        if width > image.shape[1] or height > image.shape[0]:
            raise FileError(f"{image_file}: is {image.shape[1]}x{image.shape[0]}, smaller than the crop {crop}.")
        top, left = image.shape[0] - height, round((image.shape[1] - width) / 2)
        inside = slice(top, None), slice(left, left + width)
        image, depth, sweep = image[inside], depth[inside], sweep[inside]
        camera = loading.crop_camera(camera, left, top, width, height)
    sweep = thin_lines(sweep, camera, lines)
    if crop_top:
        if crop_top >= image.shape[0]:
            raise InputError(f"{param('crop_top')} must be less than the height {image.shape[0]}, got {crop_top}.")
        image, depth, sweep = image[crop_top:], depth[crop_top:], sweep[crop_top:]
        camera = loading.crop_camera(camera, 0, crop_top, image.shape[1], image.shape[0])
    sparse = {"lidar": SparseInput(loading.clean_reference(sweep, None), SENSOR)}
    return Scene(name, np.ascontiguousarray(image), loading.clean_reference(depth, max_depth), camera, sparse)


def _check(lines: int, crop_top: int, max_depth: float | None) -> None:
    loading.require_positive_or_none(max_depth=max_depth)
    if isinstance(lines, bool) or not isinstance(lines, int) or not 1 <= lines <= SWEEP_LINES:
        raise InputError(f"{param('lines')} must be a whole number from 1 to {SWEEP_LINES}, got {lines!r} instead.")
    if isinstance(crop_top, bool) or not isinstance(crop_top, int) or crop_top < 0:
        raise InputError(f"{param('crop_top')} must be a number of rows, got {crop_top!r} instead.")


@lru_cache(maxsize=32)
def _projection(file: Path, key: str, state: tuple[str, int, int]) -> list[float]:
    """The twelve numbers of a 3x4 matrix of ``calib_cam_to_cam.txt``; `state` is part of the cache's key only."""
    lines = read_text(file, "a calibration of KITTI").splitlines()
    row = next((line.partition(":")[2].split() for line in lines if line.startswith(f"{key}:")), None)
    with reading(file, "a calibration of KITTI"):
        numbers = [float(word) for word in row or ()]
    if len(numbers) != 12:
        raise FileError(f"{file}: must have twelve numbers for {key}, got {len(numbers)}.")
    return numbers
