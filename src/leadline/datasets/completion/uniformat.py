"""OMNI-DC's "uniformat": its prepared data sets, one file per image, with the points that it sampled.

    <folder>/000000.npy         a dictionary: rgb (H, W, 3) uint8, gt (H, W), dep (H, W) metres with 0 = missing, K

The folder is one data set with one pattern, e.g. ``KITTIDC_test_LiDAR_16`` or ``iBims_test_2150``. The file is a pickle
by nature and is read without unpickling (`pickled_arrays`). The stored measurements are ``dep``. Images were written
after normalisation and back, rounded down, so that a colour may be one level too dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.datasets import Scene, SparseInput, loading
from leadline.datasets.completion.pickled_arrays import read_pickled_arrays
from leadline.geometry.cameras import Camera

_KEYS = ("rgb", "gt", "dep", "K")
# fx = fy, cx, cy that OMNI-DC assumes where it has stored the identity, by a part of the folder's name.
_ASSUMED = {"ETH3D": (425.0, 320.0, 240.0), "iBims": (490.0, 320.0, 240.0)}


@dataclass(frozen=True)
class Uniformat:
    """All files of one folder. The name of an image is its number."""

    root: Path
    max_depth: float | None = None  # metres beyond which the reference is not used

    def __post_init__(self) -> None:
        loading.require_positive_or_none(max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return f"uniformat-{self.root.resolve().name.lower()}"

    def names(self) -> list[str]:
        return loading.require_images(
            loading.list_stems(self.root, (".npy",)), self.root, "000000.npy, 000001.npy, ..."
        )

    def files(self, name: str) -> list[Path]:
        return [self.root / f"{name}.npy"]

    def load(self, name: str) -> Scene:
        (file,) = self.files(name)
        arrays = read_pickled_arrays(file)
        missing = [key for key in _KEYS if key not in arrays]
        if missing:
            raise FileError(f"{file}: has no {', '.join(missing)}, only {', '.join(arrays) or 'nothing'}.")
        image, depth, sparse, matrix = (arrays[key] for key in _KEYS)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise FileError(f"{file}: rgb must be (H, W, 3) uint8, got {image.dtype} {image.shape} instead.")
        for key, values in (("gt", depth), ("dep", sparse)):
            if values.shape != image.shape[:2]:
                raise FileError(f"{file}: {key} must have the shape {image.shape[:2]} of rgb, got {values.shape}.")
        camera = self._camera(file, matrix, image.shape[1], image.shape[0])
        points = SparseInput(loading.clean_reference(sparse, None), "as prepared by OMNI-DC")
        reference = loading.clean_reference(depth, self.max_depth)
        return Scene(name, np.array(image), reference, camera, {"dep": points})

    def _camera(self, file: Path, matrix: NDArray[np.float64], width: int, height: int) -> Camera | None:
        if matrix.size not in (4, 9):
            raise FileError(f"{file}: K must hold 4 or 9 numbers, got shape {matrix.shape} instead.")
        numbers = matrix.astype(np.float64).ravel().tolist()
        if len(numbers) == 9 and np.array_equal(matrix.reshape(3, 3), np.eye(3)):  # a placeholder
            for part, (focal, cx, cy) in _ASSUMED.items():
                if part in self.root.resolve().name:
                    return Camera(width, height, focal, focal, cx, cy)
            return None
        return loading.pinhole_camera(numbers, width, height, file)
