"""One image of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.geometry.cameras import CameraModel


@dataclass(frozen=True)
class Scene:
    """One image with its reference depth and camera; None where these are unknown."""

    name: str
    image: NDArray[np.uint8]  # (H, W, 3) RGB
    reference: NDArray[np.float32] | None = None  # (H, W) metres, NaN where unknown
    camera: CameraModel | None = None
