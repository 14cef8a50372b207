"""The street: houses, parked cars, trees and people along a road, under a sky that has no depth."""

from __future__ import annotations

import math

import numpy as np

from leadline.datasets.rendered.solids import Group, Light, Setting, Solid, Triple, box, cylinder, sphere

_DARK = (0.05, 0.05, 0.055)


def furnish(rng: np.random.Generator) -> list[Group]:
    """The houses and what stands in front of them, with random colours and sizes."""

    def near(x: float, z: float, turn: float = 0.0) -> Triple:
        return x + rng.uniform(-0.15, 0.15), z + rng.uniform(-0.5, 0.5), turn + rng.uniform(-0.03, 0.03)

    groups = [Group((side * 4.85, 32.0, 0.0), _kerb(), casts=False) for side in (-1, 1)]
    for side in (-1, 1):
        edge = 1.0 if side > 0 else 4.0
        while edge < 58:
            deep = float(rng.uniform(7, 12))
            groups.append(Group((side * 11.2, edge + deep / 2, 0.0), _house(rng, 4.8, deep)))
            edge += deep + (2.5 if rng.uniform() < 0.3 else 0.02)
    groups.append(Group((2.0, 64.0, 0.0), _house(rng, 16.0, 6.0)))
    cars = [(-2.75, 8.5, (0.55, 0.07, 0.06)), (-2.75, 14.6, (0.7, 0.7, 0.68)), (-2.7, 27.0, (0.1, 0.2, 0.42))]
    cars += [(2.75, 11.5, (0.14, 0.3, 0.28)), (2.8, 19.5, (0.75, 0.6, 0.2)), (2.75, 36.0, (0.5, 0.5, 0.52))]
    groups += [Group(near(x, z), _car(tint)) for x, z, tint in cars]
    groups.append(Group(near(-0.95, 40.0), _van()))
    groups += [
        Group(near(side * 4.4, z), _tree(rng)) for side, z in ((-1, 11.6), (1, 15.4), (-1, 23.5), (1, 29), (1, 44))
    ]
    groups += [
        Group(near(side * 4.0, z, turn), _lamp()) for side, z, turn in ((1, 7.6, 0), (-1, 19, math.pi), (1, 25, 0))
    ]
    people = ((4.9, 9.3, (0.16, 0.25, 0.5)), (-5.0, 9.6, (0.6, 0.25, 0.12)), (5.3, 22.0, (0.2, 0.2, 0.22)))
    groups += [Group(near(x, z), _person(tint)) for x, z, tint in people]
    groups.append(Group(near(5.6, 6.2), [cylinder((0, 0.5, 0), (0.3, 0.5, 0), "plain", (0.16, 0.3, 0.2))]))
    return groups


def _kerb() -> list[Solid]:
    """The pavement of one side, 12 cm above the road."""
    return [box((0, 0.06, 0), (1.15, 0.06, 34.0), "paving", (0.42, 0.41, 0.39))]


def _house(rng: np.random.Generator, half_width: float, deep: float) -> list[Solid]:
    storeys = int(rng.integers(2, 5))
    tall = 1.5 * storeys + 0.5
    walls = ((0.62, 0.55, 0.45), (0.5, 0.28, 0.2), (0.66, 0.62, 0.58), (0.45, 0.42, 0.4), (0.62, 0.46, 0.28))
    tint = walls[int(rng.integers(len(walls)))]
    body = box((0, tall, 0), (half_width, tall, deep / 2), "facade", tint)
    roof = box((0, 2 * tall + 0.15, 0), (half_width + 0.25, 0.15, deep / 2 + 0.01), "plain", (0.24, 0.17, 0.14))
    return [body, roof]


def _car(tint: Triple) -> list[Solid]:
    wheels = [sphere((x, 0.31, z), (0.31, 0, 0), "plain", _DARK) for x in (-0.72, 0.72) for z in (-1.3, 1.3)]
    lamps = [box((x, 0.72, -2.06), (0.16, 0.07, 0.03), "plain", (0.6, 0.08, 0.06)) for x in (-0.62, 0.62)]
    return [
        box((0, 0.6, 0), (0.86, 0.3, 2.05), "glaze", tint),
        box((0, 1.12, -0.15), (0.74, 0.24, 1.15), "glaze", (0.07, 0.09, 0.11)),
        box((0, 1.38, -0.15), (0.72, 0.03, 1.05), "glaze", tint),
        box((0, 0.42, -2.07), (0.26, 0.07, 0.02), "plain", (0.85, 0.85, 0.8)),
        *wheels,
        *lamps,
    ]


def _van() -> list[Solid]:
    white = (0.72, 0.72, 0.7)
    doors = [box((x, 1.25, -2.51), (0.4, 0.75, 0.02), "glaze", (0.62, 0.62, 0.6)) for x in (-0.43, 0.43)]
    wheels = [sphere((x, 0.36, z), (0.36, 0, 0), "plain", _DARK) for x in (-0.75, 0.75) for z in (-1.6, 1.6)]
    return [box((0, 1.3, 0), (0.95, 1.0, 2.5), "glaze", white), *doors, *wheels]


def _tree(rng: np.random.Generator) -> list[Solid]:
    solids = [cylinder((0, 1.3, 0), (0.13, 1.3, 0), "wood", (0.26, 0.19, 0.12))]
    for _ in range(22):
        turn, out, up = rng.uniform(0, 2 * math.pi), rng.uniform(0.1, 1.15), rng.uniform(2.6, 5.2)
        centre, size = (out * math.cos(turn), up, out * math.sin(turn)), rng.uniform(0.35, 0.75)
        solids.append(sphere(centre, (size, 0, 0), "leaf", (0.16, 0.33, 0.09)))
    return solids


def _lamp() -> list[Solid]:
    grey = (0.2, 0.22, 0.22)
    return [
        cylinder((0, 2.7, 0), (0.07, 2.7, 0), "plain", grey),
        box((-0.55, 5.4, 0), (0.6, 0.05, 0.06), "plain", grey),
        box((-1.1, 5.34, 0), (0.25, 0.06, 0.12), "plain", (0.75, 0.74, 0.68)),
    ]


def _person(tint: Triple) -> list[Solid]:
    trousers = [cylinder((x, 0.55, 0), (0.09, 0.43, 0), "fabric", (0.12, 0.12, 0.16)) for x in (-0.1, 0.1)]
    coat = cylinder((0, 1.28, 0), (0.23, 0.32, 0), "fabric", tint)
    return [*trousers, coat, sphere((0, 1.72, 0), (0.12, 0, 0), "plain", (0.55, 0.38, 0.28))]


STREET = Setting(
    "street",
    low=(-60.0, 0.0, -6.0),
    high=(60.0, 60.0, 90.0),
    material="street",
    eye=(0.9, 1.65, 0.0),
    yaw=math.radians(-5.0),
    pitch=math.radians(-2.0),
    furnish=furnish,
    lights=(Light((-160.0, 260.0, -120.0), None, (1.5, 1.38, 1.15), True, distant=True),),
    ambient=(0.3, 0.36, 0.45),
    occlusion=0.0,
    open=True,
)
