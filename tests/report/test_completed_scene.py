"""A completed scene: scores, the completion at an exponent set by hand, and its views."""

from __future__ import annotations

import numpy as np
import pytest

import leadline
from leadline.base.errors import InputError
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.report.completed_scene import CompletedScene, draw_view, error_range

SHAPE = (24, 32)


def make_scene(*, with_reference: bool = True, options: str = "paper", step: int = 4) -> CompletedScene:
    """A scene whose prior is the square root of its depth, except for one half that the prior gets wrong by 5 %."""
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    depth = (2.0 + 0.05 * rows + 0.3 * np.sin(columns / 5)).astype(np.float32)
    prior = np.sqrt(depth * np.where(columns < 16, 1.0, 1.05)).astype(np.float32)
    sparse = np.full(SHAPE, np.nan, np.float32)
    sparse[::step, ::step] = depth[::step, ::step]
    completion = leadline.complete(prior, sparse, options=options)
    image = np.full((*SHAPE, 3), 100, np.uint8)
    camera = Camera.from_view_angle(SHAPE[1], SHAPE[0], 60.0)
    return CompletedScene("scene", image, Prior(prior), sparse, depth if with_reference else None, camera, completion)


def test_scores_cover_the_unmeasured_pixels() -> None:
    scene = make_scene()
    depth = np.where(scene.sparse > 0, 99.0, 1.1 * np.asarray(scene.reference))  # measured pixels must not count
    scores = scene.score(depth, with_normals=True)
    assert scores is not None
    assert scores.absrel == pytest.approx(0.1, rel=1e-5)
    assert scores.pixels == SHAPE[0] * SHAPE[1] - 48
    assert scores.normal_deg is not None
    assert make_scene(with_reference=False).score(depth, with_normals=False) is None


def test_the_fitted_exponent_gives_the_completion_again() -> None:
    scene = make_scene()
    fit = scene.completion.fit
    held = scene.hold_exponent(fit.response.exponent)
    assert held.rmse == pytest.approx(fit.rmse, rel=1e-3)
    assert np.allclose(held.depth, scene.completion.depth, rtol=1e-4)
    other = scene.hold_exponent(-3.0)
    assert other.rmse > held.rmse
    assert other.largest_change > 10 * held.largest_change
    measured = scene.sparse > 0
    assert np.array_equal(other.depth[measured], scene.sparse[measured])  # measurements are kept in any case
    with pytest.raises(InputError, match="between -20 and 20"):
        scene.hold_exponent(float("nan"))


def test_curves_of_one_measurement() -> None:
    curves = make_scene(step=100).curves()
    assert len(curves["pairs"]["prior"]) == 1
    assert list(curves["gains"]) == ["adaptive"]  # other exponents have no response


@pytest.mark.parametrize("with_reference", [True, False])
def test_curves(with_reference: bool) -> None:
    curves = make_scene(with_reference=with_reference).curves()
    assert curves["residual"]["held_out"] is with_reference
    assert (curves["scatter"] is not None) is with_reference
    assert len(curves["pairs"]["prior"]) == len(curves["pairs"]["measured"]) == 48
    profile = curves["profile"]
    assert min(profile["rmse"]) == pytest.approx(profile["rmse"][profile["exponents"].index(round_as_shown(profile))])


def round_as_shown(profile: dict[str, float]) -> float:
    return float(f"{profile['chosen']:.5g}")


def test_views() -> None:
    scene = make_scene()
    views = ("image", "measurements", "prior", "depth", "error", "normals", "depth-other", "error-other")
    other = {"other": np.asarray(scene.reference)}
    pictures = {name: draw_view(scene, name, methods=other) for name in views}
    assert all(picture.shape == (*SHAPE, 3) and picture.dtype == np.uint8 for picture in pictures.values())
    assert not np.array_equal(pictures["error"], pictures["error-other"])
    held = scene.hold_exponent(3.0)
    assert draw_view(scene, "change", held=held, methods={}).shape == (*SHAPE, 3)
    for name in ("change", "uncertainty", "depth-unknown"):
        with pytest.raises(InputError, match="no view"):
            draw_view(scene, name, methods={})
    with pytest.raises(InputError, match="no view 'error'"):
        draw_view(make_scene(with_reference=False), "error", methods={})
    assert np.isnan(error_range(make_scene(with_reference=False)))
