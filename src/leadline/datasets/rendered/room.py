"""The furnished living room: its furniture, lights and camera."""

from __future__ import annotations

import math

import numpy as np

from leadline.datasets.rendered.solids import Group, Light, Setting, Solid, Triple, box, cylinder, legs, sphere


def furnish(rng: np.random.Generator) -> list[Group]:
    """The furniture, with small random changes of positions, orientations and colours."""

    def near(x: float, z: float, turn: float) -> Triple:
        """A floor position within 6 cm and a heading within 7 degrees of the given ones."""
        return x + rng.uniform(-0.06, 0.06), z + rng.uniform(-0.06, 0.06), turn + rng.uniform(-0.12, 0.12)

    rug = [box((0, 0.006, 0), (1.45, 0.006, 0.95), "rug", (0.62, 0.16, 0.13))]
    groups = [Group(near(0.15, 3.2, 0.12), rug, casts=False)]
    table = near(0.75, 3.25, 0.1)
    groups += [Group(table, _table()), Group(table, _tableware())]
    groups += [Group(near(0.2, 2.55, 0.45), _chair()), Group(near(1.25, 4.05, 3.35), _chair())]
    groups += [Group(near(2.05, 4.35, math.pi / 2), _sofa()), Group((-0.75, 5.6, 0.0), _bookcase(rng))]
    groups += [Group(near(-1.95, 5.1, 0), _plant(rng)), Group(near(0.62, 5.35, 0), _floor_lamp()), *_fittings()]
    crate = [
        box((0, 0.23, 0), (0.25, 0.23, 0.25), "crate", (0.66, 0.46, 0.26)),
        box((0.02, 0.49, 0.02), (0.16, 0.03, 0.11), "fabric", (0.16, 0.32, 0.45)),
        cylinder((-0.03, 0.6, 0.03), (0.042, 0.08, 0), "plain", (0.85, 0.84, 0.8)),
    ]
    groups.append(Group(near(-0.6, 1.5, 0.6), crate))
    groups.append(Group(near(0.12, 1.95, 0.4), [sphere((0, 0.13, 0), (0.13, 0, 0), "ball", (0.8, 0.25, 0.1))]))
    groups.append(Group(near(-1.45, 3.3, 0.4), [sphere((0, 0.21, 0), (0.21, 0, 0), "plain", (0.12, 0.34, 0.42))]))
    return groups


def _table() -> list[Solid]:
    dark = (0.36, 0.22, 0.12)
    top = box((0, 0.735, 0), (0.72, 0.018, 0.42), "wood", (0.55, 0.36, 0.2))
    rails = [box((0, 0.68, z), (0.64, 0.035, 0.01), "wood", dark) for z in (-0.36, 0.36)]
    return [top, *legs(0.66, 0.36, 0.72, 0.024, dark), *rails]


def _tableware() -> list[Solid]:
    sprigs = ((-0.035, 0.0), (0.03, 0.02), (0.0, -0.035))
    fruit = ((-0.05, 0.02, (0.75, 0.16, 0.08)), (0.05, 0.03, (0.82, 0.5, 0.08)), (0.0, -0.055, (0.42, 0.56, 0.12)))
    return [
        cylinder((-0.3, 0.86, 0.1), (0.065, 0.11, 0), "glaze", (0.16, 0.3, 0.52)),
        *(cylinder((-0.3 + x, 1.08, 0.1 + z), (0.005, 0.14, 0), "leaf", (0.2, 0.4, 0.1)) for x, z in sprigs),
        *(sphere((-0.3 + x, 1.23, 0.1 + z), (0.032, 0, 0), "plain", (0.85, 0.55, 0.12)) for x, z in sprigs),
        cylinder((0.28, 0.763, -0.08), (0.17, 0.01, 0), "glaze", (0.85, 0.85, 0.82)),
        *(sphere((0.28 + x, 0.815, -0.08 + z), (0.045, 0, 0), "plain", tint) for x, z, tint in fruit),
        box((0.08, 0.77, 0.22), (0.14, 0.017, 0.1), "plain", (0.5, 0.12, 0.1)),
        box((0.1, 0.8, 0.22), (0.11, 0.013, 0.085), "plain", (0.85, 0.8, 0.66)),
    ]


def _chair() -> list[Solid]:
    wood = (0.42, 0.25, 0.13)
    posts = [box((x, 0.7, -0.19), (0.015, 0.25, 0.014), "wood", wood) for x in (-0.19, 0.19)]
    slats = [box((0, y, -0.19), (0.18, 0.028, 0.009), "wood", wood) for y in (0.9, 0.76, 0.62)]
    seat = box((0, 0.45, 0), (0.21, 0.018, 0.21), "wood", wood)
    return [seat, *legs(0.185, 0.185, 0.44, 0.017, wood), *posts, *slats]


def _sofa() -> list[Solid]:
    cloth = (0.36, 0.4, 0.37)
    return [
        box((0, 0.24, 0), (0.82, 0.16, 0.4), "fabric", cloth),
        box((0, 0.6, 0.34), (0.82, 0.27, 0.1), "fabric", cloth),
        *(box((x, 0.36, 0), (0.1, 0.26, 0.42), "fabric", cloth) for x in (-0.86, 0.86)),
        *(box((x, 0.44, -0.06), (0.36, 0.055, 0.34), "fabric", (0.4, 0.44, 0.41)) for x in (-0.38, 0.38)),
        box((-0.5, 0.64, 0.18), (0.19, 0.16, 0.06), "fabric", (0.72, 0.5, 0.14)),
        *legs(0.84, 0.36, 0.08, 0.025, (0.2, 0.12, 0.07)),
    ]


def _bookcase(rng: np.random.Generator) -> list[Solid]:
    white = (0.74, 0.71, 0.66)
    solids = [box((x, 0.95, 0), (0.014, 0.95, 0.15), "plain", white) for x in (-0.55, 0.55)]
    solids += [box((0, y, 0), (0.54, 0.012, 0.148), "plain", white) for y in (0.06, 0.52, 0.98, 1.44, 1.888)]
    solids += [box((0, 0.95, 0.145), (0.54, 0.93, 0.004), "plain", white)]
    for shelf in (0.072, 0.532, 0.992, 1.452):
        edge = -0.5 + rng.uniform(0, 0.2)
        while edge < 0.4:
            thick, tall, deep = rng.uniform(0.02, 0.045), rng.uniform(0.1, 0.165), rng.uniform(0.08, 0.11)
            hue = rng.uniform(0, 2 * math.pi)
            red, green, blue = (0.14 + 0.26 * (1 + math.cos(hue + turn)) / 1.6 for turn in (0.0, 2.1, 4.2))
            book = (edge + thick, shelf + tall, 0.02), (thick - 0.001, tall, deep)
            solids.append(box(*book, "plain", (red, green, blue)))
            edge += 2 * thick + (0.16 if rng.uniform() < 0.12 else 0.0)
    return solids


def _plant(rng: np.random.Generator) -> list[Solid]:
    solids = [cylinder((0, 0.18, 0), (0.17, 0.18, 0), "glaze", (0.6, 0.3, 0.19))]
    solids += [cylinder((0, 0.5, 0), (0.018, 0.2, 0), "wood", (0.3, 0.2, 0.1))]
    for _ in range(16):
        turn, out, up = rng.uniform(0, 2 * math.pi), rng.uniform(0.05, 0.26), rng.uniform(0.6, 1.25)
        centre, size = (out * math.cos(turn), up, out * math.sin(turn)), rng.uniform(0.07, 0.13)
        solids.append(sphere(centre, (size, 0, 0), "leaf", (0.17, 0.36, 0.1)))
    return solids


def _floor_lamp() -> list[Solid]:
    metal = (0.16, 0.15, 0.14)
    foot, pole = (cylinder((0, y, 0), (r, y, 0), "glaze", metal) for y, r in ((0.015, 0.16), (0.8, 0.014)))
    return [foot, pole, cylinder((0, 1.62, 0), (0.2, 0.15, 0), "fabric", (0.9, 0.8, 0.6))]


def _fittings() -> list[Group]:
    """The fixed parts of the room: picture, skirting boards, window and the lamp over the table."""
    frame, here = (0.8, 0.79, 0.76), (0.0, 0.0, 0.0)
    window = [
        box((-2.595, 1.5, 2.85), (0.004, 0.62, 0.82), "light", (1.5, 1.75, 2.1)),
        *(box((-2.57, y, 2.85), (0.03, 0.03, 0.86), "plain", frame) for y in (0.87, 1.5, 2.13)),
        *(box((-2.57, 1.5, z), (0.03, 0.65, 0.03), "plain", frame) for z in (2.02, 2.85, 3.68)),
        box((-2.52, 0.83, 2.85), (0.1, 0.015, 0.92), "plain", frame),
    ]
    picture = [
        box((1.55, 1.6, 5.785), (0.6, 0.42, 0.015), "wood", (0.2, 0.13, 0.08)),
        box((1.55, 1.6, 5.772), (0.55, 0.37, 0.008), "painting", (1, 1, 1)),
    ]
    skirting = [box((0, 0.055, 5.79), (2.6, 0.055, 0.012), "plain", frame)]
    skirting += [box((x, 0.055, 2.4), (0.012, 0.055, 3.4), "plain", frame) for x in (-2.59, 2.59)]
    pendant = [
        sphere((0.75, 1.93, 3.25), (0.13, 0, 0), "light", (2.3, 1.9, 1.35)),
        cylinder((0.75, 2.38, 3.25), (0.006, 0.33, 0), "plain", (0.1, 0.1, 0.1)),
        cylinder((0.75, 2.68, 3.25), (0.05, 0.02, 0), "plain", (0.8, 0.8, 0.8)),
    ]
    return [Group(here, picture), *(Group(here, part, casts=False) for part in (skirting, window, pendant))]


def _lights() -> tuple[Light, ...]:
    panes, bounces = ((1.2, 2.35), (1.4, 3.25), (1.65, 2.6), (1.85, 3.1)), ((0.1, 0.6), (-1.3, 3.9), (1.6, 4.1))
    return (
        *(Light((-2.52, y, z), (1.0, 0.0, 0.0), (2.75, 3.0, 3.4), True) for y, z in panes),
        *(Light((x, 2.66, z), (0.0, -1.0, 0.0), (2.5, 2.4, 2.25), False) for x, z in bounces),
        Light((0.75, 1.93, 3.25), None, (1.15, 0.83, 0.52), True),
    )


ROOM = Setting(
    "room",
    low=(-2.6, 0.0, -0.9),
    high=(2.6, 2.7, 5.8),
    material="room",
    eye=(0.5, 1.5, -0.35),
    yaw=math.radians(-7.0),  # left and down: no wall is parallel to the image
    pitch=math.radians(-11.0),
    furnish=furnish,
    lights=_lights(),
)
