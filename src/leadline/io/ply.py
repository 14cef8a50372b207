"""Reading and writing of PLY files.

The reader is written here because the common Python package, plyfile, is under the GPL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.io.files import atomic_write, parse_table, reading

_MAX_HEADER_BYTES = 1 << 16  # a header usually has a dozen lines
_MAX_DIGITS = 18  # of a count, which must fit into 64 bits
_DTYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4"},
    **{"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4", "float32": "f4"},
    **{"double": "f8", "float64": "f8"},
}
_BYTE_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_COLOUR_NAMES = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"), ("r", "g", "b"))


def write_ply(
    path: str | os.PathLike[str],
    points: ArrayLike,
    colours: ArrayLike,
    *,
    normals: ArrayLike | None = None,
    triangles: ArrayLike | None = None,
) -> None:
    """Write coloured points, or a mesh, as a binary little-endian PLY; points that are not finite are left out.

    Parameters
    ----------
    path : path
        In an existing folder.
    points : (N, 3) array, float
        x, y, z in metres; stored as float32.
    colours : (N, 3) array, uint8
        Red, green, blue of each point.
    normals : (N, 3) array, float, optional
        Unit vectors; stored as float32.
    triangles : (T, 3) array, integer, optional
        Indices of the points of each triangle; all points must then be finite.

    Raises
    ------
    InputError
        A shape is not as above, or a type is wrong.
    FileError
        The file cannot be written.
    """
    xyz, rgb = np.asarray(points), np.asarray(colours)
    if xyz.ndim != 2 or xyz.shape[1] != 3 or xyz.dtype.kind not in "iuf":
        raise InputError(f"{param('points')} must be an (N, 3) array of numbers, got {xyz.dtype} {xyz.shape} instead.")
    if rgb.shape != xyz.shape or rgb.dtype != np.uint8:
        raise InputError(f"{param('colours')} must be uint8 of shape {xyz.shape}, got {rgb.dtype} {rgb.shape} instead.")
    with np.errstate(over="ignore"):  # values that float32 cannot hold become infinite and are left out
        single = xyz.astype(np.float32)
    kept = np.isfinite(single).all(axis=1)
    columns: dict[str, NDArray[Any]] = {"x y z": single}
    if normals is not None:
        columns["nx ny nz"] = np.asarray(normals, np.float32)
        if columns["nx ny nz"].shape != xyz.shape:
            raise InputError(f"{param('normals')} must have shape {xyz.shape}, got {np.shape(normals)} instead.")
    columns["red green blue"] = rgb
    dtype = np.dtype([(names, values.dtype.newbyteorder("<"), 3) for names, values in columns.items()])
    vertices = np.empty(int(kept.sum()), dtype=dtype)
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(vertices)}"]
    for names, values in columns.items():
        vertices[names] = values[kept]
        lines += [f"property {'uchar' if values.dtype == np.uint8 else 'float'} {name}" for name in names.split()]
    content = [vertices.tobytes()]
    if triangles is not None:
        corners = np.asarray(triangles)
        if corners.ndim != 2 or corners.shape[1] != 3 or corners.dtype.kind not in "iu" or not kept.all():
            raise InputError(f"{param('triangles')} must be (T, 3) integers, and all points finite.")
        faces = np.empty(len(corners), dtype=[("count", "u1"), ("corners", "<i4", 3)])
        faces["count"], faces["corners"] = 3, corners
        lines += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
        content.append(faces.tobytes())
    header = "\n".join([*lines, "end_header", ""]).encode("ascii")
    atomic_write(path, lambda part: part.write_bytes(b"".join((header, *content))))


def read_ply(path: str | os.PathLike[str]) -> tuple[FloatArray, NDArray[np.uint8] | None]:
    """Points and colours of a PLY file's vertices; other elements, such as faces, and other properties are skipped.

    Parameters
    ----------
    path : path
        Of an ascii, binary little-endian or binary big-endian PLY, version 1.0.

    Returns
    -------
    points : (N, 3) array, float32 or float64
        x, y, z in the file's unit; float64 if one of them is not stored as float32 or as a byte.
    colours : (N, 3) uint8 array or None
        Red, green, blue; None if the file has no colours as bytes.

    Raises
    ------
    FileError
        The file is missing, truncated, of another format, or its vertices have no x, y and z.
    """
    vertices = read_vertices(path)
    points = stack_xyz(vertices)
    names = vertices.dtype.names or ()
    for trio in _COLOUR_NAMES:
        if all(name in names and vertices.dtype[name] == np.uint8 for name in trio):
            return points, np.stack([vertices[name] for name in trio], axis=1)
    return points, None


def stack_xyz(vertices: NDArray[np.void]) -> FloatArray:
    """x, y and z of a structured array, (N, 3); float64 if one of them is not stored as float32 or as a byte."""
    single = all(vertices.dtype[axis].newbyteorder("=") in (np.float32, np.int8, np.uint8) for axis in "xyz")
    points = np.empty((len(vertices), 3), dtype=np.float32 if single else np.float64)
    for column, axis in enumerate("xyz"):
        points[:, column] = vertices[axis]
    return points


def read_vertices(path: str | os.PathLike[str]) -> NDArray[np.void]:
    """The vertices of a PLY file as a structured array with the file's own names; memory-mapped if binary."""
    file = Path(path)
    with reading(file, "a PLY file"):
        with file.open("rb") as stream:
            header = _parse_header(file, stream.read(_MAX_HEADER_BYTES), file.stat().st_size)
        if header.count == 0:
            return np.empty(0, header.vertex)
        if header.encoding == "ascii":
            return parse_table(file, file, header.vertex, header.count, skip=header.start)
        # Memory-mapped, so that a large laser scan is copied only once, into the columns that are used.
        return np.memmap(file, dtype=header.vertex, mode="r", offset=header.start, shape=(header.count,))


@dataclass(frozen=True)
class _Header:
    encoding: str  # a key of _BYTE_ORDERS
    vertex: np.dtype[np.void]
    count: int  # number of vertices
    start: int  # where the vertices begin: a byte offset in a binary file, a line number in an ascii file


def _parse_header(file: Path, head: bytes, size: int) -> _Header:
    """Parse the header, and refuse files that are too short for the vertices it declares."""
    if head[:4] not in (b"ply\n", b"ply\r"):
        raise FileError(f"{file}: is not a PLY file, it does not begin with the line 'ply'.")
    end = head.find(b"\nend_header")
    newline = head.find(b"\n", end + 1)
    if end < 0 or newline < 0:
        raise FileError(f"{file}: has no 'end_header' line in its first {_MAX_HEADER_BYTES} bytes. Is it truncated?")
    encoding = ""
    elements: list[tuple[str, int, list[tuple[str, str]]]] = []  # name, count, properties (name, dtype)
    lines = head[:newline].decode("latin-1").split("\n")
    for line in lines[1:-1]:
        match line.split():
            case ["format", encoding, "1.0"] if encoding in _BYTE_ORDERS:
                pass
            case ["element", name, number] if number.isdecimal() and len(number) <= _MAX_DIGITS:
                elements.append((name, int(number), []))
            case ["property", kind, name] if elements and kind in _DTYPES:
                elements[-1][2].append((name, _DTYPES[kind]))
            case ["property", "list", length, kind, name] if elements and {length, kind} <= _DTYPES.keys():
                elements[-1][2].append((name, "list"))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise FileError(f"{file}: has the header line {line[:80]!r}, which PLY 1.0 does not know.")
    if not encoding:
        raise FileError(f"{file}: has no 'format' line with one of {', '.join(_BYTE_ORDERS)} and 1.0.")
    start = len(lines) if encoding == "ascii" else newline + 1
    for name, count, properties in elements:
        names = [name for name, _ in properties]
        if len(set(names)) < len(names):
            raise FileError(f"{file}: has two properties of the same name in its element {name!r}: {', '.join(names)}.")
        if count > size:
            raise FileError(f"{file}: declares {count} of {name!r}, which {size} bytes cannot hold. Is it truncated?")
        lists = any(kind == "list" for _, kind in properties)
        if name == "vertex":
            if lists or not {"x", "y", "z"} <= set(names):
                raise FileError(f"{file}: must have vertices with x, y, z and without lists, got {', '.join(names)}.")
            vertex = np.dtype([(name, _BYTE_ORDERS[encoding] + kind) for name, kind in properties])
            # In text a number takes at least two bytes: a digit and a separator.
            minimum = start + count * vertex.itemsize if encoding != "ascii" else 2 * count * len(names)
            if minimum > size + (encoding == "ascii"):
                raise FileError(f"{file}: declares {count} vertices, which {size} bytes cannot hold. Is it truncated?")
            return _Header(encoding, vertex, count, start)
        if lists and encoding != "ascii":
            raise FileError(f"{file}: has the lists of {name!r} before its vertices; write it with the vertices first.")
        width = 1 if encoding == "ascii" else np.dtype([(name, kind) for name, kind in properties]).itemsize
        start += count * width
    raise FileError(f"{file}: has no element 'vertex'.")
