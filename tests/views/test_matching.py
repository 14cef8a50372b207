"""Points that the pictures of views measure by being matched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import map_coordinates
from scipy.spatial.transform import Rotation

import leadline
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import invert_transform
from leadline.views import matching, pictures
from support.textured_room import CAMERA, TexturedView, textured_views

VIEWS = textured_views()


def opened(views: Sequence[TexturedView], with_pictures: bool = True, store: Path | None = None) -> leadline.Views:
    result = leadline.Views(store=store)
    for view in views:
        image = view.image if with_pictures else None
        result.add(view.name, view.prior, view.sparse, CAMERA, view.pose, 0.01 * view.sparse, image=image)
    return result


def error(views: Sequence[TexturedView], completed: leadline.Views, rounds: int = 1) -> float:
    found = {name: completion.depth for name, completion in completed.complete(rounds)}
    return float(np.mean([np.mean(np.abs(found[view.name] / view.depth - 1)) for view in views]))


def verified(completed: leadline.Views, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixel, depth and relative standard deviation of the verified matches of a view."""
    chosen = completed._store.get("verified", name, "verified")
    where, depth, relative = (
        completed._store.get("matches", name, part)[chosen] for part in ("where", "depth", "relative")
    )
    return where, depth, relative


def correlate_slowly(picture, other, rows, columns, planes, matrix, shift, scales):
    """What the kernel computes, from its definition; bilinear interpolation by SciPy."""
    offsets = np.arange(-matching.HALF, matching.HALF + 1, matching.SPACING)
    y, x = (part.ravel() for part in np.meshgrid(offsets, offsets, indexing="ij"))
    result = np.full((rows.size, scales.size), np.nan)
    for i in range(rows.size):
        patch = picture[rows[i] + y, columns[i] + x].astype(float)
        for h, scale in enumerate(scales):
            inverse = scale * (planes[i, 0] + planes[i, 1] * x + planes[i, 2] * y)
            pixels = np.stack((columns[i] + x, rows[i] + y, np.ones(x.size)))
            u, v, w = matrix @ pixels + shift[:, None] * inverse
            u, v = u / w, v / w
            height, width = other.shape
            if not ((u >= 0) & (v >= 0) & (u < width - 1) & (v < height - 1)).all():
                continue
            seen = map_coordinates(other.astype(float), (v, u), order=1)
            variances = [np.var(values) + matching.GREY_NOISE**2 for values in (patch, seen)]
            result[i, h] = np.mean((patch - patch.mean()) * (seen - seen.mean())) / np.sqrt(np.prod(variances))
    return result


def test_kernel_equals_its_definition() -> None:
    first, second = VIEWS[2], VIEWS[4]
    depth = first.depth.astype(np.float64)
    rows, columns = (part[::40] for part in matching.textured_places(first.image, depth))
    planes = matching.inverse_depth_planes(depth)[rows, columns]
    scales = np.exp(0.05 * np.arange(-5, 6))
    matrix, shift = matching.plane_homography(CAMERA, CAMERA, invert_transform(second.pose) @ first.pose)
    arguments = (first.image, second.image, rows, columns, planes, matrix, shift, scales)
    result = np.empty((rows.size, scales.size), np.float32)
    matching.correlate[rows.size](*arguments, result)
    expected = correlate_slowly(*arguments)
    assert np.isfinite(expected).any()
    assert np.isnan(expected).any()
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert np.median(result[:, 5][np.isfinite(result[:, 5])]) > 0.9  # at the true depth


def test_matches_are_right_and_lower_the_error() -> None:
    completed = opened(VIEWS)
    with_pictures = error(VIEWS, completed)
    deviations, stated = [], []
    for view in VIEWS:
        where, depth, relative = verified(completed, view.name)
        deviations.append(np.log(depth / view.depth.flat[where]))
        stated.append(relative)
    deviation, relative = np.concatenate(deviations), np.concatenate(stated)
    assert deviation.size > 200 * len(VIEWS)
    assert np.median(np.abs(deviation)) < 0.005
    assert np.mean(np.abs(deviation) < 0.03) > 0.95
    # The patches are not planes at edges, which the stated deviation does not contain, so the middle half is compared.
    assert 0.3 < np.median(np.abs(deviation)) / (0.6745 * np.median(relative)) < 3.0
    assert with_pictures < 0.5 * error(VIEWS, opened(VIEWS, with_pictures=False))


def test_wrong_pose_gives_no_matches_and_does_not_spread() -> None:
    wrong = np.eye(4)
    wrong[:3, :3] = Rotation.from_euler("xz", (3.0, 3.0), degrees=True).as_matrix()
    wrong[:3, 3] = 0.05, 0.05, 0.0
    views = [view.with_pose(view.pose @ wrong) if k == 3 else view for k, view in enumerate(VIEWS)]
    completed = opened(views)
    found = {name: completion.depth for name, completion in completed.complete(1)}
    assert verified(completed, "view-3")[0].size < 0.1 * verified(completed, "view-2")[0].size
    for view in views:
        alone = np.mean(np.abs(completed.alone(view.name) / view.depth - 1))
        assert np.mean(np.abs(found[view.name] / view.depth - 1)) < 1.05 * alone


def test_moved_object_does_no_harm() -> None:
    views = textured_views(5, box_moves=True)
    assert error(views, opened(views)) < 0.7 * error(views, opened(views, with_pictures=False))


def test_pictures_without_texture_change_nothing() -> None:
    flat = [TexturedView(v.name, np.full_like(v.image, 90), v.depth, v.prior, v.sparse, v.pose) for v in VIEWS[:4]]
    results = [dict(opened(flat, with_pictures).complete(1)) for with_pictures in (True, False)]
    for name, completion in results[0].items():
        np.testing.assert_array_equal(completion.depth, results[1][name].depth)


def test_killed_run_does_not_match_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name: completion.depth for name, completion in opened(VIEWS[:4]).complete(1)}
    opened(VIEWS[:4], store=tmp_path / "maps").advance(1)
    monkeypatch.setattr(matching, "correlate", None)
    for name, completion in opened(VIEWS[:4], store=tmp_path / "maps").complete(1):
        np.testing.assert_array_equal(completion.depth, expected[name])


def test_pictures_of_a_lens_are_straight_and_small(rng: np.random.Generator) -> None:
    lens = ColmapCamera("SIMPLE_RADIAL", 1600, 1200, (1400.0, 800.0, 600.0, -0.1))
    pinhole = pictures.pinhole_camera(lens)
    assert pinhole.width * pinhole.height <= 1.01 * pictures.MAX_PIXELS
    # A picture whose grey value is the horizontal angle of the ray.
    rays = lens.points(np.ones((1200, 1600)))[..., 0]
    straight = pictures.straighten((128.0 + 200.0 * rays).astype(np.float32), lens).astype(float)
    expected = 128.0 + 200.0 * pinhole.points(np.ones(straight.shape))[..., 0]
    inner = straight > pictures.UNSEEN
    assert inner.mean() > 0.9
    assert np.abs(straight - expected)[inner].max() < 1.5
    small = Camera(64, 48, 60.0, 60.0, 31.5, 23.5)
    grey = rng.uniform(1, 255, (48, 64)).astype(np.float32)
    np.testing.assert_array_equal(pictures.straighten(grey, small), np.rint(grey))


def test_bad_pictures_are_refused(tmp_path: Path) -> None:
    Image.fromarray(VIEWS[0].image[:100]).save(tmp_path / "small.png")
    cases = [
        (tmp_path / "small.png", r".image. must have the shape \(144, 192\) of the view's .camera."),
        (lambda: VIEWS[0].image.astype(np.int32), ".image. must hold unsigned integers"),
    ]
    for image, message in cases:
        views = opened(VIEWS[1:3])
        views.add("bad", VIEWS[0].prior, VIEWS[0].sparse, CAMERA, VIEWS[0].pose, 0.01, image=image)
        with pytest.raises(leadline.InputError, match=message):
            next(views.complete(1))
