"""The sampling of other projects, pinned to numbers that their own code gave, and stored measurements as a case."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from leadline.base.errors import InputError
from leadline.bench.observations import parse_pattern, simulate
from leadline.bench.patterns.published import torch_permutation
from leadline.datasets import Scene, SparseInput
from leadline.datasets.completion.sweeps import remove_behind, thin_lines
from leadline.datasets.scene_folders import SceneFolders
from leadline.geometry.cameras import Camera
from support.paths import DATA as SHARED

HEIGHT, WIDTH = 60, 80
ROWS, COLUMNS = np.indices((HEIGHT, WIDTH))
BILINEAR = 1e-5  # relative: the float32 positions of torch are off by up to 4e-6 pixels, at slopes of up to 8 m a pixel


def made_scene() -> Scene:
    """A scene from whole numbers, so that the original code can be given the same one."""
    depth = (1 + ((7 * ROWS + 13 * COLUMNS) % 50) / 10).astype(np.float32)
    depth[(3 * ROWS + 5 * COLUMNS) % 4 == 0] = np.nan
    image = np.repeat((((ROWS * 17) ^ (COLUMNS * 29)) % 256).astype(np.uint8)[..., None], 3, axis=2)
    return Scene("a", image, depth, Camera(WIDTH, HEIGHT, 70.0, 71.0, 39.5, 29.5))


def digest(mask: np.ndarray) -> str:
    return hashlib.sha256(np.packbits(mask)).hexdigest()[:16]


# Number of measurements and digest of the mask. Obtained from deterministic_select_k_true of Marigold-DC (77fa032) and
# from get_sparse_depth of OMNI-DC (cc1a037) after torch.manual_seed and numpy.random.seed of the same seed, 43 unless
# the pattern names another; "randperm" is its match_density=False, which NLSPN and PriorDA share.
ORIGINAL = {
    "marigold:100": (100, "a851bec4d97a7639"),
    "omni:300": (225, "cb8602a2c7c6db42"),
    "randperm:300": (300, "c186157dd9fb7408"),
    "omni:10:7": (8, "eb5b06f5e18fbe83"),
    "omni-lidar:8": (336, "0bc1a303cf90e315"),
    "omni-lidar:64": (3123, "0247fc0eca6fddf0"),
    "omni:300+omni-noise:0.1": (225, "cb8602a2c7c6db42"),
}


@pytest.mark.parametrize("pattern", ORIGINAL)
def test_sampling_equals_that_of_the_original_code(pattern):
    scene = made_scene()
    found = simulate(scene, pattern, dataset="any")
    measured = np.isfinite(found.sparse)
    assert (found.count, digest(measured)) == ORIGINAL[pattern]
    assert np.isfinite(scene.reference[measured]).all()
    if "noise" not in pattern:
        assert_array_equal(found.sparse[measured], scene.reference[measured])
    # Their seeds do not depend on the name of the data set or image, as our own patterns' do.
    assert_array_equal(simulate(scene, pattern, dataset="other").sparse, found.sparse)


def test_noise_equals_that_of_the_original_code():
    scene = made_scene()
    noisy = simulate(scene, "omni:300+omni-noise:0.1", dataset="any").sparse
    exact = np.nan_to_num(simulate(scene, "omni:300", dataset="any").sparse)
    values = np.nan_to_num(noisy)
    assert (values != exact).sum() == 24  # of 225, replaced with a probability of 0.1
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()[:16] == "6c8a9c17f48a81ed"


def test_key_points_equal_those_of_the_original_code():
    cv2 = pytest.importorskip("cv2", reason="needs the extra 'opencv'")
    if cv2.__version__.split(".")[0] != "5":
        pytest.skip("the numbers are those of OpenCV 5; other versions detect other points")
    scene = made_scene()
    for pattern, expected in (
        ("keypoints:sift", (31, "aa34c4b3ce6cb43b")),
        ("keypoints:orb", (750, "04c05334fe498254")),
    ):
        found = simulate(scene, pattern, dataset="any")
        assert (found.count, digest(np.isfinite(found.sparse))) == expected
    blank = Scene("b", np.zeros((HEIGHT, WIDTH, 3), np.uint8), scene.reference)
    fallback = simulate(blank, "keypoints:sift", dataset="any").sparse
    assert_array_equal(fallback, simulate(blank, "omni:1000", dataset="any").sparse)


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_permutation_equals_that_of_torch(count):
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    for seed in (0, 43, 2**31):
        torch.manual_seed(seed)
        expected = torch.randperm(count).numpy()
        assert_array_equal(torch_permutation(count, seed, count), expected)
        assert_array_equal(torch_permutation(count, seed, min(3, count)), expected[:3])
    assert torch_permutation(0, 43, 0).size == 0


# ---- sweeps

# Numbers and digests by sample_lidar_lines of OMNI-DC and by filter_heuristic_depth(nx=7, ny=7, th=1.5) of Marigold-DC.
SYNTHETIC_LINES = {32: (310, "f8ecb213d46e8428"), 16: (155, "96f8f379e8953d9d"), 8: (82, "63f9b2a37af412d5")}
SYNTHETIC_BEHIND = (199, "16705c0329d104b9")
REAL = {
    "kitti_dc/ttaz_ex4_cyclist": {
        **{64: (20132, "16e8c07e230ac62e"), 32: (10269, "fa2f16a2b9c195f3"), 16: (5164, "cb254709ecb504b5")},
        **{8: (2472, "15c53cecfdbfcb76"), 4: (1249, "146cfb23302f9103"), "behind": (18475, "516ed949a131194c")},
    },
    "kitti_dc/2011_09_26_drive_0001_f005_cam02": {
        **{64: (19154, "8e78ebe27805fd42"), 32: (9534, "53881e706168638e"), 16: (4658, "a58ebd670d7f1491")},
        **{8: (2204, "5bf3d046fa6454a8"), 4: (1056, "d25a82eb401a632b"), "behind": (17518, "82d68201aae9d65f")},
    },
}


def count_and_digest(sparse: np.ndarray) -> tuple[int, str]:
    measured = np.isfinite(sparse)
    return int(measured.sum()), digest(measured)


def test_made_sweep_is_thinned_and_filtered_as_by_the_original_code():
    scene = made_scene()
    sweep = np.full((HEIGHT, WIDTH), np.nan, np.float32)
    sweep[::3, ::2] = scene.reference[::3, ::2]
    for lines, expected in SYNTHETIC_LINES.items():
        assert count_and_digest(thin_lines(sweep, scene.camera, lines)) == expected
    assert count_and_digest(remove_behind(sweep)) == SYNTHETIC_BEHIND
    stored = Scene("a", scene.image, scene.reference, scene.camera, {"lidar": SparseInput(sweep)})
    assert count_and_digest(simulate(stored, "stored+lines:16", dataset="d").sparse) == SYNTHETIC_LINES[16]
    assert count_and_digest(simulate(stored, "stored:lidar+behind", dataset="d").sparse) == SYNTHETIC_BEHIND


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real scenes in ../shared/data are not here")
@pytest.mark.parametrize("name", REAL)
def test_real_sweeps_are_thinned_and_filtered_as_by_the_original_code(name):
    scene = SceneFolders(SHARED).load(name)
    for key, expected in REAL[name].items():
        pattern = "stored:lidar+behind:7:1.5" if key == "behind" else f"stored:lidar+lines:{key}"
        found = simulate(scene, pattern, dataset="any")
        assert count_and_digest(found.sparse) == expected


# ---- stored measurements


def test_stored_measurements_are_a_case():
    scene = made_scene()
    first, small = np.full((HEIGHT, WIDTH), np.nan, np.float32), np.full((6, 8), np.nan, np.float32)
    first[4, 5], first[0, 1], small[2, 3] = 2.5, 3.5, 7.0
    two = Scene("a", scene.image, scene.reference, None, {"150": SparseInput(first), "low": SparseInput(small)})
    found = simulate(two, "stored:150", dataset="d")
    assert_array_equal(found.sparse, first)
    known = np.isfinite(scene.reference)
    assert_array_equal(found.region, known)
    assert_array_equal(found.scored, known & np.isnan(first))
    low = simulate(two, "stored:low+range:1:9", dataset="d").sparse
    assert np.argwhere(np.isfinite(low)).tolist() == [[25, 35]]  # the pixel that covers the centre of (2, 3)
    one = Scene("a", scene.image, scene.reference, None, {"150": SparseInput(first)})
    assert_array_equal(simulate(one, "stored", dataset="d").sparse, first)
    with pytest.raises(InputError, match=r"needs a label .* it has 150, low"):
        simulate(two, "stored", dataset="d")
    with pytest.raises(InputError, match="has no stored measurements '500'; it has 150, low"):
        simulate(two, "stored:500", dataset="d")
    with pytest.raises(InputError, match="it has none"):
        simulate(scene, "stored", dataset="d")
    with pytest.raises(InputError, match="must be written like stored"):
        parse_pattern("stored:")
    with pytest.raises(InputError, match="needs a pinhole camera"):
        simulate(two, "stored:150+lines:8", dataset="d")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real scenes in ../shared/data are not here")
def test_real_scenes_have_stored_cases():
    """Every real scene with measurements and a reference gives a case, whatever the size of its sensor."""
    data, seen = SceneFolders(SHARED), 0
    for name in ("rgb_d_d/sample2_rgbdd_toy", "zju_l5/cafe1_1645168915", "ibims1/atrium_plants"):
        scene = data.load(name)
        for label, stored in scene.sparse.items():
            found = simulate(scene, f"stored:{label}", dataset="scenes")
            assert found.count == int(np.isfinite(stored.values).sum())
            assert not (found.scored & np.isfinite(found.sparse)).any()
            seen += 1
    assert seen == 4


# ---- PriorDA's areas


def test_areas_equal_those_of_the_original_code():
    """From get_sparse_depth of PriorDA (8c029cb): "downscale_8", and "cubic_20" with its square at our place.

    That of the original is not seeded.
    """
    low, square = (simulate(made_scene(), pattern, dataset="d") for pattern in ("lowres:8", "square:20"))
    assert (low.count, digest(np.isfinite(low.sparse))) == (50, "2d4ba810f2ebaca3")
    assert_allclose(np.nansum(low.sparse), 170.26668, rtol=BILINEAR)  # metres
    assert (square.count, digest(np.isfinite(square.sparse))) == (3300, "f26ea0d7f9b5d655")


def test_low_resolution_is_reduced_as_by_torch():
    torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
    depth = np.random.default_rng(0).uniform(1, 9, (50, 63)).astype(np.float32)
    scene = Scene("a", np.zeros((50, 63, 3), np.uint8), depth)
    sparse = simulate(scene, "lowres:8", dataset="d").sparse
    small = torch.nn.functional.interpolate(
        torch.from_numpy(depth)[None, None], size=(6, 7), mode="bilinear", align_corners=True
    )[0, 0].numpy()
    rows, columns = (50 / 6 * np.arange(6)).astype(int), (63 / 7 * np.arange(7)).astype(int)
    assert_allclose(sparse[np.ix_(rows, columns)], small, rtol=BILINEAR)
    assert np.isfinite(sparse).sum() == 42
    holes = depth.copy()
    holes[rows[2], columns[3]] = np.nan
    part = simulate(Scene("a", scene.image, holes), "lowres:8", dataset="d").sparse
    assert np.isnan(part[rows[2], columns[3]])
    assert np.isfinite(part).sum() == 41
    with pytest.raises(InputError, match="cannot be reduced by a factor of 64"):
        simulate(scene, "lowres:64", dataset="d")


def test_missing_square_and_dense():
    scene = made_scene()
    known = np.isfinite(scene.reference)
    found = simulate(scene, "square:20", dataset="d")
    missing = known & np.isnan(found.sparse)
    rows, columns = np.nonzero(missing)
    assert np.ptp(rows) <= 19
    assert np.ptp(columns) <= 19
    assert missing.sum() == 300  # three quarters of 20 x 20 have a reference
    assert_array_equal(found.scored, missing)
    low, high = (float(limit(scene.reference[known])) for limit in (np.min, np.median))
    dense = simulate(scene, f"dense+range:{low!r}:{high!r}", dataset="d").sparse
    with np.errstate(invalid="ignore"):
        inside = known & (scene.reference > low) & (scene.reference < high)
    assert 0 < inside.sum() < known.sum()
    assert_array_equal(np.isfinite(dense), inside)
    with pytest.raises(InputError, match="does not fit"):
        simulate(scene, "square:60", dataset="d")


@pytest.mark.parametrize(("across", "down"), [(3, 0), (-4, 2), (0, -5), (80, 0)])
def test_shift_moves_measurements(across, down):
    scene = made_scene()
    plain = simulate(scene, "marigold:200", dataset="d").sparse
    moved = simulate(scene, f"marigold:200+shift:{across}:{down}", dataset="d").sparse
    expected = np.full_like(plain, np.nan)
    for row, column in np.argwhere(np.isfinite(plain)):
        if 0 <= row + down < HEIGHT and 0 <= column + across < WIDTH:
            expected[row + down, column + across] = plain[row, column]
    assert_array_equal(moved, expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "marigold:0",
        "marigold:5:x",
        "randperm:5:1.5",
        "omni:1:2:3",
        "omni-lidar:0.5",
        "keypoints:harris",
        "keypoints",
        "square",
        "lowres:0",
        "dense:3",
        "dense+lines:65",
        "dense+behind:6:1.5",
        "dense+behind:7",
        "dense+shift:0.5",
        "dense+omni-noise:2",
        "dense+omni-noise:0.1:-1",
    ],
)
def test_wrong_patterns_raise(pattern):
    with pytest.raises(InputError, match="must be written like"):
        parse_pattern(pattern)
