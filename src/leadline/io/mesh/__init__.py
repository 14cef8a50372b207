"""Writing of triangle meshes: GLB (binary glTF 2.0), textured or with a colour for each point, and PLY.

glTF's axes are x right, y up and z towards the viewer, so y and z of a camera's frame change their sign. A PLY file has
no convention and keeps the frame of its points, as `write_ply` does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.geometry.cameras import CameraModel
from leadline.geometry.surface import EdgeLimits, Surface, surface_from_depth
from leadline.io.files import atomic_write
from leadline.io.mesh.glb import FLOAT, UINT16, encode_texture, glb_bytes, linear_colours
from leadline.io.ply import write_ply

MeshFormat = Literal["glb", "ply"]
MESH_FORMATS: tuple[MeshFormat, ...] = get_args(MeshFormat)


def write_surface_mesh(
    path: str | os.PathLike[str],
    depth: FloatArray,
    camera: CameraModel,
    image: NDArray[np.uint8],
    *,
    edges: EdgeLimits | None = EdgeLimits(),
) -> Surface:
    """Write the surface of a depth map as a mesh with the colours of its image, in the format of the suffix.

    Parameters
    ----------
    path : path
        Ends in ``.glb``, for a mesh that is textured by the image, or in ``.ply``, with the colour of each point.
    depth, camera, edges
        See `leadline.geometry.surface.surface_from_depth`.
    image : (H, W, 3) uint8 array

    Returns
    -------
    Surface
        What was written.

    Raises
    ------
    InputError
        The suffix or a size is wrong, or no two neighbouring pixels have a depth.
    FileError
        The file cannot be written.
    """
    surface = surface_from_depth(depth, camera, edges=edges)
    if np.shape(image) != (*surface.shape, 3):
        raise InputError(f"{param('image')} must have the shape {(*surface.shape, 3)}, got {np.shape(image)} instead.")
    if not len(surface.triangles):
        raise InputError("a mesh needs neighbouring pixels with a depth, and there are none.")
    if _format_of(path) == "ply":
        colours = image.reshape(-1, 3)[surface.pixels]
        write_mesh(path, surface.points, surface.triangles, normals=surface.normals, colours=colours)
    else:
        coordinates = surface.texture_coordinates()
        write_mesh(path, surface.points, surface.triangles, texture=image, texture_coordinates=coordinates)
    return surface


def write_mesh(
    path: str | os.PathLike[str],
    points: ArrayLike,
    triangles: ArrayLike,
    *,
    normals: ArrayLike | None = None,
    colours: ArrayLike | None = None,
    texture: ArrayLike | None = None,
    texture_coordinates: ArrayLike | None = None,
) -> None:
    """Write a triangle mesh in the format of the suffix, ``.glb`` or ``.ply``.

    A GLB shows its colours as they are, without lights ("unlit"), because a photo contains the light of its scene.

    Parameters
    ----------
    path : path
    points : (N, 3) array
        Metres, x right, y down, z forward.
    triangles : (T, 3) integer array
        Indices of points, counter-clockwise as seen from outside.
    normals : (N, 3) array, optional
        Unit vectors.
    colours : (N, 3) uint8 array, optional
        sRGB. A PLY needs them.
    texture : (H, W, 3) uint8 array, optional
        For GLB only; with `texture_coordinates`, (N, 2), across and down from 0 to 1.
    """
    corners, count = np.asarray(triangles), np.shape(points)[:1]
    xyz = _check(points, "points", (*count, 3)).astype(np.float32)
    if not len(xyz) or not np.isfinite(xyz).all():
        raise InputError(f"{param('points')} must be finite and not empty, got shape {xyz.shape}.")
    if corners.ndim != 2 or corners.shape[1] != 3 or not len(corners) or corners.dtype.kind not in "iu":
        raise InputError(f"{param('triangles')} must be a non-empty (T, 3) array of integers, got {corners.shape}.")
    if corners.min() < 0 or corners.max() >= len(xyz):
        raise InputError(f"{param('triangles')} must be indices of the {len(xyz)} points.")
    if (texture is None) != (texture_coordinates is None):
        raise InputError(f"{param('texture')} and {param('texture_coordinates')} need each other; give both or none.")
    if _format_of(path) == "ply":
        if colours is None or texture is not None:
            raise InputError(f"a mesh in PLY has {param('colours')} and no {param('texture')}; write a .glb instead.")
        write_ply(path, xyz, colours, normals=normals, triangles=corners)
        return
    attributes: dict[str, tuple[NDArray[Any], int]] = {"POSITION": (xyz * _TO_GLTF, FLOAT)}
    if normals is not None:
        attributes["NORMAL"] = (_check(normals, "normals", (len(xyz), 3)) * _TO_GLTF, FLOAT)
    if colours is not None:
        rgb = _check(colours, "colours", (len(xyz), 3))
        if rgb.dtype != np.uint8:
            raise InputError(f"{param('colours')} must be uint8, got {np.asarray(colours).dtype} instead.")
        attributes["COLOR_0"] = (linear_colours(rgb), UINT16)
    encoded = None
    if texture is not None and texture_coordinates is not None:
        attributes["TEXCOORD_0"] = (_check(texture_coordinates, "texture_coordinates", (len(xyz), 2)), FLOAT)
        encoded = encode_texture(np.asarray(texture))
    content = glb_bytes(attributes, corners.astype("<u4"), encoded)
    atomic_write(path, lambda part: part.write_bytes(content))


_TO_GLTF = np.array([1, -1, -1], np.float32)


def _format_of(path: str | os.PathLike[str]) -> MeshFormat:
    suffix = Path(path).suffix.lower().removeprefix(".")
    for known in MESH_FORMATS:
        if suffix == known:
            return known
    raise InputError(f"{path}: a mesh is written as {' or '.join(f'.{known}' for known in MESH_FORMATS)}.")


def _check(values: ArrayLike, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    found = np.asarray(values)
    if found.shape != shape or found.dtype.kind not in "iuf":
        raise InputError(f"{param(name)} must be numbers of shape {shape}, got {found.dtype} {found.shape} instead.")
    return found if found.dtype == np.uint8 else found.astype(np.float32)
