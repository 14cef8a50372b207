"""A furnished room, ray-traced in NumPy: a picture, its exact depth and its camera, with nothing to download.

World axes: x right, y up, z into the room, in metres. The camera's own axes are those of `Camera`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError
from leadline.datasets.room import ROOM_HIGH, ROOM_LOW, Group, Points, Solid, Triple, furnish, paint, slab
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera

_EYE = (0.5, 1.5, -0.35)
_YAW, _PITCH = math.radians(-7.0), math.radians(-11.0)  # left and down: no wall is parallel to the image
_FOCAL = 0.86  # of the width of a 4:3 picture: 60 degrees across
_CHUNK = 65536  # rays lit at a time: fewer fall out of the cache, more repeat the overhead of a call
_SUBPIXELS = ((-0.375, -0.125), (0.125, -0.375), (0.375, 0.125), (-0.125, 0.375))
_CONTRAST = 0.06  # luminance step between neighbours above which a pixel is traced again, four-fold
_OFFSET = 2e-4  # metres by which a shadow ray starts above its surface


def render(width: int = 640, height: int = 480, *, seed: int = 0) -> Scene:
    """A living room with its exact z-depth in metres and its camera; the same numbers for the same arguments.

    Depth is taken along one ray through each pixel's centre and so has no mixed pixels at edges; only the
    picture is smoothed there. The room is closed: every pixel has a depth, between about 1.3 and 7 m.

    Parameters
    ----------
    width, height : int
        Size in pixels, at least 2 each. The field of view is that of the largest 4:3 picture inside, widened.
    seed : int
        Moves and turns the furniture a little and changes colours and textures.

    Raises
    ------
    InputError
        If a side is shorter than 2 pixels.

    Examples
    --------
    >>> scene = render(64, 48)
    >>> scene.image.shape, scene.reference.dtype, scene.camera.cx
    ((48, 64, 3), dtype('float32'), 31.5)
    """
    if width < 2 or height < 2:
        raise InputError(f"`width` and `height` must be at least 2 pixels, got {width} x {height} instead.")
    focal = _FOCAL * min(width, height * 4 / 3)
    camera = Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)
    rng = np.random.default_rng(seed)
    groups = furnish(rng)
    table = rng.permutation(256)
    columns, rows = (axis.ravel() for axis in np.meshgrid(np.arange(float(width)), np.arange(float(height))))
    hits = _see(camera, columns, rows, groups, table)
    light = _illuminate(hits, groups, np.arange(width * height))
    colour = _develop(hits, light)

    again = np.flatnonzero(_busy(colour.mean(axis=0).reshape(height, width)))
    for right, down in _SUBPIXELS:
        extra = _see(camera, columns[again] + right, rows[again] + down, groups, table)
        # Light changes slowly over a surface, so only rays that meet another one than their pixel's are lit anew.
        shared = light[:, again]
        other = (extra.solid != hits.solid[again]) | (_dot(extra.normal, hits.normal[:, again]) < 0.9)
        shared[:, other] = _illuminate(extra, groups, np.flatnonzero(other))
        colour[:, again] += _develop(extra, shared)
    colour[:, again] /= 1 + len(_SUBPIXELS)

    grain = rng.normal(0.0, 0.006, (height, width, 1)) + rng.normal(0.0, 0.003, (height, width, 3))
    radius = np.hypot((columns - camera.cx) / focal, (rows - camera.cy) / focal).reshape(height, width, 1)
    picture = colour.T.reshape(height, width, 3) * (1 - 0.22 * radius**2) + grain
    return Scene(
        name=f"room-{seed}",
        image=np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8),
        reference=hits.depth.reshape(height, width).astype(np.float32),
        camera=camera,
    )


def network_like_prior(depth: FloatArray, *, seed: int = 0) -> NDArray[np.float32]:
    """A dense relative depth with the faults of a monocular network, made from an exact one.

    Four faults, none of which a method here can undo exactly: soft edges that bleed to the side of the nearer
    surface; a monotone response that is affine in neither depth, log depth nor disparity, and bends a little
    away from the power family too; a slow change of scale over the image (1.2 % rms); an arbitrary unit.

    The sizes of the faults were chosen to make a legible demonstration, so scores on it illustrate the methods and
    are no evidence for one of them: that takes real priors.

    Parameters
    ----------
    depth : (H, W) array
        Exact depth in metres; NaN, inf and values <= 0 are unknown and come back as NaN.
    seed : int
        Draws the slow change, the response's bend and the unit.

    Raises
    ------
    InputError
        If no pixel has a usable depth.
    """
    depth = as_map(depth, "depth")
    rng = np.random.default_rng([seed, 1])
    usable = np.isfinite(depth) & (depth > 0)
    if not usable.any():
        raise InputError("`depth` must have at least one finite positive pixel to make a prior from, got none.")
    height, width = depth.shape
    pixel = math.hypot(width, height) / 800  # the faults keep their size relative to the picture

    # Averaging disparity rather than depth pulls mixed pixels towards the nearer surface.
    near = np.where(usable, 1.0 / np.where(usable, depth, 1.0), 0.0)
    weight = usable.astype(np.float64)
    soft = sum(
        share * _blur(near, sigma * pixel) / np.maximum(_blur(weight, sigma * pixel), 1e-12)
        for share, sigma in ((0.88, 1.1), (0.12, 3.5))
    )
    log_depth = -np.log(np.where(usable, soft, 1.0))
    middle = float(np.median(log_depth[usable]))

    # (h^p = a d^p + 1 - a around the median, in logs) and a ripple too gentle to break the order.
    power, share = -3.2 + rng.uniform(-0.4, 0.4), 0.7
    x = np.where(usable, log_depth - middle, 0.0)
    response = np.log1p(share * np.expm1(power * x)) / power
    response += 0.006 * np.sin(3.0 * x + rng.uniform(0, 2 * math.pi))

    rows, columns = np.arange(height)[:, None] / height, np.arange(width) / width
    warp = np.zeros((height, width))
    for _ in range(6):
        across, down = rng.uniform(-1.2, 1.2, 2)
        warp += rng.normal() * np.cos(2 * math.pi * (across * columns + down * rows + rng.uniform()))
    warp *= 0.012 / max(float(np.sqrt(np.mean((warp - warp.mean()) ** 2))), 1e-12)
    unit = math.exp(rng.uniform(-1.5, -0.5))
    return np.where(usable, unit * np.exp(response + warp - warp.mean()), np.nan).astype(np.float32)


def _blur(values: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Separable Gaussian with edge replication."""
    reach = math.ceil(3 * sigma)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps /= taps.sum()
    for axis in (0, 1):
        size = values.shape[axis]
        padded = np.pad(values, [(reach, reach) if i == axis else (0, 0) for i in (0, 1)], mode="edge")
        slices = (np.take(padded, np.arange(k, k + size), axis=axis) for k in range(2 * reach + 1))
        values = sum((tap * part for tap, part in zip(taps, slices, strict=True)), np.zeros_like(values))
    return values


def _busy(luminance: FloatArray) -> NDArray[np.bool_]:
    """Pixels that differ visibly from a neighbour."""
    busy = np.zeros(luminance.shape, dtype=bool)
    across, down = (np.abs(np.diff(luminance, axis=axis)) > _CONTRAST for axis in (1, 0))
    busy[:, 1:] |= across
    busy[:, :-1] |= across
    busy[1:] |= down
    busy[:-1] |= down
    return busy


# --- tracing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hits:
    """What N rays meet first: arrays of N, or (3, N)."""

    depth: FloatArray
    solid: NDArray[np.int64]  # index into the groups' solids, -1 for the room itself
    place: Points
    normal: Points
    albedo: Points
    gloss: FloatArray
    glows: NDArray[np.bool_]
    view: Points  # unit vector back to the camera


def _see(
    camera: Camera, columns: FloatArray, rows: FloatArray, groups: Sequence[Group], table: NDArray[np.int64]
) -> _Hits:
    """First hits of the rays through image positions, with the surfaces' colours."""
    x, y = (columns - camera.cx) / camera.fx, (camera.cy - rows) / camera.fy
    # The camera's z component of each direction is 1, so the ray parameter *is* the z-depth.
    up, ahead = math.cos(_PITCH) * y + math.sin(_PITCH), math.cos(_PITCH) - math.sin(_PITCH) * y
    cosine, sine = math.cos(_YAW), math.sin(_YAW)
    direction = np.stack((cosine * x + sine * ahead, up, cosine * ahead - sine * x))
    eye = np.array(_EYE)[:, None]
    middle, half = (np.add(ROOM_HIGH, ROOM_LOW) / 2, np.subtract(ROOM_HIGH, ROOM_LOW) / 2)
    room = Solid("box", tuple(middle), tuple(half), "room", (1, 1, 1))
    shared = _inverse(direction)
    depth = slab(eye - middle[:, None], shared, half)[1]  # seen from inside
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
    owners.append((room, Group((0.0, 0.0), 0.0, (room,))))  # at index -1
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


def _develop(hits: _Hits, light: Points) -> NDArray[np.float64]:
    """Display colours in [0, 1], (3, N)."""
    corner = np.ones(hits.depth.shape)
    for axis in range(3):  # faces of the room darken what is close to them and does not lie on them
        for side in (ROOM_LOW[axis], ROOM_HIGH[axis]):
            closeness = np.exp(-np.abs(hits.place[axis] - side) / 0.3)
            corner *= 1 - 0.42 * closeness * (1 - np.abs(hits.normal[axis]))
    ambient = np.array([[0.13], [0.125], [0.125]]) * (1 + 0.25 * hits.normal[1])
    radiance = hits.albedo * (light[:3] * (0.4 + 0.6 * corner) + ambient * corner) + light[3] * hits.gloss
    radiance = 1.5 * np.where(hits.glows, hits.albedo, radiance)
    film = radiance * (1 + radiance / 4.0) / (1 + radiance)  # Reinhard's curve, white at 2
    bright: NDArray[np.float64] = np.clip(film, 0, 1) ** (1 / 2.2)
    return bright * bright * (3 - 2 * bright) * 0.35 + bright * 0.65  # a little contrast


def _lamps() -> list[tuple[Triple, Triple | None, Triple, bool]]:
    """Samples of the lights: position, direction it faces (None: all), colour times power, whether it glints."""
    window = [
        ((-2.52, y, z), (1.0, 0.0, 0.0), (2.75, 3.0, 3.4), True)
        for y, z in ((1.2, 2.35), (1.4, 3.25), (1.65, 2.6), (1.85, 3.1))
    ]
    bounce = [
        ((x, 2.66, z), (0.0, -1.0, 0.0), (2.5, 2.4, 2.25), False) for x, z in ((0.1, 0.6), (-1.3, 3.9), (1.6, 4.1))
    ]
    return [*window, *bounce, ((0.75, 1.93, 3.25), None, (1.15, 0.83, 0.52), True)]


def _illuminate(hits: _Hits, groups: Sequence[Group], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lambert light per colour (rows 0 to 2) and glints (row 3) of the chosen hits, with shadows."""
    total = np.zeros((4, len(chosen)))
    for begin in range(0, len(chosen), _CHUNK):
        part = chosen[begin : begin + _CHUNK]
        place, normal, view = (values[:, part].astype(np.float32) for values in (hits.place, hits.normal, hits.view))
        start = place + np.float32(_OFFSET) * normal
        for position, facing, power, glints in _lamps():
            way = np.array(position, np.float32)[:, None] - start
            square = _dot(way, way)
            unit = way / np.sqrt(square)
            strength = np.maximum(_dot(unit, normal), 0) / (square + np.float32(0.15))
            if facing is not None:
                strength *= np.maximum(-_dot(unit, np.array(facing, np.float32)), 0)
            lit = np.flatnonzero(strength > 1e-4)
            strength[lit[_blocked(start[:, lit], way[:, lit], groups)]] = 0
            total[:3, begin : begin + _CHUNK] += np.array(power)[:, None] * strength
            if glints:
                half = unit + view
                glint = np.maximum(_dot(half, normal), 0) / np.sqrt(_dot(half, half))
                total[3, begin : begin + _CHUNK] += strength * glint**60
    return total


def _dot(a: Points, b: Points) -> FloatArray:
    product: FloatArray = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def _blocked(origin: Points, way: Points, groups: Sequence[Group]) -> NDArray[np.bool_]:
    """Whether a solid lies between each origin and the lamp at origin + way."""
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
