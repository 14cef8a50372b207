"""Depth maps of a COLMAP model in the formats that 3D Gaussian splatting and nerfstudio read.

Both train in the unit of the model, so depth is exported in that unit and not in metres.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.base.strict_json import dump_json
from leadline.geometry.poses import invert_transform
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.depth_formats import write_png
from leadline.io.files import atomic_write, read_json, reading, write_text
from leadline.io.units import MAX_COUNT

_TRANSFORMS = "a transforms.json of nerfstudio"

LoadDepth = Callable[[ColmapImage], FloatArray]
"""Returns the depth map of an image, (H, W) in the model's unit, NaN where unknown."""

# 3DGS ignores the depth of images whose scale is below a fifth of, or above five times, the median of all images.
_MAX_SCALE_RATIO = 4.0
_CODES = 1 << 16  # 3DGS divides codes by 2^16, not by the largest code

# nerfstudio's default factor, thousandths, is used if the depth of the median image spans at least this many steps.
_DEFAULT_FACTOR = 1e-3
_MIN_STEPS = 1000

# The camera models that each program supports, with two focal lengths.
_CAMERA_MODELS = {"3dgs": ("PINHOLE",), "nerfstudio": ("PINHOLE", "OPENCV", "OPENCV_FISHEYE")}


def stem_of(name: str) -> str:
    """The name of an image with its folders, without its suffix: left/0001 for left/0001.jpg."""
    return str(PurePosixPath(name).with_suffix(""))


def check_cameras(model: ColmapModel, export: str) -> None:
    """Refuse a model with a camera model that the program, "3dgs" or "nerfstudio", does not support."""
    used = {model.camera_of(image).with_two_focal_lengths().model for image in model.images.values()}
    unsupported = sorted(used - set(_CAMERA_MODELS[export]))
    if unsupported:
        raise InputError(
            f"{param('export', export)}: the model has a camera of type {unsupported[0]}, and {export} supports only "
            f"{', '.join(_CAMERA_MODELS[export])}; run `colmap image_undistorter` and give its model and images."
        )


def write_3dgs(folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadDepth) -> tuple[str, ...]:
    """Write ``depths/NAME.png`` and ``sparse/0/depth_params.json`` to `folder`; returns notes.

    3DGS reads v = code / 65536 and uses v * scale + offset as the inverse depth. Here the offset is 0 and the scale is
    the image's largest inverse depth, so that all codes are used. Code 0 is infinite depth, because there is no code
    for unknown. 3DGS ignores images whose scale is not within a factor of five of the median, so scales are limited to
    a factor of four; the few pixels nearer than that get the largest code. `folder` is to be copied into the scene's
    folder, which has ``sparse/0``; `images` are those that have a depth map.
    """
    check_cameras(model, "3dgs")
    nearest = {image.name: float(_inverse_depth(load(image)).max(initial=0.0)) for image in images}
    median = float(np.median([value for value in nearest.values() if value > 0] or [1.0]))
    parameters, clipped = {}, 0
    for image in images:
        largest = min(max(nearest[image.name], median / _MAX_SCALE_RATIO), median * _MAX_SCALE_RATIO)
        scale = largest * _CODES / (_CODES - 1)
        codes = np.rint(_inverse_depth(load(image)) / scale * _CODES)
        clipped += int((codes >= _CODES).sum())
        _write_codes(folder, image, np.minimum(codes, _CODES - 1).astype(np.uint16))
        parameters[stem_of(image.name)] = {"scale": scale, "offset": 0.0}
    _write_json(folder / "sparse" / "0" / "depth_params.json", parameters)
    if not clipped:
        return ()
    return (f"3dgs: {clipped} pixels are nearer than a quarter of the median nearest depth and were clipped to it.",)


def write_nerfstudio(
    folder: Path,
    model: ColmapModel,
    images: Collection[ColmapImage],
    load: LoadDepth,
    pictures: Path,
    transforms: Path | None = None,
) -> tuple[str, ...]:
    """Write ``depths/NAME.png`` and a ``transforms.json`` that refers to them to `folder`; returns notes.

    Codes are depth in multiples of ``depth_unit_scale_factor`` of the model's unit, 0 where unknown. The factor is
    nerfstudio's default, 1/1000, unless that is too coarse or does not reach far enough. nerfstudio needs a depth map
    for every frame or for none, so frames without one are left out. `pictures` is the folder of the images. If
    `transforms` is given, a copy of it is extended, with its paths made relative to `folder`; otherwise it is made
    from the model, in the model's world frame.
    """
    if transforms is None:
        check_cameras(model, "nerfstudio")
        content = _make_transforms(folder, model, images, load, pictures)
        dropped = len(model.images) - len(images)
    else:
        content, dropped = _extend_transforms(transforms, folder, model, images)
    farthest = [float(np.nanmax(load(image), initial=0.0)) for image in images]
    factor = _DEFAULT_FACTOR
    if max(farthest) > factor * MAX_COUNT or np.median(farthest) < factor * _MIN_STEPS:
        factor = 10.0 ** math.ceil(math.log10(max(farthest) / MAX_COUNT))
    for image in images:
        counts = np.rint(np.nan_to_num(load(image).astype(np.float64), nan=0.0) / factor)
        _write_codes(folder, image, counts.astype(np.uint16))
    _write_json(folder / "transforms.json", {**content, "depth_unit_scale_factor": factor})
    notes = []
    if dropped:
        notes.append(f"nerfstudio: {dropped} frames without depth are not in transforms.json.")
    if factor != _DEFAULT_FACTOR:
        notes.append(
            f"nerfstudio: pass --depth-unit-scale-factor {factor:g} to its data parser, whose default is 0.001."
        )
    return tuple(notes)


def _inverse_depth(depth: FloatArray) -> NDArray[np.float64]:
    """1 / depth, and 0 where depth is unknown."""
    usable = is_measured(depth)
    return np.where(usable, 1.0 / np.where(usable, depth, 1.0).astype(np.float64), 0.0)


def _depth_path(image: ColmapImage) -> str:
    return f"depths/{stem_of(image.name)}.png"


def _make_transforms(
    folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadDepth, pictures: Path
) -> dict[str, Any]:
    frames = []
    for image in images:
        height, width = load(image).shape
        camera = model.camera_of(image).scaled(width, height)  # the images may be smaller than those that COLMAP used
        fx, fy, cx, cy, *lens = camera.params
        names = ("k1", "k2", "k3", "k4") if camera.model == "OPENCV_FISHEYE" else ("k1", "k2", "p1", "p2")
        pose = invert_transform(image.transform)
        pose[:3, 1:3] *= -1  # OpenGL's convention: y up, z backwards
        frames.append(
            {
                "file_path": _relative(pictures / image.name, folder),
                "depth_file_path": _depth_path(image),
                "transform_matrix": pose.tolist(),
                "camera_model": camera.model if lens else "OPENCV",
                **{"w": camera.width, "h": camera.height, "fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy},
                **dict(zip(names, lens or (0.0,) * 4, strict=True)),
            }
        )
    models = {frame["camera_model"] for frame in frames}
    if len(models) > 1:
        raise InputError(
            f"{param('export', 'nerfstudio')}: transforms.json can have one camera model only, and the model has "
            f"{', '.join(sorted(models))}."
        )
    # The world frame is COLMAP's. It is stated, because nerfstudio assumes a rotated one if it finds a colmap/ folder.
    identity = np.eye(4)[:3].tolist()
    return {"camera_model": models.pop(), "applied_transform": identity, "frames": frames}


def _extend_transforms(
    path: Path, folder: Path, model: ColmapModel, images: Collection[ColmapImage]
) -> tuple[dict[str, Any], int]:
    """The content of a transforms.json with depth, and how many frames were left out."""
    with_depth = {image.name for image in images}

    def relocate(name: str) -> str:
        return _relative(path.parent / name, folder)

    content = read_json(path, _TRANSFORMS)
    with reading(path, _TRANSFORMS):
        frames = []
        for frame in content["frames"]:
            image = _find_image(model, frame["file_path"])
            if image is not None and image.name in with_depth:
                paths = {key: relocate(frame[key]) for key in ("file_path", "mask_path") if key in frame}
                frames.append({**frame, **paths, "depth_file_path": _depth_path(image)})
        dropped = len(content["frames"]) - len(frames)
        content["frames"] = frames
        if "ply_file_path" in content:
            content["ply_file_path"] = relocate(content["ply_file_path"])
        used = {frame["file_path"] for frame in frames}
        for key in ("train_filenames", "val_filenames", "test_filenames"):
            if key in content:
                content[key] = [name for name in map(relocate, content[key]) if name in used]
    if not frames:
        raise InputError(f"{path}: none of its {dropped} frames is an image of the COLMAP model that has depth.")
    return content, dropped


def _find_image(model: ColmapModel, path: str) -> ColmapImage | None:
    """The image whose name the path ends with; None if there is none."""
    parts = PurePosixPath(path).parts
    for start in range(len(parts)):
        name = "/".join(parts[start:])
        if name in model.images:
            return model.images[name]
    try:
        return model.find(path)
    except InputError:
        return None


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _write_codes(folder: Path, image: ColmapImage, codes: NDArray[np.uint16]) -> None:
    path = folder / _depth_path(image)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda part: write_png(part, codes, {}))


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dump_json(content))
