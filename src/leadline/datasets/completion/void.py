"""VOID: 800 test images of 8 indoor and outdoor sequences, with points of visual-inertial odometry at three densities.

    void_release/void_1500/test_image.txt, test_sparse_depth.txt, test_validity_map.txt, test_ground_truth.txt,
                           test_intrinsics.txt          paths from void_release, one a line, in the same order
                           data/<sequence>/{image,sparse_depth,validity_map,ground_truth}/<time>.png, K.txt
    void_release/void_500/..., void_release/void_150/...

Depth is 16-bit in 1/256 m, 640x480. The stored measurements ``vio`` are those of the chosen density; a validity map has
256 where there is a point. Marigold-DC and OMNI-DC do not read the validity maps (``validity=False``). The ground truth
is that of a RealSense D435i, with holes. Marigold-DC and OMNI-DC score all of it; VOID's authors score 0.2 to 5 m
(``min_depth=0.2, max_depth=5.0``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.datasets import Scene, SparseInput, loading
from leadline.io.depth import read_depth, read_image, read_values
from leadline.io.files import read_text

Split = Literal["test", "train"]
DENSITIES = (150, 500, 1500)

_KINDS = ("image", "ground_truth", "sparse_depth", "validity_map", "intrinsics")


@dataclass(frozen=True)
class Void:
    """The images of one split and density. The name of an image is ``<sequence>/<time>``."""

    name = "void"
    root: Path  # void_release, or the folder above it
    density: int = 1500  # 150, 500 or 1500 points
    split: Split = "test"
    validity: bool = True  # use only points that the validity map has
    min_depth: float | None = None  # metres below which the reference is not used
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        require_choice("split", self.split, Split)
        loading.require_positive_or_none(min_depth=self.min_depth, max_depth=self.max_depth)
        if self.density not in DENSITIES:
            raise InputError(f"{param('density')} must be one of {DENSITIES}, got {self.density!r} instead.")

    def names(self) -> list[str]:
        folder = self._folder
        if not folder.is_dir():
            loading.require_images((), self.root, f"[void_release/]{folder.name}/{self.split}_image.txt")
        return list(self._entries())  # in the order of the lists

    def files(self, name: str) -> list[Path]:
        entries = self._entries()
        if name not in entries:
            raise FileError(f"{self._lists()[0]}: does not list an image {name}.")
        return list(entries[name])

    def load(self, name: str) -> Scene:
        image_file, depth_file, sparse_file, validity_file, calibration = self.files(name)
        image = read_image(image_file)
        depth, sparse = read_depth(depth_file, "kitti").values, read_depth(sparse_file, "kitti").values
        validity = read_values(validity_file)
        for values, file in ((depth, depth_file), (sparse, sparse_file), (validity, validity_file)):
            loading.require_shape(values, image.shape, file, image_file)
        if self.min_depth is not None:
            depth = np.where(depth >= np.float32(self.min_depth), depth, np.float32(np.nan))
        numbers = loading.read_numbers(calibration, (9,), "a 3x3 matrix")
        camera = loading.pinhole_camera(numbers, image.shape[1], image.shape[0], calibration)
        points = loading.clean_reference(sparse, None, validity > 0 if self.validity else None)
        stored = {"vio": SparseInput(points, "visual-inertial odometry")}
        return Scene(name, image, loading.clean_reference(depth, self.max_depth), camera, stored)

    @property
    def _folder(self) -> Path:
        part = f"void_{self.density}"
        return loading.first_folder(self.root, ("void_release", "."), part) / part

    def _lists(self) -> list[Path]:
        return [self._folder / f"{self.split}_{kind}.txt" for kind in _KINDS]

    def _entries(self) -> dict[str, tuple[Path, ...]]:
        lists = self._lists()
        return _read_lists(tuple(lists), tuple(map(loading.file_state, lists)))


@lru_cache(maxsize=8)
def _read_lists(lists: tuple[Path, ...], state: tuple[tuple[str, int, int], ...]) -> dict[str, tuple[Path, ...]]:
    """The files of each image, by its name; `state` is part of the cache's key only."""
    columns = [[line for line in read_text(file, "a list of VOID's files").split() if line] for file in lists]
    for file, column in zip(lists, columns, strict=True):
        if len(column) != len(columns[0]) or not column:
            raise FileError(f"{file}: lists {len(column)} files, but {lists[0].name} lists {len(columns[0])} images.")
    above = lists[0].parent.parent  # the paths begin with void_<density>
    entries: dict[str, tuple[Path, ...]] = {}
    for row in zip(*columns, strict=True):
        image = PurePosixPath(row[0])
        entries[f"{image.parent.parent.name}/{image.stem}"] = tuple(above / part for part in row)
    if len(entries) != len(columns[0]):
        raise FileError(f"{lists[0]}: lists an image twice.")
    return entries
