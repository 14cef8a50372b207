"""Reading of point clouds of all common formats.

The format follows from the suffix (any case):

===============  ==================================================================================
suffix           what it holds
===============  ==================================================================================
.ply             vertices with x, y, z
.pcd             ascii, binary and binary_compressed
.las .laz        airborne and mobile laser scans, through laspy
.bin             float32 rows x, y, z, reflectance as KITTI has them; .pcd.bin with the ring as nuScenes
.npy .npz        an (N, 3) or wider array; in npz ``points``, ``xyz``, ``data`` or the only one
a folder         the points of a COLMAP model
===============  ==================================================================================
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.geometry.cloud import Cloud
from leadline.io.clouds.pcd import read_pcd
from leadline.io.clouds.ply import read_vertices, stack_xyz
from leadline.io.reading import choose_key, read_npy_array, reading

CLOUD_SUFFIXES = (".ply", ".pcd", ".las", ".laz", ".bin", ".npy", ".npz")

# Names that programs give to the attributes of points, in lower case.
_ATTRIBUTE_NAMES = {
    "intensity": ("intensity", "reflectance", "reflectivity", "remission", "scalar_intensity", "i"),
    "time": ("time", "t", "timestamp", "time_offset", "offset_time", "gps_time", "scalar_time", "scalar_gpstime"),
    "confidence": ("confidence", "scalar_confidence"),
}
_KNOWN_NAMES = {name for names in _ATTRIBUTE_NAMES.values() for name in names}
_POINT_KEYS = ("points", "xyz", "data", "cloud")
_MAX_ARRAY_BYTES = 1 << 34


def read_cloud(path: str | os.PathLike[str], *, key: str | None = None) -> Cloud:
    """The points of a file in any format of the table above, without those that are not finite.

    Intensity, time and confidence are read where an attribute has one of their usual names; the fourth column of plain
    rows is the intensity. `time` keeps the file's zero and unit.

    Parameters
    ----------
    path : path
    key : str, optional
        The array of an npz.

    Raises
    ------
    FileError
        The file is missing, truncated, of another format, or without points.
    InputError
        The suffix is unknown, or a key is given for a format without keys.
    MissingExtra
        LAS and LAZ need laspy.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if key is not None and suffix != ".npz":
        raise InputError(f"{param('key')} is for npz files, got {key!r} for {file}. Leave it out.")
    if file.is_dir():
        from leadline.io.colmap import read_points

        return _drop_nonfinite(file, read_points(file))
    if suffix not in CLOUD_SUFFIXES:
        raise InputError(
            f"{file}: the suffix {file.suffix!r} is not one of a cloud format: {', '.join(CLOUD_SUFFIXES)}, or the "
            "folder of a COLMAP model."
        )
    with reading(file, "a point cloud"):
        if suffix == ".npz":
            return _drop_nonfinite(file, _read_npz(file, key))
        read = {".ply": _read_ply, ".pcd": _read_pcd, ".bin": _read_rows, ".npy": _read_npy}.get(suffix, _read_las)
        return _drop_nonfinite(file, read(file))


def _drop_nonfinite(file: Path, cloud: Cloud) -> Cloud:
    finite: BoolArray = np.asarray(np.isfinite(cloud.points).all(axis=1))
    if not finite.any():
        raise FileError(f"{file}: holds no {'' if len(cloud) == 0 else 'finite '}point.")
    return cloud if finite.all() else cloud.select(finite)


def _read_ply(file: Path) -> Cloud:
    return _cloud_from_table(read_vertices(file))


def _read_pcd(file: Path) -> Cloud:
    return _cloud_from_table(read_pcd(file))


def _cloud_from_table(table: NDArray[np.void]) -> Cloud:
    """The points of a structured array and the attributes whose names are known."""
    scalars = {name.lower(): table[name] for name in table.dtype.names or () if table.dtype[name].shape == ()}
    return _cloud_with_attributes(stack_xyz(table), scalars)


def _cloud_with_attributes(points: FloatArray, columns: Mapping[str, NDArray[Any]]) -> Cloud:
    attributes: dict[str, Any] = {}
    for attribute, names in _ATTRIBUTE_NAMES.items():
        column = next((columns[name] for name in names if name in columns), None)
        if column is not None and len(column) == len(points):
            # Times since 1970 or 1980 need all digits of a double; intensities do not.
            attributes[attribute] = np.asarray(column, np.float64 if attribute == "time" else np.float32)
    return Cloud(points, **attributes)


def _cloud_from_rows(file: Path, rows: NDArray[Any]) -> Cloud:
    if rows.ndim != 2 or rows.shape[1] < 3:
        raise FileError(f"{file}: must hold rows of x, y, z and more, (N, 3) or wider, got shape {rows.shape}.")
    single = rows.dtype.itemsize <= 4 and rows.dtype.kind == "f"
    points: FloatArray = rows[:, :3].astype(np.float32 if single else np.float64)
    return Cloud(points, intensity=rows[:, 3].astype(np.float32) if rows.shape[1] > 3 else None)


def _read_rows(file: Path) -> Cloud:
    columns = 5 if file.name.lower().endswith(".pcd.bin") else 4
    size = file.stat().st_size
    if size % (4 * columns):
        raise FileError(
            f"{file}: has {size} bytes, which are not rows of {columns} float32 numbers. Is it truncated, or not a "
            "sweep?"
        )
    return _cloud_from_rows(file, np.fromfile(file, "<f4").reshape(-1, columns))


def _read_npy(file: Path) -> Cloud:
    with file.open("rb") as stream:
        return _cloud_from_rows(file, read_npy_array(file, stream, lambda *declared: _check_array(file, *declared)))


def _read_npz(file: Path, key: str | None) -> Cloud:
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

        def load(name: str) -> NDArray[Any]:
            with archive.open(f"{name}.npy") as stream:
                return read_npy_array(file, stream, lambda *declared: _check_array(file, *declared))

        cloud = _cloud_from_rows(file, load(choose_key(file, names, key, _POINT_KEYS, "array")))
        others = {name.lower(): np.ravel(load(name)) for name in names if name.lower() in _KNOWN_NAMES}
    rows = {"intensity": cloud.intensity} if cloud.intensity is not None else {}
    return _cloud_with_attributes(cloud.points, {**rows, **others})


def _check_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iuf":
        raise FileError(f"{file}: holds values of type {dtype}, expected plain numbers. Save points as float32.")
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_ARRAY_BYTES:
        raise FileError(f"{file}: declares {size} bytes, more than the limit of {_MAX_ARRAY_BYTES}.")


def _read_las(file: Path) -> Cloud:
    try:
        import laspy
    except ImportError as error:
        raise MissingExtra("laspy", "lidar", "A LAS or LAZ file") from error
    scan = laspy.read(file)
    names = {name.lower(): name for name in scan.point_format.dimension_names}
    points = np.stack([np.asarray(scan[axis], np.float64) for axis in "xyz"], axis=1)
    return _cloud_with_attributes(points, {name: np.asarray(scan[names[name]]) for name in _KNOWN_NAMES & names.keys()})
