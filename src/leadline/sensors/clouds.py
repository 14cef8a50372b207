"""Point clouds to files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from leadline.core.types import InputError
from leadline.sensors.atomic import atomic_write

_VERTEX = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])


def write_ply(path: str | os.PathLike[str], points: ArrayLike, colours: ArrayLike) -> None:
    """Write coloured points as a binary little-endian PLY; points that are not finite are left out.

    Parameters
    ----------
    path : path
        In an existing folder.
    points : (N, 3) array, float
        x, y, z in metres; stored as float32.
    colours : (N, 3) array, uint8
        Red, green, blue of each point.

    Raises
    ------
    InputError
        The shapes are not (N, 3) twice, or the types are wrong.
    FileError
        The file cannot be written.
    """
    xyz, rgb = np.asarray(points), np.asarray(colours)
    if xyz.ndim != 2 or xyz.shape[1] != 3 or xyz.dtype.kind not in "iuf":
        raise InputError(f"`points` must be an (N, 3) array of numbers, got {xyz.dtype} {xyz.shape} instead.")
    if rgb.shape != xyz.shape or rgb.dtype != np.uint8:
        raise InputError(f"`colours` must be uint8 of shape {xyz.shape}, got {rgb.dtype} {rgb.shape} instead.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is left out
        single = xyz.astype(np.float32)
    kept = np.isfinite(single).all(axis=1)
    vertices = np.empty(int(kept.sum()), dtype=_VERTEX)
    vertices["xyz"], vertices["rgb"] = single[kept], rgb[kept]
    properties = [f"property float {axis}" for axis in "xyz"]
    properties += [f"property uchar {name}" for name in ("red", "green", "blue")]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(vertices)}", *properties, "end_header", ""]

    def write(temporary: Path) -> None:
        temporary.write_bytes("\n".join(lines).encode("ascii") + vertices.tobytes())

    atomic_write(path, write)
