"""Point clouds of any common form as one `Cloud`.

The form follows from the suffix (any case):

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

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import FileError, InputError, LeadlineError, MissingExtra
from leadline.geometry.cloud import Cloud
from leadline.io.clouds.pcd import read_pcd
from leadline.io.clouds.ply import points_of, read_ply, read_vertices, write_ply

__all__ = ["CLOUD_SUFFIXES", "Cloud", "read_cloud", "read_ply", "write_ply"]

CLOUD_SUFFIXES = (".ply", ".pcd", ".las", ".laz", ".bin", ".npy", ".npz")

# What programs call the columns beside x, y and z, in lower case.
_COLUMNS = {
    "intensity": ("intensity", "reflectance", "reflectivity", "remission", "scalar_intensity", "i"),
    "time": ("time", "t", "timestamp", "time_offset", "offset_time", "gps_time", "scalar_time", "scalar_gpstime"),
    "confidence": ("confidence", "scalar_confidence"),
}
_ARRAYS = ("points", "xyz", "data", "cloud")
_LARGEST_ARRAY = 1 << 34  # bytes


def read_cloud(path: str | os.PathLike[str], *, key: str | None = None) -> Cloud:
    """The cloud of a file of any form in the table above; points that are not finite are left out.

    Intensity, time and confidence come along where a column has one of their usual names; the fourth column of plain
    rows is taken for the intensity. `time` keeps the file's zero and is in seconds only if the file's was.

    Parameters
    ----------
    path : path
    key : str, optional
        The array of an npz.

    Raises
    ------
    FileError
        Missing, truncated, foreign, or without points.
    InputError
        Unknown suffix, or a key where there are none.
    MissingExtra
        LAS and LAZ need laspy.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if key is not None and suffix != ".npz":
        raise InputError(f"`key` is for npz files, got {key!r} for {file}. Leave it out.")
    if file.is_dir():
        from leadline.io.colmap import read_points

        return _usable(file, read_points(file))
    if suffix not in CLOUD_SUFFIXES:
        raise InputError(
            f"{file}: the suffix {file.suffix!r} names no form of clouds. Known: {', '.join(CLOUD_SUFFIXES)}, "
            "and the folder of a COLMAP model."
        )
    try:
        if file.stat().st_size == 0:
            raise FileError(f"{file}: is empty (0 bytes). Write or copy it again.")
        if suffix in (".ply", ".pcd"):
            return _usable(file, _from_table(read_vertices(file) if suffix == ".ply" else read_pcd(file)))
        read = {".las": _read_las, ".laz": _read_las, ".bin": _read_rows, ".npy": _read_npy}.get(suffix)
        return _usable(file, _read_npz(file, key) if read is None else read(file))
    except LeadlineError:
        raise
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}).") from error
    # Decoders fed with damaged bytes raise anything from KeyError to zlib.error: no narrower set is complete.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise FileError(f"{file}: cannot be read as a cloud ({reason}). Is it truncated or of another form?") from error


def _usable(file: Path, cloud: Cloud) -> Cloud:
    finite: BoolArray = np.asarray(np.isfinite(cloud.points).all(axis=1))
    if not finite.any():
        raise FileError(f"{file}: holds no point{'' if len(cloud) == 0 else ' that is finite'}.")
    return cloud if finite.all() else cloud.select(finite)


def _from_table(table: NDArray[np.void]) -> Cloud:
    """A structured array's points and the columns whose names are known."""
    scalars = {name.lower(): name for name in table.dtype.names or () if table.dtype[name].shape == ()}
    return _with_columns(points_of(table), {name: table[own] for name, own in scalars.items()})


def _with_columns(points: FloatArray, columns: Mapping[str, NDArray[Any]]) -> Cloud:
    found: dict[str, Any] = {}
    for name, aliases in _COLUMNS.items():
        column = next((columns[alias] for alias in aliases if alias in columns), None)
        if column is not None and len(column) == len(points):
            # Times since 1970 or 1980 need all digits of a double; a byte of intensity does not.
            found[name] = np.asarray(column, np.float64 if name == "time" else np.float32)
    return Cloud(points, **found)


def _from_rows(file: Path, rows: NDArray[Any]) -> Cloud:
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
            f"{file}: has {size} bytes, which are no rows of {columns} float32 numbers. Is it truncated, or no sweep?"
        )
    return _from_rows(file, np.fromfile(file, "<f4").reshape(-1, columns))


def _read_npy(file: Path) -> Cloud:
    with file.open("rb") as stream:
        return _from_rows(file, _array(file, stream))


def _read_npz(file: Path, key: str | None) -> Cloud:
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        chosen = next((name for name in (_ARRAYS if key is None else (key,)) if name in names), None)
        chosen = names[0] if chosen is None and key is None and len(names) == 1 else chosen
        if chosen is None:
            raise FileError(
                f"{file}: has no array {' or '.join(_ARRAYS) if key is None else repr(key)} but "
                f"{', '.join(names) or 'nothing'}. Choose one with `key`."
            )

        def load(name: str) -> NDArray[Any]:
            with archive.open(f"{name}.npy") as stream:
                return _array(file, stream)

        cloud = _from_rows(file, load(chosen))
        known = {alias for aliases in _COLUMNS.values() for alias in aliases}
        others = {name.lower(): np.ravel(load(name)) for name in names if name.lower() in known}
    rows = {"intensity": cloud.intensity} if cloud.intensity is not None else {}
    return _with_columns(cloud.points, {**rows, **others})


def _array(file: Path, stream: IO[bytes]) -> NDArray[Any]:
    """One npy array, whose declared size is judged before it is read; objects are not loaded."""
    version = npy_format.read_magic(stream)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, columns_first, dtype = read_header(stream)
    if dtype.kind not in "iuf":
        raise FileError(f"{file}: holds values of type {dtype}, expected plain numbers. Save points as float32.")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size > _LARGEST_ARRAY:
        raise FileError(f"{file}: declares {size} bytes, more than the {_LARGEST_ARRAY} that are read.")
    data = stream.read(size)
    if len(data) < size:
        raise FileError(f"{file}: is truncated: {len(data)} of {size} bytes of its array are there.")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if columns_first else "C")


def _read_las(file: Path) -> Cloud:
    try:
        import laspy
    except ImportError as error:
        raise MissingExtra("laspy", "lidar", "A LAS or LAZ file") from error
    scan = laspy.read(file)
    names = {name.lower(): name for name in scan.point_format.dimension_names}
    known = {alias for aliases in _COLUMNS.values() for alias in aliases} & names.keys()
    points = np.stack([np.asarray(scan[axis], np.float64) for axis in "xyz"], axis=1)
    return _with_columns(points, {name: np.asarray(scan[names[name]]) for name in known})
