"""The compiled scores against their plain twins in `metrics`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.compiled_metrics import Scorer
from leadline.bench.metrics import DepthScores, Missing, NormalScores, depth_scores, normal_scores
from leadline.geometry.cameras import Camera, RayCamera

SUMS = 1e-11  # relative: the same float64 terms, added in another order
DEGREES = 1e-6  # the twin's unit normals round at 1e-16 and its atan2 at small angles magnifies that


def maps(seed: int, height: int, width: int, holes: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    reference = (2 + 0.05 * rows + 0.03 * columns + 0.02 * rng.standard_normal((height, width))).astype(np.float32)
    prediction = (reference * np.exp(0.3 * rng.standard_normal((height, width)))).astype(np.float32)
    bad = np.array([np.nan, np.inf, 0.0, -1.0], np.float32)
    for values in (reference, prediction):
        where = rng.random((height, width)) < holes
        values[where] = rng.choice(bad, int(where.sum()))
    return prediction, reference, rng.random((height, width)) < 0.8


@given(st.integers(0, 2**32 - 1), st.integers(1, 24), st.integers(1, 24), st.sampled_from([0.0, 0.1, 0.9, 1.0]))
def test_both_give_the_same_scores(seed: int, height: int, width: int, holes: float) -> None:
    prediction, reference, mask = maps(seed, height, width, holes)
    camera = Camera(width, height, 0.9 * width, 0.8 * width, width / 2, height / 3)
    scorer = Scorer(reference, camera)
    for missing in get_args(Missing):
        found = scorer.depth(prediction, mask, missing=missing)
        same_depth(found, depth_scores(prediction, reference, mask, missing=missing))
    same_normals(scorer.normals(prediction, mask), normal_scores(prediction, reference, camera, mask))


def same_depth(found: DepthScores, expected: DepthScores) -> None:
    assert (found.support, found.missing) == (expected.support, expected.missing)
    for name in {field.name for field in fields(DepthScores)} - {"support", "missing"}:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=SUMS, nan_ok=True)


def same_normals(found: NormalScores, expected: NormalScores) -> None:
    assert found.support == expected.support
    assert found.mean_deg == pytest.approx(expected.mean_deg, abs=DEGREES, nan_ok=True)
    assert found.median_deg == pytest.approx(expected.median_deg, abs=DEGREES, nan_ok=True)


def test_a_camera_of_rays_scores_like_the_pinhole_it_was_made_from() -> None:
    prediction, reference, mask = maps(3, 40, 50, 0.05)
    camera = Camera(50, 40, 45.0, 44.0, 24.0, 20.0)
    rays = RayCamera(camera.points(np.ones((40, 50)))[..., :2].astype(np.float32))
    found, expected = (Scorer(reference, model).normals(prediction, mask) for model in (rays, camera))
    assert found.support == expected.support
    assert found.mean_deg == pytest.approx(expected.mean_deg, abs=1e-3)  # rays are float32
    same_normals(found, normal_scores(prediction, reference, rays, mask))


def test_a_plane_turned_by_a_known_angle() -> None:
    camera = Camera(41, 31, 40.0, 40.0, 20.0, 15.0)
    x = (np.arange(41) - camera.cx) / camera.fx
    front = np.full((31, 41), 2.0, np.float32)
    for angle in (0.0, 1e-3, 10.0, 44.9, 45.1, 60.0):
        turned = np.tile(2 / (1 + math.tan(math.radians(angle)) * x), (31, 1)).astype(np.float64)
        found = Scorer(front, camera).normals(turned, np.ones((31, 41), bool))
        assert found.support == 29 * 39
        # The prediction is rounded to float32, which turns a small patch by some 1e-7 / its size.
        assert found.median_deg == pytest.approx(angle, abs=2e-3)


def test_no_camera_or_no_inner_pixel_is_a_failure_not_a_number() -> None:
    for scorer in (Scorer(np.ones((5, 6)), None), Scorer(np.ones((2, 9)), Camera(9, 2, 9.0, 9.0, 4.0, 1.0))):
        found = scorer.normals(scorer.reference, np.ones(scorer.reference.shape, bool))
        assert found.failed
        assert math.isnan(found.mean_deg)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="camera"):
        Scorer(np.ones((5, 6)), Camera(5, 6, 9.0, 9.0, 4.0, 1.0))
    with pytest.raises(InputError, match="prediction"):
        Scorer(np.ones((5, 6)), None).depth(np.ones((6, 5), np.float32), np.ones((5, 6), bool))
