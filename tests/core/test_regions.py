"""Regions whose measurements are wrong together: rendered, made up on real scenes, and real glass."""

from __future__ import annotations

import json
import zlib
from functools import cache, partial

import numpy as np
import pytest
from PIL import Image

from leadline.bench.sources import blend_with_reference
from leadline.core.inputs import check_inputs
from leadline.core.options import CompletionOptions
from leadline.core.outliers import MAX_PRIOR_ERROR, RegionReason
from leadline.core.pipeline import align, complete, remove_outliers
from leadline.core.prior import Prior
from leadline.core.regions import borders, find_regions
from leadline.core.stream import Stream
from leadline.datasets.rendered import network_like_prior, render
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors.onnx import OnnxPrior
from support.paths import SHARED

REGIONS = CompletionOptions(outliers="regions")
PANE = np.s_[150:260, 200:330]  # a part of the rendered room
DATA, NETWORK = SHARED / "data", SHARED / "models" / "tcmonodepth_small.onnx"
SECOND_NETWORK = SHARED / "models" / "fastdepth_7.onnx"
real = pytest.mark.skipif(
    not (DATA.is_dir() and NETWORK.is_file()), reason=f"needs the scenes and the network in {SHARED}, which are absent"
)


@pytest.fixture(scope="module")
def room():
    """A rendered room, a good prior of it, and every eighth pixel measured."""
    reference = render(480, 360).reference
    prior = blend_with_reference(Prior(network_like_prior(reference)), reference, 0.9)
    sparse = np.full_like(reference, np.nan)
    sparse[4::8, 4::8] = reference[4::8, 4::8]
    return reference, prior, sparse


def behind_glass(sparse, factor=1.3):
    glass = np.zeros(sparse.shape, np.bool_)
    glass[PANE] = True
    return np.where(glass, factor * sparse, sparse).astype(np.float32), glass & np.isfinite(sparse)


def absrel(depth, reference, where=None):
    error = np.abs(depth - reference) / reference
    return float(np.nanmean(error if where is None else error[where]))


def left_out(result):
    mask = np.zeros(result.depth.shape, np.bool_)
    mask.flat[result.outliers.where] = True
    return mask


def test_a_pane_of_glass_is_left_out_and_nothing_else(room):
    reference, prior, sparse = room
    seen, glass = behind_glass(sparse)
    result = complete(prior, seen, options=REGIONS)
    np.testing.assert_array_equal(left_out(result), glass)
    (region,) = result.outliers.regions
    assert region.count == glass.sum()
    assert region.deviation == pytest.approx(np.log(1.3), abs=0.02)
    assert region.reason is RegionReason.PRIOR_CONTINUES
    assert (region.rows, region.columns) == ((156, 252), (204, 324))
    assert (result.outliers.region == 1).all()
    assert (result.outliers.deviation > result.outliers.threshold).all()
    known = complete(prior, np.where(glass, np.nan, seen))
    np.testing.assert_array_equal(result.depth, known.depth)
    assert absrel(result.depth, reference) < 0.1 * absrel(complete(prior, seen).depth, reference)


def test_the_result_states_what_was_left_out(room):
    _, prior, sparse = room
    seen, glass = behind_glass(sparse)
    result = complete(prior, seen, options=REGIONS)
    assert f"{glass.sum()} more left out as outliers" in str(result)
    assert f"region {glass.sum()} measurements, on average 30 % too far" in str(result)
    recorded = json.loads(json.dumps(result.to_dict()))["outliers"]
    assert recorded["count"] == glass.sum()
    assert recorded["where"] == []
    (region,) = recorded["regions"]
    assert (region["count"], region["reason"]) == (glass.sum(), "prior_continues")
    assert "region none found" in str(complete(prior, sparse, options=REGIONS))


def test_single_outliers_have_no_region(room):
    _, prior, sparse = room
    spoilt = sparse.copy()
    spoilt[100, 100] *= 3
    result = complete(prior, spoilt, options=CompletionOptions(outliers="single"))
    assert 100 * sparse.shape[1] + 100 in result.outliers.where
    assert not result.outliers.region.any()
    assert result.outliers.regions == ()
    assert "region" not in str(result)


def test_a_single_outlier_is_not_a_region(room):
    _, prior, sparse = room
    spoilt = sparse.copy()
    spoilt[100, 100] *= 3
    assert complete(prior, spoilt, options=REGIONS).outliers.where.size == 0


@pytest.mark.parametrize("pattern", ["dense", "random"])
def test_other_patterns(room, pattern, rng):
    reference, prior, _ = room
    sparse = reference if pattern == "dense" else np.where(rng.random(reference.shape) < 0.01, reference, np.nan)
    seen, glass = behind_glass(sparse)
    found = left_out(complete(prior, seen, options=REGIONS))
    assert found[glass].mean() > 0.99
    assert (found & ~glass).sum() <= 0.02 * glass.sum()


def test_a_weak_prior_leaves_nothing_out(room, rng):
    _, _, sparse = room
    seen, _ = behind_glass(sparse)
    rows, columns = np.indices(sparse.shape)
    bumps = np.exp(0.3 * np.sin(rows / 17) * np.sin(columns / 23))
    prior = render(480, 360).reference * bumps
    result = complete(prior, seen, options=REGIONS)
    assert result.outliers.where.size == 0
    assert result.outliers.prior_error > MAX_PRIOR_ERROR
    assert "it cannot judge measurements" in str(result)
    np.testing.assert_array_equal(result.depth, complete(prior, seen).depth)


def test_a_region_that_is_too_near_is_kept(room):
    _, prior, sparse = room
    seen, _ = behind_glass(sparse, factor=0.8)
    assert complete(prior, seen, options=REGIONS).outliers.where.size == 0


def test_few_measurements_are_all_kept(room, rng):
    _, prior, sparse = room
    few = np.where(rng.random(sparse.shape) < 60 / np.isfinite(sparse).sum(), sparse, np.nan)
    outliers = complete(prior, few, options=REGIONS).outliers
    assert outliers.where.size == 0
    assert outliers.prior_error is None


def test_an_edge_of_the_prior_explains_a_deviation(rng):
    """What lies behind an edge deviates by as much as a region would, and the prior has its edge in the same place."""
    rows, columns = np.mgrid[4:480:8, 4:640:8]
    strip = (rows > 330) & (rows < 430) & (columns > 200) & (columns < 400)
    ripple = 0.01 * np.sin(rows / 40) * np.sin(columns / 50)
    residuals = np.where(strip, 0.08, ripple)
    where = (rows * 640 + columns).ravel()
    flat = np.log(2 + rows / 480)
    far = (rows < 200) & (
        columns > 400
    )  # more of the image has the strip's depth, so that the response is not at fault
    edge = np.where(strip | far, flat.max() + 1.5 + 1e-3 * rng.random(rows.shape), flat)
    assert find_regions(residuals.ravel(), flat.ravel(), where, (480, 640)).where.size == strip.sum()
    assert find_regions(residuals.ravel(), edge.ravel(), where, (480, 640)).where.size == 0
    beyond_doubt = np.where(strip, 0.25, ripple)
    found = find_regions(beyond_doubt.ravel(), edge.ravel(), where, (480, 640))
    assert found.where.size == strip.sum()
    assert found.regions[0].reason is RegionReason.FAR_BEHIND


@pytest.mark.parametrize("top", [300, 381])  # the second strip ends at the image border
def test_what_the_image_border_cuts_off_needs_more_evidence(top):
    """Beyond the image border the surface is not seen to go on, and an error of the prior looks the same."""
    rows, columns = np.mgrid[4:480:8, 4:640:8]
    strip = (rows > top) & (rows < top + 100) & (columns > 200) & (columns < 400)
    ripple = 0.01 * np.sin(rows / 40) * np.sin(columns / 50)
    seen = np.log(2 + 0.001 * columns / 640)
    edge = seen - 0.05 * strip  # the prior has an object where the measurements continue, as with glass

    def count(deviation, log_t):
        g = np.where(strip, deviation, ripple)
        return find_regions(g.ravel(), log_t.ravel(), (rows * 640 + columns).ravel(), (480, 640)).where.size

    at_border = top == 381
    assert count(0.05, seen) == (0 if at_border else strip.sum())
    assert count(0.05, edge) == (0 if at_border else strip.sum())
    assert count(0.1, seen) == strip.sum()
    assert count(0.1, edge - 0.05 * strip) == (0 if at_border else strip.sum())
    assert count(0.2, edge - 0.15 * strip) == strip.sum()


def test_a_plane_behind_a_pane_with_an_object_in_front_is_one_region():
    """Between object and wall the deviation changes much, but the measurements are one plane."""
    rows, columns = np.mgrid[4:480:8, 4:640:8]
    pane = (rows > 150) & (rows < 300) & (columns > 200) & (columns < 400)
    log_t = np.where((columns > 300) & (rows > 100), np.log(2.0), np.log(3.0)) + 1e-3 * rows / 480
    residuals = np.where(pane, np.log(3.4) - log_t, 0.002 * np.sin(rows / 40) * np.sin(columns / 50))
    found = find_regions(residuals.ravel(), log_t.ravel(), (rows * 640 + columns).ravel(), (480, 640))
    assert len(found.regions) == 1
    np.testing.assert_array_equal(found.where, (rows * 640 + columns)[pane])


def test_a_measured_surface_belongs_to_the_region_of_most_of_it():
    """The plane behind a pane lies only 3 % behind a wall, less than the prior's error, and 40 % behind an object."""
    rows, columns = np.mgrid[0:240, 0:320]
    pane = (rows > 60) & (rows < 170) & (columns > 97) & (columns < 204)
    log_t = np.where((columns < 170) & (rows > 30), np.log(2.0), np.log(2.9)) + 1e-4 * rows
    ripple = 0.03 * np.sin(rows / 40) * np.sin(columns / 50)
    log_s = np.where(pane, np.log(2.9) + 0.03 + 2e-4 * rows, log_t + ripple)
    log_s[pane & (rows < 66) & (columns > 197)] = np.nan  # a hole in the corner, so that the surface has a border there
    measured = np.flatnonzero(np.isfinite(log_s))
    find = partial(find_regions, where=measured, shape=rows.shape)
    found = find((log_s - log_t).flat[measured], log_t.flat[measured])
    np.testing.assert_array_equal(found.where, np.intersect1d(measured, np.flatnonzero(pane)))
    behind_the_wall = pane.flat[found.where] & (log_t.flat[found.where] > 1)
    assert np.isneginf(found.threshold[behind_the_wall]).any()
    assert np.isfinite(found.threshold[~behind_the_wall]).all()


def test_a_narrow_passage_does_not_join_two_surfaces():
    log_s = np.zeros((40, 60))
    log_s[:, 30:] = 0.1
    log_s[20:26] = np.linspace(0, 0.1, 60)  # a slope of six rows between the two
    surfaces = borders.measured_surfaces(log_s, np.zeros_like(log_s))
    assert not np.isin(surfaces[:, 0], surfaces[:, -1]).any()
    log_s[10:30] = np.linspace(0, 0.1, 60)
    surfaces = borders.measured_surfaces(log_s, np.zeros_like(log_s))
    assert surfaces[20, 0] == surfaces[20, -1] > 0


def test_what_lies_far_behind_in_a_corner_needs_a_jump_along_the_border_that_is_seen():
    """All around the pane there is no measurement, except along a part of its lower side."""
    rows, columns = np.mgrid[4:480:8, 4:640:8]
    pane = (rows < 160) & (columns < 200)
    seen = ((rows > 200) | (columns > 240)) | pane | ((rows < 200) & (columns < 40))
    g = np.where(pane, 0.3, 0.002 * np.sin(rows / 40) * np.sin(columns / 50))
    for log_t, count in ((np.full(rows.shape, 1.0), (pane & seen).sum()), (1.0 - 0.3 * pane, 0)):
        given = g[seen], log_t[seen], (rows * 640 + columns)[seen]
        assert find_regions(*given, (480, 640)).where.size == count


def test_streams_and_align_take_the_policy(room):
    _, prior, sparse = room
    seen, glass = behind_glass(sparse)
    stream = Stream(REGIONS)
    first = stream(prior, seen)
    np.testing.assert_array_equal(first.depth, complete(prior, seen, options=REGIONS).depth)
    assert stream(prior, sparse).outliers.where.size == 0
    assert left_out(stream(prior, seen))[glass].all()
    known = align(prior, np.where(glass, np.nan, seen)).calibrated
    np.testing.assert_array_equal(align(prior, seen, options=REGIONS).calibrated, known)


def test_measurements_at_a_border_are_judged_one_by_one():
    """A plane behind a pane meets the surface at its upper side: the border is found to the pixel all the same."""
    rows, columns = np.mgrid[0:240, 0:320]
    pane = (rows > 60) & (rows < 170) & (columns > 97) & (columns < 204)
    residuals = np.where(pane, 0.03 + 0.003 * (rows - 60), 0.002 * np.sin(rows / 9 + columns / 7))
    found = find_regions(residuals.ravel(), np.log(2 + rows / 240).ravel(), np.arange(rows.size), rows.shape)
    np.testing.assert_array_equal(found.where, np.flatnonzero(pane))


# Real scenes


@cache
def scene(name):
    """Reference and priors of a scene: the network's, and nine tenths of the way from it to the reference."""
    loaded = SceneFolders(DATA).load(name)
    weak = OnnxPrior(NETWORK, threads=1)(loaded.image)
    return loaded.reference, weak, Prior(blend_with_reference(weak, loaded.reference, 0.9))


@real
def test_real_glass():
    name = "cleargrasp_d435/real_val_123"
    reference, weak, strong = scene(name)
    folders = SceneFolders(DATA)
    inside = np.asarray(Image.open(DATA / name / folders.describe(name)["regions"][0]["file"]).convert("L")) > 0
    sparse = np.full_like(reference, np.nan)
    sparse[::8, ::8] = next(iter(folders.load(name).sparse.values())).values[::8, ::8]
    by_hand = complete(strong, np.where(inside, np.nan, sparse)).depth
    kept, found = complete(strong, sparse).depth, complete(strong, sparse, options=REGIONS).depth
    assert absrel(found, reference, inside) < 1.3 * absrel(by_hand, reference, inside)
    assert absrel(found, reference, inside) < 0.4 * absrel(kept, reference, inside)
    assert absrel(found, reference, ~inside) < 1.01 * absrel(kept, reference, ~inside)
    assert complete(weak, sparse, options=REGIONS).outliers.where.size == 0


@real
@pytest.mark.parametrize("name", ["7scenes_seq/frame000700", "ibims1/lectureroom_range40"])
def test_a_second_network_leaves_nothing_out(name):
    """Its error over the floor is larger than elsewhere on the image, and reaches the image border."""
    loaded = SceneFolders(DATA).load(name)
    prior = Prior(blend_with_reference(OnnxPrior(SECOND_NETWORK, threads=1)(loaded.image), loaded.reference, 0.7))
    sparse = np.full_like(loaded.reference, np.nan)
    sparse[4::8, 4::8] = loaded.reference[4::8, 4::8]
    outliers = remove_outliers(check_inputs(prior, sparse).pairs, "regions")[1]
    assert outliers.prior_error < MAX_PRIOR_ERROR
    assert outliers.where.size == 0


@real
@pytest.mark.parametrize("name", ["7scenes_seq/frame000000", "7scenes_seq/frame000100"])  # the first two by name
def test_made_up_regions_on_real_scenes(name):
    reference, weak, strong = scene(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    depth, mask = reference.copy(), np.zeros(reference.shape, np.bool_)
    for _ in range(2):
        row, column = (rng.integers(0, size - 60) for size in reference.shape)
        part = np.s_[row : row + 60, column : column + 60]
        depth[part], mask[part] = reference[part] * rng.uniform(1.15, 1.4), True
    sparse = np.full_like(depth, np.nan)
    sparse[4::8, 4::8] = depth[4::8, 4::8]
    known = complete(strong, np.where(mask, np.nan, sparse)).depth
    result = complete(strong, sparse, options=REGIONS)
    assert absrel(result.depth, reference) < 1.15 * absrel(known, reference)
    clean = np.where(np.isfinite(sparse), reference, np.nan)
    for prior, measured in ((weak, sparse), (weak, clean), (strong, clean)):
        assert complete(prior, measured, options=REGIONS).outliers.where.size == 0


@real
def test_a_window_is_found_beside_a_floor_on_which_the_prior_errs_a_little():
    """Its plane meets the floor, over which the region grows; it is confirmed by the measurements far behind alone."""
    reference, _, strong = scene("7scenes_seq/frame000700")
    depth, window = reference.copy(), np.s_[256:336, 384:484]
    depth[window] = np.nanmax(reference[window])
    mask, sparse = np.zeros(depth.shape, np.bool_), np.full_like(depth, np.nan)
    mask[window], sparse[4::8, 4::8] = True, depth[4::8, 4::8]
    where = remove_outliers(check_inputs(strong, sparse).pairs, "regions")[1].where
    assert mask.flat[where].all()
    assert where.size > 0.8 * np.isfinite(sparse[mask]).sum()
