"""A room, a street and a desk, ray-traced in NumPy: exact depth and a synthetic prior, with nothing to download."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError, param, require_choice
from leadline.datasets import Scene
from leadline.datasets.rendered.desk import DESK
from leadline.datasets.rendered.renderer import render_setting, require_render_size
from leadline.datasets.rendered.room import ROOM
from leadline.datasets.rendered.street import STREET

__all__ = ["NAME", "RenderedDataset", "network_like_prior", "render"]

NAME = "rendered"
Kind = Literal["room", "street", "desk"]
_SETTINGS = {setting.name: setting for setting in (ROOM, STREET, DESK)}


def render(width: int = 640, height: int = 480, *, seed: int = 0, kind: Kind = "room") -> Scene:
    """A rendered image with its exact z-depth in metres and its camera. The same arguments give the same numbers.

    The ``room`` is closed: every pixel has a depth, between about 1.3 and 7 m. The ``street`` has a sky without depth,
    and reaches to about 60 m. On the ``desk``, at 0.5 to 2 m, stand things of glass, behind which a depth camera
    measures the background; what it measures is the scene's measurement ``sensor``.

    Parameters
    ----------
    width, height : int
        Size in pixels, at least 2 each. The largest 4:3 image inside has a field of view of 60 degrees.
    seed : int
        Varies positions and orientations of things a little, and colours and textures.
    kind : {"room", "street", "desk"}

    Raises
    ------
    InputError
        A side is shorter than 2 pixels, or there is no such kind.

    Examples
    --------
    >>> scene = render(64, 48)
    >>> scene.image.shape, scene.reference.dtype, scene.camera.cx
    ((48, 64, 3), dtype('float32'), 31.5)
    """
    require_choice("kind", kind, Kind)
    return render_setting(_SETTINGS[kind], width, height, seed=seed)


class RenderedDataset:
    """`count` rooms ``room-0``, ``room-1``, ... of a size in pixels; the number in the name is the seed."""

    name = NAME

    def __init__(self, *, count: int = 4, width: int = 320, height: int = 240) -> None:
        if count < 1:
            raise InputError(f"{param('count')} must be at least 1, got {count!r} instead.")
        require_render_size(width, height)
        self.count, self.width, self.height = count, width, height

    def names(self) -> list[str]:
        return [f"room-{seed}" for seed in range(self.count)]

    def load(self, name: str) -> Scene:
        return _render(self.width, self.height, self.seed(name))

    def seed(self, name: str) -> int:
        """The seed of the room of that name."""
        if name not in self.names():
            raise InputError(f"There is no room {name!r}; there are room-0 to room-{self.count - 1}.")
        return int(name.removeprefix("room-"))

    def files(self, name: str) -> list[Path]:
        """No files, since rooms are rendered."""
        return []


@lru_cache(maxsize=2)  # a scene and its prior are loaded one after the other
def _render(width: int, height: int, seed: int) -> Scene:
    return render(width, height, seed=seed)


def network_like_prior(depth: FloatArray, *, seed: int = 0) -> NDArray[np.float32]:
    """A dense relative depth map with the typical errors of a monocular network, made from an exact one.

    It has four errors, none of which a method here can undo exactly: soft edges that grow the nearer surface; a
    monotone response that is affine in neither depth, log depth nor disparity, and deviates a little from the power
    family, too; a slow change of scale over the image (1.2 % rms); and an arbitrary unit.

    The sizes of the errors were chosen for a clear demonstration, so scores on it illustrate the methods. They are no
    evidence for one of them, which needs real priors.

    Parameters
    ----------
    depth : (H, W) array
        Exact depth in metres; NaN, inf and values <= 0 are unknown and are NaN in the result.
    seed : int
        Determines the change of scale, the response and the unit.
    """
    depth = as_map(depth, "depth")
    rng = np.random.default_rng([seed, 1])
    usable = np.isfinite(depth) & (depth > 0)
    if not usable.any():
        raise InputError(f"{param('depth')} must have at least one finite positive pixel, got none.")
    height, width = depth.shape
    pixel = math.hypot(width, height) / 800  # the errors scale with the size of the image

    # Averaging disparity instead of depth moves mixed pixels towards the nearer surface.
    near = np.where(usable, 1.0 / np.where(usable, depth, 1.0), 0.0)
    weight = usable.astype(np.float64)
    soft = sum(
        share * _blur(near, sigma * pixel) / np.maximum(_blur(weight, sigma * pixel), 1e-12)
        for share, sigma in ((0.88, 1.1), (0.12, 3.5))
    )
    log_depth = -np.log(np.where(usable, soft, 1.0))
    middle = float(np.median(log_depth[usable]))

    # The response is h^p = a d^p + 1 - a relative to the median, in logs, plus a ripple too small to change the order.
    power, share = -3.2 + rng.uniform(-0.4, 0.4), 0.7
    x = np.where(usable, log_depth - middle, 0.0)
    response = np.log1p(share * np.expm1(power * x)) / power
    response += 0.006 * np.sin(3.0 * x + rng.uniform(0, 2 * math.pi))

    rows, columns = np.arange(height)[:, None] / height, np.arange(width) / width
    warp = np.zeros((height, width))
    for _ in range(6):
        across, down = rng.uniform(-1.2, 1.2, 2)
        warp += rng.normal() * np.cos(2 * math.pi * (across * columns + down * rows + rng.uniform()))
    warp *= 0.012 / max(float(np.sqrt(np.mean((warp - warp.mean()) ** 2))), 1e-12)
    unit = math.exp(rng.uniform(-1.5, -0.5))
    return np.where(usable, unit * np.exp(response + warp - warp.mean()), np.nan).astype(np.float32)


def _blur(values: FloatArray, sigma: float) -> NDArray[np.float64]:
    """`values` filtered by a Gaussian of that standard deviation in pixels, with edge replication."""
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(values.astype(np.float64), sigma, mode="nearest", radius=math.ceil(3 * sigma)))
