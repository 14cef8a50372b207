"""The interpolators against public code, plain loops and exact cases, and on inputs that say little."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.core.prior import Prior
from leadline.methods import MethodResult, method
from leadline.methods.classical import bilateral_solver, integration
from leadline.methods.classical.bilateral_solver import bilateral_grid, solve_grid
from leadline.methods.classical.fields import align_prior, nearest_values
from leadline.methods.classical.kriging import fit_variogram

NEED_IMAGE = ("joint-bilateral", "guided-filter", "bilateral-solver", "colourisation")
NO_IMAGE = ("delaunay", "natural-neighbour", "kriging")
QUANTITIES = (*NO_IMAGE, *NEED_IMAGE)  # those that interpolate depth or residual
ALL = (*QUANTITIES, "ip-basic", "integrator")
EXACT = ("delaunay", "natural-neighbour", "kriging", "colourisation")  # measurements are kept

OUTPUT_RTOL = 1e-6  # float32 output of float64 arithmetic
PUBLISHED_RTOL = 1e-5  # six printed digits, float32 in OpenCV, and solves to a tolerance of 1e-6


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The small problem on which the public code was run: prior, measurements and image."""
    rows, columns = np.indices((16, 24)).astype(float)
    relative = 1.5 + 0.05 * rows + 0.4 * np.sin(0.3 * columns) + (columns > 13)
    sparse = np.full(relative.shape, np.nan)
    for k in range(12):
        i, j = (5 * k + 3) % 16, (7 * k + 2) % 24
        sparse[i, j] = 2 * relative[i, j] ** 1.2 * (1 + 0.02 * np.cos(k))
    red = (8 * rows + 3 * columns) % 200 + 20 * (columns > 13)
    green, blue = (5 * rows + 9 * columns) % 150, (11 * rows * columns) % 90 + 60
    return relative, sparse, np.stack((red, green, blue), axis=-1).astype(np.uint8)


def run(name: str, relative: np.ndarray, sparse: np.ndarray, image: np.ndarray, **options) -> MethodResult:
    if name in NEED_IMAGE:
        options["image"] = image
    return method(name)(Prior(relative), sparse, **options)


PLACES = ((0, 0), (3, 7), (8, 13), (8, 14), (12, 20))


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        # kujason/ip_basic at b6e6ce9 with OpenCV 5.0.
        ("ip-basic", {}, (4.3398, 4.59721, 4.33474, 4.21114, 6.48315)),
        ("ip-basic", {"blur": "bilateral"}, (4.33979, 4.59819, 4.32503, 4.21657, 6.64358)),
        ("ip-basic", {"fill": "multiscale"}, (4.15567, 4.84286, 4.84294, 4.84391, 6.67469)),
        ("ip-basic", {"fill": "multiscale", "blur": "bilateral"}, (4.08746, 4.84285, 4.84285, 4.84285, 6.68175)),
        # The port of NYU's toolbox in ialhashim/DenseDepth at 2e15107.
        ("colourisation", {}, (4.373226, 4.954879, 5.46639, 5.57632, 6.30241)),
        # DepthGradOptimLayer of princeton-vl/OMNI-DC at cc1a037, three resolutions, solved to 1e-10.
        ("integrator", {"alignment": "none"}, (3.46449, 4.643356, 3.80344, 5.98011, 7.051402)),
    ],
)
def test_agrees_with_the_public_code(name, options, published):
    depth = run(name, *problem(), **options).depth
    np.testing.assert_allclose([depth[at] for at in PLACES], published, rtol=PUBLISHED_RTOL)


def test_bilateral_solver_agrees_with_the_public_notebook():
    """poolio/bilateral_solver at 4b6ef7e, solved to 1e-12; every pixel has some confidence, as its start requires."""
    _, sparse, image = problem()
    known = np.isfinite(sparse)
    target = nearest_values(np.nan_to_num(sparse), known).ravel()
    vertex, blur = bilateral_grid(image.astype(float), 8.0, 32.0, 32.0)
    assert vertex.max() + 1 == 71
    start = np.bincount(vertex, target) / np.bincount(vertex)
    confidence = np.where(known, 1.0, 1e-3).ravel()
    values, _, converged = solve_grid(vertex, blur, target, confidence, 0.5, start)
    found = values[vertex].reshape(sparse.shape)
    assert converged
    published = (4.657324, 4.884468, 4.87041, 4.87041, 6.333093)
    np.testing.assert_allclose([found[at] for at in PLACES], published, rtol=PUBLISHED_RTOL)


@pytest.mark.parametrize("name", ["bilateral-solver", "integrator"])
def test_a_solver_that_stops_early_says_so(name, monkeypatch):
    relative, sparse, image = problem()
    monkeypatch.setattr(bilateral_solver, "MOST_STEPS", 1)
    if name == "integrator":  # its compiled loop has the constant; an unreachable tolerance shows the same
        monkeypatch.setattr(integration, "TOLERANCE", 0.0)
    result = run(name, relative, sparse, image)
    assert result.converged is False
    assert result.status == "ok, but the solver stopped at its limit of steps"


@pytest.mark.parametrize("name", ["delaunay", "natural-neighbour"])
def test_a_plane_is_reproduced_between_the_measurements(name):
    rows, columns = np.indices((21, 31)).astype(float)
    plane = 2.0 + 0.03 * rows + 0.05 * columns
    sparse = np.where((rows % 5 == 0) & (columns % 5 == 0), plane, np.nan)
    result = method(name)(Prior(np.ones(plane.shape)), sparse)
    # The cells of natural neighbours have whole pixels, which is coarse here, and are cut off at the border.
    inner, rtol = (np.s_[:], OUTPUT_RTOL) if name == "delaunay" else (np.s_[5:-5, 5:-5], 0.02)
    np.testing.assert_allclose(result.depth[inner], plane[inner], rtol=rtol)
    assert result.status == "ok"


def test_natural_neighbours_by_loops():
    _, sparse, _ = problem()
    points = np.argwhere(np.isfinite(sparse))
    pixels = list(np.ndindex(*sparse.shape))
    reach = [((points - at) ** 2).sum(axis=1).min() for at in pixels]
    # Of several nearest measurements SciPy's transform takes one; the choice is left to it.
    field = nearest_values(np.nan_to_num(sparse), np.isfinite(sparse))
    expected = np.empty(sparse.shape)
    for i, j in pixels:
        inside = [(v - i) ** 2 + (u - j) ** 2 <= square for (v, u), square in zip(pixels, reach, strict=True)]
        expected[i, j] = np.mean(field.ravel()[inside])
    expected[np.isfinite(sparse)] = sparse[np.isfinite(sparse)]
    result = method("natural-neighbour")(Prior(np.ones(sparse.shape)), sparse)
    np.testing.assert_allclose(result.depth, expected, rtol=OUTPUT_RTOL)


def test_delaunay_outside_its_triangles():
    sparse = np.full((5, 9), np.nan)
    sparse[1, 1], sparse[1, 7], sparse[4, 4] = 1.0, 3.0, 2.0
    prior = Prior(np.ones(sparse.shape))
    none = method("delaunay")(prior, sparse, outside="none")
    assert np.isnan(none.depth[0]).all()
    assert none.status == f"ok, but {np.isnan(none.depth).sum()} of 45 pixels have no depth"
    nearest = method("delaunay")(prior, sparse)
    assert nearest.depth[0, 0] == 1.0
    assert nearest.depth[0, 8] == 3.0
    line = np.where(np.arange(45).reshape(5, 9) % 9 == 2, 2.0, np.nan)
    assert "nearest measurement is used" in method("delaunay")(prior, line).status


def test_joint_bilateral_by_loops():
    relative, sparse, image = problem()
    points = np.argwhere(np.isfinite(sparse))
    colours = image / 255.0
    sigma = 0.5 * math.sqrt(sparse.size / len(points))
    expected = np.empty(sparse.shape)
    for at in np.ndindex(*sparse.shape):
        squares = ((points - at) ** 2).sum(axis=1)
        differences = np.array([((colours[at] - colours[tuple(point)]) ** 2).sum() for point in points])
        exponents = -squares / (2 * sigma**2) - differences / (2 * 0.1**2)
        weights = np.exp(exponents - exponents.max())
        expected[at] = (weights * sparse[points[:, 0], points[:, 1]]).sum() / weights.sum()
    result = run("joint-bilateral", relative, sparse, image)  # all 12 measurements are among the 24 nearest
    np.testing.assert_allclose(result.depth, expected, rtol=OUTPUT_RTOL)


def test_guided_filter_is_exact_where_depth_is_a_line_in_the_guide():
    relative, sparse, image = problem()
    grey = image / 255.0 @ [0.2989, 0.5870, 0.1140]
    for guide, steering in (("image", grey), ("prior", relative)):
        truth = 1.0 + 2.0 * steering
        found = run(
            "guided-filter",
            relative,
            np.where(np.isfinite(sparse), truth, 0.0),
            image,
            guide=guide,
            regularisation=1e-12,
        )
        np.testing.assert_allclose(found.depth, truth, rtol=1e-4)


def test_kriging_is_the_prediction_of_a_gaussian_process():
    """With all measurements as neighbours, ordinary kriging by one dense system."""
    relative, sparse, _ = problem()
    result = method("kriging")(Prior(relative), sparse)
    known = np.isfinite(sparse)
    aligned = align_prior(relative, np.nan_to_num(sparse), known)
    points, values = np.argwhere(known).astype(float), np.log(sparse[known] / aligned[known])
    sill, nugget, length = (result.parameters[key] for key in ("sill", "nugget", "length"))
    distances = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    ratio = max(nugget / sill, 1e-6)
    system = np.ones((len(points) + 1, len(points) + 1))
    system[:-1, :-1] = np.exp(-distances / length) + ratio * np.eye(len(points))
    system[-1, -1] = 0.0
    for at in PLACES:
        right = np.append(np.exp(-np.hypot(*(points - at).T) / length), 1.0)
        weights = np.linalg.solve(system, right)[:-1]
        assert result.depth[at] == pytest.approx(aligned[at] * math.exp(weights @ values), rel=1e-5)


def test_variogram_of_a_known_process_is_found():
    rng = np.random.default_rng(3)
    points = rng.uniform(0, 300, (900, 2))
    distances = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    covariance = 4.0 * np.exp(-distances / 15.0) + 0.5 * np.eye(900)
    values = np.linalg.cholesky(covariance) @ rng.standard_normal(900)
    nugget, sill, length = fit_variogram(points, values, math.hypot(300, 300))
    # One realisation of some 400 correlated areas: a third of each parameter is its sampling error.
    assert nugget == pytest.approx(0.5, abs=0.5)
    assert sill == pytest.approx(4.0, rel=0.35)
    assert length == pytest.approx(15.0, rel=0.5)


def integrator_by_least_squares(logs: np.ndarray, sparse: np.ndarray, weight: float) -> np.ndarray:
    """The minimiser over the pixels with a prior, which must all be connected, by a dense least squares."""
    valid = np.isfinite(logs)
    number = np.full(logs.shape, -1)
    number[valid] = np.arange(valid.sum())
    rows, right = [], []
    for size in (1, 2, 4):
        cells = {}
        for i in range(math.ceil(logs.shape[0] / size)):
            for j in range(math.ceil(logs.shape[1] / size)):
                block = np.s_[i * size : (i + 1) * size, j * size : (j + 1) * size]
                if valid[block].any():
                    row = np.zeros(valid.sum())
                    row[number[block][valid[block]]] = 1.0 / valid[block].sum()
                    cells[i, j] = row
        for (i, j), row in cells.items():
            for other in ((i + 1, j), (i, j + 1)):
                if other in cells:
                    rows.append(cells[other] - row)
                    right.append(np.clip(rows[-1] @ logs[valid], -1.0, 1.0))
    for at in np.argwhere(np.isfinite(sparse) & valid):
        row = np.zeros(valid.sum())
        row[number[tuple(at)]] = math.sqrt(weight)
        rows.append(row)
        right.append(math.sqrt(weight) * math.log(sparse[tuple(at)]))
    out = np.full(logs.shape, np.nan)
    out[valid] = np.exp(np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0])
    return out


def test_integrator_is_the_minimiser_with_holes_and_a_ragged_border():
    relative, sparse, _ = problem()
    relative, sparse = relative[:15, :23], sparse[:15, :23]
    relative[5:9, 9:14] = np.nan
    relative[2:4, 2:4] = np.nan  # one whole cell of the second resolution
    relative[14, 20:] *= 20.0  # differences that are clipped
    result = method("integrator")(Prior(relative), sparse, alignment="none", weight=2.0)
    expected = integrator_by_least_squares(np.log(relative), sparse, 2.0)
    np.testing.assert_allclose(result.depth, expected, rtol=1e-4)  # a solve to a relative residual of 1e-6
    assert result.status == "ok"
    assert result.converged is True


def test_integrator_solves_large_images_from_a_coarser_start():
    rows, columns = np.indices((70, 90)).astype(float)
    relative = 1.0 + 0.01 * rows + 0.3 * np.sin(columns / 9)
    truth = 1.0 / (0.6 / relative + 0.1)  # the alignment in disparity is exact, and nothing is left to integrate
    sparse = np.where((rows % 23 == 3) & (columns % 29 == 5), truth, np.nan)
    result = method("integrator")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, truth, rtol=1e-5)


@pytest.mark.parametrize("name", QUANTITIES)
def test_residual_is_zero_where_a_line_in_disparity_is_exact(name):
    relative, sparse, image = problem()
    truth = 1.0 / (0.6 / relative + 0.1)
    found = run(name, relative, np.where(np.isfinite(sparse), truth, np.nan), image, quantity="residual")
    np.testing.assert_allclose(found.depth, truth, rtol=1e-5)


@pytest.mark.parametrize("name", QUANTITIES)
def test_depth_alone_needs_no_prior(name):
    relative, sparse, image = problem()
    once = run(name, relative, sparse, image, quantity="depth").depth
    other = run(name, np.full(relative.shape, np.nan), sparse, image, quantity="depth").depth
    np.testing.assert_array_equal(once, other)
    assert np.isfinite(once).all()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("quantity", ["depth", "residual"])
def test_measurements_are_kept(name, quantity):
    relative, sparse, image = problem()
    sparse = sparse.astype(np.float32)
    known = np.isfinite(sparse)
    depth = run(name, relative, sparse, image, quantity=quantity).depth
    np.testing.assert_array_equal(depth[known], sparse[known])


@pytest.mark.parametrize("name", ALL)
def test_no_measurement_is_a_failed_result(name):
    relative, _, image = problem()
    result = run(name, relative, np.zeros(relative.shape), image)
    assert result.failed
    assert result.status == "failed: no usable measurement"
    assert np.isnan(result.depth).all()
    assert result.depth.dtype == np.float32


@pytest.mark.parametrize("name", [name for name in ALL if name != "ip-basic"])
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_measurements_still_give_depth(name, count):
    relative, _, image = problem()
    sparse = np.zeros(relative.shape)
    sparse[4, 5] = 3.0
    if count == 2:
        sparse[11, 20] = 5.0
    result = run(name, relative, sparse, image)
    assert not result.failed
    assert np.isfinite(result.depth).all()
    assert (result.depth > 0).all()


@pytest.mark.parametrize("name", ALL)
def test_result_repeats_and_arguments_are_unchanged(name):
    relative, sparse, image = problem()
    before = relative.copy(), sparse.copy(), image.copy()
    first, second = (run(name, relative, sparse, image) for _ in range(2))
    np.testing.assert_array_equal(first.depth, second.depth)
    for array, copy in zip((relative, sparse, image), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("name", [name for name in ALL if name != "ip-basic"])
def test_result_does_not_depend_on_the_unit_of_depth(name):
    # IP-Basic has metres in its constants.
    relative, sparse, image = problem()
    once, scaled = (run(name, relative, by * sparse, image).depth for by in (1.0, 1000.0))
    np.testing.assert_allclose(scaled, 1000.0 * once, rtol=2e-5)


def test_ip_basic_leaves_out_what_it_cannot_use_and_reach():
    sparse = np.full((40, 90), np.nan)
    sparse[20, 10] = 4.0
    sparse[5, 60], sparse[30, 80] = 150.0, 0.05  # beyond max_depth, and nearer than what counts as empty
    result = method("ip-basic")(Prior(np.ones(sparse.shape)), sparse)
    assert np.isnan(result.depth[:, 40:]).all()
    assert result.depth[20, 10] == pytest.approx(4.0)
    assert result.status == f"ok, but {np.isnan(result.depth).sum()} of 3600 pixels have no depth"
    assert method("ip-basic")(Prior(np.ones(sparse.shape)), np.where(sparse == 4, np.nan, sparse)).failed


def test_alignment_falls_back_where_a_line_in_disparity_has_no_depth():
    relative = np.array([[1.0, 2.0, 4.0, 100.0]])
    known = np.array([[True, True, True, False]])
    exact = align_prior(relative, np.array([[2.0, 4.0, 8.0, 0.0]]), known)
    np.testing.assert_allclose(exact, 2.0 * relative)
    # The line 1/s = 1.2 / h - 0.1 is negative at h = 100; in log depth the result is positive everywhere.
    bent = align_prior(relative, 1.0 / (1.2 / relative - 0.1), known)
    assert (bent > 0).all()
    assert (np.diff(bent) > 0).all()
    turned = align_prior(relative, np.array([[4.0, 2.0, 1.0, 0.0]]), known)  # a scale: the median of s / h is 1
    np.testing.assert_allclose(turned, relative)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("delaunay", {"quantity": "disparity"}, "`quantity` must be one of depth, residual"),
        ("delaunay", {"outside": "zero"}, "`outside` must be one of"),
        ("ip-basic", {"fill": "slow"}, "`fill` must be one of"),
        ("ip-basic", {"max_depth": 0.0}, "`max_depth` must be a positive number"),
        ("joint-bilateral", {"neighbours": 0}, "`neighbours` must be a positive integer"),
        ("kriging", {"neighbours": 2.5}, "`neighbours` must be a positive integer"),
        ("guided-filter", {"guide": "depth"}, "`guide` must be one of"),
        ("bilateral-solver", {"strength": -1.0}, "`strength` must be a positive number"),
        ("colourisation", {"weight": 0.0}, "`weight` must be a positive number"),
        ("integrator", {"resolutions": 0}, "`resolutions` must be an integer from 1 to 8"),
        ("integrator", {"alignment": "depth"}, "`alignment` must be one of"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(InputError, match=message):
        run(name, *problem(), **options)


@pytest.mark.parametrize("name", NEED_IMAGE)
def test_image_must_have_the_shape_of_the_prior(name):
    relative, sparse, image = problem()
    with pytest.raises(InputError, match=r"`image` must have the prior's shape \(16, 24\), got \(16, 20\)"):
        run(name, relative, sparse, image[:, :20])
