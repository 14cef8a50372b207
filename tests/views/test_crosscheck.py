"""Wrong points that all views share are found by the depth that is known without them."""

from __future__ import annotations

import numpy as np

import leadline
from leadline.geometry.poses import invert_transform, transform_points
from leadline.views.crosscheck import Limits, in_first_half
from support.posed_room import CAMERA, NOISE, Room

ROOM = Room(count=7)
SINGLE = leadline.CompletionOptions(outliers="single")


def tracks(rng: np.random.Generator, wrong: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Points of the room, (n, 3), as the view in the middle sees them, and which of them lie 40 % too far away."""
    view = ROOM.views[3]
    chosen = rng.choice(view.depth.size, 250, replace=False)
    moved = rng.random(chosen.size) < wrong
    depth = np.full(view.depth.shape, np.nan)
    depth.flat[chosen] = view.depth.flat[chosen] * np.where(moved, 1.4, 1.0)
    return transform_points(CAMERA.points(depth).reshape(-1, 3)[chosen], view.pose), moved


def add_tracks(views: leadline.Views, points: np.ndarray, noise: float | None) -> dict[str, np.ndarray]:
    """Add the views with these points as measurements; returns the index of the point at each measured pixel."""
    indices = {}
    for view in ROOM.views:
        seen = transform_points(points, invert_transform(view.pose))
        columns, rows = np.floor(CAMERA.project(seen) + 0.5).astype(int).T
        inside = (columns >= 0) & (columns < CAMERA.width) & (rows >= 0) & (rows < CAMERA.height)
        index, sparse = np.full(view.depth.shape, -1), np.zeros_like(view.depth)
        index[rows[inside], columns[inside]] = np.flatnonzero(inside)
        sparse[rows[inside], columns[inside]] = seen[inside, 2]
        views.add(view.name, view.prior, sparse, CAMERA, view.pose, None if noise is None else noise * sparse)
        indices[view.name] = index
    return indices


def error(found: dict[str, np.ndarray]) -> float:
    return float(np.mean([np.mean(np.abs(found[view.name] / view.depth - 1)) for view in ROOM.views]))


def test_wrong_points_of_all_views_are_left_out(rng):
    points, moved = tracks(rng)
    errors = []
    for options in ("best", SINGLE):
        views = leadline.Views(options)
        indices = add_tracks(views, points, NOISE)
        errors.append(error({name: completion.depth for name, completion in views.complete(1)}))
    passed = np.zeros(len(points), bool)
    seen = passed.copy()
    for name, index in indices.items():
        passed[index.flat[views._points(name).where]] = True
        seen[index[index >= 0]] = True
    assert np.mean(passed[seen & moved]) < 0.3
    assert np.mean(passed[seen & ~moved]) > 0.8
    assert errors[1] < 0.8 * errors[0]


def test_exact_measurements_are_kept_or_reported(rng):
    """As by `complete`: each is kept exactly, or is one of the outliers of the result."""
    points, _ = tracks(rng)
    views = leadline.Views(SINGLE)
    add_tracks(views, points, None)
    alone = {name: completion for name, completion in views.complete(0)}
    for view in ROOM.views[2:5]:
        completion = dict(views.complete(1, only=[view.name]))[view.name]
        sparse = views._views[view.name].load()[1]
        kept = sparse > 0
        kept.flat[completion.outliers.where] = False
        assert kept.sum() > 0.7 * (sparse > 0).sum()
        np.testing.assert_array_equal(completion.depth[kept], sparse[kept])
        assert alone[view.name].outliers is not None


def test_limits_follow_the_distance(rng):
    distance = rng.uniform(1.0, 50.0, 4000)
    deviation = 0.01 * np.sqrt(distance) * np.abs(rng.standard_normal(4000))
    limits = Limits.fit([np.stack((deviation, distance), axis=-1)])
    assert limits is not None
    np.testing.assert_allclose(limits.slope, 0.5, atol=0.06)
    trusted = limits.trusted(np.array([[0.05, 25.0], [0.5, 25.0], [0.05, 1.0], [np.nan, np.nan]]), np.zeros(4))
    assert trusted.tolist() == [True, False, False, True]
    assert limits.trusted(np.array([[0.05, 1.0]]), np.array([0.1])).all()  # within its own noise
    assert Limits.fit([np.ones((10, 2))]) is None


def test_halves_depend_on_the_place_alone(rng):
    points = rng.uniform(-2.0, 2.0, (4000, 3))
    first = in_first_half(points, 0.05)
    order = rng.permutation(4000)
    np.testing.assert_array_equal(in_first_half(points[order], 0.05), first[order])
    assert 0.45 < first.mean() < 0.55
