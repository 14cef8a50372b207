"""ONNX priors: cards, point maps, small graphs of our own, and two real networks on real scenes."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from leadline import LeadlineError
from leadline.base.errors import FileError, InputError
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors import prior_source
from leadline.priors.onnx import CARDS, ModelCard, OnnxPrior, find_card, focal_and_shift
from support.onnx_graphs import FLOAT16, INT64, constant, node, value, write_graph
from support.paths import SHARED

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")

MODELS, DATA = SHARED / "models", SHARED / "data"
real = pytest.mark.skipif(
    not (MODELS.is_dir() and DATA.is_dir()), reason=f"needs the networks and scenes in {SHARED}, which are not there"
)

# AbsRel of models/README.md, after "the best robust scale and shift per image", in inverse depth for the first network
# and in depth for the second. Which fit is not said. Of those tried (least squares, Huber, Cauchy, Tukey, trimmed and
# least absolute deviations) the last comes closest.
DATASETS = (
    *("7scenes_seq", "cleargrasp_d435", "diode_indoor", "eth3d", "ibims1", "kitti_dc"),
    *("middlebury2014", "nyuv2", "prior_da", "rgb_d_d", "tum_rgbd", "zju_l5"),
)
PUBLISHED = {
    "tcmonodepth_small": (0.129, 0.153, 0.142, 0.095, 0.112, 0.160, 0.104, 0.111, 0.156, 0.066, 0.124, 0.249),
    "fastdepth_7": (0.176, 0.153, 0.116, 0.098, 0.126, 0.357, 0.118, 0.088, 0.060, 0.086, 0.132, 0.316),
}
MEANS = {"tcmonodepth_small": 0.130, "fastdepth_7": 0.165}  # over the 30 scenes
NEAR = 0.03  # measured: 0.013 and 0.021; with Pillow's box filter in place of areas 0.07 on KITTI
PIXELS = 20_000  # of each reference that take part, on a regular grid: changes an AbsRel by well under a percent
# Of the reweighting. From 22 steps all figures are met within a few percent; run to its end, the fit is 6 % better than
# published for the second network on zju_l5, a single scene. So theirs was stopped too; where was found by trying.
STEPS = 25

COLOUR_NOISE = 0.05  # a point map that travels in eight bits is off by 1/510; focal length and shift share the error


def least_absolute_deviations(x, y):
    """Gain and offset that minimise sum |gain x + offset - y|, by reweighted least squares."""
    weight = np.ones_like(x)
    tiny = 1e-6 * np.median(np.abs(y))
    for _ in range(STEPS):
        mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
        gain = (weight * (x - mean_x) * (y - mean_y)).sum() / (weight * (x - mean_x) ** 2).sum()
        offset = mean_y - gain * mean_x
        weight = 1 / np.maximum(np.abs(gain * x + offset - y), tiny)
    return gain, offset


@cache
def errors(model):
    """AbsRel of a network after its fit, by data set, one entry a scene."""
    source = OnnxPrior(MODELS / f"{model}.onnx", threads=1)
    scenes = SceneFolders(DATA)
    found = defaultdict(list)
    for name in scenes.names():
        scene = scenes.load(name)
        at = np.flatnonzero(np.isfinite(scene.reference))
        at = at[:: max(1, at.size // PIXELS)]
        depth = scene.reference.ravel()[at].astype(np.float64)
        values = source(scene.image).values.ravel()[at].astype(np.float64)
        if source.quantity == "disparity":
            gain, offset = least_absolute_deviations(values, 1 / depth)
            fitted = 1 / np.maximum(gain * values + offset, 1e-3)
        else:
            gain, offset = least_absolute_deviations(values, depth)
            fitted = np.maximum(gain * values + offset, 1e-3)
        found[name.split("/")[0]].append(np.mean(np.abs(fitted - depth) / depth))
    return found


@real
@pytest.mark.parametrize("model", PUBLISHED)
def test_real_networks_are_as_accurate_as_published(model):
    found = errors(model)
    every = [error for scenes in found.values() for error in scenes]
    assert len(every) == 30
    assert np.mean(every) == pytest.approx(MEANS[model], rel=NEAR)
    for dataset, published in zip(DATASETS, PUBLISHED[model], strict=True):
        assert np.mean(found[dataset]) == pytest.approx(published, rel=NEAR), dataset


@real
@pytest.mark.parametrize("model", PUBLISHED)
def test_a_real_network_twice_and_by_device(model):
    source = prior_source(f"onnx:{MODELS / model}.onnx", threads=1, device="cpu")
    image = SceneFolders(DATA).load("ibims1/restaurant_11").image
    alone = source(image)
    assert alone.shape == image.shape[:2]
    assert alone.kind == source.quantity
    np.testing.assert_array_equal(source(image).values, alone.values)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(InputError, match="'cuda' is not in this onnxruntime, which has cpu"):
            prior_source(f"onnx:{MODELS / model}.onnx", device="cuda")(image)


def write_mean(path, batch="n", height="h", width="w", kind=1):
    """A network whose map is the mean of the colours it is fed."""
    nodes = [node("ReduceMean", ["image"], "map", axes=[1], keepdims=1)]
    inputs, outputs = [value("image", [batch, 3, height, width], kind)], [value("map", [batch, 1, height, width], kind)]
    return write_graph(path, nodes, inputs, outputs)


def write_card(path, **resize):
    card = {
        "input": {"range": [0, 1], "resize": {"mode": "none", **resize}},
        "output": {"quantity": "depth", "gauge": "scale"},
    }
    path.with_suffix(".json").write_text(json.dumps(card))


def test_batch_axis_of_any_length_or_of_one(tmp_path, rng):
    image = rng.integers(0, 256, (33, 47, 3), dtype=np.uint8)
    for batch in ("n", 1):
        write_card(write_mean(tmp_path / "net.onnx", batch))
        source = OnnxPrior(tmp_path / "net.onnx", threads=1)
        np.testing.assert_allclose(source(image).values, image.mean(axis=2) / 255, rtol=1e-5)
        assert source(image[:20]).shape == (20, 47)


def test_the_fingerprint_covers_model_card_floor_and_weights_beside(tmp_path):
    write_card(write_mean(tmp_path / "net.onnx"))
    seen = {OnnxPrior(tmp_path / "net.onnx").fingerprint(), OnnxPrior(tmp_path / "net.onnx", floor=0.1).fingerprint()}
    (tmp_path / "net.onnx_data").write_bytes(b"weights")
    seen.add(OnnxPrior(tmp_path / "net.onnx").fingerprint())
    write_card(tmp_path / "net.onnx", multiple_of=2)
    seen.add(OnnxPrior(tmp_path / "net.onnx").fingerprint())
    write_mean(tmp_path / "net.onnx", batch=1)
    seen.add(OnnxPrior(tmp_path / "net.onnx").fingerprint())
    assert len(seen) == 5
    assert OnnxPrior(tmp_path / "net.onnx").fingerprint() in seen


def test_fixed_size_of_an_export_overrides_the_card(tmp_path, rng):
    write_card(write_mean(tmp_path / "net.onnx", 1, 28, 42), mode="short_side", size=518, multiple_of=14)
    source = OnnxPrior(tmp_path / "net.onnx", threads=1)
    image = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    assert source._tensor(image).shape == (3, 28, 42)
    assert source(image).shape == (60, 80)


def test_images_are_averaged_over_areas_and_enlarged_bilinearly(tmp_path):
    stripes = np.tile(np.array([255, 0], np.uint8), 5)
    image = np.broadcast_to(stripes[None, :, None], (7, 10, 3)).copy()
    write_card(write_mean(tmp_path / "net.onnx"), mode="fixed", size=[7, 7])
    small = OnnxPrior(tmp_path / "net.onnx", threads=1)._tensor(image)
    np.testing.assert_allclose(small[0, 3, :4], [0.7, 0.6, 0.3, 0.5], rtol=1e-6)  # the box filter gives 1, 0.5, 0
    write_card(tmp_path / "net.onnx", mode="fixed", size=[7, 20])
    large = OnnxPrior(tmp_path / "net.onnx", threads=1)._tensor(image)
    np.testing.assert_allclose(large[0, 3, :4], [1.0, 0.75, 0.25, 0.25], atol=0.01)  # rounded to grey levels


def test_a_network_in_float16(tmp_path, rng):
    write_card(write_mean(tmp_path / "net.onnx", kind=FLOAT16))
    image = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    prior = OnnxPrior(tmp_path / "net.onnx", threads=1)(image)
    assert prior.values.dtype == np.float32
    np.testing.assert_allclose(prior.values, image.mean(axis=2) / 255, rtol=2e-3)  # eleven bits


@pytest.mark.parametrize(
    ("file", "card"),
    [
        ("depth_anything_v2_vits.onnx", "depth-anything-v2"),
        ("depth_anything_v2_vitl_dynamic.onnx", "depth-anything-v2"),
        ("depth_anything_v2_vitb_outdoor_dynamic.onnx", "depth-anything-v2-metric"),
        ("moge-2-vits-normal.onnx", "moge-2"),
        ("models--onnx-community--depth-anything-v2-small/snapshots/0/onnx/model.onnx", "depth-anything-v2"),
        ("models--Ruicheng--moge-2-vitl-normal-onnx/snapshots/0/model.onnx", "moge-2"),
    ],
)
def test_public_exports_are_known_by_name(tmp_path, file, card):
    path = tmp_path / file
    assert find_card(path) == CARDS / f"{card}.json"
    assert find_card(tmp_path / "other.onnx", card) == CARDS / f"{card}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_card(path)
    assert find_card(path) == path.with_suffix(".json")  # what the user wrote counts more


def test_every_card_of_ours_can_be_read():
    for path in CARDS.glob("*.json"):
        ModelCard.read(path)
    depth_anything = ModelCard.read(CARDS / "depth-anything-v2.json")
    assert depth_anything.input_size(480, 640) == (518, 686)  # as its authors' own preparation has it
    assert (depth_anything.quantity, depth_anything.gauge, depth_anything.cubic) == ("disparity", "affine", True)


def test_error_without_a_card_lists_the_names(tmp_path):
    write_mean(tmp_path / "net.onnx")
    with pytest.raises(FileError, match=r"no model card.*depth-anything-v2-metric, depth-anything-v2, moge-2"):
        OnnxPrior(tmp_path / "net.onnx")
    with pytest.raises(LeadlineError, match="moge-7: no such file, expected a model card"):
        OnnxPrior(tmp_path / "net.onnx", card="moge-7")
    write_card(tmp_path / "net.onnx")
    card = json.loads((tmp_path / "net.json").read_text())
    card["input"]["name"] = "image2"
    (tmp_path / "net.json").write_text(json.dumps(card))
    with pytest.raises(FileError, match="has no input 'image2'"):
        OnnxPrior(tmp_path / "net.onnx")(np.zeros((8, 8, 3), np.uint8))
    card["input"]["name"], card["output"]["name"] = None, "depth2"
    (tmp_path / "net.json").write_text(json.dumps(card))
    with pytest.raises(FileError, match=r"has no output 'depth2', which .*net\.json names; it has \w+\.$"):
        OnnxPrior(tmp_path / "net.onnx")(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(InputError, match="`device` must be auto or one of cuda"):
        OnnxPrior(tmp_path / "net.onnx", device="gpu")


def room(height, width, focal, shift, rng, relief=0.4):
    """An affine point map of a slanted, wavy wall seen by a camera: points with z short of `shift`."""
    rows, columns = np.indices((height, width))
    u, v = columns - (width - 1) / 2, rows - (height - 1) / 2
    depth = 1.2 + relief * u / width + 0.1 * np.sin(rows / 5.0) + 0.05 * rng.random((height, width))
    return np.stack((u * depth / focal, v * depth / focal, depth - shift), axis=-1), depth


@pytest.mark.parametrize(("height", "width"), [(48, 64), (65, 41), (480, 640)])
@pytest.mark.parametrize(("focal", "shift"), [(90.0, 0.7), (700.0, -3.0), (300.0, 0.0)])
def test_focal_length_and_shift_are_recovered(height, width, focal, shift, rng):
    points, _ = room(height, width, focal, shift, rng)
    for scale in (1.0, 50.0):
        found_focal, found_shift = focal_and_shift((scale * points).astype(np.float32))
        assert found_focal == pytest.approx(focal, rel=1e-3)  # points are float32
        assert found_shift == pytest.approx(scale * shift, abs=2e-3 * scale)
    spoilt = points.copy()
    spoilt[: height // 3] = rng.random((height // 3, width, 3))
    valid = np.ones((height, width), bool)
    valid[: height // 3] = False
    assert focal_and_shift(spoilt.astype(np.float32), valid)[0] == pytest.approx(focal, rel=2e-3)


def test_too_few_points_have_no_camera():
    assert focal_and_shift(np.full((20, 30, 3), np.nan, np.float32)) is None
    assert focal_and_shift(np.zeros((20, 30, 3), np.float32)) is None
    assert focal_and_shift(np.ones((1, 1, 3), np.float32)) is None


def test_moge_export_with_mask_scale_and_camera(tmp_path, rng):
    """A network with MoGe's inputs and outputs, whose points are the colours less one half: a scene as a picture."""
    nodes = [
        node("Transpose", ["image"], "colours", perm=[0, 2, 3, 1]),
        node("Sub", ["colours", "half"], "points"),
        node("ReduceMax", ["image"], "mask", axes=[1], keepdims=0),
        node("ReduceMax", ["image"], "metric_scale", axes=[1, 2, 3], keepdims=0),
    ]
    inputs = [value("image", ["n", 3, "h", "w"]), value("num_tokens", [], INT64)]
    outputs = [
        value("points", ["n", "h", "w", 3]),
        value("mask", ["n", "h", "w"]),
        value("metric_scale", ["n"]),
    ]
    path = write_graph(tmp_path / "moge-2-vits-normal.onnx", nodes, inputs, outputs, [constant("half", 0.5)])
    points, depth = room(48, 64, 140.0, 1.2, rng, relief=0.7)
    image = np.clip(np.round((points + 0.5) * 255), 0, 255).astype(np.uint8)
    image[:10, :10] = 60  # nothing above one half: the mask leaves it out
    source = prior_source(f"onnx:{path}", threads=1)
    assert (source.quantity, source.gauge, source.floor) == ("depth", "metric", 0.0)
    prior = source(image)
    np.testing.assert_array_equal(prior.valid, image.max(axis=2) > 127)
    assert not prior.valid[:10, :10].any()
    assert prior.camera.fx == prior.camera.fy == pytest.approx(140.0, rel=COLOUR_NOISE)
    assert (prior.camera.cx, prior.camera.cy) == (31.5, 23.5)
    seen, scale = image.astype(np.float32) / 255 - np.float32(0.5), image.max() / 255
    focal, shift = focal_and_shift(seen, prior.valid)
    assert prior.camera.fx == pytest.approx(focal)
    np.testing.assert_allclose(prior.values, scale * (seen[..., 2] + shift), rtol=1e-5)
    np.testing.assert_allclose(prior.depth()[prior.valid], scale * depth[prior.valid], rtol=COLOUR_NOISE)
