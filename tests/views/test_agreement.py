"""Where the measurements of a view contradict a neighbour."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.geometry.cameras import Camera
from leadline.views.agreement import Contradictions, agreeing
from leadline.views.evidence import DepthMap, depth_points, from_depth

CAMERA = Camera(64, 48, 60.0, 60.0, 31.5, 23.5)
WALL = np.full((48, 64), 2.0)
MEASURED = np.flatnonzero(np.indices(WALL.shape).sum(axis=0) % 8 == 0)


def surface(depth: np.ndarray) -> np.ndarray:
    return depth_points(DepthMap(depth, CAMERA, np.eye(4)), MEASURED)[0]


def rough(depth: np.ndarray, seed: int) -> np.ndarray:
    return depth * (1 + 0.005 * np.random.default_rng(seed).standard_normal(depth.shape))


@pytest.mark.parametrize(("ratio", "leaves"), [(1.9, False), (2.2, True)])
def test_a_view_that_disagrees_with_all_others_leaves(ratio: float, leaves: bool) -> None:
    """From a smaller ratio on its single pairs exchange nothing."""
    names = [f"view {k}" for k in range(7)]
    neighbours = {name: tuple(other for other in names if other != name) for name in names}

    def discrepancy(one: str, two: str) -> float:
        return 0.01 * (ratio if names[0] in (one, two) and names[1] not in (one, two) else 1.0)

    found = {name: np.array([discrepancy(name, other) for other in others]) for name, others in neighbours.items()}
    chosen = agreeing(neighbours, found)
    assert chosen[names[0]] == (() if leaves else (names[1],))
    assert chosen[names[2]] == (names[1], *names[3:])


def test_an_object_that_has_moved_is_used_nowhere_on_it_and_everywhere_else() -> None:
    """One of three neighbours saw a box where the view measured the wall."""
    box = WALL.copy()
    box[8:24, 8:24] = 1.6
    surfaces = {k: surface(rough(depth, k)) for k, depth in enumerate((WALL, box, WALL))}
    own = DepthMap(WALL, CAMERA, np.eye(4))
    trust = Contradictions(own, MEASURED, surfaces).trust
    pixels = np.arange(WALL.size)
    trusted = {k: trust(pixels, np.full(WALL.size, k)).reshape(WALL.shape) for k in surfaces}
    assert trusted[0].all()
    assert trusted[2].all()
    assert not trusted[1][10:22, 10:22].any()
    assert trusted[1][:, 32:].all()
    assert np.min(from_depth(own, {1: surface(box), 3: surface(box)}).depth) < 1.7
    assert np.min(from_depth(own, surfaces, trust).depth) > 1.9


def test_a_view_without_measurements_contradicts_nothing() -> None:
    nothing = np.empty(0, np.intp)
    trust = Contradictions(DepthMap(WALL, CAMERA, np.eye(4)), nothing, {0: surface(0.8 * WALL)}).trust
    assert trust(np.arange(10), np.zeros(10, np.intp)).all()


def test_where_a_neighbour_contradicts_many_measurements_nothing_of_it_is_used() -> None:
    """Not even at the measurements in between that agree by chance."""
    box = WALL.copy()
    box[4:24, 4:28] = 1.6
    box[4:24, 14:18] = 2.0
    columns = np.indices(WALL.shape)[1]
    measured = MEASURED[(box.flat[MEASURED] < 2) | (columns.flat[MEASURED] >= 40) | (columns.flat[MEASURED] == 16)]
    surfaces = {k: surface(rough(depth, k)) for k, depth in enumerate((WALL, WALL, WALL, box))}
    trust = Contradictions(DepthMap(WALL, CAMERA, np.eye(4)), measured, surfaces).trust
    between = np.flatnonzero((abs(columns - 15.5) < 1) & (abs(np.indices(WALL.shape)[0] - 14) < 6))
    right = np.flatnonzero(columns >= 56)
    assert not trust(between, np.full(between.size, 3)).any()
    assert trust(between, np.zeros(between.size, np.intp)).all()
    assert trust(right, np.full(right.size, 3)).all()
