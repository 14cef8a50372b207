"""Point clouds from and to PLY files."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.io.atomic import atomic_write

_LARGEST_HEADER = 1 << 16  # bytes; a dozen lines are usual
_MOST_DIGITS = 18  # of a count: what 64 bits hold
_TYPES = {
    **{name: "i1" for name in ("char", "int8")},
    **{name: "u1" for name in ("uchar", "uint8")},
    **{name: "i2" for name in ("short", "int16")},
    **{name: "u2" for name in ("ushort", "uint16")},
    **{name: "i4" for name in ("int", "int32")},
    **{name: "u4" for name in ("uint", "uint32")},
    **{name: "f4" for name in ("float", "float32")},
    **{name: "f8" for name in ("double", "float64")},
}
_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_COLOURS = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"), ("r", "g", "b"))
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


def read_ply(path: str | os.PathLike[str]) -> tuple[FloatArray, NDArray[np.uint8] | None]:
    """Points and colours of a PLY file's vertices; other elements, such as faces, and other properties are skipped.

    Parameters
    ----------
    path : path
        Of an ascii, binary little-endian or binary big-endian PLY, version 1.0.

    Returns
    -------
    points : (N, 3) array, float32 or float64
        x, y, z in the file's unit: float64 if one of them is not stored as a float of 32 bits or less.
    colours : (N, 3) uint8 array or None
        Red, green, blue; None where the file has none as bytes.

    Raises
    ------
    FileError
        The file is missing, truncated, foreign, or its vertices have no x, y and z.
    """
    vertices = read_vertices(path)
    points = points_of(vertices)
    names = vertices.dtype.names or ()
    for trio in _COLOURS:
        if all(name in names and vertices.dtype[name] == np.uint8 for name in trio):
            return points, np.stack([vertices[name] for name in trio], axis=1)
    return points, None


def points_of(vertices: NDArray[np.void]) -> FloatArray:
    """x, y and z of a structured array, (N, 3): float64 if one of them is not stored as a float of 32 bits or less."""
    single = all(vertices.dtype[axis].newbyteorder("=") in (np.float32, np.int8, np.uint8) for axis in "xyz")
    points = np.empty((len(vertices), 3), dtype=np.float32 if single else np.float64)
    for column, axis in enumerate("xyz"):
        points[:, column] = vertices[axis]
    return points


def read_vertices(path: str | os.PathLike[str]) -> NDArray[np.void]:
    """The vertices of a PLY file as a structured array with the file's own names; mapped, not read, where binary.

    Raises
    ------
    FileError
        As for `read_ply`.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header = _header(file, stream.read(_LARGEST_HEADER), size)
        return _ascii(file, header) if header.form == "ascii" else _binary(file, header)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}).") from error


@dataclass(frozen=True)
class _Header:
    form: str
    vertex: np.dtype[np.void]
    count: int  # vertices
    start: int  # of the vertices: a byte in a binary file, a line in an ascii one


def _header(file: Path, head: bytes, size: int) -> _Header:
    """What the header announces; a binary file that is too short for its vertices is refused here."""
    if head[:4] not in (b"ply\n", b"ply\r"):
        raise FileError(f"{file}: is not a PLY file, it does not begin with the line 'ply'.")
    end = head.find(b"\nend_header")
    newline = head.find(b"\n", end + 1)
    if end < 0 or newline < 0:
        raise FileError(f"{file}: has no 'end_header' line in its first {_LARGEST_HEADER} bytes. Is it truncated?")
    form = ""
    elements: list[tuple[str, int, list[tuple[str, str]]]] = []  # name, count and properties of each
    lines = head[:newline].decode("latin-1").split("\n")
    for line in lines[1:-1]:
        match line.split():
            case ["format", form, "1.0"] if form in _ORDERS:
                pass
            case ["element", name, number] if number.isdecimal() and len(number) <= _MOST_DIGITS:
                elements.append((name, int(number), []))
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1][2].append((name, _TYPES[kind]))
            case ["property", "list", length, kind, name] if elements and {length, kind} <= _TYPES.keys():
                elements[-1][2].append((name, "list"))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise FileError(f"{file}: has the header line {line[:80]!r}, which PLY 1.0 does not know.")
    if not form:
        raise FileError(f"{file}: has no 'format' line with one of {', '.join(_ORDERS)} and 1.0.")
    start = len(lines) if form == "ascii" else newline + 1
    for name, count, properties in elements:
        names = [name for name, _ in properties]
        if len(set(names)) < len(names):
            raise FileError(f"{file}: has two properties of the same name in its element {name!r}: {', '.join(names)}.")
        if count > size:
            raise FileError(f"{file}: announces {count} of {name!r}, which {size} bytes cannot hold. Is it truncated?")
        lists = any(kind == "list" for _, kind in properties)
        if name == "vertex":
            if lists or not {"x", "y", "z"} <= set(names):
                raise FileError(f"{file}: must have vertices with x, y, z and without lists, got {', '.join(names)}.")
            vertex = np.dtype([(name, _ORDERS[form] + kind) for name, kind in properties])
            # In text a number takes two bytes at least: itself and what separates it.
            least = start + count * vertex.itemsize if form != "ascii" else 2 * count * len(names)
            if least > size + 1:
                raise FileError(f"{file}: announces {count} vertices, which {size} bytes cannot hold. Is it truncated?")
            return _Header(form, vertex, count, start)
        if lists and form != "ascii":
            raise FileError(f"{file}: has the lists of {name!r} before its vertices; write it with the vertices first.")
        width = 1 if form == "ascii" else np.dtype([(name, kind) for name, kind in properties]).itemsize
        start += count * width
    raise FileError(f"{file}: has no element 'vertex'.")


def _binary(file: Path, header: _Header) -> NDArray[np.void]:
    if header.count == 0:
        return np.empty(0, header.vertex)
    if header.start + header.count * header.vertex.itemsize > file.stat().st_size:
        raise FileError(f"{file}: ends before its {header.count} vertices do. Is it truncated?")
    # Mapped, not read: a laser scan is copied once, into the columns that are asked for.
    return np.memmap(file, dtype=header.vertex, mode="r", offset=header.start, shape=(header.count,))


def _ascii(file: Path, header: _Header) -> NDArray[np.void]:
    if header.count == 0:
        return np.empty(0, header.vertex)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no line is left is said below
            vertices: NDArray[np.void] = np.loadtxt(
                file,
                dtype=header.vertex,
                skiprows=header.start,
                max_rows=header.count,
                comments=None,
                ndmin=1,
                encoding="latin-1",
            )
    except ValueError as error:
        names = ", ".join(header.vertex.names or ())
        raise FileError(f"{file}: has a vertex that is not the numbers {names} ({error}).") from error
    if len(vertices) < header.count:
        raise FileError(f"{file}: announces {header.count} vertices and holds {len(vertices)}. Is it truncated?")
    return vertices
