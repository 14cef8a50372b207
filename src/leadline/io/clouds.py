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
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.geometry.cloud import Cloud
from leadline.io.files import choose_key, parse_table, read_npy_array, reading
from leadline.io.ply import read_vertices, stack_xyz

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

# PCD files of the Point Cloud Library.
_MAX_HEADER_BYTES = 1 << 16  # a header usually has eleven lines
# dtypes by TYPE and SIZE.
_DTYPES = {
    "F": {"4": "f4", "8": "f8"},
    "I": {size: f"i{size}" for size in "1248"},
    "U": {size: f"u{size}" for size in "1248"},
}
_MAX_POINTS = 1 << 28
_MAX_CHUNK_BYTES = 1 << 30
_LAS_PART = 1 << 20  # points of a LAS file that are decoded at a time


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
        if suffix in (".ply", ".pcd"):
            return _drop_nonfinite(file, _cloud_from_table(read_vertices(file) if suffix == ".ply" else read_pcd(file)))
        read = {".bin": _read_rows, ".npy": _read_npy}.get(suffix, _read_las)
        return _drop_nonfinite(file, read(file))


def _drop_nonfinite(file: Path, cloud: Cloud) -> Cloud:
    finite: BoolArray = np.asarray(np.isfinite(cloud.points).all(axis=1))
    if not finite.any():
        raise FileError(f"{file}: holds no {'' if len(cloud) == 0 else 'finite '}point.")
    return cloud if finite.all() else cloud.select(finite)


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
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
        intensity = rows[:, 3].astype(np.float32) if rows.shape[1] > 3 else None
    return Cloud(points, intensity=intensity)


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
        return _cloud_from_rows(file, read_npy_array(file, stream, _check_array))


def _read_npz(file: Path, key: str | None) -> Cloud:
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

        def load(name: str) -> NDArray[Any]:
            with archive.open(f"{name}.npy") as stream:
                return read_npy_array(file, stream, _check_array)

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
    _check_las_counts(file)
    parts: list[NDArray[Any]] = []
    columns: dict[str, list[NDArray[Any]]] = {}
    try:
        with laspy.open(file) as reader:
            names = {name.lower(): name for name in reader.header.point_format.dimension_names}
            # In parts, so that a wrong number of compressed points takes no more memory than the points that are there.
            for scan in reader.chunk_iterator(_LAS_PART):
                parts.append(np.stack([np.asarray(scan[axis], np.float64) for axis in "xyz"], axis=1))
                for name in _KNOWN_NAMES & names.keys():
                    columns.setdefault(name, []).append(np.asarray(scan[names[name]]))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the decoder in Rust, which is no Exception
            raise
        raise FileError(f"{file}: its compressed points are damaged ({error}). Copy it again.") from error
    if not parts:
        raise FileError(f"{file}: holds no point.")
    return _cloud_with_attributes(np.concatenate(parts), {name: np.concatenate(all) for name, all in columns.items()})


def _check_las_counts(file: Path) -> None:
    """Refuse a LAS or LAZ file whose header counts more than its bytes can hold.

    laspy trusts these counts: it would read records past the end of the file for ever, and its decoder in Rust aborts
    the process if it cannot allocate the table of chunks.
    """
    size = file.stat().st_size

    def check(count: int, what: str, room: int, each: int) -> None:
        if count * each > max(room, 0):
            raise FileError(f"{file}: declares {count} {what}, which its {size} bytes cannot hold. Is it truncated?")

    with file.open("rb") as stream:
        header = stream.read(375)
        if len(header) < 227 or header[:4] != b"LASF":
            raise FileError(f"{file}: does not begin like a LAS file ('LASF' and a header of 227 bytes or more).")
        header_size, start, records, kind, length, points = struct.unpack_from("<HIIBHI", header, 94)
        if not 227 <= header_size <= start <= size or length == 0:
            raise FileError(
                f"{file}: its header of {header_size} bytes states that points of {length} bytes begin at "
                f"{start}, but the file has {size} bytes. Is it truncated?"
            )
        check(records, "records before the points", start - header_size, 54)
        if header[25] >= 4 and len(header) == 375:
            extended, count, points = struct.unpack_from("<QIQ", header, 235)
            check(count, "records after the points", size - extended, 60)
        if points > _MAX_POINTS:
            raise FileError(f"{file}: declares {points} points, expected at most {_MAX_POINTS}.")
        if not kind & 0x80:
            check(points, "points", size - start, length)
        elif points:  # compressed: the points begin with the position of the table of chunks
            stream.seek(start)
            (table,) = struct.unpack("<q", stream.read(8).ljust(8, b"\0"))
            if table == -1:  # written to a stream, which has the position at its end
                stream.seek(size - 8)
                (table,) = struct.unpack("<q", stream.read(8))
            if not start < table <= size - 8:
                raise FileError(f"{file}: its table of chunks should begin at {table}. Is it truncated?")
            stream.seek(table + 4)
            (chunks,) = struct.unpack("<I", stream.read(4))
            check(chunks, "chunks", table - start, length)  # the first point of a chunk is not compressed
            _check_chunk_size(file, stream, header_size, records, length)


def _check_chunk_size(file: Path, stream: IO[bytes], start: int, records: int, length: int) -> None:
    """Refuse chunks larger than a gigabyte, since the decoder allocates each at once; 50 000 points are usual."""
    stream.seek(start)
    for _ in range(records):
        _, user, kind, size, _ = struct.unpack("<H16sHH32s", stream.read(54).ljust(54, b"\0"))
        content = stream.read(size)
        if user.rstrip(b"\0") == b"laszip encoded" and kind == 22204 and len(content) >= 16:
            (points,) = struct.unpack_from("<I", content, 12)
            if points != 0xFFFFFFFF and points * length > _MAX_CHUNK_BYTES:  # all bits set: the table has the sizes
                raise FileError(f"{file}: declares chunks of {points} points of {length} bytes. Is it damaged?")


@dataclass(frozen=True)
class _Header:
    encoding: str  # ascii, binary or binary_compressed
    fields: tuple[tuple[str, str, int], ...]  # name, dtype and number of values of each field
    count: int  # number of points
    start: int  # offset of the first byte after the line DATA

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The structured dtype of a point. Padding fields are all named "_"; NumPy needs distinct names."""
        fields: list[Any] = []
        for index, (name, kind, count) in enumerate(self.fields):
            unique = f"_{index}" if name == "_" else name
            fields.append((unique, kind) if count == 1 else (unique, kind, (count,)))
        return np.dtype(fields)


def read_pcd(path: str | os.PathLike[str]) -> NDArray[np.void]:
    """The points of a PCD file, version 0.6 or 0.7, as a structured array with the file's own field names.

    Points without a return are NaN, as in the file.
    """
    file = Path(path)
    with reading(file, "a PCD file"):
        data = file.read_bytes()
        header = _parse_header(file, data)
        if header.count == 0:
            return np.empty(0, header.dtype)
        if header.encoding == "ascii":
            lines = data[header.start :].decode("latin-1").splitlines()
            return parse_table(file, lines, header.dtype, header.count)
        body = data[header.start :]
        if header.encoding == "binary":  # the header was checked against the size of the file
            return np.frombuffer(body, header.dtype, header.count)
        return _decompress(file, header, body)


def _parse_header(file: Path, data: bytes) -> _Header:
    lines: dict[str, list[str]] = {}
    place = 0
    while "DATA" not in lines:
        end = data.find(b"\n", place, _MAX_HEADER_BYTES)
        if end < 0:
            raise FileError(f"{file}: is not a PCD file, its first {_MAX_HEADER_BYTES} bytes have no line 'DATA'.")
        words = data[place:end].decode("latin-1").split()
        if words and not words[0].startswith("#"):
            lines[words[0]] = words[1:]
        place = end + 1
    try:
        names = lines["FIELDS"]
        kinds = [_DTYPES[kind][size] for kind, size in zip(lines["TYPE"], lines["SIZE"], strict=True)]
        counts = [int(count) for count in lines.get("COUNT", ["1"] * len(names))]
        points = lines["POINTS"] if "POINTS" in lines else lines["WIDTH"]
        count, (encoding,) = int(points[0]), lines["DATA"]
        fields = tuple(zip(names, kinds, counts, strict=True))
    except (KeyError, ValueError, IndexError) as error:
        raise FileError(
            f"{file}: its header must have FIELDS, SIZE, TYPE, POINTS and DATA that agree ({error!r})."
        ) from error
    if encoding not in ("ascii", "binary", "binary_compressed"):
        raise FileError(f"{file}: has DATA {encoding!r}, expected ascii, binary or binary_compressed.")
    named = [name for name in names if name != "_"]
    if len(set(named)) < len(named) or not {"x", "y", "z"} <= set(named):
        raise FileError(f"{file}: must have the fields x, y and z, each once, got {', '.join(names)}.")
    if any(not 0 < number <= 1 << 16 for number in counts) or any(counts[names.index(axis)] != 1 for axis in "xyz"):
        raise FileError(f"{file}: has an impossible COUNT: {' '.join(map(str, counts))}.")
    if not 0 <= count <= _MAX_POINTS:
        raise FileError(f"{file}: declares {count} points, expected at most {_MAX_POINTS}.")
    header = _Header(encoding, fields, count, place)
    # In text a number takes at least two bytes; the size of compressed data is not known before it is read.
    minimum = count * header.dtype.itemsize if encoding == "binary" else 2 * count * sum(counts) - 1
    if encoding != "binary_compressed" and minimum > len(data) - place:
        raise FileError(f"{file}: declares {count} points, which {len(data)} bytes cannot hold. Is it truncated?")
    return header


def _decompress(file: Path, header: _Header, body: bytes) -> NDArray[np.void]:
    """Read the one compressed block: two sizes, then all x, all y and so on."""
    expected = header.count * header.dtype.itemsize
    packed, size = struct.unpack_from("<II", body) if len(body) >= 8 else (0, -1)
    if size != expected or packed > len(body) - 8:
        raise FileError(
            f"{file}: its compressed block has {len(body) - 8} bytes for {size}, expected {packed} for {expected}. "
            "Is it truncated?"
        )
    flat = np.frombuffer(decompress_lzf(body[8 : 8 + packed], size), np.uint8)
    points = np.empty(header.count, header.dtype)
    place = 0
    for name in header.dtype.names or ():
        kind = header.dtype[name]
        length = header.count * kind.itemsize
        column = flat[place : place + length].view(kind.base)
        points[name] = column.reshape((header.count, *kind.shape))
        place += length
    return points


def decompress_lzf(packed: bytes, size: int) -> bytes:
    """Decompress LZF data to `size` bytes; raises ValueError if the data are damaged.

    A control byte n below 32 is followed by n + 1 literal bytes. Any other control byte is a copy of earlier output:
    its upper three bits hold the length less 2, where 7 means that the next byte is added; its lower five bits and the
    next byte hold the distance back to the start of the copy, less 1. A copy may overlap its own output.
    """
    flat, read = bytearray(), 0
    data = packed + bytes(3)  # so that damaged data may be read beyond their end
    while read < len(packed) and len(flat) <= size:
        control = data[read]
        read += 1
        if control < 32:
            flat += data[read : read + control + 1]
            read += control + 1
            continue
        length = (control >> 5) + 2
        if length == 9:
            length += data[read]
            read += 1
        distance = ((control & 31) << 8) + data[read] + 1
        read += 1
        start = len(flat) - distance
        if start < 0:
            raise ValueError("its compressed block refers to data before its beginning")
        if length > distance:
            flat += flat[start:] * (length // distance)
            length %= distance
        flat += flat[start : start + length]
    if read != len(packed) or len(flat) != size:
        raise ValueError(f"its compressed block does not decompress to {size} bytes")
    return bytes(flat)
