"""A COLMAP model whose points are sampled from completed depth, which is how gsplat's trainer takes depth.

gsplat compares rendered depth with the points that each picture observes, and begins with a Gaussian at every point. A
model with a dense set of points and their tracks therefore provides both. The files are written here, without
pycolmap, which would need minutes for a few hundred thousand points.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from leadline.base.errors import InputError, param
from leadline.geometry.cameras import MODELS, ColmapCamera
from leadline.geometry.poses import invert_transform, transform_points
from leadline.io.colmap import ColmapImage, ColmapModel
from leadline.io.depth import read_image
from leadline.io.files import atomic_write
from leadline.io.views.maps import LoadMaps, write_reliability

SPACING = 8
"""Pixels between the samples of a picture: 4,800 points for 640 x 480, several times what SfM has."""
_KEY_BITS = 21  # of each coordinate in the key of a cell; three of them fit into 63 bits
_ERROR_PX = 1.0  # COLMAP's reprojection error has no meaning for these points


def write_gsplat(
    folder: Path, model: ColmapModel, images: Collection[ColmapImage], load: LoadMaps, pictures: Path
) -> tuple[str, ...]:
    """Write ``sparse/0`` with cameras, poses and a dense set of points to `folder`; returns notes.

    Every eighth pixel in both directions of each picture is a sample if its depth is reliable. Samples of all pictures
    that fall into the same cell, whose edge is the distance of two samples at the median depth, become one point at
    their mean. It is observed by the pictures whose samples it was made from. The points of the given model are not
    copied; these replace them.
    """
    cameras: dict[int, ColmapCamera] = {}
    points, colours, owners, spacings = [], [], [], []
    listed = list(images)
    for number, image in enumerate(listed):
        maps = load(image)
        height, width = maps.depth.shape
        camera = cameras.setdefault(image.camera_id, model.camera_of(image).scaled(width, height))
        if (camera.width, camera.height) != (width, height):
            raise InputError(
                f"{param('export', 'gsplat')}: {image.name!r} is {width}x{height} and another picture of the same "
                f"camera {camera.width}x{camera.height}; resize them alike."
            )
        chosen = np.zeros(maps.depth.shape, bool)
        chosen[SPACING // 2 :: SPACING, SPACING // 2 :: SPACING] = True
        chosen &= maps.reliable
        seen = camera.points(maps.depth)[chosen]
        usable = np.isfinite(seen).all(axis=1)  # a lens may have no ray for a corner
        points.append(transform_points(seen[usable], invert_transform(image.transform)))
        colours.append(read_image(pictures / image.name)[chosen][usable])
        owners.append(np.full(int(usable.sum()), number))
        spacings.append(SPACING * np.median(seen[usable, 2]) / camera.params[0] if usable.any() else np.nan)
        write_reliability(folder, image, maps)
    if not sum(map(len, points)):
        raise InputError(f"{param('export', 'gsplat')}: no pixel of any picture has reliable depth.")
    cells = _cells(np.concatenate(points), float(np.nanmedian(spacings)))
    order, numbers = np.argsort(cells, kind="stable"), np.unique(cells, return_inverse=True)[1]
    count = np.bincount(numbers)
    means = np.stack([np.bincount(numbers, column) / count for column in np.concatenate(points).T], axis=1)
    tints = np.stack([np.bincount(numbers, column) / count for column in np.concatenate(colours).T], axis=1)
    pairs = np.unique(np.stack((numbers, np.concatenate(owners)), axis=1)[order], axis=0)  # point, picture
    target = folder / "sparse" / "0"
    target.mkdir(parents=True, exist_ok=True)
    _write(target / "cameras.bin", _cameras(cameras))
    features = _write_images(target / "images.bin", listed, cameras, means, pairs)
    _write_points(target / "points3D.bin", means, np.rint(tints).astype(np.uint8), listed, features)
    per_point = f"{len(pairs) / len(means):.1f} pictures each"
    notes = [f"gsplat: {len(means)} points from {len(listed)} pictures, {per_point}."]
    without = len(listed) - len(np.unique(features[:, 1]))
    if without:
        notes.append(f"gsplat: {without} pictures have no reliable depth and are left out.")
    return tuple(notes)


def _cells(points: NDArray[np.float64], edge: float) -> NDArray[np.int64]:
    """One number for the cell of each point."""
    indices = np.floor((points - np.median(points, axis=0)) / edge).astype(np.int64) + (1 << (_KEY_BITS - 1))
    indices = np.clip(indices, 0, (1 << _KEY_BITS) - 1)
    return (indices[:, 0] << (2 * _KEY_BITS)) | (indices[:, 1] << _KEY_BITS) | indices[:, 2]


def _cameras(cameras: dict[int, ColmapCamera]) -> bytes:
    names = list(MODELS)
    parts = [struct.pack("<Q", len(cameras))]
    for number, camera in cameras.items():
        parts.append(struct.pack("<IiQQ", number, names.index(camera.model), camera.width, camera.height))
        parts.append(struct.pack(f"<{len(camera.params)}d", *camera.params))
    return b"".join(parts)


def _write_images(
    path: Path,
    images: list[ColmapImage],
    cameras: dict[int, ColmapCamera],
    points: NDArray[np.float64],
    pairs: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Write the poses and features of the pictures; returns point, picture and feature of each observation, (M, 3).

    Pictures that observe no point are left out, because the trainer stops at them.
    """
    parts, observations = [], []
    row = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
    for number, image in enumerate(images):
        camera = cameras[image.camera_id]
        own = pairs[pairs[:, 1] == number, 0]
        pixels = camera.project(transform_points(points[own], image.transform)) + 0.5
        with np.errstate(invalid="ignore"):
            inside = ((pixels >= 0) & (pixels < (camera.width, camera.height))).all(axis=1)
        if not inside.any():
            continue
        features = np.empty(int(inside.sum()), row)
        features["xy"], features["point"] = pixels[inside], own[inside] + 1
        x, y, z, w = Rotation.from_matrix(image.rotation).as_quat()
        parts.append(struct.pack("<I7dI", image.image_id, w, x, y, z, *image.translation, image.camera_id))
        parts += [image.name.encode(), b"\0", struct.pack("<Q", len(features)), features.tobytes()]
        observations.append(np.stack((own[inside], np.full(len(features), number), np.arange(len(features))), axis=1))
    _write(path, struct.pack("<Q", len(observations)) + b"".join(parts))
    found = np.concatenate(observations)
    return found[np.argsort(found[:, 0], kind="stable")]


def _write_points(
    path: Path,
    points: NDArray[np.float64],
    colours: NDArray[np.uint8],
    images: list[ColmapImage],
    observations: NDArray[np.int64],
) -> None:
    identifiers = np.array([image.image_id for image in images])
    tracks = np.stack((identifiers[observations[:, 1]], observations[:, 2]), axis=1).astype("<u4")
    ends = np.searchsorted(observations[:, 0], np.arange(len(points)), side="right")
    starts = np.concatenate(([0], ends[:-1]))
    parts = [struct.pack("<Q", int((ends > starts).sum()))]
    for index in np.flatnonzero(ends > starts):  # a mean may fall outside every picture's border
        first, last = starts[index], ends[index]
        parts.append(struct.pack("<Q3d3BdQ", index + 1, *points[index], *colours[index], _ERROR_PX, last - first))
        parts.append(tracks[first:last].tobytes())
    _write(path, b"".join(parts))


def _write(path: Path, content: bytes) -> None:
    atomic_write(path, lambda part: part.write_bytes(content))
