"""Photographs with measured depth, and a real network's prior: the paper's three cases from end to end.

The scenes and the network lie beside the project and are not part of it; where they are absent every test here is
skipped, and says so. The loaders are as short as the data allows and share no code with the library's.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from PIL import Image

from leadline.bench.metrics import depth_scores
from leadline.bench.observations import CASES, observe
from leadline.core.fit.estimator import FitStatus
from leadline.core.pipeline import complete
from leadline.core.prior import Prior
from leadline.core.solve.cg import SolveStatus
from support.paths import SHARED

DATA, NETWORK = SHARED / "data", SHARED / "models" / "tcmonodepth_small.onnx"
pytestmark = pytest.mark.skipif(
    not (DATA.is_dir() and NETWORK.is_file()),
    reason=f"needs the scenes and the network in {SHARED}, which are not there",
)

STEPS = 40  # of the fit's last run, whether or not the measurements determine the exponent
BUDGET = 8  # iterations; see test_iteration_budgets.py
FLOOR = 0.02  # share of the largest disparity: this network returns exact zeros for what is far
# AbsRel of the scene's data set in models/README.md: this network after the best robust affine fit in disparity on
# *all* reference pixels. Ours is fitted in metres on the anchors alone, with the exponent free.
PUBLISHED = {
    "diode_indoor/00019_00183_indoors_150_000": 0.142,
    "eth3d/office_DSC_0219": 0.095,
    "ibims1/restaurant_11": 0.112,
    "middlebury2014/motorcycle_q": 0.104,
    "nyuv2/basement_00000": 0.111,
    "rgb_d_d/sample2_rgbdd_toy": 0.066,
    "tum_rgbd/fr2_desk_1": 0.124,
}
ONE_SCENE = ("diode_indoor", "middlebury2014", "rgb_d_d")  # data sets whose figure is this very scene's
NEAR = 0.03  # that README calls differences under 0.02 noise
every_scene = pytest.mark.parametrize("name", PUBLISHED)


def read(path, key=None):
    """Any of the data's array files, without singleton axes."""
    if path.suffix == ".npz":
        return np.squeeze(np.load(path)[key])
    return np.squeeze(np.load(path) if path.suffix == ".npy" else np.asarray(Image.open(path)))


def load(folder, entry):
    """Depth in metres, NaN where there is none, by the rules of data/README.md."""
    raw = read(folder / entry["file"], entry["key"]).astype(np.float64)
    depth = raw * entry["metres_per_unit"]
    bad = ~np.isfinite(raw) | (raw <= 0) | np.isin(raw, entry["invalid"])
    if entry.get("mask"):
        bad |= read(folder / entry["mask"]) == 0
    if entry.get("max_m"):
        bad |= depth > entry["max_m"]
    return np.where(bad, np.nan, depth).astype(np.float32)


@cache
def scene(name):
    """Reference depth and the network's prior on the image's grid."""
    folder = DATA / name
    about = json.loads((folder / "scene.json").read_text())
    image = Image.open(folder / about["image"]).convert("RGB")
    return load(folder, about["reference"]), Prior(disparity(image), kind="disparity", floor=FLOOR)


@cache
def session():
    onnxruntime = pytest.importorskip("onnxruntime", reason="the network runs in onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(NETWORK), options, providers=["CPUExecutionProvider"])


def disparity(image):
    """Short side 256, both a multiple of 32, RGB in [0, 1]; resized back."""
    scale = 256 / min(image.size)
    size = tuple(max(32, 32 * round(side * scale / 32)) for side in image.size)
    pixels = np.asarray(image.resize(size, Image.Resampling.BOX), np.float32) / 255
    network = session()
    (output,) = network.run(None, {network.get_inputs()[0].name: pixels.transpose(2, 0, 1)[None]})
    return np.asarray(
        Image.fromarray(np.squeeze(output).astype(np.float32)).resize(image.size, Image.Resampling.BILINEAR)
    )


@cache
def completed(name, case):
    reference, prior = scene(name)
    observed = observe(reference, case)
    return observed, complete(prior, observed.sparse, options="paper")


@pytest.mark.parametrize("case", CASES)
@every_scene
def test_completion_holds_what_it_promises(name, case):
    _, prior = scene(name)
    observed, result = completed(name, case)
    measured = np.isfinite(observed.sparse)
    # With anchors that say little about the exponent the fit improves up to its bound; the status says so.
    assert result.fit.status in (FitStatus.CONVERGED, FitStatus.UNBOUNDED_EXPONENT)
    assert result.fit.descents[-1].iterations <= STEPS
    assert result.reconstruction.status is SolveStatus.CONVERGED
    assert result.reconstruction.residual <= 1e-6
    assert result.reconstruction.iterations <= BUDGET
    np.testing.assert_array_equal(result.depth[measured], observed.sparse[measured])
    h = prior.depth()
    usable = np.isfinite(h) & (h > 0)
    np.testing.assert_array_equal(np.isfinite(result.calibrated), usable)
    np.testing.assert_array_equal(np.isfinite(result.depth), usable | measured)
    assert (result.depth[usable] > 0).all()
    assert result.invalid == (~usable).sum()
    assert result.unpaired == (measured & ~usable).sum()


@every_scene
def test_spreading_the_residual_helps_between_anchors(name):
    observed, result = completed(name, "distributed")
    reference, _ = scene(name)
    alone, whole = (depth_scores(d, reference, observed.scored).absrel for d in (result.calibrated, result.depth))
    assert whole < 0.7 * alone


def test_calibration_is_as_good_as_published():
    ours = {}
    for name in PUBLISHED:
        observed, result = completed(name, "distributed")
        ours[name] = depth_scores(result.calibrated, scene(name)[0], observed.scored).absrel
    assert np.mean(list(ours.values())) == pytest.approx(np.mean(list(PUBLISHED.values())), abs=NEAR)
    for name, absrel in ours.items():
        if name.startswith(ONE_SCENE):
            assert absrel < PUBLISHED[name] + NEAR, name


def test_real_lidar_with_its_outliers():
    """A sweep as the sensor gave it: clustered, noisy, with returns from behind the foreground."""
    folder = DATA / "kitti_dc" / "2011_09_26_drive_0001_f005_cam02"
    about = json.loads((folder / "scene.json").read_text())
    sparse = load(folder, about["sparse"][0])
    _, prior = scene("kitti_dc/2011_09_26_drive_0001_f005_cam02")
    result = complete(prior, sparse)
    assert result.fit.status is FitStatus.CONVERGED
    assert result.reconstruction.status is SolveStatus.CONVERGED
    assert result.reconstruction.iterations <= BUDGET
    measured = np.isfinite(sparse)
    np.testing.assert_array_equal(result.depth[measured], sparse[measured])
    reference = load(folder, about["reference"])
    mask = np.isfinite(reference) & ~measured
    assert depth_scores(result.depth, reference, mask).absrel < depth_scores(result.calibrated, reference, mask).absrel
