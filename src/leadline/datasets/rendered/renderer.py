"""A ray tracer for the furnished room: an image, its exact depth and its camera.

World axes: x right, y up, z into the room, in metres. The axes of the camera are those of `Camera`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.datasets import Scene
from leadline.datasets.rendered.room import ROOM_HIGH, ROOM_LOW, Group, Points, Solid, Triple, furnish, paint, slab
from leadline.geometry.cameras import Camera

CAMERA_POSITION = (0.5, 1.5, -0.35)
CAMERA_YAW, CAMERA_PITCH = np.radians((-7.0, -11.0)).tolist()  # left and down: no wall is parallel to the image
_FOCAL = 0.86  # focal length relative to the width of a 4:3 image: a field of view of 60 degrees
_CHUNK = 65536  # rays per pass over the lights: more do not fit into the cache, fewer repeat the overhead of a call
_SUBPIXELS = ((-0.375, -0.125), (0.125, -0.375), (0.375, 0.125), (-0.125, 0.375))
_CONTRAST = 0.06  # difference of luminance between neighbours above which a pixel is supersampled
_OFFSET = 2e-4  # metres between a surface and the start of its shadow rays


def render(width: int = 640, height: int = 480, *, seed: int = 0) -> Scene:
    """A living room with its exact z-depth in metres and its camera. The same arguments give the same numbers.

    Depth is that of one ray through the centre of each pixel, so it has no mixed pixels at edges; only colours are
    smoothed there. The room is closed: every pixel has a depth, between about 1.3 and 7 m.

    Parameters
    ----------
    width, height : int
        Size in pixels, at least 2 each. The largest 4:3 image inside has a field of view of 60 degrees.
    seed : int
        Varies positions and orientations of the furniture a little, and colours and textures.

    Raises
    ------
    InputError
        A side is shorter than 2 pixels.

    Examples
    --------
    >>> scene = render(64, 48)
    >>> scene.image.shape, scene.reference.dtype, scene.camera.cx
    ((48, 64, 3), dtype('float32'), 31.5)
    """
    require_render_size(width, height)
    focal = _FOCAL * min(width, height * 4 / 3)
    camera = Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)
    rng = np.random.default_rng(seed)
    groups = furnish(rng)
    table = rng.permutation(256)
    columns, rows = (axis.ravel() for axis in np.meshgrid(np.arange(float(width)), np.arange(float(height))))
    hits = _trace(camera, columns, rows, groups, table)
    light = _shade(hits, groups, np.arange(width * height))
    colour = _display_colours(hits, light)

    edges = np.flatnonzero(_needs_supersampling(colour.mean(axis=0).reshape(height, width)))
    for right, down in _SUBPIXELS:
        extra = _trace(camera, columns[edges] + right, rows[edges] + down, groups, table)
        # Light changes slowly over a surface, so only rays that hit another surface than their pixel's are shaded.
        shared = light[:, edges]
        other = (extra.solid != hits.solid[edges]) | (_dot(extra.normal, hits.normal[:, edges]) < 0.9)
        shared[:, other] = _shade(extra, groups, np.flatnonzero(other))
        colour[:, edges] += _display_colours(extra, shared)
    colour[:, edges] /= 1 + len(_SUBPIXELS)

    grain = rng.normal(0.0, 0.006, (height, width, 1)) + rng.normal(0.0, 0.003, (height, width, 3))
    radius = np.hypot((columns - camera.cx) / focal, (rows - camera.cy) / focal).reshape(height, width, 1)
    picture = colour.T.reshape(height, width, 3) * (1 - 0.22 * radius**2) + grain
    return Scene(
        name=f"room-{seed}",
        image=np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8),
        reference=hits.depth.reshape(height, width).astype(np.float32),
        camera=camera,
    )


def require_render_size(width: int, height: int) -> None:
    """Raise `InputError` unless both sides are at least 2 pixels."""
    if width < 2 or height < 2:
        raise InputError(f"{param('width')} and {param('height')} must be at least 2, got {width} x {height} instead.")


def _needs_supersampling(luminance: FloatArray) -> NDArray[np.bool_]:
    """The mask of the pixels that differ visibly from a neighbour."""
    across, down = (np.abs(np.diff(luminance, axis=axis)) > _CONTRAST for axis in (1, 0))
    beside = np.pad(across, ((0, 0), (1, 0))) | np.pad(across, ((0, 0), (0, 1)))
    return beside | np.pad(down, ((1, 0), (0, 0))) | np.pad(down, ((0, 1), (0, 0)))


@dataclass(frozen=True)
class _Hits:
    """The first hits of N rays: arrays (N,) or (3, N)."""

    depth: FloatArray
    solid: NDArray[np.int64]  # index into the solids of all groups, -1 for the room itself
    place: Points
    normal: Points
    albedo: Points
    gloss: FloatArray
    glows: NDArray[np.bool_]
    view: Points  # unit vector back to the camera


def _trace(
    camera: Camera, columns: FloatArray, rows: FloatArray, groups: Sequence[Group], table: NDArray[np.int64]
) -> _Hits:
    """The first hits of the rays through image positions, with the colours of the surfaces."""
    x, y = (columns - camera.cx) / camera.fx, (camera.cy - rows) / camera.fy
    # The z component of each direction in the camera's axes is 1, so the ray parameter equals the z-depth.
    up, ahead = math.cos(CAMERA_PITCH) * y + math.sin(CAMERA_PITCH), math.cos(CAMERA_PITCH) - math.sin(CAMERA_PITCH) * y
    cosine, sine = math.cos(CAMERA_YAW), math.sin(CAMERA_YAW)
    direction = np.stack((cosine * x + sine * ahead, up, cosine * ahead - sine * x))
    eye = np.array(CAMERA_POSITION)[:, None]
    middle, half = (np.add(ROOM_HIGH, ROOM_LOW) / 2, np.subtract(ROOM_HIGH, ROOM_LOW) / 2)
    room = Solid("box", tuple(middle), tuple(half), "room", (1, 1, 1))
    shared = _inverse(direction)
    depth = slab(eye - middle[:, None], shared, half)[1]  # the exit, since the camera is inside
    which = np.full(depth.shape, -1)
    first = 0
    for group in groups:
        centre, half = group.bound
        enter, leave = slab(eye - centre[:, None], shared, half)
        maybe = np.flatnonzero((enter <= leave) & (leave > 0))
        towards = group.local(direction[:, maybe])
        start, inverse = group.around(eye), _inverse(towards)
        for index, solid in enumerate(group.solids, first):
            distance = solid.hit(start, towards, inverse)
            closer = distance < depth[maybe]
            depth[maybe[closer]], which[maybe[closer]] = distance[closer], index
        first += len(group.solids)

    owners = [(solid, group) for group in groups for solid in group.solids]
    owners.append((room, Group((0.0, 0.0, 0.0), [room])))  # at index -1
    place = eye + depth * direction
    normal, albedo = np.empty_like(place), np.empty_like(place)
    gloss, glows = np.zeros(depth.shape), np.zeros(depth.shape, dtype=bool)
    for index in np.unique(which):
        mine = np.flatnonzero(which == index)
        solid, group = owners[index]
        spot = group.around(place[:, mine]) - np.array(solid.centre)[:, None]
        facing = solid.normal(spot) * (1 if index >= 0 else -1)
        normal[:, mine] = group.world(facing)
        albedo[:, mine], gloss[mine] = paint(solid, spot, facing, table)
        glows[mine] = solid.material == "light"
    return _Hits(depth, which, place, normal, albedo, gloss, glows, -direction / np.linalg.norm(direction, axis=0))


def _display_colours(hits: _Hits, light: Points) -> NDArray[np.float64]:
    """Display colours in [0, 1], (3, N)."""
    corner = np.ones(hits.depth.shape)
    for axis in range(3):  # ambient occlusion near the faces of the room
        for side in (ROOM_LOW[axis], ROOM_HIGH[axis]):
            closeness = np.exp(-np.abs(hits.place[axis] - side) / 0.3)
            corner *= 1 - 0.42 * closeness * (1 - np.abs(hits.normal[axis]))
    ambient = np.array([[0.13], [0.125], [0.125]]) * (1 + 0.25 * hits.normal[1])
    radiance = hits.albedo * (light[:3] * (0.4 + 0.6 * corner) + ambient * corner) + light[3] * hits.gloss
    radiance = 1.5 * np.where(hits.glows, hits.albedo, radiance)
    film = radiance * (1 + radiance / 4.0) / (1 + radiance)  # Reinhard's tone curve, white at 2
    bright: NDArray[np.float64] = np.clip(film, 0, 1) ** (1 / 2.2)
    return bright * bright * (3 - 2 * bright) * 0.35 + bright * 0.65  # slightly more contrast


def _lights() -> list[tuple[Triple, Triple | None, Triple, bool]]:
    """Samples of the lights: position, direction (None: all), colour times power, and whether it has highlights."""
    panes, bounces = ((1.2, 2.35), (1.4, 3.25), (1.65, 2.6), (1.85, 3.1)), ((0.1, 0.6), (-1.3, 3.9), (1.6, 4.1))
    return [
        *(((-2.52, y, z), (1.0, 0.0, 0.0), (2.75, 3.0, 3.4), True) for y, z in panes),
        *(((x, 2.66, z), (0.0, -1.0, 0.0), (2.5, 2.4, 2.25), False) for x, z in bounces),
        ((0.75, 1.93, 3.25), None, (1.15, 0.83, 0.52), True),
    ]


def _shade(hits: _Hits, groups: Sequence[Group], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lambert shading per colour (rows 0 to 2) and specular highlights (row 3) of the chosen hits, with shadows."""
    total = np.zeros((4, len(chosen)))
    for begin in range(0, len(chosen), _CHUNK):
        part = chosen[begin : begin + _CHUNK]
        place, normal, view = (values[:, part].astype(np.float32) for values in (hits.place, hits.normal, hits.view))
        start = place + np.float32(_OFFSET) * normal
        for position, facing, power, glints in _lights():
            way = np.array(position, np.float32)[:, None] - start
            square = _dot(way, way)
            unit = way / np.sqrt(square)
            strength = np.maximum(_dot(unit, normal), 0) / (square + np.float32(0.15))
            if facing is not None:
                strength *= np.maximum(-_dot(unit, np.array(facing, np.float32)), 0)
            lit = np.flatnonzero(strength > 1e-4)
            strength[lit[_in_shadow(start[:, lit], way[:, lit], groups)]] = 0
            total[:3, begin : begin + _CHUNK] += np.array(power)[:, None] * strength
            if glints:
                half = unit + view
                glint = np.maximum(_dot(half, normal), 0) / np.sqrt(_dot(half, half))
                total[3, begin : begin + _CHUNK] += strength * glint**60
    return total


def _dot(a: Points, b: Points) -> FloatArray:
    product: FloatArray = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def _in_shadow(origin: Points, way: Points, groups: Sequence[Group]) -> NDArray[np.bool_]:
    """Whether a solid is between each origin and the light at origin + way."""
    blocked = np.zeros(origin.shape[1], dtype=bool)
    shared = _inverse(way)
    for group in groups:
        if not group.casts:
            continue
        centre, half = (part.astype(origin.dtype) for part in group.bound)
        enter, leave = slab(origin - centre[:, None], shared, half)
        maybe = np.flatnonzero((enter <= leave) & (leave > 0) & (enter < 1) & ~blocked)
        start, along = group.around(origin[:, maybe]), group.local(way[:, maybe])
        inverse = _inverse(along)
        for solid in group.solids:
            blocked[maybe[solid.hit(start, along, inverse) < 1]] = True
    return blocked


def _inverse(direction: Points) -> Points:
    with np.errstate(divide="ignore"):
        return 1 / direction
