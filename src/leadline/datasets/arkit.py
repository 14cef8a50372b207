"""ARKitScenes, upsampling split: tablet pictures with depth from a stationary laser scanner, both 1920x1440.

    metadata.csv                                    video_id, ..., sky_direction, fold
    {Training,Validation}/<video>/wide/<video>_<time>.png
    {Training,Validation}/<video>/highres_depth/<video>_<time>.png            16-bit, mm, 0 = none
    {Training,Validation}/<video>/lowres_wide_intrinsics/<video>_<time>.pincam    "256 192 fx fy cx cy"

The last folder comes with the *raw* split; without it there is no camera, and so no normals. The paper takes at most
four uniformly chosen frames a video, at 512x384 (384x512 where the picture is upright), up to 10 m.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from leadline.base.errors import FileError
from leadline.datasets import tree
from leadline.datasets.resampling import DEPTH_RULES, DepthRule, shrink_depth, shrink_image
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera
from leadline.geometry.grids import turn
from leadline.geometry.lenses import turn_camera
from leadline.io.depth.files import read_depth, read_image
from leadline.io.reading import reading

# Quarter turns, counter-clockwise, that bring the sky up from where it is.
_TURNS = {"Up": 0, "Left": -1, "Down": 2, "Right": 1}
_SECONDS = 0.5  # a .pincam may miss single frames; the lens moves little within this time


@dataclass(frozen=True)
class ArkitScenes:
    """The chosen frames of one fold.

    Parameters
    ----------
    root : Path
        The folder with ``metadata.csv``, ``Training`` and ``Validation``.
    fold : {"Validation", "Training"}
    frames : int, optional
        How many a video: of n in order of time, those at floor((2i + 1) n / 2k) for i < k. None for all.
    size : (width, height), optional
        Before turning. The picture is averaged, depth picked by `depth_rule`. None for 1920x1440.
    max_depth : float, optional
        Metres beyond which the reference is left out.
    upright : bool
        Turn by ``sky_direction`` so that the sky is up.
    intrinsics : Path, optional
        A tree of the raw split with the ``lowres_wide_intrinsics``. By default `root` itself is looked through.
    depth_rule : {"nearest", "nearest-valid"}
        See `resampling.shrink_depth`. Depth is dense here, and plain ``nearest`` leaves its holes as they are.
    """

    root: Path
    fold: str = "Validation"
    frames: int | None = 4
    size: tuple[int, int] | None = (512, 384)
    max_depth: float | None = 10.0
    upright: bool = True
    intrinsics: Path | None = None
    depth_rule: DepthRule = "nearest"

    def __post_init__(self) -> None:
        tree.require_choice("fold", self.fold, ("Validation", "Training"))
        tree.require_choice("depth_rule", self.depth_rule, DEPTH_RULES)
        tree.require_positive(frames=self.frames, max_depth=self.max_depth)
        object.__setattr__(self, "size", tree.require_size(self.size))
        if self.intrinsics is not None:
            object.__setattr__(self, "intrinsics", Path(self.intrinsics))
            if not (Path(self.intrinsics) / self.fold).is_dir():
                raise FileError(f"{self.intrinsics}: `intrinsics` must be a folder of the raw split with {self.fold}.")

    @property
    def name(self) -> str:
        return "arkit"

    def names(self) -> list[str]:
        fold = self.root / self.fold
        names = []
        for video in sorted(path for path in fold.iterdir() if path.is_dir()) if fold.is_dir() else []:
            stems = tree.listed(video / "wide", (".png",)) | tree.listed(video / "highres_depth", (".png",))
            ordered = sorted(stems, key=_time)
            count = len(ordered) if self.frames is None else min(self.frames, len(ordered))
            names += [f"{video.name}/{ordered[(2 * i + 1) * len(ordered) // (2 * count)]}" for i in range(count)]
        if not names:
            tree.found((), self.root, f"{self.fold}/<video>/wide/*.png")
        return names

    def files(self, name: str) -> list[Path]:
        video, _, stem = name.partition("/")
        folder = self.root / self.fold / video
        paths = [folder / "wide" / f"{stem}.png", folder / "highres_depth" / f"{stem}.png"]
        if self.upright:
            paths.append(self.root / "metadata.csv")
        calibration = self._calibration(video, stem)
        return paths if calibration is None else [*paths, calibration]

    def load(self, name: str) -> Scene:
        video, _, stem = name.partition("/")
        picture, depth_file = self.files(name)[:2]
        image = read_image(picture)
        depth = read_depth(depth_file, "mm").values
        tree.require_shape(depth, image.shape, depth_file, picture)
        height, width = image.shape[:2]
        calibration = self._calibration(video, stem)
        camera = None if calibration is None else _camera(calibration).scaled(width, height)
        if self.size is not None:
            shape = (self.size[1], self.size[0])
            image, depth = shrink_image(image, shape), shrink_depth(depth, shape, self.depth_rule)
            camera = None if camera is None else camera.scaled(*self.size)
        turns = self._turns(video)
        upright = None if camera is None else turn_camera(camera, turns)
        return Scene(name, turn(image, turns), tree.reference(turn(depth, turns), self.max_depth), upright)

    def _turns(self, video: str) -> int:
        if not self.upright:
            return 0
        table = self.root / "metadata.csv"
        with reading(table, "the table of videos"):
            state = table.stat()
        direction = _directions(table, state.st_mtime_ns, state.st_size).get(video)
        if direction not in _TURNS:
            raise FileError(
                f"{table}: gives video {video} the sky_direction {direction!r}, expected one of {', '.join(_TURNS)}. "
                "Mend the table or pass upright=False."
            )
        return _TURNS[direction]

    def _calibration(self, video: str, stem: str) -> Path | None:
        folder = (self.intrinsics or self.root) / self.fold / video / "lowres_wide_intrinsics"
        if not folder.is_dir() and self.intrinsics is None:
            return None
        exact = folder / f"{stem}.pincam"
        if exact.is_file():
            return exact
        others = tree.listed(folder, (".pincam",))
        near = min(others, key=lambda other: (abs(_time(other) - _time(stem)), other), default=stem)
        if near == stem or abs(_time(near) - _time(stem)) > _SECONDS:
            raise FileError(f"{exact}: no such file, nor one within {_SECONDS} s of it. Fetch the raw split's again.")
        return folder / f"{near}.pincam"


def _time(stem: str) -> float:
    """Seconds in ``<video>_<time>``; names without any come first."""
    try:
        return float(stem.rpartition("_")[2])
    except ValueError:
        return -1.0


def _camera(file: Path) -> Camera:
    numbers = tree.read_numbers(file, (6,), "width, height, fx, fy, cx, cy")
    width, height = int(numbers[0]), int(numbers[1])
    if width < 1 or height < 1:
        raise FileError(f"{file}: begins with width and height, got {numbers[0]:g} and {numbers[1]:g}.")
    return tree.pinhole(numbers[2:], width, height, file)


@lru_cache(maxsize=4)
def _directions(table: Path, changed: int, size: int) -> dict[str, str]:
    """Sky direction of each video; `changed` and `size` only tell one state of the file from another."""
    text = tree.read_text(table, "the table of videos")
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"video_id", "sky_direction"} <= rows[0].keys():
        columns = ", ".join(rows[0]) if rows else "no rows"
        raise FileError(f"{table}: must have the columns video_id and sky_direction, got {columns}.")
    return {str(row["video_id"]): str(row["sky_direction"]) for row in rows}
