"""ARKitScenes, upsampling split: tablet images with depth from a stationary laser scanner, both 1920x1440.

    metadata.csv                                    video_id, ..., sky_direction, fold
    {Training,Validation}/<video>/wide/<video>_<time>.png
    {Training,Validation}/<video>/highres_depth/<video>_<time>.png            16-bit, mm, 0 = none
    {Training,Validation}/<video>/lowres_depth/<video>_<time>.png             256x192, 16-bit, mm, of the tablet
    {Training,Validation}/<video>/confidence/<video>_<time>.png               256x192, 0 to 2
    {Training,Validation}/<video>/lowres_wide_intrinsics/<video>_<time>.pincam    "256 192 fx fy cx cy"

The last folder is part of the *raw* split; without it there is no camera, and so no normals. The paper: "at most four
uniformly selected frames per video at 384x512", with depth "capped at 10 m". All stored images are wider than high, so
384x512 is read as rows by columns, and every frame has that size. The paper mentions no rotation. Turning images
upright by their ``sky_direction``, which makes the portrait ones 512 rows by 384 columns, is an option of ours.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.datasets import Scene, SparseInput, loading
from leadline.datasets.downsampling import DepthRule, downsample_depth, downsample_image
from leadline.geometry.cameras import Camera
from leadline.geometry.grids import mask_low_confidence, rotate90
from leadline.io.depth import read_depth, read_image, read_values
from leadline.io.files import read_text

Fold = Literal["Validation", "Training"]
Selection = Literal["centred", "ends"]

# Counter-clockwise quarter turns that bring the sky to the top, by where it is in the stored image.
_TURNS = {"Up": 0, "Left": -1, "Down": 2, "Right": 1}
_LONGEST_GAP = 0.5  # seconds; a frame without a .pincam file uses that of the nearest frame within this time


@dataclass(frozen=True)
class ArkitScenes:
    """Selected frames of the videos of one fold.

    Of the n frames of a video in order of time, k = `frames` are used, all of them if n < k. The paper does not state
    which. The selection ``centred`` takes those at floor((2i + 1) n / 2k) for i < k, the middles of k equal parts;
    ``ends`` takes the first, the last and those at i (n - 1) / (k - 1) rounded to the nearest even number at halves, as
    ``numpy.linspace`` with ``round`` gives them.
    """

    name = "arkit"
    root: Path  # the folder with metadata.csv, Training and Validation
    fold: Fold = "Validation"
    frames: int | None = 4  # per video; None for all
    selection: Selection = "centred"
    size: tuple[int, int] | None = (512, 384)  # (width, height) before rotation; None for 1920x1440
    max_depth: float | None = 10.0  # metres; see `beyond`
    beyond: loading.Beyond = "drop"  # depth beyond max_depth is not used, or, with "clip", set to it
    upright: bool = False  # rotate the image by sky_direction so that the sky is at the top
    intrinsics: Path | None = None  # a folder of the raw split with the lowres_wide_intrinsics; None for root
    lowres: bool = False  # read the tablet's own depth as stored measurements "lowres"
    min_confidence: int = 0  # of those measurements, 0 to 2
    depth_rule: DepthRule = "nearest"  # see downsample_depth; depth is dense here, and nearest preserves its holes

    def __post_init__(self) -> None:
        require_choice("fold", self.fold, Fold)
        require_choice("depth_rule", self.depth_rule, DepthRule)
        require_choice("selection", self.selection, Selection)
        require_choice("beyond", self.beyond, loading.Beyond)
        loading.require_positive_or_none(frames=self.frames, max_depth=self.max_depth)
        object.__setattr__(self, "size", loading.require_size(self.size))
        if self.min_confidence not in (0, 1, 2):
            raise InputError(f"{param('min_confidence')} must be 0, 1 or 2, got {self.min_confidence!r} instead.")
        if self.intrinsics is not None:
            object.__setattr__(self, "intrinsics", Path(self.intrinsics))
            if not (Path(self.intrinsics) / self.fold).is_dir():
                raise FileError(f"{self.intrinsics}: {param('intrinsics')} must hold {self.fold} of the raw split.")

    def names(self) -> list[str]:
        fold = self.root / self.fold
        names = []
        for video in sorted(path for path in fold.iterdir() if path.is_dir()) if fold.is_dir() else []:
            folders = (video / "wide", video / "highres_depth")
            stems = set().union(*(loading.list_stems(folder, (".png",)) for folder in folders))
            ordered = sorted(stems, key=_time)
            count = len(ordered) if self.frames is None else min(self.frames, len(ordered))
            names += [f"{video.name}/{ordered[index]}" for index in _select(len(ordered), count, self.selection)]
        if not names:
            loading.require_images((), self.root, f"{self.fold}/<video>/wide/*.png")
        return names

    def files(self, name: str) -> list[Path]:
        video, _, stem = name.partition("/")
        folder = self.root / self.fold / video
        paths = [folder / "wide" / f"{stem}.png", folder / "highres_depth" / f"{stem}.png"]
        if self.lowres:
            paths += [folder / kind / f"{stem}.png" for kind in ("lowres_depth", "confidence")]
        if self.upright:
            paths.append(self.root / "metadata.csv")
        calibration = self._calibration(video, stem)
        return paths if calibration is None else [*paths, calibration]

    def load(self, name: str) -> Scene:
        video, _, stem = name.partition("/")
        image_file, depth_file = self.files(name)[:2]
        image = read_image(image_file)
        depth = read_depth(depth_file, "mm").values
        loading.require_shape(depth, image.shape, depth_file, image_file)
        height, width = image.shape[:2]
        calibration = self._calibration(video, stem)
        camera = None if calibration is None else _camera(calibration).scaled(width, height)
        if self.size is not None:
            shape = (self.size[1], self.size[0])
            image, depth = downsample_image(image, shape), downsample_depth(depth, shape, self.depth_rule)
            camera = None if camera is None else camera.scaled(*self.size)
        turns = self._turns(video)
        upright = None if camera is None else camera.rotated(turns)
        reference = loading.clean_reference(rotate90(depth, turns), self.max_depth, beyond=self.beyond)
        return Scene(name, rotate90(image, turns), reference, upright, self._measurements(name, turns))

    def _measurements(self, name: str, turns: int) -> dict[str, SparseInput]:
        if not self.lowres:
            return {}
        depth_file, confidence_file = self.files(name)[2:4]
        depth, confidence = read_depth(depth_file, "mm").values, read_values(confidence_file)
        loading.require_shape(confidence, depth.shape, confidence_file, depth_file)
        values = loading.clean_reference(mask_low_confidence(depth, confidence, self.min_confidence), None)
        return {"lowres": SparseInput(rotate90(values, turns), "Apple LiDAR through ARKit")}

    def _turns(self, video: str) -> int:
        if not self.upright:
            return 0
        table = self.root / "metadata.csv"
        direction = _directions(table, loading.file_state(table)).get(video)
        if direction not in _TURNS:
            raise FileError(
                f"{table}: gives video {video} the sky_direction {direction!r}, expected one of {', '.join(_TURNS)}. "
                f"Correct the table or set {param('upright', False)}."
            )
        return _TURNS[direction]

    def _calibration(self, video: str, stem: str) -> Path | None:
        folder = (self.intrinsics or self.root) / self.fold / video / "lowres_wide_intrinsics"
        if not folder.is_dir() and self.intrinsics is None:
            return None
        exact = folder / f"{stem}.pincam"
        if exact.is_file():
            return exact
        others = loading.list_stems(folder, (".pincam",))
        near = min(others, key=lambda other: (abs(_time(other) - _time(stem)), other), default=stem)
        if near == stem or abs(_time(near) - _time(stem)) > _LONGEST_GAP:
            raise FileError(f"{exact}: no such file, nor one within {_LONGEST_GAP} s. Download the raw split again.")
        return folder / f"{near}.pincam"


def _select(available: int, count: int, selection: Selection) -> list[int]:
    """Indices of `count` of so many frames, in their order."""
    if selection == "centred" or count == 1:
        return [(2 * i + 1) * available // (2 * count) for i in range(count)]
    return [round(i * (available - 1) / (count - 1)) for i in range(count)]


def _time(stem: str) -> float:
    """The seconds in ``<video>_<time>``; -1 for names without them."""
    try:
        return float(stem.rpartition("_")[2])
    except ValueError:
        return -1.0


def _camera(file: Path) -> Camera:
    numbers = loading.read_numbers(file, (6,), "width, height, fx, fy, cx, cy")
    width, height = int(numbers[0]), int(numbers[1])
    if width < 1 or height < 1:
        raise FileError(f"{file}: begins with width and height, got {numbers[0]:g} and {numbers[1]:g}.")
    return loading.pinhole_camera(numbers[2:], width, height, file)


@lru_cache(maxsize=4)
def _directions(table: Path, state: tuple[str, int, int]) -> dict[str, str]:
    """The sky direction of each video; `state` is part of the cache's key only."""
    text = read_text(table, "the table of videos")
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"video_id", "sky_direction"} <= rows[0].keys():
        columns = ", ".join(rows[0]) if rows else "no rows"
        raise FileError(f"{table}: must have the columns video_id and sky_direction, got {columns}.")
    return {str(row["video_id"]): str(row["sky_direction"]) for row in rows}
