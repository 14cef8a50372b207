"""Depth maps of a COLMAP model in the forms that its users' programs read: 3D Gaussian splatting and nerfstudio.

Both train in the model's own unit, so depth comes in that unit, whatever a metre is in it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.geometry.poses import inverse
from leadline.io.atomic import atomic_write, write_text
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.depth.packaged import write_png
from leadline.io.depth.units import LARGEST_CODE

Load = Callable[[ColmapImage], FloatArray]
"""The depth map of an image, (H, W) in the model's unit, NaN where unknown."""

# The trainer of 3DGS takes an image for unreliable if its scale is below a fifth or above five times the median of all.
_SPREAD = 4.0
_CODES = 1 << 16  # its reader divides by 2^16, not by the largest code

# nerfstudio's own default, thousandths, is kept where the depth of the model's median image spans this many steps.
_DEFAULT_FACTOR = 1e-3
_FEWEST_STEPS = 1000

# The cameras that each can be told of, with two focal lengths.
_CAMERAS = {"3dgs": ("PINHOLE",), "nerfstudio": ("PINHOLE", "OPENCV", "OPENCV_FISHEYE")}


def stem_of(name: str) -> str:
    """The name of an image without its suffix, folders kept: what files made from it are called.

    Examples
    --------
    >>> stem_of("left/0001.jpg")
    'left/0001'
    """
    return str(PurePosixPath(name).with_suffix(""))


def check_cameras(model: ColmapModel, export: str) -> None:
    """Refuse a model with cameras that the program, "3dgs" or "nerfstudio", cannot be told of.

    Raises
    ------
    InputError
    """
    used = {model.camera_of(image).two_focals().model for image in model.images.values()}
    foreign = sorted(used - set(_CAMERAS[export]))
    if foreign:
        raise InputError(
            f"--export {export}: the model has a camera {foreign[0]} and {export} takes {', '.join(_CAMERAS[export])} "
            "only; run `colmap image_undistorter` and give its model and images."
        )


def write_3dgs(folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: Load) -> tuple[str, ...]:
    """``depths/NAME.png`` and ``sparse/0/depth_params.json`` in `folder`; returns notes.

    The trainer reads v = code / 65536 and takes v * scale + offset for the inverse depth. Here the offset is 0 and the
    scale the image's largest inverse depth, so that all codes are used and 0 is "infinitely far": there is no
    code for unknown. The trainer leaves out images whose scale is not within a factor of five of the median,
    so scales are kept within four; the few pixels nearer than that allows get the largest code.

    Parameters
    ----------
    folder : path
        To be copied over the scene's folder, which has ``sparse/0``.
    model : ColmapModel
    images : ColmapImages
        Those that have a depth map.
    load : callable

    Raises
    ------
    InputError
        If a camera has distortion, which the trainer refuses.
    """
    check_cameras(model, "3dgs")
    nearest = {image.name: float(_inverse_depth(load(image)).max(initial=0.0)) for image in images}
    middle = float(np.median([value for value in nearest.values() if value > 0] or [1.0]))
    parameters, cut = {}, 0
    for image in images:
        largest = min(max(nearest[image.name], middle / _SPREAD), middle * _SPREAD)
        scale = largest * _CODES / (_CODES - 1)
        codes = np.rint(_inverse_depth(load(image)) / scale * _CODES)
        cut += int((codes >= _CODES).sum())
        _write_codes(folder / "depths" / f"{stem_of(image.name)}.png", np.minimum(codes, _CODES - 1).astype(np.uint16))
        parameters[stem_of(image.name)] = {"scale": scale, "offset": 0.0}
    _write_json(folder / "sparse" / "0" / "depth_params.json", parameters)
    if not cut:
        return ()
    return (f"3dgs: {cut} pixels are nearer than a quarter of what is usual in this model and were moved there.",)


def write_nerfstudio(
    folder: Path,
    model: ColmapModel,
    images: Collection[ColmapImage],
    load: Load,
    pictures: Path,
    transforms: Path | None = None,
) -> tuple[str, ...]:
    """``depths/NAME.png`` and a ``transforms.json`` that names them in `folder`; returns notes.

    Codes are depth in ``depth_unit_scale_factor`` of the model's unit, 0 where unknown; thousandths, nerfstudio's
    default, unless they are too coarse or do not reach far enough. nerfstudio wants a depth map for every
    frame or for none, so frames without one are left out.

    Parameters
    ----------
    folder : path
    model, images, load
        As for `write_3dgs`.
    pictures : path
        Folder of the images.
    transforms : path, optional
        A ``transforms.json`` to extend: a copy is written, with its paths made relative to `folder`. By default one is
        made from the model, whose world it keeps.

    Raises
    ------
    FileError
        `transforms` cannot be read or is none.
    InputError
        A camera is of a kind that nerfstudio has not, or no frame of `transforms` has depth.
    """
    if transforms is None:
        check_cameras(model, "nerfstudio")
        content = _frames_of_model(folder, model, images, load, pictures)
        dropped = len(model.images) - len(images)
    else:
        content, dropped = _extended(transforms, folder, model, images)
    farthest = [float(np.nanmax(load(image), initial=0.0)) for image in images]
    factor = _DEFAULT_FACTOR
    if max(farthest) > factor * LARGEST_CODE or np.median(farthest) < factor * _FEWEST_STEPS:
        factor = 10.0 ** math.ceil(math.log10(max(farthest) / LARGEST_CODE))
    for image in images:
        counts = np.rint(np.nan_to_num(load(image).astype(np.float64), nan=0.0) / factor)
        _write_codes(folder / "depths" / f"{stem_of(image.name)}.png", counts.astype(np.uint16))
    _write_json(folder / "transforms.json", {**content, "depth_unit_scale_factor": factor})
    notes = []
    if dropped:
        notes.append(f"nerfstudio: {dropped} frames without depth are not in transforms.json.")
    if factor != _DEFAULT_FACTOR:
        notes.append(f"nerfstudio: give its data parser --depth-unit-scale-factor {factor:g}; its default is 0.001.")
    return tuple(notes)


def _inverse_depth(depth: FloatArray) -> NDArray[np.float64]:
    """1 / depth, and 0 where it is unknown."""
    usable = np.isfinite(depth) & (depth > 0)
    return np.where(usable, 1.0 / np.where(usable, depth, 1.0).astype(np.float64), 0.0)


def _depth_path(image: ColmapImage) -> str:
    return f"depths/{stem_of(image.name)}.png"


def _frames_of_model(
    folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: Load, pictures: Path
) -> dict[str, Any]:
    frames = []
    for image in images:
        height, width = load(image).shape
        camera = model.camera_of(image).scaled(width, height)  # the pictures may be smaller than those of the model
        fx, fy, cx, cy, *lens = camera.params
        names = ("k1", "k2", "k3", "k4") if camera.model == "OPENCV_FISHEYE" else ("k1", "k2", "p1", "p2")
        pose = inverse(image.transform)
        pose[:3, 1:3] *= -1  # y up and z backwards, as OpenGL has a camera's axes
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
            f"--export nerfstudio: transforms.json has one camera model and these are {', '.join(sorted(models))}."
        )
    # The world is COLMAP's own: said, because nerfstudio assumes a turned one where it finds a colmap/ folder.
    world = np.eye(4)[:3].tolist()
    return {"camera_model": models.pop(), "applied_transform": world, "frames": frames}


def _extended(
    path: Path, folder: Path, model: ColmapModel, images: Collection[ColmapImage]
) -> tuple[dict[str, Any], int]:
    """The content of a transforms.json with depth, and how many frames were left out."""
    having = {image.name for image in images}

    def moved(name: str) -> str:
        return _relative(path.parent / name, folder)

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        frames = []
        for frame in content["frames"]:
            image = _image_of(model, frame["file_path"])
            if image is not None and image.name in having:
                paths = {key: moved(frame[key]) for key in ("file_path", "mask_path") if key in frame}
                frames.append({**frame, **paths, "depth_file_path": _depth_path(image)})
        dropped = len(content["frames"]) - len(frames)
        content["frames"] = frames
        if "ply_file_path" in content:
            content["ply_file_path"] = moved(content["ply_file_path"])
        kept = {frame["file_path"] for frame in frames}
        for key in ("train_filenames", "val_filenames", "test_filenames"):
            if key in content:
                content[key] = [name for name in map(moved, content[key]) if name in kept]
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror or error}); check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path}: is not a transforms.json of nerfstudio ({error!r}).") from error
    if not frames:
        raise InputError(f"{path}: none of its {dropped} frames is an image of the COLMAP model that has depth.")
    return content, dropped


def _image_of(model: ColmapModel, path: str) -> ColmapImage | None:
    """The image whose name a path ends with; None if there is none."""
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


def _write_codes(path: Path, codes: NDArray[np.uint16]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda part: write_png(part, codes, {}))


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_text(path, text)
