"""The furnished room: its solids, their positions and their materials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray

Points = NDArray[np.floating[Any]]  # (3, N): one row per axis, so that every operation runs over contiguous memory
Triple = tuple[float, float, float]

ROOM_LOW, ROOM_HIGH = (-2.6, 0.0, -0.9), (2.6, 2.7, 5.8)


@dataclass(frozen=True)
class Solid:
    """A box, sphere or upright cylinder in the axes of its group; `half` holds half extents, the radius first."""

    shape: Literal["box", "sphere", "cylinder"]
    centre: Triple
    half: Triple
    material: str
    tint: Triple

    def hit(self, origin: Points, direction: Points, inverse: Points) -> FloatArray:
        """Ray parameter of the first hit, (N,); inf where the solid is missed or behind the origin.

        `inverse` is 1 / direction, computed once for the solids of a group.
        """
        dtype = direction.dtype
        start = origin - np.asarray(self.centre, dtype)[:, None]
        if self.shape == "box":
            near, far = slab(start, inverse, np.asarray(self.half, dtype))
            return np.where((near <= far) & (near > 0), near, dtype.type(np.inf))
        axes = (0, 1, 2) if self.shape == "sphere" else (0, 2)
        a = sum(direction[i] * direction[i] for i in axes)
        b = sum(direction[i] * start[i] for i in axes)
        c = sum(start[i] * start[i] for i in axes) - dtype.type(self.half[0] ** 2)
        inside = b * b - a * c
        root = np.sqrt(np.maximum(inside, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            near, far = (-b - root) / a, (-b + root) / a
        if self.shape == "cylinder":
            low, high = slab(start[1:2], inverse[1:2], np.asarray(self.half[1:2], dtype))
            near, far = np.maximum(near, low), np.minimum(far, high)
        first: FloatArray = np.where((inside > 0) & (near <= far) & (near > 0), near, dtype.type(np.inf))
        return first

    def normal(self, place: Points) -> Points:
        """Outward unit normals at surface points relative to the centre, (3, N)."""
        if self.shape == "sphere":
            return place / self.half[0]
        if self.shape == "box":
            axis = np.argmax(np.abs(place) / np.array(self.half)[:, None], axis=0)
            return np.where(np.arange(3)[:, None] == axis, np.sign(place), 0.0)
        cap = np.abs(place[1]) / self.half[1] > np.hypot(place[0], place[2]) / self.half[0]
        side = place * np.array([[1.0], [0.0], [1.0]]) / self.half[0]
        outward: Points = np.where(cap, np.sign(place) * np.array([[0.0], [1.0], [0.0]]), side)
        return outward


@dataclass(frozen=True)
class Group:
    """A piece of furniture: solids relative to a point on the floor, rotated about the vertical."""

    place: Triple  # x and z of that point, and the angle in radians
    solids: list[Solid]
    casts: bool = True  # whether it casts shadows; a light fitting would shadow its own light

    def local(self, vectors: Points, turn: float | None = None) -> Points:
        """World vectors in the group's axes, or in axes rotated by another angle."""
        turn = self.place[2] if turn is None else turn
        cosine, sine = (vectors.dtype.type(value) for value in (math.cos(turn), math.sin(turn)))
        x, y, z = vectors
        return np.stack((cosine * x - sine * z, y, sine * x + cosine * z))

    def world(self, vectors: Points) -> Points:
        """The inverse of `local`."""
        return self.local(vectors, -self.place[2])

    def around(self, places: Points) -> Points:
        """World positions in the group's axes, relative to its point on the floor."""
        return self.local(places - np.array([self.place[0], 0.0, self.place[1]], places.dtype)[:, None])

    @cached_property
    def bound(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre and half extents of the axis-aligned bounding box, with which most rays skip the group."""
        corners = []
        for solid in self.solids:
            r, h, _ = solid.half
            half = {"box": solid.half, "sphere": (r, r, r), "cylinder": (r, h, r)}[solid.shape]
            corners += [np.array(solid.centre) + np.array(half) * signs for signs in product((-1, 1), repeat=3)]
        spread = self.world(np.array(corners).T) + np.array([[self.place[0]], [0.0], [self.place[1]]])
        low, high = spread.min(axis=1), spread.max(axis=1)
        return (low + high) / 2, (high - low) / 2 + 1e-6


def slab(start: Points, inverse: Points, half: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Entry and exit parameters of rays with the given inverse directions through a box around the origin.

    Entry exceeds exit, or either is NaN, where the box is missed.
    """
    # One axis at a time: NumPy reduces over a leading axis of three much more slowly than it compares two rows.
    enter: FloatArray = np.full(inverse.shape[1:], -np.inf, inverse.dtype)
    leave = -enter
    with np.errstate(invalid="ignore"):
        for begin, steps, limit in zip(start, inverse, half, strict=True):
            first, second = (-limit - begin) * steps, (limit - begin) * steps
            enter = np.maximum(enter, np.minimum(first, second))
            leave = np.minimum(leave, np.maximum(first, second))
    return enter, leave


_box, _sphere, _cylinder = partial(Solid, "box"), partial(Solid, "sphere"), partial(Solid, "cylinder")


def furnish(rng: np.random.Generator) -> list[Group]:
    """The furniture, with small random changes of positions, orientations and colours."""

    def near(x: float, z: float, turn: float) -> Triple:
        """A floor position within 6 cm and a heading within 7 degrees of the given ones."""
        return x + rng.uniform(-0.06, 0.06), z + rng.uniform(-0.06, 0.06), turn + rng.uniform(-0.12, 0.12)

    rug = [_box((0, 0.006, 0), (1.45, 0.006, 0.95), "rug", (0.62, 0.16, 0.13))]
    groups = [Group(near(0.15, 3.2, 0.12), rug, casts=False)]
    table = near(0.75, 3.25, 0.1)
    groups += [Group(table, _table()), Group(table, _tableware())]
    groups += [Group(near(0.2, 2.55, 0.45), _chair()), Group(near(1.25, 4.05, 3.35), _chair())]
    groups += [Group(near(2.05, 4.35, math.pi / 2), _sofa()), Group((-0.75, 5.6, 0.0), _bookcase(rng))]
    groups += [Group(near(-1.95, 5.1, 0), _plant(rng)), Group(near(0.62, 5.35, 0), _floor_lamp()), *_fittings()]
    crate = [
        _box((0, 0.23, 0), (0.25, 0.23, 0.25), "crate", (0.66, 0.46, 0.26)),
        _box((0.02, 0.49, 0.02), (0.16, 0.03, 0.11), "fabric", (0.16, 0.32, 0.45)),
        _cylinder((-0.03, 0.6, 0.03), (0.042, 0.08, 0), "plain", (0.85, 0.84, 0.8)),
    ]
    groups.append(Group(near(-0.6, 1.5, 0.6), crate))
    groups.append(Group(near(0.12, 1.95, 0.4), [_sphere((0, 0.13, 0), (0.13, 0, 0), "ball", (0.8, 0.25, 0.1))]))
    groups.append(Group(near(-1.45, 3.3, 0.4), [_sphere((0, 0.21, 0), (0.21, 0, 0), "plain", (0.12, 0.34, 0.42))]))
    return groups


def _legs(across: float, along: float, height: float, thickness: float, tint: Triple) -> list[Solid]:
    half = (thickness, height / 2, thickness)
    return [_box((x, height / 2, z), half, "wood", tint) for x in (-across, across) for z in (-along, along)]


def _table() -> list[Solid]:
    dark = (0.36, 0.22, 0.12)
    top = _box((0, 0.735, 0), (0.72, 0.018, 0.42), "wood", (0.55, 0.36, 0.2))
    rails = [_box((0, 0.68, z), (0.64, 0.035, 0.01), "wood", dark) for z in (-0.36, 0.36)]
    return [top, *_legs(0.66, 0.36, 0.72, 0.024, dark), *rails]


def _tableware() -> list[Solid]:
    sprigs = ((-0.035, 0.0), (0.03, 0.02), (0.0, -0.035))
    fruit = ((-0.05, 0.02, (0.75, 0.16, 0.08)), (0.05, 0.03, (0.82, 0.5, 0.08)), (0.0, -0.055, (0.42, 0.56, 0.12)))
    return [
        _cylinder((-0.3, 0.86, 0.1), (0.065, 0.11, 0), "glaze", (0.16, 0.3, 0.52)),
        *(_cylinder((-0.3 + x, 1.08, 0.1 + z), (0.005, 0.14, 0), "leaf", (0.2, 0.4, 0.1)) for x, z in sprigs),
        *(_sphere((-0.3 + x, 1.23, 0.1 + z), (0.032, 0, 0), "plain", (0.85, 0.55, 0.12)) for x, z in sprigs),
        _cylinder((0.28, 0.763, -0.08), (0.17, 0.01, 0), "glaze", (0.85, 0.85, 0.82)),
        *(_sphere((0.28 + x, 0.815, -0.08 + z), (0.045, 0, 0), "plain", tint) for x, z, tint in fruit),
        _box((0.08, 0.77, 0.22), (0.14, 0.017, 0.1), "plain", (0.5, 0.12, 0.1)),
        _box((0.1, 0.8, 0.22), (0.11, 0.013, 0.085), "plain", (0.85, 0.8, 0.66)),
    ]


def _chair() -> list[Solid]:
    wood = (0.42, 0.25, 0.13)
    posts = [_box((x, 0.7, -0.19), (0.015, 0.25, 0.014), "wood", wood) for x in (-0.19, 0.19)]
    slats = [_box((0, y, -0.19), (0.18, 0.028, 0.009), "wood", wood) for y in (0.9, 0.76, 0.62)]
    seat = _box((0, 0.45, 0), (0.21, 0.018, 0.21), "wood", wood)
    return [seat, *_legs(0.185, 0.185, 0.44, 0.017, wood), *posts, *slats]


def _sofa() -> list[Solid]:
    cloth = (0.36, 0.4, 0.37)
    return [
        _box((0, 0.24, 0), (0.82, 0.16, 0.4), "fabric", cloth),
        _box((0, 0.6, 0.34), (0.82, 0.27, 0.1), "fabric", cloth),
        *(_box((x, 0.36, 0), (0.1, 0.26, 0.42), "fabric", cloth) for x in (-0.86, 0.86)),
        *(_box((x, 0.44, -0.06), (0.36, 0.055, 0.34), "fabric", (0.4, 0.44, 0.41)) for x in (-0.38, 0.38)),
        _box((-0.5, 0.64, 0.18), (0.19, 0.16, 0.06), "fabric", (0.72, 0.5, 0.14)),
        *_legs(0.84, 0.36, 0.08, 0.025, (0.2, 0.12, 0.07)),
    ]


def _bookcase(rng: np.random.Generator) -> list[Solid]:
    white = (0.74, 0.71, 0.66)
    solids = [_box((x, 0.95, 0), (0.014, 0.95, 0.15), "plain", white) for x in (-0.55, 0.55)]
    solids += [_box((0, y, 0), (0.54, 0.012, 0.148), "plain", white) for y in (0.06, 0.52, 0.98, 1.44, 1.888)]
    solids += [_box((0, 0.95, 0.145), (0.54, 0.93, 0.004), "plain", white)]
    for shelf in (0.072, 0.532, 0.992, 1.452):
        edge = -0.5 + rng.uniform(0, 0.2)
        while edge < 0.4:
            thick, tall, deep = rng.uniform(0.02, 0.045), rng.uniform(0.1, 0.165), rng.uniform(0.08, 0.11)
            hue = rng.uniform(0, 2 * math.pi)
            red, green, blue = (0.14 + 0.26 * (1 + math.cos(hue + turn)) / 1.6 for turn in (0.0, 2.1, 4.2))
            book = (edge + thick, shelf + tall, 0.02), (thick - 0.001, tall, deep)
            solids.append(_box(*book, "plain", (red, green, blue)))
            edge += 2 * thick + (0.16 if rng.uniform() < 0.12 else 0.0)
    return solids


def _plant(rng: np.random.Generator) -> list[Solid]:
    solids = [_cylinder((0, 0.18, 0), (0.17, 0.18, 0), "glaze", (0.6, 0.3, 0.19))]
    solids += [_cylinder((0, 0.5, 0), (0.018, 0.2, 0), "wood", (0.3, 0.2, 0.1))]
    for _ in range(16):
        turn, out, up = rng.uniform(0, 2 * math.pi), rng.uniform(0.05, 0.26), rng.uniform(0.6, 1.25)
        centre, size = (out * math.cos(turn), up, out * math.sin(turn)), rng.uniform(0.07, 0.13)
        solids.append(_sphere(centre, (size, 0, 0), "leaf", (0.17, 0.36, 0.1)))
    return solids


def _floor_lamp() -> list[Solid]:
    metal = (0.16, 0.15, 0.14)
    foot, pole = (_cylinder((0, y, 0), (r, y, 0), "glaze", metal) for y, r in ((0.015, 0.16), (0.8, 0.014)))
    return [foot, pole, _cylinder((0, 1.62, 0), (0.2, 0.15, 0), "fabric", (0.9, 0.8, 0.6))]


def _fittings() -> list[Group]:
    """The fixed parts of the room: picture, skirting boards, window and the lamp over the table."""
    frame, here = (0.8, 0.79, 0.76), (0.0, 0.0, 0.0)
    window = [
        _box((-2.595, 1.5, 2.85), (0.004, 0.62, 0.82), "light", (1.5, 1.75, 2.1)),
        *(_box((-2.57, y, 2.85), (0.03, 0.03, 0.86), "plain", frame) for y in (0.87, 1.5, 2.13)),
        *(_box((-2.57, 1.5, z), (0.03, 0.65, 0.03), "plain", frame) for z in (2.02, 2.85, 3.68)),
        _box((-2.52, 0.83, 2.85), (0.1, 0.015, 0.92), "plain", frame),
    ]
    picture = [
        _box((1.55, 1.6, 5.785), (0.6, 0.42, 0.015), "wood", (0.2, 0.13, 0.08)),
        _box((1.55, 1.6, 5.772), (0.55, 0.37, 0.008), "painting", (1, 1, 1)),
    ]
    skirting = [_box((0, 0.055, 5.79), (2.6, 0.055, 0.012), "plain", frame)]
    skirting += [_box((x, 0.055, 2.4), (0.012, 0.055, 3.4), "plain", frame) for x in (-2.59, 2.59)]
    pendant = [
        _sphere((0.75, 1.93, 3.25), (0.13, 0, 0), "light", (2.3, 1.9, 1.35)),
        _cylinder((0.75, 2.38, 3.25), (0.006, 0.33, 0), "plain", (0.1, 0.1, 0.1)),
        _cylinder((0.75, 2.68, 3.25), (0.05, 0.02, 0), "plain", (0.8, 0.8, 0.8)),
    ]
    return [Group(here, picture), *(Group(here, part, casts=False) for part in (skirting, window, pendant))]


def paint(solid: Solid, place: Points, normal: Points, table: NDArray[np.int64]) -> tuple[Points, FloatArray]:
    """Reflectance, (3, N), and gloss, (N,), at surface points in local coordinates."""
    x, y, z = place
    tint = np.array(solid.tint, dtype=np.float64)[:, None]
    flat = np.zeros(place.shape[1])
    if solid.material == "room":
        wall = 0.93 + 0.1 * noise(place * 5, table, octaves=3) + 0.05 * noise(place * 55, table)
        warm = np.where(normal[1] < 0, 0.82, np.where(np.abs(normal[0]) > 0.5, 0.66, 0.7))
        plaster = np.array([[0.96], [0.93], [0.86]]) * warm * wall
        board, end = np.floor(x / 0.16), z / 1.3
        end = end + np.modf(np.abs(board) * 0.618)[0]
        number = board * 17 + np.floor(end) * 5
        tone = 0.75 + 0.5 * table[number.astype(np.int64) & 255] / 255
        grain = noise(np.stack((x * 46, number, z * 2.6)), table, octaves=2)
        gap = (np.abs(x / 0.16 - np.rint(x / 0.16)) < 0.014) | (np.abs(end - np.rint(end)) < 0.0018)
        planks = np.array([[0.45], [0.29], [0.165]]) * tone * (0.72 + 0.5 * grain) * np.where(gap, 0.35, 1.0)
        floor = normal[1] > 0
        return np.where(floor, planks, plaster), np.where(floor, 0.5, 0.0)
    if solid.material in ("wood", "crate"):
        longest = int(np.argmax(solid.half))
        stretch = np.where(np.arange(3) == longest, 3.0, 34.0)[:, None]
        shade = 0.66 + 0.6 * noise(place * stretch + solid.centre[0] * 9, table, octaves=2)
        if solid.material == "crate":
            edge = np.sort(np.abs(place) / np.array(solid.half)[:, None], axis=0)[1]  # along the face, not across it
            slats = np.abs(np.modf(np.abs(y / 0.115) + 0.5)[0] - 0.5) < 0.035
            shade = shade * np.where(edge > 0.82, 1.12, np.where(slats, 0.3, 0.9))
            shade *= np.where(np.abs(edge - 0.82) < 0.012, 0.45, 1)
        return tint * shade, flat + 0.25
    if solid.material == "rug":
        u, v = np.abs(x) / solid.half[0], np.abs(z) / solid.half[2]
        cream, border = np.array([[0.78], [0.7], [0.56]]), np.array([[0.1], [0.13], [0.26]])
        diamond = np.floor(x / 0.2 + z / 0.2) + np.floor(x / 0.2 - z / 0.2)
        stripes = np.where(np.mod(np.floor(x / 0.4), 3) == 1, cream, tint * 0.72)
        pattern = np.where(np.mod(diamond, 2) == 0, tint, stripes)
        rim = np.maximum(u * solid.half[0] - solid.half[0], v * solid.half[2] - solid.half[2])
        pattern = np.where(rim > -0.16, border, np.where(rim > -0.2, cream, pattern))
        return np.where(rim > -0.04, cream, pattern) * (0.75 + 0.5 * noise(place * 130, table)), flat
    if solid.material == "fabric":
        weave = 0.5 + 0.5 * np.sin(x * 420) * np.sin(y * 420 + z * 420)
        return tint * (0.82 + 0.16 * weave + 0.2 * noise(place * 14, table, octaves=2)), flat
    if solid.material == "leaf":
        return tint * (0.35 + 1.3 * noise(place * 26 + solid.centre[1] * 31, table, octaves=2)), flat + 0.1
    if solid.material == "ball":
        sector = np.mod(np.floor(np.arctan2(y, x) / math.pi * 4), 2) == 0
        return np.where(sector, tint, np.array([[0.88], [0.86], [0.8]])) + 0 * z, flat + 0.6
    if solid.material == "painting":
        field = 3.2 * noise(np.stack((x * 2.2, y * 5.5, z + 4)), table, octaves=3) + 1.4 * y
        hues = np.array([[0.85, 0.93, 0.9, 0.35, 0.12], [0.62, 0.8, 0.5, 0.42, 0.2], [0.3, 0.6, 0.25, 0.45, 0.33]])
        return hues[:, np.clip(np.floor(field * 1.55).astype(np.int64), 0, 4)], flat
    speckle = 1.0 if solid.material == "light" else 0.95 + 0.1 * noise(place * 60, table)
    return tint * speckle + 0 * x, flat + {"glaze": 0.8, "plain": 0.12}.get(solid.material, 0.0)


def noise(place: Points, table: NDArray[np.int64], *, octaves: int = 1) -> NDArray[np.float64]:
    """Smooth value noise in [0, 1], (N,), from a permutation of 0..255."""
    total, weight = np.zeros(place.shape[1]), 0.0
    for octave in range(octaves):
        scaled = place * 2.0**octave
        cell = np.floor(scaled)
        fraction = scaled - cell
        fraction = fraction * fraction * (3 - 2 * fraction)
        corner = cell.astype(np.int64)
        value: Any = 0.0
        for i in (0, 1):
            first = table[(corner[0] + i) & 255]
            for j in (0, 1):
                second = table[(first + corner[1] + j) & 255]
                for k in (0, 1):
                    share = (fraction[0] if i else 1 - fraction[0]) * (fraction[1] if j else 1 - fraction[1])
                    third = table[(second + corner[2] + k) & 255]
                    value = value + share * (fraction[2] if k else 1 - fraction[2]) * third
        total += value * 0.5**octave / 255
        weight += 0.5**octave
    return total / weight
