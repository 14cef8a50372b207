"""The maps of one completed picture, and the files that every export has in common.

All trainers work in the unit of the model, so depth is exported in that unit and not in metres.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.base.strict_json import dump_json
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.depth import write_sigma
from leadline.io.depth_formats import write_png
from leadline.io.files import atomic_write, write_text

RELIABLE, SIGMAS = "depth_reliable", "depth_sigma"
"""Folders beside the depth: where it is reliable, and its standard deviation. ``masks`` would apply to colours, too."""
MAX_SIGMA = 0.1
"""Largest standard deviation, relative to the depth, of a pixel that counts as reliable."""


@dataclass(frozen=True, eq=False)
class DepthMaps:
    """Depth of one picture, and how far it can be relied on.

    Parameters
    ----------
    depth : (H, W) array
        In the unit of the model, NaN where unknown.
    sigma : (H, W) array or None
        Standard deviation of the depth, in the same unit; 0 where it is exact, NaN where it is not known.
    max_sigma : float
        Largest standard deviation, relative to the depth, of a pixel that counts as reliable.
    """

    depth: FloatArray
    sigma: FloatArray | None = None
    max_sigma: float = MAX_SIGMA

    @property
    def reliable(self) -> BoolArray:
        """Where the depth is known and, if there is a standard deviation, that is small enough, (H, W)."""
        known: BoolArray = is_measured(self.depth)
        if self.sigma is None:
            return known
        with np.errstate(invalid="ignore"):
            return known & (self.sigma <= self.max_sigma * self.depth)

    def reliable_codes(self) -> NDArray[np.uint8]:
        """`reliable` as a picture: 255 and 0."""
        return np.where(self.reliable, np.uint8(255), np.uint8(0))

    def reliable_depth(self) -> NDArray[np.float64]:
        """The depth where it is reliable, and 0 elsewhere, which trainers take as unknown."""
        return np.where(self.reliable, self.depth, 0.0).astype(np.float64)


LoadMaps = Callable[[ColmapImage], DepthMaps]
"""Reads the maps of a picture when they are needed, so that no two pictures are in memory at the same time."""


def stem_of(name: str) -> str:
    """The name of an image with its folders, without its suffix: left/0001 for left/0001.jpg."""
    return str(PurePosixPath(name).with_suffix(""))


def check_cameras(model: ColmapModel, export: str, supported: tuple[str, ...]) -> None:
    """Refuse a model with a camera model that the program `export` does not support."""
    cameras = [model.camera_of(image) for image in model.images.values()]
    unsupported = sorted({one.model for one in cameras if one.with_two_focal_lengths().model not in supported})
    if unsupported:
        raise InputError(
            f"{param('export', export)}: the model has a camera of type {unsupported[0]}, and {export} supports only "
            f"{', '.join(supported)}; run `colmap image_undistorter` and give its model and images."
        )


def write_reliability(folder: Path, image: ColmapImage, maps: DepthMaps) -> None:
    """Write ``depth_reliable/NAME.png``, 255 where the depth is reliable, and ``depth_sigma/NAME.npy`` if it is known.

    No trainer reads these by default; where one takes a value for "unknown", unreliable pixels of the depth have it.
    """
    stem = stem_of(image.name)
    write_codes(folder / RELIABLE / f"{stem}.png", maps.reliable_codes())
    if maps.sigma is not None:
        path = folder / SIGMAS / f"{stem}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sigma(path, maps.sigma)


def write_codes(path: Path, codes: NDArray[Any]) -> None:
    """Write a map of 8 or 16 bits as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda part: write_png(part, codes, {}))


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dump_json(content))
