"""Simulated measurements: the paper's grid to the pixel, and the patterns."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.observations import (
    CASES,
    Observations,
    central_rectangle,
    observe,
    parse_pattern,
    simulate,
)
from leadline.bench.patterns.pixels import AZIMUTH_STEP
from leadline.datasets import Scene
from leadline.datasets.rendered import render
from leadline.geometry.cameras import RayCamera

MEAN_RTOL = 1e-6  # a float64 mean stored as float32


ROUNDINGS = {"round": Fraction(1, 2), "floor": Fraction(0), "ceil": Fraction(10**9 - 1, 10**9)}


def observe_by_loops(reference, stride, rounding="round"):
    """The definition in exact arithmetic: cell and anchor of each pixel one by one."""
    height, width = reference.shape
    sparse = np.full(reference.shape, np.nan)

    def axis(size):
        count = max(1, int(Fraction(size) / Fraction(stride) + ROUNDINGS[rounding]))
        pitch = Fraction(size, count)
        members = [[u for u in range(size) if k * pitch <= u + Fraction(1, 2) < (k + 1) * pitch] for k in range(count)]
        return [(pixels, int((k + Fraction(1, 2)) * pitch)) for k, pixels in enumerate(members)]

    for rows, anchor_row in axis(height):
        for columns, anchor_column in axis(width):
            found = [
                reference[y, x] for y in rows for x in columns if np.isfinite(reference[y, x]) and reference[y, x] > 0
            ]
            if found:
                sparse[anchor_row, anchor_column] = np.mean(found)
    return sparse


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    stride=st.sampled_from([1.0, 2.0, 3.25, 7.5, 50.0]),
    rounding=st.sampled_from(sorted(ROUNDINGS)),
    data=st.data(),
)
def test_grid_equals_its_definition(height, width, stride, rounding, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    reference = rng.uniform(0.5, 9.0, (height, width))
    reference[rng.random((height, width)) < 0.4] = rng.choice([np.nan, np.inf, 0.0, -1.0])
    sparse = observe(reference, "distributed", stride=stride, rounding=rounding).sparse
    expected = observe_by_loops(reference, stride, rounding)
    np.testing.assert_allclose(sparse, expected, rtol=MEAN_RTOL)
    kept = observe(reference, "distributed", stride=stride, rounding=rounding, valid_anchors=True).sparse
    known = np.isfinite(reference) & (reference > 0)
    np.testing.assert_allclose(kept, np.where(known, expected, np.nan), rtol=MEAN_RTOL)


def test_other_readings_of_the_grid_are_patterns():
    reference = np.random.default_rng(3).uniform(1, 5, (33, 50)).astype(np.float32)
    reference[:, ::3] = np.nan
    scene = Scene("a", np.zeros((33, 50, 3), np.uint8), reference)
    for case in CASES:
        for pattern, options in (
            (case, {}),
            (f"{case}:floor", {"rounding": "floor"}),
            (f"{case}:ceil", {"rounding": "ceil"}),
            (f"{case}:floor:valid-anchors", {"rounding": "floor", "valid_anchors": True}),
        ):
            found, expected = simulate(scene, pattern, dataset="d"), observe(reference, case, **options)
            np.testing.assert_array_equal(found.sparse, expected.sparse)
            np.testing.assert_array_equal(found.scored, expected.scored & np.isnan(found.sparse))
    counts = [simulate(scene, f"distributed{way}", dataset="d").count for way in (":floor", "", ":ceil")]
    assert counts == [4 * 6, 4 * 7, 5 * 7]
    for wrong in ("distributed:up", "distributed:floor:ceil", "distributed:2", "random:x", "noise:nan"):
        with pytest.raises(InputError, match="must be written like"):
            parse_pattern(wrong if wrong[0] != "n" else f"random:5+{wrong}")


@given(height=st.integers(1, 60), width=st.integers(1, 60))
def test_cases_fit_together(height, width):
    reference = np.random.default_rng([height, width]).uniform(1, 5, (height, width)).astype(np.float32)
    every, central, outer = (observe(reference, case) for case in CASES)
    inside = np.zeros(reference.shape, bool)
    inside[central_rectangle(height, width)] = True
    assert inside.sum() == (height // 2) * (width // 2)
    np.testing.assert_array_equal(central.sparse, np.where(inside, np.nan, every.sparse))
    np.testing.assert_array_equal(outer.sparse, np.where(inside, every.sparse, np.nan))
    np.testing.assert_array_equal(central.scored, inside)
    np.testing.assert_array_equal(outer.scored, ~inside)
    np.testing.assert_array_equal(every.scored, np.isnan(every.sparse))
    for observations in (every, central, outer):
        assert not (observations.scored & np.isfinite(observations.sparse)).any()


def test_sizes_of_the_grid():
    observations = observe(np.ones((480, 640)), "distributed")
    rows, columns = (np.flatnonzero(np.isfinite(observations.sparse).any(axis=axis)) for axis in (1, 0))
    assert (len(rows), len(columns)) == (64, 85)
    assert rows[:4].tolist() == [3, 11, 18, 26]
    assert (columns[0], columns[-1]) == (3, 636)
    assert observations.sparse.dtype == np.float32


def test_cells_of_seven_and_eight_pixels():
    """One axis of 15 pixels has the cells 0..6 and 7..14."""
    ramp = np.arange(1.0, 16.0)[None]
    sparse = observe(ramp, "distributed").sparse[0]
    assert sparse[3] == np.mean(np.arange(1, 8))
    assert sparse[11] == np.mean(np.arange(8, 16))
    assert np.isfinite(sparse).sum() == 2


def test_a_smaller_image_than_a_cell_has_one_anchor_in_its_middle():
    sparse = observe(np.full((3, 3), 2.0), "distributed").sparse
    assert np.argwhere(np.isfinite(sparse)).tolist() == [[1, 1]]


def test_invalid_anchor_pixel_is_measured_but_never_scored():
    reference = np.full((15, 15), 2.0)
    reference[3, 3] = np.nan
    observations = observe(reference, "distributed")
    assert observations.sparse[3, 3] == 2.0
    assert not observations.scored[3, 3]


def test_a_cell_without_reference_gives_no_anchor_and_no_score():
    reference = np.full((15, 15), 2.0)
    reference[:7, :7] = 0.0
    observations = observe(reference, "distributed")
    assert np.isnan(observations.sparse[3, 3])
    assert np.isfinite(observations.sparse).sum() == 3
    assert not observations.scored[:7, :7].any()


@pytest.mark.parametrize(
    ("size", "expected"), [(4, (1, 3)), (5, (1, 3)), (6, (1, 4)), (7, (2, 5)), (960, (240, 720)), (1, (0, 0))]
)
def test_rectangle_of_even_and_odd_sizes(size, expected):
    rows, columns = central_rectangle(size, size)
    assert (rows.start, rows.stop) == (columns.start, columns.stop) == expected


def test_reference_is_left_alone():
    reference = np.random.default_rng(0).uniform(1, 2, (20, 20))
    before = reference.copy()
    observe(reference, "central")
    np.testing.assert_array_equal(reference, before)


@pytest.mark.parametrize(
    ("changes", "named"), [({"case": "middle"}, "case"), ({"stride": 0.5}, "stride"), ({"stride": np.nan}, "stride")]
)
def test_wrong_arguments_are_named(changes, named):
    with pytest.raises(InputError, match=f"`{named}`"):
        observe(np.ones((9, 9)), **{"case": "outer", **changes})


# ---- patterns

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


def measure(pattern: str, scene: Scene | None = None, dataset: str = "d") -> Observations:
    return simulate(scene or room(), pattern, dataset=dataset)


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_simulate_are_those_of_observe(case: str) -> None:
    assert room().reference is not None
    found, expected = simulate(room(), case, dataset="d", stride=6.5), observe(room().reference, case, stride=6.5)
    np.testing.assert_array_equal(found.sparse, expected.sparse)
    np.testing.assert_array_equal(found.scored, expected.scored)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pixel_is_both_measured_and_scored_and_results_repeat(pattern: str) -> None:
    first, second = measure(pattern), measure(pattern)
    np.testing.assert_array_equal(first.sparse, second.sparse)
    np.testing.assert_array_equal(first.scored, second.scored)
    assert not (first.scored & np.isfinite(first.sparse)).any()
    assert not (first.scored & np.isnan(room().reference)).any()
    assert first.count > 0
    assert first.sparse.dtype == np.float32


def test_the_seed_depends_on_data_set_image_and_pattern() -> None:
    base = measure("random:50").sparse
    renamed = Scene("other", room().image, room().reference, room().camera)
    for other in (measure("random:50", dataset="e"), measure("random:50", renamed), measure("random:50+noise:0")):
        assert (np.isfinite(other.sparse) != np.isfinite(base)).any()


def test_random_pixels_have_the_reference_depth_and_the_given_number() -> None:
    found = measure("random:200")
    assert found.count == 200
    where = np.isfinite(found.sparse)
    np.testing.assert_array_equal(found.sparse[where], room().reference[where])
    assert measure("random:1000000").count == int(np.isfinite(room().reference).sum())


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


def test_beams_need_a_camera_of_any_model() -> None:
    camera = room().camera
    assert camera is not None
    rays = camera.points(np.ones((120, 160)))[..., :2].astype(np.float32)
    other = Scene("room", room().image, room().reference, RayCamera(rays))
    assert (np.isfinite(measure("lidar:16").sparse) ^ np.isfinite(measure("lidar:16", other).sparse)).mean() < 1e-3
    with pytest.raises(InputError, match="needs a camera"):
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


def test_noise_is_relative() -> None:
    clean, noisy = measure("distributed").sparse, measure("distributed+noise:0.05").sparse
    where = np.isfinite(clean)
    np.testing.assert_array_equal(where, np.isfinite(noisy))
    relative = noisy[where] / clean[where] - 1
    assert 0.04 < relative.std() < 0.06  # of some 330 numbers
    assert abs(relative.mean()) < 0.015


def test_the_share_of_outliers() -> None:
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
    assert int(near.scored.sum()) + near.count >= int(np.isfinite(room().reference).sum())
    holed = measure("random:2000+holes:0.4")
    assert 0.3 < 1 - holed.count / full.count < 0.75


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "everything",
        "random",
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
        parse_pattern(pattern)


def test_measurements_removed_by_a_fault_are_scored_in_the_removed_region_only() -> None:
    plain, holed = measure("central"), measure("central+holes:0.5")
    assert holed.count < plain.count
    np.testing.assert_array_equal(holed.scored, plain.scored)


def test_no_reference_is_refused() -> None:
    with pytest.raises(InputError, match="no reference"):
        measure("distributed", Scene("room", room().image))
