"""Measurements that contradict their neighbours, and measurements that are only known to so much."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.observations import observe
from leadline.core.neighbours import nearest_others
from leadline.core.noise import MAX_WEIGHT, MIN_WEIGHT, Noise, measurement_weights
from leadline.core.options import CompletionOptions, FitOptions
from leadline.core.outliers import find_isolated
from leadline.core.pipeline import align, complete
from leadline.datasets.rendered import network_like_prior, render
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors.onnx import OnnxPrior
from support.paths import SHARED

REJECT = CompletionOptions.paper(outliers="single")
SHARE = 0.3  # of wrong measurements: what the robust median is meant to survive
# Means over cells that straddle a depth edge are on neither side, and may go: they are off by more than this (in log)
# from the depth of their pixel. Of the others hardly any may.
STRADDLING, LOST = 0.01, 0.01
WITHIN = 1.1  # how much worse than without the wrong measurements a result among them may be
NETWORK, REAL = SHARED / "models" / "tcmonodepth_small.onnx", "nyuv2/unidepth_livingroom"
BUDGET = 25  # iterations of a soft solve, the solver's own for these weights


@pytest.fixture(scope="module")
def room():
    """A rendered room at a size that takes no time: reference, prior and every eighth pixel or so measured."""
    reference = render(200, 150).reference
    prior = network_like_prior(reference)
    return reference, prior, observe(reference, "distributed", stride=5).sparse


def spoil(sparse, rng, share=SHARE):
    """Measurements of which a share is anywhere between half the smallest and twice the largest depth."""
    hit = np.isfinite(sparse) & (rng.random(sparse.shape) < share)
    low, high = np.log(np.nanmin(sparse) / 2), np.log(np.nanmax(sparse) * 2)
    return np.where(hit, np.exp(rng.uniform(low, high, sparse.shape)), sparse).astype(np.float32), hit


def absrel(depth, reference, where):
    return float(np.nanmean(np.abs(depth - reference)[where] / reference[where]))


# Neighbours


@pytest.mark.parametrize("count", [1, 3, 40])
def test_nearest_others_are_the_nearest(rng, count):
    shape = (23, 31)
    where = np.sort(rng.choice(shape[0] * shape[1], 30, replace=False))
    rows, columns = np.divmod(where, shape[1])
    squares = (rows[:, None] - rows) ** 2 + (columns[:, None] - columns) ** 2
    found = nearest_others(where, shape, count)
    assert found.shape == (30, min(count, 29))
    own = np.arange(30)[:, None]
    assert (found != own).all()
    ordered = np.sort(np.where(np.eye(30, dtype=bool), squares.max() + 1, squares), axis=1)
    np.testing.assert_array_equal(squares[own, found], ordered[:, : found.shape[1]])


# Rejection


def test_wrong_measurements_are_found_and_right_ones_kept(room, rng):
    reference, prior, sparse = room
    spoilt, hit = spoil(sparse, rng)
    gross = hit & (np.abs(np.log(spoilt / sparse)) > 0.5)
    result = complete(prior, spoilt, options=REJECT)
    rejected = np.zeros(sparse.shape, bool)
    rejected.flat[result.outliers.where] = True
    assert (rejected & gross).sum() > 0.9 * gross.sum()
    right = np.isfinite(sparse) & ~hit & (np.abs(np.log(sparse / reference)) < STRADDLING)
    assert (rejected & right).sum() < LOST * right.sum()
    assert (np.abs(result.outliers.deviation) > result.outliers.threshold).all()
    assert f"{rejected.sum()} more left out" in str(result)
    assert result.to_dict()["outliers"]["count"] == rejected.sum()
    assert result.fit.count == np.isfinite(sparse).sum() - rejected.sum()

    scored = np.isfinite(reference) & ~np.isfinite(sparse)
    without = complete(prior, np.where(hit, np.nan, sparse), options="paper")  # the outliers are known
    ours, oracle, plain = (
        absrel(r.depth, reference, scored) for r in (result, without, complete(prior, spoilt, options="paper"))
    )
    assert ours < WITHIN * oracle
    assert ours < 0.2 * plain
    kept = np.isfinite(sparse) & ~rejected
    np.testing.assert_array_equal(result.depth[kept], spoilt[kept])
    assert (result.depth[rejected] != spoilt[rejected]).all()


def test_a_wrong_measurement_on_a_slope_is_found():
    """Neighbours on a steep slope scatter around their median by more than the error, but not around a plane."""
    where = np.flatnonzero((np.indices((80, 80)) % 4 == 2).all(axis=0))
    rows, columns = np.divmod(where, 80)
    residuals = 0.02 * rows + 0.03 * columns + 0.003 * np.sin(where)
    residuals[150] += 0.5
    outliers = find_isolated(residuals, where, (80, 80))
    assert outliers.where.tolist() == [where[150]]
    assert outliers.deviation == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["anywhere", "far", "near"])
def test_the_map_among_wrong_measurements_is_that_without(room, rng, kind):
    reference, prior, sparse = room
    check_map(reference, prior, sparse, kind, rng)


@pytest.mark.skipif(not NETWORK.is_file(), reason=f"needs the scenes and the network in {SHARED}, which are not there")
@pytest.mark.parametrize("kind", ["anywhere", "far", "near"])
def test_and_so_it_is_on_a_real_photograph(rng, kind):
    pytest.importorskip("onnxruntime", reason="the network runs in onnxruntime")
    scene = SceneFolders(SHARED / "data").load(REAL)
    prior = OnnxPrior(NETWORK, threads=1)(scene.image)
    check_map(scene.reference, prior, observe(scene.reference, "distributed").sparse, kind, rng)


def check_map(reference, prior, sparse, kind, rng):
    """With rejection the calibrated map stays within WITHIN of the clean one's error; that of squares does not."""
    spoilt, hit = spoil(sparse, rng)
    if kind != "anywhere":
        factor = rng.uniform(1.5, 4.0, sparse.shape) ** (1 if kind == "far" else -1)
        spoilt = np.where(hit, sparse * factor, sparse).astype(np.float32)
    scored = np.isfinite(reference) & ~np.isfinite(sparse)

    def error(measured, loss, outliers="keep"):
        options = CompletionOptions.paper(fit=FitOptions.paper(residual="log", loss=loss), outliers=outliers)
        return absrel(align(prior, measured, options=options).calibrated, reference, scored)

    assert error(spoilt, "cauchy", outliers="single") < WITHIN * error(sparse, "cauchy")
    if kind != "anywhere":
        assert error(spoilt, "squared") > WITHIN * error(sparse, "squared")


def test_nothing_is_left_out_unasked(room, rng):
    _, prior, sparse = room
    spoilt, _ = spoil(sparse, rng)
    result = complete(prior, spoilt)
    assert result.outliers is None
    assert result.sigma is None
    assert CompletionOptions.paper().outliers == CompletionOptions.best().outliers == "keep"
    np.testing.assert_array_equal(result.depth[np.isfinite(spoilt)], spoilt[np.isfinite(spoilt)])


def test_rounding_of_exact_measurements_is_no_outlier():
    """A response fits these measurements up to the resolution of float32, whose errors have no typical size."""
    row, column = np.indices((120, 160))
    prior = (2 + np.sin(column / 40) + np.cos(row / 30)).astype(np.float32)
    sparse = (1.3 * prior**1.1).astype(np.float32)
    assert complete(prior, sparse, options=REJECT).outliers.where.size == 0


def test_a_surface_the_prior_gets_wrong_is_kept():
    """A box that the prior does not see at all: its residuals disagree with those around it, but not alone."""
    where = np.arange(0, 6400, 4)[np.arange(1600) % 20 < 20]
    rows, columns = np.divmod(where, 80)
    residuals = np.where((abs(rows - 40) < 12) & (abs(columns - 40) < 12), 0.4, 0.0) + 0.003 * np.sin(where)
    outliers = find_isolated(residuals, where, (80, 80))
    assert outliers.where.size == 0


def test_what_is_within_its_own_noise_is_kept():
    where = np.arange(0, 6400, 64)
    residuals = np.where(np.arange(100) == 40, 0.5, 0.001 * np.sin(np.arange(100)))
    for sigma, kept in ((0.01, 99), (0.2, 100)):
        assert find_isolated(residuals, where, (80, 80), np.full(100, sigma)).where.size == 100 - kept


@pytest.mark.parametrize("count", [0, 1, 2, 23])
def test_too_few_to_outvote_one(count, rng):
    residuals = np.zeros(count)
    residuals[:1] = 3.0
    outliers = find_isolated(residuals, np.arange(count) * 7, (20, 20))
    assert outliers.where.size == 0
    sparse = np.zeros((20, 20))
    sparse.flat[np.arange(count) * 7] = 2.0
    assert complete(1 + rng.random((20, 20)), sparse, options=REJECT).outliers.where.size == 0


# Soft measurements


def test_without_noise_every_measurement_is_exact_and_zero_noise_is_the_same(room):
    _, prior, sparse = room
    plain, zero = complete(prior, sparse), complete(prior, sparse, noise=np.float32(0.0))
    measured = np.isfinite(sparse)
    for result in (plain, zero):
        np.testing.assert_array_equal(result.depth[measured], sparse[measured])


def test_noise_is_smoothed_away(room, rng):
    reference, prior, sparse = room
    noisy = (sparse * (1 + 0.1 * rng.standard_normal(sparse.shape))).astype(np.float32)
    scored = np.isfinite(reference) & ~np.isfinite(sparse)
    hard, soft = complete(prior, noisy), complete(prior, noisy, noise=Noise(proportional=0.1))
    assert absrel(soft.depth, reference, scored) < 0.8 * absrel(hard.depth, reference, scored)
    measured = np.isfinite(sparse)
    off = np.log(soft.depth / noisy)[measured]
    assert 0.02 < off.std() < 0.2  # passes them by, and no farther than they are uncertain
    assert soft.reconstruction.converged
    assert soft.reconstruction.iterations <= BUDGET


def test_where_noise_is_zero_a_measurement_is_kept_bit_for_bit(room):
    _, prior, sparse = room
    chart = np.where(np.arange(sparse.shape[1]) < 100, 0.0, 0.2) + np.zeros(sparse.shape)
    result = complete(prior, sparse, noise=chart)
    exact, soft = np.isfinite(sparse) & (chart == 0), np.isfinite(sparse) & (chart > 0)
    np.testing.assert_array_equal(result.depth[exact], sparse[exact])
    assert (result.depth[soft] != sparse[soft]).mean() > 0.9


def test_little_noise_tends_to_none(room):
    _, prior, sparse = room
    hard, soft = (complete(prior, sparse, noise=noise, options="paper") for noise in (None, 1e-5))
    np.testing.assert_allclose(soft.depth, hard.depth, rtol=3e-3)


def test_precision_scales_with_variances(rng):
    where = np.sort(rng.choice(100 * 100, 400, replace=False))
    residuals, sigma = rng.normal(0, 0.1, 400), np.where(where % 2, 0.01, 0.02)
    c = measurement_weights(residuals, sigma, where, (100, 100), 1e-3)
    np.testing.assert_allclose(c[where % 2 == 1][0] / c[where % 2 == 0][0], 4.0)
    np.testing.assert_allclose(measurement_weights(3 * residuals, 3 * sigma, where, (100, 100), 1e-3), c)
    assert ((c >= MIN_WEIGHT) & (c <= MAX_WEIGHT)).all()
    # Residuals that are nothing but noise are averaged, residuals far beyond it followed.
    pure = measurement_weights(rng.normal(0, 0.1, 400), np.full(400, 0.1), where, (100, 100), 1e-3)
    assert pure.max() < 1 < c.min()
    assert np.isinf(measurement_weights(residuals[:4], sigma[:4], where[:4], (100, 100), 1e-3)).all()


@pytest.mark.parametrize("noise", [-0.1, "little", np.inf, np.full((2, 2), 0.1)], ids=str)
def test_noise_that_cannot_be_is_refused(room, noise):
    _, prior, sparse = room
    with pytest.raises(InputError, match="noise"):
        complete(prior, sparse, noise=noise)
