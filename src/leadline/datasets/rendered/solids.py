"""Solids that rays hit, groups of them, lights, and the settings that are made of these.

World axes: x right, y up, z into the scene, in metres.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray

Points = NDArray[np.floating[Any]]  # (3, N): one row per axis, so that every operation runs over contiguous memory
Triple = tuple[float, float, float]


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


class Light(NamedTuple):
    """A sample of a light."""

    position: Triple
    facing: Triple | None  # None shines in all directions
    power: Triple  # times the colour
    glints: bool  # whether it has highlights
    distant: bool = False  # like the sun: as bright everywhere


@dataclass(frozen=True)
class Setting:
    """A place to render: a box with a floor that encloses all, what stands in it, the lights and the camera."""

    name: str
    low: Triple
    high: Triple
    material: str  # of the box
    eye: Triple
    yaw: float  # radians to the right
    pitch: float  # radians up
    furnish: Callable[[np.random.Generator], list[Group]]
    lights: tuple[Light, ...]
    ambient: Triple = (0.13, 0.125, 0.125)
    occlusion: float = 0.42  # how much darker corners are
    open: bool = False  # the walls and the ceiling are the sky, which has no depth
    glass: Callable[[], list[Group]] | None = field(default=None)  # a sensor measures what lies behind it


box, sphere, cylinder = partial(Solid, "box"), partial(Solid, "sphere"), partial(Solid, "cylinder")


def legs(across: float, along: float, height: float, thickness: float, tint: Triple) -> list[Solid]:
    """Four legs of a piece of furniture."""
    half = (thickness, height / 2, thickness)
    return [box((x, height / 2, z), half, "wood", tint) for x in (-across, across) for z in (-along, along)]
