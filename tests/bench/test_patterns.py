"""Patterns of measurements: what they measure, where they are scored, and that nothing but their seed decides."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.observations import CASES, observe
from leadline.bench.patterns import AZIMUTH_STEP, Measured, Sensor, parse
from leadline.datasets.rendered import render
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import RayCamera

PATTERNS = (
    "distributed",
    "random:200",
    "lidar:16",
    "corners:100",
    "central+holes:0.3",
    "distributed+noise:0.02+outliers:0.05",
)


@lru_cache(maxsize=1)
def room() -> Scene:
    scene = render(160, 120)
    assert scene.reference is not None
    reference = scene.reference.copy()
    reference[20:40, 30:70] = np.nan
    return Scene("room", scene.image, reference, scene.camera)


def measure(pattern: str, scene: Scene | None = None, dataset: str = "d") -> Measured:
    return Sensor(scene or room(), dataset=dataset).measure(pattern)


def count(measured: Measured) -> int:
    return int(np.isfinite(measured.sparse).sum())


@pytest.mark.parametrize("case", CASES)
def test_the_papers_cases_are_those_of_observe(case: str) -> None:
    assert room().reference is not None
    sensor = Sensor(room(), dataset="d", stride=6.5)
    for again in ("distributed", case, case):  # whatever was measured before
        found, expected = sensor.measure(again), observe(room().reference, again, stride=6.5)
        np.testing.assert_array_equal(found.sparse, expected.sparse)
        np.testing.assert_array_equal(found.scored, expected.scored)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_measured_and_scored_are_apart_and_repeatable(pattern: str) -> None:
    first, second = measure(pattern), measure(pattern)
    np.testing.assert_array_equal(first.sparse, second.sparse)
    np.testing.assert_array_equal(first.scored, second.scored)
    assert not (first.scored & np.isfinite(first.sparse)).any()
    assert not (first.scored & np.isnan(room().reference)).any()
    assert count(first) > 0
    assert first.sparse.dtype == np.float32


def test_the_seed_is_data_set_image_and_pattern() -> None:
    base = measure("random:50").sparse
    renamed = Scene("other", room().image, room().reference, room().camera)
    for other in (measure("random:50", dataset="e"), measure("random:50", renamed), measure("random:50+noise:0")):
        assert (np.isfinite(other.sparse) != np.isfinite(base)).any()


def test_random_points_are_exact_and_as_many_as_asked_for() -> None:
    found = measure("random:200")
    assert count(found) == 200
    where = np.isfinite(found.sparse)
    np.testing.assert_array_equal(found.sparse[where], room().reference[where])
    assert count(measure("random:1000000")) == int(np.isfinite(room().reference).sum())


def test_beams_have_constant_elevation_and_curve() -> None:
    camera = room().camera
    assert camera is not None
    flat = Scene("flat", room().image, np.full((120, 160), 2.0, np.float32), camera)
    found = np.isfinite(measure("lidar:5:-15:15", flat).sparse)
    rows, columns = np.nonzero(found)
    x, y = (columns - camera.cx) / camera.fx, (rows - camera.cy) / camera.fy
    elevation = np.degrees(np.arctan2(-y, np.hypot(x, 1)))
    beams = np.array([-15.0, -7.5, 0.0, 7.5, 15.0])
    off = np.abs(elevation[:, None] - beams).min(axis=1)
    half_a_pixel = np.degrees(0.5 / camera.fy)
    assert off.max() <= half_a_pixel * 1.0001
    # A cone about the vertical axis: above the horizon its rows rise towards the sides.
    top = rows[np.abs(elevation - 15) < 2 * half_a_pixel]
    across = columns[np.abs(elevation - 15) < 2 * half_a_pixel]
    assert top[np.abs(across - 80).argmin()] > top[across.argmin()]
    # The horizon is straight, and thinned to the steps of the azimuth where these are wider than a pixel.
    assert len(set(rows[np.abs(elevation) < half_a_pixel])) == 1
    coarse = np.isfinite(measure("lidar:1:-0.1:0.1:5", flat).sparse)
    azimuth = np.degrees(np.arctan((np.nonzero(coarse)[1] - camera.cx) / camera.fx))
    assert np.abs(np.diff(np.sort(azimuth)) - 5).max() < 2 * np.degrees(0.5 / camera.fx)
    assert np.degrees(1 / camera.fx) > AZIMUTH_STEP


def test_beams_work_with_any_camera_and_need_one() -> None:
    camera = room().camera
    assert camera is not None
    rays = camera.points(np.ones((120, 160)))[..., :2].astype(np.float32)
    other = Scene("room", room().image, room().reference, RayCamera(rays))
    assert (np.isfinite(measure("lidar:16").sparse) ^ np.isfinite(measure("lidar:16", other).sparse)).mean() < 1e-3
    with pytest.raises(InputError, match="no camera"):
        measure("lidar:16", Scene("room", room().image, room().reference))


def test_corners_are_at_corners() -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    image[20:40, 30:50] = 200
    scene = Scene("square", image, np.ones((60, 80), np.float32))
    where = np.argwhere(np.isfinite(measure("corners:4", scene).sparse))
    corners = np.array([[20, 30], [20, 49], [39, 30], [39, 49]])
    distance = np.abs(where[:, None] - corners).max(axis=2)
    assert (distance.min(axis=1) <= 3).all()
    assert (distance.min(axis=0) <= 3).all()


def test_noise_is_relative_and_of_its_size() -> None:
    clean, noisy = measure("distributed").sparse, measure("distributed+noise:0.05").sparse
    where = np.isfinite(clean)
    np.testing.assert_array_equal(where, np.isfinite(noisy))
    relative = noisy[where] / clean[where] - 1
    assert 0.04 < relative.std() < 0.06  # of some 330 numbers
    assert abs(relative.mean()) < 0.015


def test_outliers_are_as_many_as_asked_for() -> None:
    clean, spoilt = measure("distributed").sparse, measure("distributed+outliers:0.1").sparse
    where = np.isfinite(clean)
    assert int((clean[where] != spoilt[where]).sum()) == round(0.1 * where.sum())
    assert spoilt[where].min() >= clean[where].min() / 2
    assert spoilt[where].max() <= clean[where].max() * 2


def test_ranges_and_holes_drop_measurements_which_are_then_scored() -> None:
    full = measure("random:2000+range:0:1000")
    near = measure("distributed+range:2:3")
    assert near.sparse[np.isfinite(near.sparse)].min() >= 2
    assert near.sparse[np.isfinite(near.sparse)].max() <= 3
    assert int(near.scored.sum()) + count(near) >= int(np.isfinite(room().reference).sum())
    holed = measure("random:2000+holes:0.4")
    assert 0.3 < 1 - count(holed) / count(full) < 0.75


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "everything",
        "random",
        "random:0",
        "random:1.5",
        "random:nan",
        "distributed:3",
        "noise:0.1",
        "distributed+random:5",
        "distributed+noise",
        "distributed+noise:-1",
        "distributed+outliers:2",
        "distributed+range:3:2",
        "distributed+holes:1",
        "lidar:16:10",
        "lidar:16:15:-15",
        "lidar:16:-15:15:0",
        "corners:x",
        "distributed+",
    ],
)
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="pattern"):
        parse(pattern)


def test_no_reference_is_refused() -> None:
    with pytest.raises(InputError, match="no reference"):
        measure("distributed", Scene("room", room().image))
