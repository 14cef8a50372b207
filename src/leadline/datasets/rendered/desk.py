"""The desk: books, cups and a lamp at arm's length, and things of glass, behind which a depth camera measures."""

from __future__ import annotations

import math

import numpy as np

from leadline.datasets.rendered.solids import Group, Light, Setting, Solid, Triple, box, cylinder, legs, sphere

_TOP = 0.74  # metres from the floor to the top of the desk


def furnish(rng: np.random.Generator) -> list[Group]:
    """Everything but the glass, with small random changes of positions, orientations and colours."""

    def near(x: float, z: float, turn: float) -> Triple:
        return x + rng.uniform(-0.015, 0.015), z + rng.uniform(-0.015, 0.015), turn + rng.uniform(-0.15, 0.15)

    groups = [Group((0.0, 1.0, 0.0), _desk()), Group(near(-0.5, 1.0, 0.3), _stack(rng))]
    groups += [Group(near(0.5, 1.2, -0.2), _row(rng)), Group(near(-0.12, 0.72, 0.5), _notebook())]
    groups += [Group(near(0.36, 0.78, 0.2), _cup((0.75, 0.3, 0.12))), Group(near(-0.46, 0.66, 0.0), _pencils(rng))]
    groups.append(Group(near(-0.72, 1.22, 0.0), _lamp()))
    groups.append(Group(near(0.13, 0.6, 0.0), [sphere((0, _TOP + 0.04, 0), (0.04, 0, 0), "plain", (0.4, 0.55, 0.12))]))
    groups.append(Group((0.0, 1.5, 0.0), _wall()))
    return groups


def glass() -> list[Group]:
    """A tall jar and an upright pane, through which a depth camera measures what stands behind them."""
    jar = [cylinder((0, _TOP + 0.13, 0), (0.075, 0.13, 0), "glaze", (1, 1, 1))]
    pane = [box((0, _TOP + 0.16, 0), (0.17, 0.16, 0.004), "glaze", (1, 1, 1))]
    return [Group((0.1, 0.92, 0.0), jar), Group((-0.27, 0.88, 0.35), pane)]


def _desk() -> list[Solid]:
    pale, dark = (0.6, 0.45, 0.3), (0.3, 0.2, 0.13)
    return [box((0, _TOP - 0.015, 0), (0.95, 0.015, 0.45), "wood", pale), *legs(0.9, 0.4, _TOP - 0.03, 0.03, dark)]


def _stack(rng: np.random.Generator) -> list[Solid]:
    """Books on top of one another."""
    solids, height = [], _TOP
    for tint in ((0.5, 0.13, 0.1), (0.14, 0.3, 0.42), (0.7, 0.62, 0.42), (0.16, 0.36, 0.2)):
        thick = float(rng.uniform(0.012, 0.024))
        half = (float(rng.uniform(0.1, 0.13)), thick, float(rng.uniform(0.07, 0.09)))
        solids.append(box((float(rng.uniform(-0.015, 0.015)), height + thick, 0), half, "plain", tint))
        height += 2 * thick
    return solids


def _row(rng: np.random.Generator) -> list[Solid]:
    """Books side by side."""
    solids, edge = [], -0.2
    while edge < 0.2:
        thick, tall = float(rng.uniform(0.01, 0.024)), float(rng.uniform(0.09, 0.14))
        hue = rng.uniform(0, 2 * math.pi)
        red, green, blue = (0.13 + 0.26 * (1 + math.cos(hue + turn)) / 1.6 for turn in (0.0, 2.1, 4.2))
        solids.append(box((edge + thick, _TOP + tall, 0), (thick - 0.001, tall, 0.09), "plain", (red, green, blue)))
        edge += 2 * thick
    return solids


def _notebook() -> list[Solid]:
    pages = [box((x, _TOP + 0.006, 0), (0.074, 0.006, 0.105), "plain", (0.85, 0.83, 0.77)) for x in (-0.076, 0.076)]
    pen = box((0.05, _TOP + 0.017, 0.02), (0.006, 0.005, 0.07), "glaze", (0.1, 0.15, 0.4))
    return [*pages, pen]


def _cup(tint: Triple) -> list[Solid]:
    saucer = cylinder((0, _TOP + 0.006, 0), (0.075, 0.006, 0), "glaze", (0.8, 0.79, 0.75))
    return [saucer, cylinder((0, _TOP + 0.055, 0), (0.042, 0.045, 0), "glaze", tint)]


def _pencils(rng: np.random.Generator) -> list[Solid]:
    pot = cylinder((0, _TOP + 0.05, 0), (0.04, 0.05, 0), "plain", (0.2, 0.21, 0.24))
    tints = ((0.75, 0.55, 0.1), (0.6, 0.12, 0.1), (0.12, 0.4, 0.25), (0.12, 0.2, 0.5))
    places = [(float(rng.uniform(-0.02, 0.02)), float(rng.uniform(-0.02, 0.02))) for _ in tints]
    places_tints = zip(places, tints, strict=True)
    return [pot, *(cylinder((x, _TOP + 0.12, z), (0.005, 0.07, 0), "plain", tint) for (x, z), tint in places_tints)]


def _lamp() -> list[Solid]:
    metal = (0.16, 0.2, 0.2)
    foot = cylinder((0, _TOP + 0.012, 0), (0.09, 0.012, 0), "glaze", metal)
    pole = cylinder((0, _TOP + 0.22, 0), (0.009, 0.22, 0), "glaze", metal)
    return [foot, pole, cylinder((0, _TOP + 0.46, 0), (0.1, 0.07, 0), "fabric", (0.85, 0.72, 0.5))]


def _wall() -> list[Solid]:
    """The wall behind the desk, with a picture."""
    return [
        box((0, 1.5, 0.3), (2.5, 1.5, 0.02), "plain", (0.5, 0.55, 0.55)),
        box((-0.05, 1.38, 0.27), (0.42, 0.28, 0.01), "wood", (0.2, 0.13, 0.08)),
        box((-0.05, 1.38, 0.258), (0.39, 0.25, 0.004), "painting", (1, 1, 1)),
    ]


DESK = Setting(
    "desk",
    low=(-2.0, 0.0, -1.5),
    high=(2.0, 2.6, 2.2),
    material="room",
    eye=(0.06, 1.2, 0.0),
    yaw=math.radians(-4.0),
    pitch=math.radians(-19.0),
    furnish=furnish,
    lights=(
        *(
            Light((-1.9, y, z), (1.0, 0.0, 0.0), (1.1, 1.2, 1.35), True)
            for y, z in ((1.3, 0.3), (1.7, 0.8), (2.0, 0.2))
        ),
        *(Light((x, 2.5, z), (0.0, -1.0, 0.0), (0.9, 0.86, 0.8), False) for x, z in ((0.6, 0.2), (-0.3, 1.0))),
        Light((-0.62, 1.2, 1.15), None, (0.05, 0.036, 0.022), False),
    ),
    glass=glass,
)
