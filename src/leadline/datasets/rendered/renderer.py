"""A ray tracer for small settings: an image, its exact depth and its camera, whose axes are those of `Camera`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.datasets import Scene, SparseInput
from leadline.datasets.rendered.materials import paint
from leadline.datasets.rendered.solids import Group, Light, Points, Setting, Solid, slab
from leadline.geometry.cameras import Camera

FOCAL = 0.86  # focal length relative to the width of a 4:3 image: a field of view of 60 degrees
_CHUNK = 65536  # rays per pass over the lights: more do not fit into the cache, fewer repeat the overhead of a call
_SUBPIXELS = ((-0.375, -0.125), (0.125, -0.375), (0.375, 0.125), (-0.125, 0.375))
_CONTRAST = 0.06  # difference of luminance between neighbours above which a pixel is supersampled
_OFFSET = 2e-4  # metres between a surface and the start of its shadow rays


def render_setting(setting: Setting, width: int, height: int, *, seed: int = 0, focal: float = FOCAL) -> Scene:
    """A setting with its exact z-depth in metres and its camera. The same arguments give the same numbers.

    Depth is that of one ray through the centre of each pixel, so it has no mixed pixels at edges; only colours are
    smoothed there. The sky of an open setting has no depth. In a setting with glass, what a depth camera measures is
    the scene's measurement ``sensor``: behind glass the background.

    Parameters
    ----------
    setting : Setting
    width, height : int
        Size in pixels, at least 2 each.
    seed : int
        Varies positions, orientations, colours and textures.
    focal : float
        Focal length relative to the width of the largest 4:3 image inside.

    Raises
    ------
    InputError
        A side is shorter than 2 pixels.
    """
    require_render_size(width, height)
    pixels = focal * min(width, height * 4 / 3)
    camera = Camera(width, height, pixels, pixels, (width - 1) / 2, (height - 1) / 2)
    rng = np.random.default_rng(seed)
    groups = setting.furnish(rng)
    rays = _Rays(setting, camera, groups, rng.permutation(256))
    columns, rows = (axis.ravel() for axis in np.meshgrid(np.arange(float(width)), np.arange(float(height))))
    hits = rays.trace(columns, rows)
    light = rays.shade(hits, np.arange(width * height))
    colour = rays.display_colours(hits, light)

    edges = np.flatnonzero(_needs_supersampling(colour.mean(axis=0).reshape(height, width)))
    for right, down in _SUBPIXELS:
        extra = rays.trace(columns[edges] + right, rows[edges] + down)
        # Light changes slowly over a surface, so only rays that hit another surface than their pixel's are shaded.
        shared = light[:, edges]
        other = (extra.solid != hits.solid[edges]) | (_dot(extra.normal, hits.normal[:, edges]) < 0.9)
        shared[:, other] = rays.shade(extra, np.flatnonzero(other))
        colour[:, edges] += rays.display_colours(extra, shared)
    colour[:, edges] /= 1 + len(_SUBPIXELS)

    seen = depth = np.where(hits.sky, np.nan, hits.depth)
    if setting.glass is not None:
        pane = _Rays(setting, camera, setting.glass(), rays.table).trace(columns, rows)
        front = np.flatnonzero((pane.solid >= 0) & (pane.depth < hits.depth))
        depth = depth.copy()
        depth[front] = pane.depth[front]
        shape = np.zeros((height, width), np.bool_)
        shape.flat[front] = True
        rim = (shape & ~ndimage.binary_erosion(shape, border_value=1)).flat[front]
        colour[:, front] = _through_glass(colour[:, front], pane, front, rim)

    grain = rng.normal(0.0, 0.006, (height, width, 1)) + rng.normal(0.0, 0.003, (height, width, 3))
    radius = np.hypot((columns - camera.cx) / pixels, (rows - camera.cy) / pixels).reshape(height, width, 1)
    picture = colour.T.reshape(height, width, 3) * (1 - 0.22 * radius**2) + grain
    maps = [values.reshape(height, width).astype(np.float32) for values in (depth, seen)]
    return Scene(
        name=f"{setting.name}-{seed}",
        image=np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8),
        reference=maps[0],
        camera=camera,
        sparse={} if setting.glass is None else {"sensor": SparseInput(maps[1], "depth camera")},
    )


def _through_glass(colour: Points, pane: _Hits, chosen: NDArray[np.int64], rim: NDArray[np.bool_]) -> Points:
    """Display colours behind glass: slightly green, with reflections that grow at grazing angles, and a bright rim."""
    normal, view = pane.normal[:, chosen], pane.view[:, chosen]
    grazing = (1 - np.abs(_dot(normal, view))) ** 3  # Schlick's approximation, with a smaller power for two surfaces
    mirrored = 2 * _dot(normal, view) * normal - view
    window = np.exp(-((mirrored - np.array([[-0.6], [0.55], [0.3]])) ** 2).sum(axis=0) / 0.05)
    share = np.clip(0.07 + 0.6 * grazing + 0.4 * rim, 0, 0.75)
    shown: Points = colour * np.array([[0.9], [0.97], [0.94]]) * (1 - share) + share * 0.8 + 0.5 * window
    return shown


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
    sky: NDArray[np.bool_]
    view: Points  # unit vector back to the camera


@dataclass(frozen=True)
class _Rays:
    """Rays of a camera through a setting."""

    setting: Setting
    camera: Camera
    groups: Sequence[Group]
    table: NDArray[np.int64]  # of the noise

    def trace(self, columns: FloatArray, rows: FloatArray) -> _Hits:
        """The first hits of the rays through image positions, with the colours of the surfaces."""
        camera, setting = self.camera, self.setting
        x, y = (columns - camera.cx) / camera.fx, (camera.cy - rows) / camera.fy
        # The z component of each direction in the camera's axes is 1, so the ray parameter equals the z-depth.
        up = math.cos(setting.pitch) * y + math.sin(setting.pitch)
        ahead = math.cos(setting.pitch) - math.sin(setting.pitch) * y
        cosine, sine = math.cos(setting.yaw), math.sin(setting.yaw)
        direction = np.stack((cosine * x + sine * ahead, up, cosine * ahead - sine * x))
        eye = np.array(setting.eye)[:, None]
        middle, half = (np.add(setting.high, setting.low) / 2, np.subtract(setting.high, setting.low) / 2)
        room = Solid("box", tuple(middle), tuple(half), setting.material, (1, 1, 1))
        shared = _inverse(direction)
        depth = slab(eye - middle[:, None], shared, half)[1]  # the exit, since the camera is inside
        which = np.full(depth.shape, -1)
        first = 0
        for group in self.groups:
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

        owners = [(solid, group) for group in self.groups for solid in group.solids]
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
            albedo[:, mine], gloss[mine] = paint(solid, spot, facing, self.table)
            glows[mine] = solid.material == "light"
        sky = (which < 0) & (normal[1] <= 0) if setting.open else np.zeros(depth.shape, dtype=bool)
        view = -direction / np.linalg.norm(direction, axis=0)
        return _Hits(depth, which, place, normal, albedo, gloss, glows | sky, sky, view)

    def display_colours(self, hits: _Hits, light: Points) -> NDArray[np.float64]:
        """Display colours in [0, 1], (3, N)."""
        corner = np.ones(hits.depth.shape)
        for axis in range(3):  # ambient occlusion near the faces of the room
            for side in (self.setting.low[axis], self.setting.high[axis]):
                closeness = np.exp(-np.abs(hits.place[axis] - side) / 0.3)
                corner *= 1 - self.setting.occlusion * closeness * (1 - np.abs(hits.normal[axis]))
        ambient = np.array(self.setting.ambient)[:, None] * (1 + 0.25 * hits.normal[1])
        radiance = hits.albedo * (light[:3] * (0.4 + 0.6 * corner) + ambient * corner) + light[3] * hits.gloss
        radiance = 1.5 * np.where(hits.glows, hits.albedo, radiance)
        film = radiance * (1 + radiance / 4.0) / (1 + radiance)  # Reinhard's tone curve, white at 2
        bright: NDArray[np.float64] = np.clip(film, 0, 1) ** (1 / 2.2)
        return bright * bright * (3 - 2 * bright) * 0.35 + bright * 0.65  # slightly more contrast

    def shade(self, hits: _Hits, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Lambert shading per colour (rows 0 to 2) and specular highlights (row 3) of the chosen hits, with shadows."""
        total = np.zeros((4, len(chosen)))
        for begin in range(0, len(chosen), _CHUNK):
            part = chosen[begin : begin + _CHUNK]
            vectors = (hits.place, hits.normal, hits.view)
            place, normal, view = (values[:, part].astype(np.float32) for values in vectors)
            for light in self.setting.lights:
                self._add_light(light, place, normal, view, total[:, begin : begin + _CHUNK])
        return total

    def _add_light(self, light: Light, place: Points, normal: Points, view: Points, total: FloatArray) -> None:
        start = place + np.float32(_OFFSET) * normal
        way = np.array(light.position, np.float32)[:, None] - start
        square = _dot(way, way)
        unit = way / np.sqrt(square)
        strength = np.maximum(_dot(unit, normal), 0)
        if not light.distant:
            strength = strength / (square + np.float32(0.15))
        if light.facing is not None:
            strength *= np.maximum(-_dot(unit, np.array(light.facing, np.float32)), 0)
        lit = np.flatnonzero(strength > 1e-4)
        strength[lit[self._in_shadow(start[:, lit], way[:, lit])]] = 0
        total[:3] += np.array(light.power)[:, None] * strength
        if light.glints:
            half = unit + view
            glint = np.maximum(_dot(half, normal), 0) / np.sqrt(_dot(half, half))
            total[3] += strength * glint**60

    def _in_shadow(self, origin: Points, way: Points) -> NDArray[np.bool_]:
        """Whether a solid is between each origin and the light at origin + way."""
        blocked = np.zeros(origin.shape[1], dtype=bool)
        shared = _inverse(way)
        for group in self.groups:
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


def _dot(a: Points, b: Points) -> FloatArray:
    product: FloatArray = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def _inverse(direction: Points) -> Points:
    with np.errstate(divide="ignore"):
        return 1 / direction
