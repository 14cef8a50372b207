"""PCD files of the Point Cloud Library: ascii, binary and binary_compressed."""

from __future__ import annotations

import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError

_LARGEST_HEADER = 1 << 16  # bytes; eleven lines are usual
_TYPES = {"F": {"4": "f4", "8": "f8"}, "I": {}, "U": {}}
_TYPES["I"] = {size: f"i{size}" for size in "1248"}
_TYPES["U"] = {size: f"u{size}" for size in "1248"}
_MOST_POINTS = 1 << 28


@dataclass(frozen=True)
class _Header:
    form: str
    fields: tuple[tuple[str, str, int], ...]  # name, type and how many numbers of it
    count: int
    start: int  # byte after the line DATA

    @property
    def point(self) -> np.dtype[np.void]:
        """Padding fields are all named "_", which NumPy does not allow twice."""
        named = [(f"_{place}" if name == "_" else name, kind, many) for place, (name, kind, many) in self._numbered()]
        return np.dtype([(name, kind) if many == 1 else (name, kind, (many,)) for name, kind, many in named])

    def _numbered(self) -> list[tuple[int, tuple[str, str, int]]]:
        return list(enumerate(self.fields))


def read_pcd(path: str | os.PathLike[str]) -> NDArray[np.void]:
    """The points of a PCD file, version 0.6 or 0.7, as a structured array with the file's own field names.

    Points without a return are in the file as NaN and come as such.

    Raises
    ------
    FileError
        The file is missing, truncated, foreign, or its points have no x, y and z.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}).") from error
    header = _header(file, data)
    if header.count == 0:
        return np.empty(0, header.point)
    if header.form == "ascii":
        return _ascii(file, header, data)
    body = data[header.start :]
    if header.form == "binary":
        expected = header.count * header.point.itemsize
        if len(body) < expected:
            raise FileError(f"{file}: ends before its {header.count} points do. Is it truncated?")
        return np.frombuffer(body, header.point, header.count)
    return _compressed(file, header, body)


def _header(file: Path, data: bytes) -> _Header:
    lines: dict[str, list[str]] = {}
    place = 0
    while "DATA" not in lines:
        end = data.find(b"\n", place, _LARGEST_HEADER)
        if end < 0:
            raise FileError(f"{file}: is not a PCD file, its first {_LARGEST_HEADER} bytes have no line 'DATA'.")
        words = data[place:end].decode("latin-1").split()
        if words and not words[0].startswith("#"):
            lines[words[0]] = words[1:]
        place = end + 1
    try:
        names = lines["FIELDS"]
        kinds = [_TYPES[kind][size] for kind, size in zip(lines["TYPE"], lines["SIZE"], strict=True)]
        counts = [int(many) for many in lines.get("COUNT", ["1"] * len(names))]
        points = lines["POINTS"] if "POINTS" in lines else lines["WIDTH"]
        count, (form,) = int(points[0]), lines["DATA"]
        fields = tuple(zip(names, kinds, counts, strict=True))
    except (KeyError, ValueError, IndexError) as error:
        raise FileError(
            f"{file}: its header must have FIELDS, SIZE, TYPE, POINTS and DATA that agree ({error!r})."
        ) from error
    if form not in ("ascii", "binary", "binary_compressed"):
        raise FileError(f"{file}: has DATA {form!r}, expected ascii, binary or binary_compressed.")
    plain = [name for name in names if name != "_"]
    if len(set(plain)) < len(plain) or not {"x", "y", "z"} <= set(plain):
        raise FileError(f"{file}: must have the fields x, y and z, each once, got {', '.join(names)}.")
    if any(not 0 < many <= 1 << 16 for many in counts) or any(counts[names.index(axis)] != 1 for axis in "xyz"):
        raise FileError(f"{file}: has an impossible COUNT: {' '.join(map(str, counts))}.")
    if not 0 <= count <= _MOST_POINTS:
        raise FileError(f"{file}: announces {count} points, expected at most {_MOST_POINTS}.")
    header = _Header(form, fields, count, place)
    # In text a number takes two bytes at least; compressed data cannot be judged before it is read.
    least = count * header.point.itemsize if form == "binary" else 2 * count * sum(counts) - 1
    if form != "binary_compressed" and least > len(data) - place:
        raise FileError(f"{file}: announces {count} points, which {len(data)} bytes cannot hold. Is it truncated?")
    return header


def _ascii(file: Path, header: _Header, data: bytes) -> NDArray[np.void]:
    text = data[header.start :].decode("latin-1").splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no line is left is said below
            points: NDArray[np.void] = np.loadtxt(text, header.point, comments=None, max_rows=header.count, ndmin=1)
    except ValueError as error:
        names = ", ".join(name for name, _, _ in header.fields)
        raise FileError(f"{file}: has a point that is not the numbers {names} ({error}).") from error
    if len(points) < header.count:
        raise FileError(f"{file}: announces {header.count} points and holds {len(points)}. Is it truncated?")
    return points


def _compressed(file: Path, header: _Header, body: bytes) -> NDArray[np.void]:
    """All x, then all y and so on, compressed as one block behind its two sizes."""
    expected = header.count * header.point.itemsize
    packed, size = struct.unpack_from("<II", body) if len(body) >= 8 else (0, -1)
    if size != expected or packed > len(body) - 8:
        raise FileError(
            f"{file}: its compressed block has {len(body) - 8} bytes for {size}, expected {packed} for {expected}. "
            "Is it truncated?"
        )
    from leadline.io.clouds.lzf import decompress  # brings numba along, which other forms do not need

    flat = np.empty(size, np.uint8)
    written = decompress(np.frombuffer(body, np.uint8, packed, 8), flat)
    if written != size:
        raise FileError(f"{file}: its compressed block is damaged: it gives {written} of {size} bytes.")
    points = np.empty(header.count, header.point)
    place = 0
    for name in header.point.names or ():
        kind = header.point[name]
        length = header.count * kind.itemsize
        column = flat[place : place + length].view(kind.base)
        points[name] = column.reshape((header.count, *kind.shape))
        place += length
    return points
