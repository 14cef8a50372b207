"""Depth in 16 bits, for the trainer of 3D Gaussian splatting and for LichtFeld Studio."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.views.maps import LoadMaps, check_cameras, stem_of, write_codes, write_json, write_reliability

# 3DGS ignores the depth of images whose scale is below a fifth of, or above five times, the median of all images.
_MAX_SCALE_RATIO = 4.0
_CODES = 1 << 16  # 3DGS divides codes by 2^16, not by the largest code
_CAMERAS_OF_3DGS = ("PINHOLE",)


def check_3dgs(model: ColmapModel) -> None:
    """Refuse cameras with distortion, which the trainer does not support."""
    check_cameras(model, "3dgs", _CAMERAS_OF_3DGS)


def write_3dgs(folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadMaps) -> tuple[str, ...]:
    """Write ``depths/NAME.png`` and ``sparse/0/depth_params.json`` to `folder`; returns notes.

    3DGS reads v = code / 65536 and uses v * scale + offset as the inverse depth. Here the offset is 0 and the scale is
    the image's largest inverse depth, so that all codes are used. Code 0 is infinite depth, because there is no code
    for unknown; pixels that are known but not reliable are therefore written as they are. 3DGS ignores images whose
    scale is not within a factor of five of the median, so scales are limited to a factor of four; the few pixels nearer
    than that get the largest code. `images` are those that have a depth map. The trainer stops at a picture without
    one, so the other pictures of the model get a map of zeros with the scale 0, which it ignores. `folder` is to be
    copied into the scene's folder, which has ``sparse/0``.
    """
    check_3dgs(model)
    nearest = {image.name: float(_inverse(load(image).depth).max(initial=0.0)) for image in images}
    median = float(np.median([value for value in nearest.values() if value > 0] or [1.0]))
    parameters, clipped = {}, 0
    for image in images:
        largest = min(max(nearest[image.name], median / _MAX_SCALE_RATIO), median * _MAX_SCALE_RATIO)
        scale = largest * _CODES / (_CODES - 1)
        maps = load(image)
        codes = np.rint(_inverse(maps.depth) / scale * _CODES)
        clipped += int((codes >= _CODES).sum())
        _write_map(folder, image, np.minimum(codes, _CODES - 1))
        write_reliability(folder, image, maps)
        parameters[stem_of(image.name)] = {"scale": scale, "offset": 0.0}
    without = [image for name, image in sorted(model.images.items()) if stem_of(name) not in parameters]
    for image in without:
        camera = model.camera_of(image)
        _write_map(folder, image, np.zeros((camera.height, camera.width)))
        parameters[stem_of(image.name)] = {"scale": 0.0, "offset": 0.0}
    write_json(folder / "sparse" / "0" / "depth_params.json", parameters)
    notes = []
    if clipped:
        notes.append(
            f"3dgs: {clipped} pixels are nearer than a quarter of the median nearest depth and were clipped to it."
        )
    if without:
        notes.append(f"3dgs: {len(without)} pictures without depth have a map of zeros, which the trainer ignores.")
    return tuple(notes)


def write_lichtfeld(folder: Path, images: Collection[ColmapImage], load: LoadMaps) -> tuple[str, ...]:
    """Write ``depths/NAME.png`` to `folder`, to be copied into the scene's folder; returns notes.

    LichtFeld Studio fits scale and offset of every map to the points of the model itself and ignores pixels with code
    0, so each map uses all codes, and pixels that are not reliable are 0. The codes are proportional to depth, its mode
    ``ssi-depth``. In its mode for disparity it fits an affine function of the codes to 1 / (depth + f) with a twentieth
    of the median depth as f, of which inverse depth is no affine function.
    """
    for image in images:
        maps = load(image)
        depth = maps.reliable_depth()
        codes = np.rint(depth / (float(depth.max(initial=0.0)) or 1.0) * (_CODES - 1))
        _write_map(folder, image, np.where(depth > 0, np.maximum(codes, 1), 0))
        write_reliability(folder, image, maps)
    return ()


def _inverse(depth: FloatArray) -> NDArray[np.float64]:
    """1 / depth, and 0 where depth is unknown."""
    usable = is_measured(depth)
    return np.where(usable, 1.0 / np.where(usable, depth, 1.0).astype(np.float64), 0.0)


def _write_map(folder: Path, image: ColmapImage, codes: NDArray[np.float64]) -> None:
    write_codes(folder / "depths" / f"{stem_of(image.name)}.png", codes.astype(np.uint16))
