"""The inputs of one view: arrays, or files and functions that are read when the view is completed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError, param
from leadline.core.noise import Noise
from leadline.core.prior import Prior
from leadline.geometry.cameras import CameraModel, RayCamera
from leadline.geometry.poses import Transform, as_transform
from leadline.io.depth import read_depth, read_image
from leadline.io.priors import read_prior

PathLike = str | os.PathLike[str]
PriorInput = ArrayLike | Prior | PathLike | Callable[[], ArrayLike | Prior]
MapInput = ArrayLike | PathLike | Callable[[], ArrayLike]
NoiseInput = Noise | float | MapInput | None


@dataclass(frozen=True, eq=False)
class View:
    """A view as it was added; its maps are loaded on request."""

    name: str
    prior: Any  # PriorInput
    sparse: Any  # MapInput
    camera: CameraModel
    camera_to_world: Transform
    noise: Any = None  # NoiseInput
    valid: Any = None
    image: Any = None

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if not self.name or path.is_absolute() or ".." in path.parts:
            raise InputError(f"{param('name')} must be a name, or a path without '..', got {self.name!r} instead.")
        object.__setattr__(self, "camera_to_world", as_transform(self.camera_to_world, "camera_to_world"))
        if not hasattr(self.camera, "project"):
            raise InputError(f"{param('camera')} must be a Camera or a ColmapCamera, got {self.camera!r:.60} instead.")
        if isinstance(self.camera, RayCamera):
            raise InputError(f"{param('camera')} is given by its rays alone and cannot project; pass its lens model.")

    def load(self) -> tuple[ArrayLike | Prior, FloatArray, Noise | ArrayLike | None, ArrayLike | None]:
        """Prior, measurements, noise and mask as `complete` takes them."""
        prior = _loaded(self.prior, lambda path: read_prior(path).prior)
        sparse = as_map(_loaded(self.sparse, lambda path: read_depth(path).values), "sparse")
        noise = _loaded(self.noise, lambda path: read_depth(path).values)
        valid = _loaded(self.valid, lambda path: read_depth(path).values > 0)
        shape = (self.camera.height, self.camera.width)
        if sparse.shape != shape:
            raise InputError(
                f"{param('sparse')} must have the shape {shape} of the view's {param('camera')}, got "
                f"{sparse.shape} instead. Scale the camera, or the maps."
            )
        return prior, sparse, noise, valid

    def load_grey(self) -> FloatArray | None:
        """The picture in grey values from 0 to 255, (H, W); None if the view has none."""
        if self.image is None:
            return None
        image, shape = np.asarray(_loaded(self.image, read_image)), (self.camera.height, self.camera.width)
        if image.shape[:2] != shape or image.ndim > 3 or image.shape[2:] not in ((), (1,), (3,), (4,)):
            raise InputError(
                f"{param('image')} must have the shape {shape} of the view's {param('camera')}, and colours as a third "
                f"axis, got {image.shape} instead. Scale the camera, or the picture."
            )
        if image.dtype.kind not in "uf":
            raise InputError(
                f"{param('image')} must hold unsigned integers, or floats from 0 to 1, got {image.dtype} instead."
            )
        full = np.iinfo(image.dtype).max if image.dtype.kind == "u" else 1.0
        colours = image if image.ndim == 3 else image[:, :, None]
        grey: FloatArray = colours[:, :, :3].mean(axis=2, dtype=np.float32) * np.float32(255.0 / full)
        return grey

    def facts(self) -> dict[str, Any]:
        """What identifies the view to a store. Files count by size and time, functions not at all."""
        inputs = {name: _digest(getattr(self, name)) for name in ("prior", "sparse", "noise", "valid", "image")}
        return {"name": self.name, "camera": repr(self.camera), "pose": self.camera_to_world.tolist(), **inputs}


def _loaded(value: Any, read: Callable[[Path], Any]) -> Any:
    if isinstance(value, (str, os.PathLike)):
        return read(Path(value))
    return value() if callable(value) and not isinstance(value, Noise) else value


def _digest(value: Any) -> str | None:
    if value is None or isinstance(value, Noise) or (np.ndim(value) == 0 and isinstance(value, (int, float))):
        return None if value is None else repr(value)
    if isinstance(value, (str, os.PathLike)):
        try:
            status = os.stat(value)
        except OSError:
            return str(value)
        return f"{value} {status.st_size} {status.st_mtime_ns}"
    if callable(value):
        return "function"
    hashed = hashlib.sha256()
    if isinstance(value, Prior):
        hashed.update(f"{value.kind} {value.floor}".encode())
        value = value.values if value.valid is None else np.where(value.valid, value.values, np.nan)
    hashed.update(np.ascontiguousarray(value).tobytes())
    return hashed.hexdigest()
