"""Depth models of transformers: tiny networks with random weights, saved to disk and loaded by path."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from leadline import LeadlineError, complete
from leadline.base.errors import FileError, InputError
from leadline.priors import prior_source
from leadline.priors.transformers import (
    MEANINGS,
    TransformersPrior,
    _DepthProProcessor,
    lower_bound,
    meaning,
    postprocess,
    preprocess,
)
from support.tiny_networks import MODELS, pil_processor, save, torch, transformers

# One of the library's own modules is written so; what it warns of is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

# Batched and single images take other paths through the same sums of float32; measured 5e-7 of the range.
HALF_TOLERANCE = 0.05  # of the range: eleven bits, through a few layers
SIZES = [(53, 91), (91, 53), (64, 64), (33, 200)]


@pytest.fixture(autouse=True)
def _one_thread():
    """With the same number of threads the library, asked here, and the prior give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


every_model = pytest.mark.parametrize("folder", MODELS, indirect=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with each tiny model, made when it is first asked for."""
    root = tmp_path_factory.mktemp("models")

    def get(name):
        return root / name if (root / name).is_dir() else save(MODELS[name], root / name)

    return get


@pytest.fixture
def folder(request, saved):
    return saved(request.param)


def picture(rng, size=(53, 91)):
    """Something with structure: noise alone averages out in the resizing."""
    rows, columns = np.indices(size)
    smooth = 127 + 80 * np.sin(rows / 9.0)[..., None] * np.cos(columns[..., None] / (7.0 + np.arange(3)))
    return np.clip(smooth + rng.normal(0, 20, (*size, 3)), 0, 255).astype(np.uint8)


def spread(values):
    return float(values.max() - values.min())


@every_model
def test_meaning_and_shape_at_odd_sizes(folder, rng):
    source = TransformersPrior(folder, device="cpu", threads=1)
    expected = ("depth", "metric") if "metric" in folder.name else MEANINGS[folder.name]
    assert (source.quantity, source.gauge) == expected
    assert source.floor == (0.01 if expected[0] == "disparity" else 0.0)
    for size in SIZES:
        prior = source(picture(rng, size))
        assert prior.shape == size
        assert prior.values.dtype == np.float32
        assert prior.kind == expected[0]
        assert np.isfinite(prior.values).all()
        assert spread(prior.values) > 0


@every_model
def test_the_same_image_gives_the_same_prediction(folder, rng):
    source = TransformersPrior(folder, device="cpu", threads=1)
    images = [picture(rng), picture(rng)]
    alone = [source(image) for image in images]
    np.testing.assert_array_equal(alone[0].values, source(images[0]).values)
    assert np.abs(alone[0].values - alone[1].values).max() > 1e-4 * spread(alone[0].values)


@pytest.mark.parametrize("folder", ["depth_anything", "dpt", "glpn", "zoedepth"], indirect=True)
def test_network_input_equals_that_of_its_own_processor(folder, rng):
    source = TransformersPrior(folder, device="cpu", threads=1, resize="processor")
    image = picture(rng)
    fed = []
    _, network, _ = source._load()
    handle = network.register_forward_pre_hook(lambda *hook: fed.append(hook[2]["pixel_values"]), with_kwargs=True)
    source(image)
    handle.remove()
    own = type(MODELS[folder.name]()[1]).from_pretrained(folder)
    from PIL import Image

    expected = own(images=Image.fromarray(image), return_tensors="pt")["pixel_values"]
    assert torch.equal(fed[0], expected)


@pytest.mark.parametrize(
    ("shape", "authors", "library"),
    [
        ((384, 512), (518, 686), (392, 518)),  # the paper's size for ARKit
        ((512, 384), (686, 518), (518, 392)),
        ((480, 640), (518, 686), (518, 686)),
        ((768, 1024), (518, 686), (518, 686)),
        ((1008, 1512), (518, 770), (518, 770)),
        ((540, 960), (518, 924), (518, 924)),
        ((100, 1000), (518, 5180), (56, 518)),
    ],
)
def test_the_authors_rule_of_depth_anything_and_that_of_the_library(shape, authors, library):
    """The sizes that the authors' Resize and transformers' processor computed for these images."""
    assert lower_bound(shape, (518, 518), 14) == authors
    processor = pil_processor("DPT")(size={"height": 518, "width": 518}, keep_aspect_ratio=True, ensure_multiple_of=14)
    image = np.zeros((*shape, 3), np.uint8)
    assert preprocess(torch, processor, image, "lower_bound").shape[-2:] == authors
    assert preprocess(torch, processor, image, "processor").shape[-2:] == library


def test_depth_anything_takes_the_authors_rule_by_default(saved, rng):
    image = picture(rng, (40, 60))  # both sides below the 70 of the tiny model
    sources = [
        TransformersPrior(saved("depth_anything"), device="cpu", threads=1, resize=resize)
        for resize in (None, "lower_bound", "processor")
    ]
    sizes = []
    for source in sources:
        _, network, _ = source._load()
        network.register_forward_pre_hook(
            lambda *hook: sizes.append(tuple(hook[2]["pixel_values"].shape[-2:])), with_kwargs=True
        )
    default, authors, library = (source(image).values for source in sources)
    assert sizes == [(70, 112), (70, 112), (42, 70)]
    np.testing.assert_array_equal(default, authors)
    assert np.abs(authors - library).max() > 1e-3 * spread(library)
    assert sources[0].fingerprint() == sources[1].fingerprint() != sources[2].fingerprint()
    assert TransformersPrior(saved("dpt"), device="cpu").resize == "processor"
    with pytest.raises(InputError, match=r"`resize` lower_bound is the rule of Depth Anything's authors.*'dpt'"):
        TransformersPrior(saved("dpt"), resize="lower_bound")
    with pytest.raises(InputError, match="`resize` must be one of lower_bound, processor"):
        TransformersPrior(saved("depth_anything"), resize="minimal")


def test_image_of_three_rows_is_not_taken_for_three_planes(saved, rng):
    from PIL import Image

    source = TransformersPrior(saved("depth_anything"), device="cpu", threads=1)
    image = picture(rng, (3, 9))
    assert source(image).shape == (3, 9)
    processor = source._load()[2]
    fed = preprocess(torch, processor, image)
    assert torch.equal(
        fed,
        processor(images=Image.fromarray(image), return_tensors="pt", input_data_format="channels_last")[
            "pixel_values"
        ],
    )


@pytest.mark.parametrize("folder", ["depth_anything", "dpt"], indirect=True)
def test_prediction_is_resized_by_the_librarys_rule(folder, rng):
    source = TransformersPrior(folder, device="cpu", threads=1, resize="processor")
    image = picture(rng)
    _, network, processor = source._load()
    with torch.inference_mode():
        outputs = network(**processor(images=image, return_tensors="pt"))
    expected = processor.post_process_depth_estimation(outputs, target_sizes=[image.shape[:2]])[0]["predicted_depth"]
    np.testing.assert_array_equal(source(image).values, expected.numpy())


# The weights are random, so the prior may well fall where the measured depth rises.
@pytest.mark.filterwarnings("ignore::leadline.base.errors.InputWarning")
def test_disparity_becomes_a_positive_prior_by_the_floor(saved, rng):
    image = picture(rng)
    source = TransformersPrior(saved("depth_anything"), device="cpu", threads=1)
    prior = source(image)
    assert prior.floor == 0.01
    depth = prior.depth()
    assert (depth > 0).all()
    assert depth.max() == pytest.approx(1 / (0.01 * prior.values.max()))  # this network does return zeros
    without = TransformersPrior(saved("depth_anything"), device="cpu", threads=1, floor=0.0)
    assert without(image).floor == 0.0
    assert without.fingerprint() != source.fingerprint()
    sparse = np.zeros(image.shape[:2], np.float32)
    sparse[::9, ::9] = 2.0 + rng.random(sparse[::9, ::9].shape)
    assert np.isfinite(complete(prior, sparse).depth).all()


def test_depth_pro_gives_a_camera(saved, rng):
    source = TransformersPrior(saved("depth_pro"), device="cpu", threads=1)
    image = picture(rng)
    camera = source(image).camera
    assert camera is not None
    assert (camera.width, camera.height) == (91, 53)
    assert (camera.cx, camera.cy) == (45.0, 26.0)
    torch_, network, processor = source._load()
    with torch.inference_mode():
        degrees = float(network(pixel_values=processor.preprocess(torch_, image)).field_of_view.reshape(()))
    assert camera.fx == camera.fy == pytest.approx(0.5 * 91 / np.tan(np.deg2rad(degrees) / 2), rel=1e-5)


def test_rules_for_depth_pro_and_zoedepth_equal_the_librarys(tmp_path):
    """Compared where torchvision is installed, which those two processors need; the rules are used either way."""
    pytest.importorskip("torchvision", reason="the library's own rules for these two need torchvision")
    theirs = transformers.DepthProImageProcessor(size={"height": 64, "width": 64})
    ours = depth_pro_processor(tmp_path, 64)
    image = np.random.default_rng(0).integers(0, 255, (53, 91, 3), dtype=np.uint8)
    fed = theirs(images=[image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours.preprocess(torch, image), fed)
    outputs = SimpleNamespace(predicted_depth=torch.rand(1, 64, 64), field_of_view=torch.tensor([50.0]))
    expected = theirs.post_process_depth_estimation(outputs, target_sizes=[(53, 91)])[0]["predicted_depth"]
    torch.testing.assert_close(ours.postprocess(torch, outputs, (53, 91))[0], expected)
    zoe = pil_processor("ZoeDepth")()
    expected = zoe.post_process_depth_estimation(outputs, [(53, 91)], [(53, 91)])[0]["predicted_depth"]
    found, _ = postprocess(torch, {"model_type": "zoedepth"}, zoe, outputs, (53, 91))
    torch.testing.assert_close(found, expected)


def test_zoedepth_by_hand():
    """A prediction at the size of the picture with its reflected margins is cropped back, and nothing else."""
    height, width = 32, 72
    rows, columns = 3 * 4, 3 * 6  # 3 sqrt(side / 2)
    whole = torch.rand(1, height + 2 * rows, width + 2 * columns)
    outputs, rule = SimpleNamespace(predicted_depth=whole), SimpleNamespace(do_pad=True)
    found, field_of_view = postprocess(torch, {"model_type": "zoedepth"}, rule, outputs, (height, width))
    torch.testing.assert_close(found, whole[0, rows:-rows, columns:-columns])
    assert field_of_view is None
    rule.do_pad = False
    outputs.predicted_depth = whole[:, :height, :width]
    torch.testing.assert_close(
        postprocess(torch, {"model_type": "zoedepth"}, rule, outputs, (height, width))[0], whole[0, :height, :width]
    )


def depth_pro_processor(folder: Path, side: int) -> _DepthProProcessor:
    """The processor for square inputs of that side, colours normalised to [-1, 1]."""
    settings = {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return _DepthProProcessor(folder)


def test_depth_pro_by_hand(tmp_path):
    """A constant canonical inverse depth c at field of view w gives 1 / (c 2 tan(w / 2)), and is clamped."""
    rule = depth_pro_processor(tmp_path, 8)
    for degrees, expected in ((90.0, 2.0), (60.0, 4.0 / (2 * 3**-0.5))):
        outputs = SimpleNamespace(predicted_depth=torch.full((1, 8, 8), 0.25), field_of_view=torch.tensor([degrees]))
        found, field_of_view = rule.postprocess(torch, outputs, (5, 7))
        torch.testing.assert_close(found, torch.full((5, 7), expected))
        assert field_of_view == pytest.approx(degrees)
    grey = np.full((4, 6, 3), 255, np.uint8)
    torch.testing.assert_close(rule.preprocess(torch, grey), torch.ones(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "depth_anything", "depth_estimation_type": "relative"}, ("disparity", "affine")),
        ({"model_type": "dpt", "backbone_config": {"model_type": "swinv2"}}, ("disparity", "affine")),
        ({"model_type": "dpt", "backbone_config": {"model_type": "dinov2"}}, ("depth", "metric")),
        ({"model_type": "depth_pro", "use_fov_model": False}, ("depth", "scale")),
        ({"model_type": "chmv2"}, None),
        ({}, None),
    ],
)
def test_meanings(config, expected):
    assert meaning(config) == expected


def test_unknown_model_type_needs_the_option_kind(saved, tmp_path):
    for file in saved("dpt").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "depth_oracle"}))
    with pytest.raises(InputError, match=r"'depth_oracle' are not known here. Set `kind`"):
        TransformersPrior(tmp_path)
    declared = TransformersPrior(tmp_path, kind="disparity")
    assert (declared.quantity, declared.gauge, declared.floor) == ("disparity", "unknown", 0.01)
    with pytest.raises(FileError, match="transformers cannot load it"):
        declared(np.zeros((64, 64, 3), np.uint8))
    overruled = TransformersPrior(saved("dpt"), kind="depth", gauge="scale")
    assert (overruled.quantity, overruled.gauge, overruled.floor) == ("depth", "scale", 0.0)
    for wrong in ({"kind": "height"}, {"gauge": "metres"}):
        with pytest.raises(InputError, match="must be one of"):
            TransformersPrior(saved("dpt"), **wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "`device` 'gpu' cannot be used here"),
        ({"device": "cpu", "dtype": "bfloat16"}, "bfloat16 is not safe on the processor"),
        ({"dtype": "float64"}, "`dtype` must be one of float32"),
        ({"size": 3}, "takes no option 'size'"),
    ],
)
def test_wrong_options_are_one_error(saved, options, message):
    with pytest.raises(InputError, match=message):
        prior_source(f"transformers:{saved('dpt')}", **options)(np.zeros((64, 64, 3), np.uint8))


def test_float16_is_close_to_float32(saved, rng):
    image = picture(rng)
    full = TransformersPrior(saved("depth_anything"), device="cpu", threads=1)
    half = TransformersPrior(saved("depth_anything"), device="cpu", threads=1, dtype="float16")
    values = full(image).values
    difference = np.abs(half(image).values - values).max()
    assert 0 < difference < HALF_TOLERANCE * spread(values)
    assert half.fingerprint() != full.fingerprint()


def test_mismatched_weights_raise(saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    for file in saved("dpt").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    dropped = sorted(weights)[0]
    save_file({name: value for name, value in weights.items() if name != dropped}, tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="1 weights are missing or do not fit"):
        TransformersPrior(tmp_path, device="cpu")(np.zeros((64, 64, 3), np.uint8))
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(FileError, match="cannot load it"):
        TransformersPrior(tmp_path, device="cpu")(np.zeros((64, 64, 3), np.uint8))
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(LeadlineError, match=str(tmp_path)):
        TransformersPrior(tmp_path, device="cpu")(np.zeros((64, 64, 3), np.uint8))


def test_pickled_source_does_not_contain_its_network(saved, rng):
    source = TransformersPrior(saved("dpt"), device="cpu", threads=1)
    image = picture(rng)
    before = source(image).values
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again(image).values, before)
    assert again.fingerprint() == source.fingerprint()
    assert TransformersPrior(saved("glpn")).fingerprint() != source.fingerprint()


def test_prediction_prints_nothing_and_restores_the_thread_count(saved, rng, capfd):
    before = torch.get_num_threads()
    TransformersPrior(saved("dpt"), device="cpu", threads=before + 1)(picture(rng))
    assert torch.get_num_threads() == before
    assert capfd.readouterr() == ("", "")


def test_an_image_too_small_for_the_network_is_one_error(saved):
    with pytest.raises(InputError, match="failed on an image of 20x20"):
        TransformersPrior(saved("glpn"), device="cpu")(np.zeros((20, 20, 3), np.uint8))  # below its 32 pixels


def test_importing_the_adapter_imports_no_framework():
    code = "import sys, leadline.priors.transformers; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
