"""One image with what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.geometry.cameras import Camera, RayCamera


@dataclass(frozen=True)
class Scene:
    """One image with what is known about it; anything unknown is None."""

    name: str
    image: NDArray[np.uint8]  # (H, W, 3) RGB
    reference: NDArray[np.float32] | None = None  # (H, W) metres, NaN where unknown
    camera: Camera | RayCamera | None = None
