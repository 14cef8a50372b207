"""Depth in the formats of nerfstudio and of DN-Splatter, which is built on it."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Collection
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from leadline.base.errors import InputError, param
from leadline.geometry.poses import invert_transform
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.files import atomic_write, read_json, reading
from leadline.io.units import MAX_COUNT
from leadline.io.views.maps import LoadMaps, check_cameras, stem_of, write_codes, write_json, write_reliability

_TRANSFORMS = "a transforms.json of nerfstudio"

# nerfstudio's default factor, thousandths, is used if the depth of the median image spans at least this many steps.
_DEFAULT_FACTOR = 1e-3
_MIN_STEPS = 1000
_CAMERA_MODELS = ("PINHOLE", "OPENCV", "OPENCV_FISHEYE")


def check_nerfstudio(model: ColmapModel) -> None:
    """Refuse cameras that a transforms.json cannot represent."""
    check_cameras(model, "nerfstudio", _CAMERA_MODELS)


def check_dn_splatter(model: ColmapModel) -> None:
    """Refuse pictures in folders, which the parser of DN-Splatter does not look into, and names that it would mix up.

    The parser sorts pictures and depth maps by the numbers in their names and pairs them. ``a.png`` comes before
    ``a_1.png``, but ``a_1_aligned.npy`` before ``a_aligned.npy``.
    """
    nested = sorted(name for name in model.images if "/" in name)
    if nested:
        raise InputError(
            f"{param('export', 'dn-splatter')}: {nested[0]!r} is in a folder, and the parser reads one folder of depth "
            "maps only; put all pictures into one folder."
        )
    pictures = sorted(model.images, key=_natural)
    maps = sorted(model.images, key=lambda name: _natural(_aligned(name)))
    for picture, other in zip(pictures, maps, strict=True):
        if picture != other:
            raise InputError(
                f"{param('export', 'dn-splatter')}: its parser would take the depth of {other!r} for {picture!r}, "
                "because it pairs sorted names; rename one of them."
            )


def _aligned(name: str) -> str:
    return f"{stem_of(name)}_aligned.npy"


def _natural(name: str) -> list[tuple[str, int]]:
    """Key for sorting names by the numbers in them, as the package natsort does."""
    parts = re.split(r"(\d+)", unicodedata.normalize("NFD", name))
    return [(text, int(number or -1)) for text, number in zip_longest(parts[::2], parts[1::2], fillvalue="")]


def write_nerfstudio(
    folder: Path,
    model: ColmapModel,
    images: Collection[ColmapImage],
    load: LoadMaps,
    pictures: Path,
    transforms: Path | None = None,
) -> tuple[str, ...]:
    """Write ``depths/NAME.png`` and a ``transforms.json`` that refers to them to `folder`; returns notes.

    Codes are depth in multiples of ``depth_unit_scale_factor`` of the model's unit, 0 where unknown or not reliable,
    which nerfstudio leaves out of its depth loss. The factor is
    nerfstudio's default, 1/1000, unless that is too coarse or does not reach far enough. nerfstudio needs a depth map
    for every frame or for none, so frames without one are left out. `pictures` is the folder of the images. If
    `transforms` is given, a copy of it is extended, with its paths made relative to `folder`; otherwise it is made
    from the model, in the model's world frame.
    """
    if transforms is None:
        check_nerfstudio(model)
        content = _make_transforms(folder, model, images, load, pictures)
        dropped = len(model.images) - len(images)
    else:
        content, dropped = _extend_transforms(transforms, folder, model, images)
    farthest = [float(load(image).reliable_depth().max(initial=0.0)) for image in images]
    factor = _DEFAULT_FACTOR
    if max(farthest) > factor * MAX_COUNT or np.median(farthest) < factor * _MIN_STEPS:
        factor = 10.0 ** math.ceil(math.log10(max(farthest) / MAX_COUNT))
    for image in images:
        maps = load(image)
        counts = np.rint(maps.reliable_depth() / factor)
        write_codes(folder / _depth_path(image), counts.astype(np.uint16))
        write_reliability(folder, image, maps)
    write_json(folder / "transforms.json", {**content, "depth_unit_scale_factor": factor})
    notes = []
    if dropped:
        notes.append(f"nerfstudio: {dropped} frames without depth are not in transforms.json.")
    if factor != _DEFAULT_FACTOR:
        notes.append(
            f"nerfstudio: pass --depth-unit-scale-factor {factor:g} to its data parser, whose default is 0.001."
        )
    return tuple(notes)


def write_dn_splatter(
    folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadMaps
) -> tuple[str, ...]:
    """Write ``mono_depth/NAME_aligned.npy`` to `folder`, to be copied into the scene's folder; returns notes.

    This is what DN-Splatter's data parser for COLMAP models reads: float32 in the unit of the model, 0 where unknown.
    It pairs the files with the pictures, both sorted by the numbers in their names, and needs as many of both, so a
    picture of the model without depth gets a map of zeros.
    """
    check_dn_splatter(model)
    with_depth = {image.name for image in images}
    for name, image in model.images.items():
        camera = model.camera_of(image)
        depth = np.zeros((camera.height, camera.width), np.float32)
        if name in with_depth:
            maps = load(image)
            depth = maps.reliable_depth().astype(np.float32)
            write_reliability(folder, image, maps)
        path = folder / "mono_depth" / _aligned(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, partial(_save, depth))
    empty = len(model.images) - len(with_depth)
    return (f"dn-splatter: {empty} pictures without depth have a map of zeros.",) if empty else ()


def _save(values: Any, path: Path) -> None:
    with path.open("wb") as file:  # np.save would append a suffix to the temporary name
        np.save(file, values)


def _depth_path(image: ColmapImage) -> str:
    return f"depths/{stem_of(image.name)}.png"


def _make_transforms(
    folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadMaps, pictures: Path
) -> dict[str, Any]:
    frames = []
    for image in images:
        height, width = load(image).depth.shape
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
