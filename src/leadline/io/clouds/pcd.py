"""PCD files of the Point Cloud Library: ascii, binary and binary_compressed."""

from __future__ import annotations

import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.io.reading import reading

_MAX_HEADER_BYTES = 1 << 16  # a header usually has eleven lines
# dtypes by TYPE and SIZE.
_DTYPES = {
    "F": {"4": "f4", "8": "f8"},
    "I": {size: f"i{size}" for size in "1248"},
    "U": {size: f"u{size}" for size in "1248"},
}
_MAX_POINTS = 1 << 28


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

    Raises
    ------
    FileError
        The file is missing, truncated, of another format, or its points have no x, y and z.
    """
    file = Path(path)
    with reading(file, "a PCD file"):
        data = file.read_bytes()
    header = _parse_header(file, data)
    if header.count == 0:
        return np.empty(0, header.dtype)
    if header.encoding == "ascii":
        return _parse_ascii(file, header, data)
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


def _parse_ascii(file: Path, header: _Header, data: bytes) -> NDArray[np.void]:
    text = data[header.start :].decode("latin-1").splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # missing lines are reported below
            points: NDArray[np.void] = np.loadtxt(text, header.dtype, comments=None, max_rows=header.count, ndmin=1)
    except ValueError as error:
        names = ", ".join(name for name, _, _ in header.fields)
        raise FileError(f"{file}: has a point that is not the numbers {names} ({error}).") from error
    if len(points) < header.count:
        raise FileError(f"{file}: declares {header.count} points and holds {len(points)}. Is it truncated?")
    return points


def _decompress(file: Path, header: _Header, body: bytes) -> NDArray[np.void]:
    """Read the one compressed block: two sizes, then all x, all y and so on."""
    expected = header.count * header.dtype.itemsize
    packed, size = struct.unpack_from("<II", body) if len(body) >= 8 else (0, -1)
    if size != expected or packed > len(body) - 8:
        raise FileError(
            f"{file}: its compressed block has {len(body) - 8} bytes for {size}, expected {packed} for {expected}. "
            "Is it truncated?"
        )
    from leadline.io.clouds.lzf import decompress  # imports numba, which other formats do not need

    flat = np.empty(size, np.uint8)
    written = decompress(np.frombuffer(body, np.uint8, packed, 8), flat)
    if written != size:
        raise FileError(f"{file}: its compressed block is damaged: it decompresses to {written} of {size} bytes.")
    points = np.empty(header.count, header.dtype)
    place = 0
    for name in header.dtype.names or ():
        kind = header.dtype[name]
        length = header.count * kind.itemsize
        column = flat[place : place + length].view(kind.base)
        points[name] = column.reshape((header.count, *kind.shape))
        place += length
    return points
