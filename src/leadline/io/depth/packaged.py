"""Depth forms read and written through a package: PNG (Pillow), EXR (OpenEXR), TIFF (tifffile), HDF5 (h5py).

Like the plain forms, each reader judges the declared shape and type before it decodes anything.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, MissingExtra
from leadline.io.depth.raw import MAX_PIXELS, RawMap, ceiling_of, check_array, choose_key
from leadline.io.depth.units import log_range

IMAGE_FORMATS = ("PNG", "JPEG", "MPO", "TIFF", "WEBP", "BMP", "PPM")

# Renderers fill the background of a depth channel with the largest half float, 65504, or with 1e10.
_EXR_BACKGROUND = 65504.0
_INDEXED_KEY = re.compile(r"(?P<name>.+)\[(?P<index>\d{1,9})\]")


def read_png(path: Path, key: str | None) -> RawMap:
    from PIL import Image

    with Image.open(path, formats=("PNG",)) as image:
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
        log = log_range(path, image.info)
    if mode == "I":  # older Pillow widens 16-bit grey to 32 bits
        values = values.astype(np.uint16)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    return RawMap(values, ceiling_of(values.dtype), log if values.dtype == np.uint16 else None)


def read_exr(path: Path, key: str | None) -> RawMap:
    openexr = _openexr("Reading EXR files")
    with openexr.File(str(path), header_only=True) as file:
        header = file.header()
        low, high = header["dataWindow"]
        # In Python integers: the corners of a corrupt window may overflow 32 bits when subtracted.
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
            "Choose a channel with `key` if it is one."
        )
    return RawMap(values, _EXR_BACKGROUND)


def read_tiff(path: Path, key: str | None) -> RawMap:
    tifffile = _package("tifffile", "Reading TIFF files")
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        shape = check_array(path, series.shape, series.dtype)
        values = series.asarray().reshape(shape)
    return RawMap(values, ceiling_of(values.dtype))


def read_hdf5(path: Path, key: str | None) -> RawMap:
    h5py = _package("h5py", "Reading HDF5 files")
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
                raise FileError(f"{path}: `key` {key!r} does not index the dataset {chosen!r} of shape {shape}.")
            rows, columns = check_array(path, shape[1:], dataset.dtype)
            values = dataset[index].reshape(rows, columns)
        else:
            if len(shape) == 3 and min(shape) > 4:
                raise FileError(
                    f"{path}: dataset {chosen!r} is a stack of shape {shape}. Choose one map by `key`: '{chosen}[0]'."
                )
            values = dataset[()].reshape(check_array(path, shape, dataset.dtype))
        # MATLAB stores columns first, so its (H, W) arrives as (W, H).
        if path.suffix.lower() == ".mat" or "MATLAB_class" in dataset.attrs:
            values = values.T
    return RawMap(values, ceiling_of(values.dtype))


def read_picture(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path, formats=IMAGE_FORMATS) as image:
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            raise FileError(f"{path}: holds {image.mode} values: this looks like a depth map, not a picture.")
        if image.width * image.height > MAX_PIXELS:
            raise FileError(f"{path}: declares {image.width} x {image.height} pixels, more than {MAX_PIXELS}.")
        return np.array(image.convert("RGB"))


def write_png(path: Path, codes: NDArray[np.uint16], texts: dict[str, str]) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    Image.fromarray(codes).save(path, format="PNG", pnginfo=info)


def write_exr(path: Path, depth: NDArray[np.float32]) -> None:
    openexr = _openexr("Writing EXR files")
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with openexr.File(header, {"Z": np.ascontiguousarray(depth)}) as file:
        file.write(str(path))


def write_tiff(path: Path, depth: NDArray[np.float32]) -> None:
    tifffile = _package("tifffile", "Writing TIFF files")
    tifffile.imwrite(path, depth, photometric="minisblack", metadata=None)


def write_hdf5(path: Path, depth: NDArray[np.float32]) -> None:
    h5py = _package("h5py", "Writing HDF5 files")
    with h5py.File(path, "w") as file:
        file.create_dataset("depth", data=depth, compression="gzip")


def _package(name: str, purpose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name, "files", purpose) from error


def _openexr(purpose: str) -> Any:
    package = _package("OpenEXR", purpose)
    if not hasattr(package, "File"):  # the interface used here came with 3.3
        raise MissingExtra("OpenEXR>=3.3", "files", purpose)
    return package
