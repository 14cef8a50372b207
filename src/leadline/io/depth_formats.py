"""The formats of depth files, one reader and one writer each.

PNG is read by Pillow, EXR by OpenEXR, TIFF by tifffile and HDF5 by h5py. npy, npz, PFM and COLMAP's dense maps are a
header and an array, and are parsed here. Every reader checks the declared shape and type before it decodes or allocates
anything, and returns the numbers as they are stored.
"""

from __future__ import annotations

import importlib
import math
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from leadline.base.errors import FileError, MissingExtra, param
from leadline.io.files import choose_key, read_npy_array
from leadline.io.units import parse_log_range

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 2**28
# Pillow reads MPO, the JPEG of several views that phones write, as JPEG, and has no format of that name to ask for.
IMAGE_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "PPM")

_HEADER_BYTES = 256
# One whitespace ends the header (a Windows line end counts as one): the next byte is data.
_PFM_HEADER = re.compile(rb"P([fF])\s+(\d{1,10})\s+(\d{1,10})\s+([+-]?[\d.]+(?:[eE][+-]?\d+)?)(?:\r\n|\s)")
_COLMAP_HEADER = re.compile(rb"(\d{1,10})&(\d{1,10})&(\d{1,10})&")
# Renderers fill the background of a depth channel with the largest half float, 65504, or with 1e10.
_EXR_BACKGROUND = 65504.0
_INDEXED_KEY = re.compile(r"(?P<name>.+)\[(?P<index>\d{1,9})\]")


@dataclass(frozen=True)
class StoredMap:
    """The numbers of a depth file before a unit is applied."""

    values: NDArray[Any]  # (H, W), integer or float
    invalid_from: float = math.inf  # values from here on mean that nothing was measured
    log_range: tuple[float, float] | None = None  # (near, far) in metres if the file states that it is log-coded


def read_png(path: Path, key: str | None) -> StoredMap:
    with _open_picture(path, ("PNG",)) as image:
        mode, (width, height) = image.mode, image.size
        channels = len(image.getbands())
        if mode == "P" or channels > 1:
            what = "a palette" if mode == "P" else f"{channels} channels"
            raise FileError(
                f"{path}: has {what}: this looks like a picture, not a depth map. "
                "Give the single-channel PNG, not a coloured view of it."
            )
        check_array(path, (height, width), np.uint16)
        values = np.asarray(image)
        log_range = parse_log_range(path, image.info)
    if mode == "I":  # older Pillow widens 16-bit grey to 32 bits
        values = values.astype(np.uint16)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    return StoredMap(values, _full_counter(values.dtype), log_range if values.dtype == np.uint16 else None)


def write_png(path: Path, codes: NDArray[np.uint8] | NDArray[np.uint16], texts: dict[str, str]) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    Image.fromarray(codes).save(path, format="PNG", pnginfo=info)


def read_colour_image(path: Path) -> NDArray[np.uint8]:
    with _open_picture(path, IMAGE_FORMATS) as image:
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            raise FileError(f"{path}: holds {image.mode} values: this looks like a depth map, not a picture.")
        return np.array(image.convert("RGB"))


def read_image_size(path: Path) -> tuple[int, int]:
    with _open_picture(path, IMAGE_FORMATS) as image:
        return image.size


def read_exif_orientation(path: Path) -> int:
    """The orientation that a picture states, 1 to 8; 1, which is upright, if it states none."""
    with _open_picture(path, IMAGE_FORMATS) as image:
        orientation = image.getexif().get(0x0112, 1)
    return orientation if isinstance(orientation, int) else 1


@contextmanager
def _open_picture(path: Path, formats: tuple[str, ...]) -> Iterator[Image]:
    """A picture whose pixels are not decoded yet; refuses files in other formats, and more pixels than Pillow does."""
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # Pillow warns at half of its limit
        try:
            image = Image.open(path, formats=formats)
        except Image.DecompressionBombError as error:
            raise FileError(
                f"{path}: has more pixels than the {2 * (Image.MAX_IMAGE_PIXELS or 0)} that Pillow decodes. Scale it "
                "down."
            ) from error
        except UnidentifiedImageError as error:
            names = ", ".join(formats)
            raise FileError(
                f"{path}: is not a picture in a format that is read ({names}), or its beginning is damaged."
            ) from error
    with image:
        yield image


def read_npy(path: Path, key: str | None) -> StoredMap:
    with path.open("rb") as stream:
        return _read_npy_stream(path, stream)


def write_npy(path: Path, depth: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:  # a handle, because NumPy would append its suffix to a name
        np.save(stream, depth, allow_pickle=False)


def read_npz(path: Path, key: str | None) -> StoredMap:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        chosen = choose_key(path, names, key, ("depth",), "array")
        with archive.open(f"{chosen}.npy") as stream:
            return _read_npy_stream(path, stream)


def write_npz(path: Path, depth: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:
        np.savez_compressed(stream, depth=depth)


def read_exr(path: Path, key: str | None) -> StoredMap:
    openexr = _import_package("OpenEXR", "EXR")
    with openexr.File(str(path), header_only=True) as file:
        header = file.header()
        low, high = header["dataWindow"]
        # In Python integers: the corners of a damaged window may overflow 32 bits when subtracted.
        check_array(path, (int(high[1]) - int(low[1]) + 1, int(high[0]) - int(low[0]) + 1), np.float32)
        names = [channel.name for channel in header["channels"]]
    chosen = choose_key(path, names, key, ("Z", "Y", "R"), "channel")
    with openexr.File(str(path), separate_channels=True) as file:
        pixels = {name: channel.pixels for name, channel in file.channels().items()}
    values = pixels[chosen]
    check_array(path, values.shape, values.dtype)
    colours = [pixels[name] for name in ("G", "B") if name in pixels]
    if key is None and chosen == "R" and not all(np.array_equal(values, other, equal_nan=True) for other in colours):
        raise FileError(
            f"{path}: has different channels R, G and B: this looks like a picture, not a depth map. "
            f"If one of them is depth, choose it with {param('key')}."
        )
    return StoredMap(values, _EXR_BACKGROUND)


def write_exr(path: Path, depth: NDArray[np.float32]) -> None:
    openexr = _import_package("OpenEXR", "EXR")
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with openexr.File(header, {"Z": np.ascontiguousarray(depth)}) as file:
        file.write(str(path))


def read_tiff(path: Path, key: str | None) -> StoredMap:
    tifffile = _import_package("tifffile", "TIFF")
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        shape = check_array(path, series.shape, series.dtype)
        try:
            values = series.asarray().reshape(shape)
        except ValueError as error:
            if "imagecodecs" in str(error):  # not for plain or deflated numbers, but for LZW and predictors of floats
                raise MissingExtra("imagecodecs", "files", f"{path}: TIFF with this compression") from error
            raise
    return StoredMap(values, _full_counter(values.dtype))


def write_tiff(path: Path, depth: NDArray[np.float32]) -> None:
    tifffile = _import_package("tifffile", "TIFF")
    tifffile.imwrite(path, depth, photometric="minisblack", metadata=None)


def read_hdf5(path: Path, key: str | None) -> StoredMap:
    h5py = _import_package("h5py", "HDF5")
    if not h5py.is_hdf5(path):
        raise FileError(f"{path}: is not an HDF5 file. (MATLAB files are only from version 7.3 on: save with '-v7.3'.)")
    with h5py.File(path, "r") as file:
        indexed = _INDEXED_KEY.fullmatch(key or "")
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        chosen = choose_key(path, names, indexed["name"] if indexed else key, ("depth",), "dataset")
        dataset = file[chosen]
        shape: tuple[int, ...] = dataset.shape or ()  # None: a dataset without data
        if indexed:
            index = int(indexed["index"])
            if len(shape) < 3 or index >= shape[0]:
                raise FileError(
                    f"{path}: {param('key')} {key!r} does not index the dataset {chosen!r} of shape {shape}."
                )
            values = dataset[index].reshape(check_array(path, shape[1:], dataset.dtype))
        else:
            if len(shape) == 3 and min(shape) > 4:
                raise FileError(
                    f"{path}: dataset {chosen!r} is a stack of shape {shape}. Choose one map, e.g. "
                    f"{param('key', f'{chosen}[0]')}."
                )
            values = dataset[()].reshape(check_array(path, shape, dataset.dtype))
        # MATLAB stores columns first, so its (H, W) arrives as (W, H).
        if path.suffix.lower() == ".mat" or "MATLAB_class" in dataset.attrs:
            values = values.T
    return StoredMap(values, _full_counter(values.dtype))


def write_hdf5(path: Path, depth: NDArray[np.float32]) -> None:
    h5py = _import_package("h5py", "HDF5")
    with h5py.File(path, "w") as file:
        file.create_dataset("depth", data=depth, compression="gzip")


def read_pfm(path: Path, key: str | None) -> StoredMap:
    with path.open("rb") as stream:
        head = _PFM_HEADER.match(stream.read(_HEADER_BYTES))
        if head is None:
            raise FileError(f"{path}: does not begin like a PFM file ('Pf', width and height, scale).")
        colour, width, height, scale = head.groups()
        channels = 3 if colour == b"F" else 1
        shape = check_array(path, (int(height), int(width), channels), np.float32)
        # Only the sign of the scale is used, as in other readers; its magnitude is for display.
        values = _read_payload(path, stream, head.end(), shape, "<f4" if float(scale) < 0 else ">f4")
    return StoredMap(values[::-1])


def write_pfm(path: Path, depth: NDArray[np.float32]) -> None:
    height, width = depth.shape
    path.write_bytes(f"Pf\n{width} {height}\n-1.0\n".encode() + depth[::-1].astype("<f4").tobytes())


def read_colmap(path: Path, key: str | None) -> StoredMap:
    with path.open("rb") as stream:
        head = _COLMAP_HEADER.match(stream.read(_HEADER_BYTES))
        if head is None:
            raise FileError(f"{path}: does not begin like a COLMAP dense map ('width&height&channels&').")
        width, height, channels = (int(number) for number in head.groups())
        shape = check_array(path, (height, width, channels), np.float32)
        # COLMAP's (width, height, channels) with the first axis fastest is row order for one channel.
        return StoredMap(_read_payload(path, stream, head.end(), shape, "<f4"))


def write_colmap(path: Path, depth: NDArray[np.float32]) -> None:
    height, width = depth.shape
    path.write_bytes(f"{width}&{height}&1&".encode() + np.nan_to_num(depth, nan=0.0).astype("<f4").tobytes())


def check_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[int, int]:
    """The (H, W) that an array of this declared shape and type is read as, before any of it is read.

    Singleton axes at either end are dropped: (1, 1, H, W) and (H, W, 1) are (H, W).
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
        raise FileError(f"{path}: declares {axes[1]} x {axes[0]} pixels, more than the limit of {MAX_PIXELS}.")
    return axes[0], axes[1]


def _full_counter(dtype: np.dtype[Any]) -> float:
    """The full counter of a 16-bit map means sky or "no return"; other types have no such value."""
    return 65535.0 if dtype.kind == "u" and dtype.itemsize == 2 else math.inf


def _read_npy_stream(path: Path, stream: IO[bytes]) -> StoredMap:
    values = read_npy_array(path, stream, check_array)
    return StoredMap(values.reshape(check_array(path, values.shape, values.dtype)), _full_counter(values.dtype))


def _read_payload(path: Path, stream: IO[bytes], start: int, shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """The rest of the file from `start` as one array, whose size must be exactly that."""
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    found = path.stat().st_size - start
    if found != expected:
        fault = "is truncated" if found < expected else "has too many bytes"
        raise FileError(
            f"{path}: {fault}: {shape[1]} x {shape[0]} pixels take {expected} bytes, got {found}. Write it again."
        )
    stream.seek(start)
    return np.frombuffer(stream.read(expected), dtype=dtype).reshape(shape)


def _import_package(name: str, format: str) -> Any:
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name, "files", f"Reading and writing {format} files") from error
    if name == "OpenEXR" and not hasattr(package, "File"):  # the interface used here exists since 3.3
        raise MissingExtra("OpenEXR>=3.3", "files", f"Reading and writing {format} files")
    return package
