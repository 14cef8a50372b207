"""PromptDA: the filling of the prompt, the size of the picture, and a tiny network with random weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.methods import method
from leadline.methods.promptda import LONGEST, PATCH, make_prompt, promptda, resize_image

PRIOR = Prior(np.ones((60, 84), np.float32))


@given(arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))).filter(np.any))
def test_gaps_are_filled_with_the_nearest_measurement(measured):
    sparse = np.where(measured, 1.0 + np.arange(measured.size).reshape(measured.shape), 0.0)
    rows, columns = np.nonzero(measured)
    i, j = np.indices(measured.shape)
    distances = (i[..., None] - rows) ** 2 + (j[..., None] - columns) ** 2
    filled = make_prompt(sparse, measured, "nearest").round().astype(int) - 1  # each value names its pixel
    found = np.stack(np.unravel_index(filled, measured.shape))
    assert measured[tuple(found)].all()
    np.testing.assert_array_equal((found[0] - i) ** 2 + (found[1] - j) ** 2, distances.min(axis=-1))


def test_prompt_is_filled_with_zeros_or_neighbours_and_never_constant():
    sparse = np.zeros((3, 5), np.float32)
    sparse[0, 0], sparse[2, 4], sparse[1, 1] = 2.0, 4.0, np.nan
    measured = np.isfinite(sparse) & (sparse > 0)
    zeros, filled = make_prompt(sparse, measured, "zeros"), make_prompt(sparse, measured, "nearest")
    assert np.count_nonzero(zeros) == 2
    assert (filled > 0).all()
    assert filled[0, 1] == filled[1, 0] == 2.0
    assert filled[2, 3] == 4.0
    assert np.isnan(sparse[1, 1])  # the argument is as it was
    constant = make_prompt(np.full((2, 2), 50.0), np.ones((2, 2), bool), "nearest")
    assert constant.max() > constant.min()  # else its normalisation would divide by zero


@pytest.mark.parametrize("size", [(1440, 1920), (1080, 1920), (480, 640), (2000, 300), (13, 20), (1008, 756)])
def test_image_is_resized_to_multiples_of_the_patch(size):
    rows, columns = resize_image(np.zeros((*size, 3), np.uint8)).shape[:2]
    assert rows % PATCH == columns % PATCH == 0
    assert max(rows, columns) <= LONGEST
    scale = min(1.0, LONGEST / max(size))
    for fed, side in ((rows, size[0]), (columns, size[1])):
        assert fed == PATCH or side * scale - PATCH < fed <= side * scale + 1e-6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from support.tiny_networks import prompt_depth_anything, save

    return str(save(prompt_depth_anything, tmp_path_factory.mktemp("promptda")))


@pytest.fixture
def scene(rng):
    image = rng.integers(0, 256, (60, 84, 3), dtype=np.uint8)
    sparse = np.full((60, 84), np.nan, np.float32)
    sparse[5::10, 5::10] = 2.0 + rng.random((6, 8))
    return image, sparse


@pytest.mark.parametrize("fill", ["zeros", "nearest"])
def test_equals_the_library_on_the_same_prompt(model, scene, fill):
    import torch
    import transformers

    image, sparse = scene
    kept = image.copy(), sparse.copy()
    result = promptda(PRIOR, sparse, image=image, model=model, fill=fill, device="cpu")
    np.testing.assert_array_equal(image, kept[0])
    np.testing.assert_array_equal(sparse, kept[1])
    network = transformers.PromptDepthAnythingForDepthEstimation.from_pretrained(model).eval()
    processor = transformers.PromptDepthAnythingImageProcessorPil.from_pretrained(model)
    measured = np.isfinite(sparse)
    inputs = processor(
        images=resize_image(image),
        prompt_depth=make_prompt(sparse, measured, fill),
        prompt_scale_to_meter=1.0,
        do_resize=False,
        return_tensors="pt",
    )
    assert inputs["pixel_values"].shape[-2:] == (56, 84)
    with torch.inference_mode():
        outputs = network(**inputs)
    expected = processor.post_process_depth_estimation(outputs, target_sizes=[(60, 84)])[0]["predicted_depth"].numpy()
    assert result.depth.shape == (60, 84)
    assert result.depth.dtype == np.float32
    good = expected > 0
    np.testing.assert_allclose(result.depth[good], expected[good], rtol=1e-5)
    assert np.isnan(result.depth[~good]).all()
    assert result.status.startswith("ok")
    assert result.parameters == {"measured": 48.0}
    # The prediction lies between the least and the largest value of its prompt, but for the bicubic resizing.
    low = 0.0 if fill == "zeros" else 2.0
    assert low - 0.3 < np.nanmin(result.depth) < np.nanmax(result.depth) < 3.3


def test_fill_changes_the_result_and_the_method_is_registered(model, scene):
    image, sparse = scene
    found = method("promptda")
    depths = [
        found(PRIOR, sparse, image=image, model=model, fill=fill, device="cpu").depth for fill in ("zeros", "nearest")
    ]
    assert np.nanmax(np.abs(depths[0] - depths[1])) > 0.1
    again = promptda(PRIOR, sparse, image=image, model=model, device="cpu").depth
    np.testing.assert_array_equal(again, depths[0])


def test_nothing_measured_is_a_failed_result(scene):
    result = promptda(PRIOR, np.zeros((60, 84)), image=scene[0], model="not/needed")
    assert result.status == "failed: no usable measurement"
    assert np.isnan(result.depth).all()


def test_wrong_arguments_are_one_error(model, scene, tmp_path, monkeypatch):
    image, sparse = scene
    with pytest.raises(InputError, match="`fill` must be one of zeros, nearest"):
        promptda(PRIOR, sparse, image=image, fill="mean")
    with pytest.raises(InputError, match=r"`image` must have the prior's shape \(60, 84\)"):
        promptda(PRIOR, sparse, image=image[:30])
    with pytest.raises(InputError, match="`dtype` must be one of"):
        promptda(PRIOR, sparse, image=image, dtype="int8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dpt"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match="expected a model of type prompt_depth_anything, got 'dpt'"):
        promptda(PRIOR, sparse, image=image, model=str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileError, match="hf download depth-anything/prompt-depth-anything-vitl-hf"):
        promptda(PRIOR, sparse, image=image)
