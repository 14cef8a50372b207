"""Depth forms simple enough to parse here: npy, npz, PFM and COLMAP's dense maps.

Every reader looks at the declared shape and type before it allocates anything, and returns the raw numbers.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from leadline.base.errors import FileError

MAX_PIXELS = 2**28

_HEADER_BYTES = 256
# One whitespace ends the header (a Windows line end counts as one): the next byte is data already.
_PFM_HEADER = re.compile(rb"P([fF])\s+(\d{1,10})\s+(\d{1,10})\s+([+-]?[\d.]+(?:[eE][+-]?\d+)?)(?:\r\n|\s)")
_COLMAP_HEADER = re.compile(rb"(\d{1,10})&(\d{1,10})&(\d{1,10})&")


@dataclass(frozen=True)
class RawMap:
    """The numbers of a depth file before any unit.

    Parameters
    ----------
    values : (H, W) array, integer or float
    ceiling : float
        Values from here on are the form's way of saying that nothing was measured.
    log_range : (near, far) in metres, optional
        Given when the file itself says that its 16-bit values are log-coded.
    """

    values: NDArray[Any]
    ceiling: float = math.inf
    log_range: tuple[float, float] | None = None


def ceiling_of(dtype: np.dtype[Any]) -> float:
    """The full counter of a 16-bit map (sky, "no return") is no distance; other types have no such value."""
    return 65535.0 if dtype.kind == "u" and dtype.itemsize == 2 else math.inf


def check_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[int, int]:
    """The (H, W) that an array of this declared shape and type is read as, before a byte of it is read.

    Singleton axes at either end go: (1, 1, H, W) and (H, W, 1) are (H, W).

    Raises
    ------
    FileError
        No map of real numbers, or too large to be one.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iuf" or kind.itemsize > 8:
        what = {"O": "pickled Python objects, which are not loaded", "b": "a mask of true and false"}
        raise FileError(f"{path}: holds {what.get(kind.kind, f'values of type {kind}')}. Save depth as float32.")
    axes = tuple(int(length) for length in shape)
    while len(axes) > 2 and axes[-1] == 1:
        axes = axes[:-1]
    while len(axes) > 2 and axes[0] == 1:
        axes = axes[1:]
    if len(axes) == 3 and (axes[0] in (3, 4) or axes[-1] in (3, 4)):
        raise FileError(
            f"{path}: has {axes[-1] if axes[-1] in (3, 4) else axes[0]} channels (shape {tuple(shape)}): "
            "this looks like a picture or normals, not a depth map. Give a map with one channel."
        )
    if len(axes) != 2 or min(axes) < 1:
        raise FileError(f"{path}: must hold one (H, W) map, got shape {tuple(shape)} instead.")
    if math.prod(axes) > MAX_PIXELS:
        raise FileError(f"{path}: declares {axes[1]} x {axes[0]} pixels, more than the {MAX_PIXELS} that are read.")
    return axes[0], axes[1]


def choose_key(path: Path, names: Iterable[str], key: str | None, preferred: tuple[str, ...], what: str) -> str:
    """`key`, or the first of `preferred` in the file, or its only name; the error lists what there is."""
    known = list(names)
    if key is not None:
        if key in known:
            return key
        raise FileError(f"{path}: has no {what} {key!r}, only {_listed(known)}. Choose one with `key`.")
    for name in preferred:
        if name in known:
            return name
    if len(known) == 1:
        return known[0]
    raise FileError(
        f"{path}: has no {what} named {' or '.join(preferred)} but {_listed(known)}. Choose one with `key`."
    )


def read_npy(path: Path, key: str | None) -> RawMap:
    with path.open("rb") as stream:
        return _read_npy_stream(path, stream)


def read_npz(path: Path, key: str | None) -> RawMap:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        chosen = choose_key(path, names, key, ("depth",), "array")
        with archive.open(f"{chosen}.npy") as stream:
            return _read_npy_stream(path, stream)


def read_pfm(path: Path, key: str | None) -> RawMap:
    with path.open("rb") as stream:
        head = _PFM_HEADER.match(stream.read(_HEADER_BYTES))
        if head is None:
            raise FileError(f"{path}: does not begin like a PFM file ('Pf', width and height, scale).")
        colour, width, height, scale = head.groups()
        channels = 3 if colour == b"F" else 1
        shape = check_array(path, (int(height), int(width), channels), np.float32)
        # Only the sign of the scale is used: its size is left to display programs, as other readers do.
        values = _read_payload(path, stream, head.end(), shape, "<f4" if float(scale) < 0 else ">f4")
    return RawMap(values[::-1])


def read_colmap(path: Path, key: str | None) -> RawMap:
    with path.open("rb") as stream:
        head = _COLMAP_HEADER.match(stream.read(_HEADER_BYTES))
        if head is None:
            raise FileError(f"{path}: does not begin like a COLMAP dense map ('width&height&channels&').")
        width, height, channels = (int(number) for number in head.groups())
        shape = check_array(path, (height, width, channels), np.float32)
        # COLMAP's (width, height, channels) with the first axis fastest is plain row order for one channel.
        return RawMap(_read_payload(path, stream, head.end(), shape, "<f4"))


def write_npy(path: Path, depth: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:  # by handle: given a name, NumPy would append its own suffix
        np.save(stream, depth, allow_pickle=False)


def write_npz(path: Path, depth: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:
        np.savez_compressed(stream, depth=depth)


def write_pfm(path: Path, depth: NDArray[np.float32]) -> None:
    height, width = depth.shape
    path.write_bytes(f"Pf\n{width} {height}\n-1.0\n".encode() + depth[::-1].astype("<f4").tobytes())


def write_colmap(path: Path, depth: NDArray[np.float32]) -> None:
    height, width = depth.shape
    path.write_bytes(f"{width}&{height}&1&".encode() + np.nan_to_num(depth, nan=0.0).astype("<f4").tobytes())


def _read_npy_stream(path: Path, stream: IO[bytes]) -> RawMap:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, columns_first, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, columns_first, dtype = npy_format.read_array_header_2_0(stream)
    else:  # 3.0 exists for field names only, which a map of numbers has none of
        raise FileError(f"{path}: is npy version {version[0]}.{version[1]}, expected 1.0 or 2.0. Save it again.")
    rows, columns = check_array(path, shape, dtype)
    size = rows * columns * dtype.itemsize
    data = stream.read(size)
    if len(data) < size:
        raise FileError(f"{path}: is truncated: {len(data)} of {size} bytes of its array are there.")
    # Dropping singleton axes leaves the order of the others, so the two that stay can be laid out directly.
    values = np.frombuffer(data, dtype=dtype).reshape((rows, columns), order="F" if columns_first else "C")
    return RawMap(values, ceiling_of(dtype))


def _read_payload(path: Path, stream: IO[bytes], start: int, shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """The rest of the file from `start` as one array, whose size must be exactly that."""
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    found = path.stat().st_size - start
    if found != expected:
        fault = "is truncated" if found < expected else "has bytes to spare"
        raise FileError(
            f"{path}: {fault}: {shape[1]} x {shape[0]} pixels take {expected} bytes, got {found}. Write it again."
        )
    stream.seek(start)
    return np.frombuffer(stream.read(expected), dtype=dtype).reshape(shape)


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12]) or "nothing"
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
