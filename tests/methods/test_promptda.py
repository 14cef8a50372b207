"""PromptDA: the grid of the prompt and its filling, the size of the picture, and a tiny network with random weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leadline.base.errors import FileError, InputError
from leadline.bench.observations import CASES, STRIDE, observe
from leadline.core.prior import Prior
from leadline.geometry.grids import cell_means, grid_cells
from leadline.methods import method
from leadline.methods import promptda as module
from leadline.methods.promptda import LONGEST, PATCH, make_prompt, promptda, resize_image

PRIOR = Prior(np.ones((60, 84), np.float32))
FILLS = ("zeros", "nearest", "knn")


@pytest.mark.parametrize(("fill", "count"), [("nearest", 1), ("knn", 4)])
@given(
    measured=arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))).filter(np.any), seed=st.integers(0, 9)
)
def test_gaps_are_filled_with_the_nearest_measurements(fill, count, measured, seed):
    sparse = np.where(measured, np.random.default_rng(seed).uniform(1, 5, measured.shape), 0.0)
    places = np.argwhere(measured)
    filled = make_prompt(sparse, fill)
    for pixel in np.argwhere(~measured):
        distances = np.square(places - pixel).sum(axis=1)
        values = sparse[measured]
        farthest = np.sort(distances)[min(count, len(places)) - 1]
        # Of several neighbours at the largest distance, any may be the last one.
        nearer, tied = values[distances < farthest], np.sort(values[distances == farthest])
        wanted = min(count, len(places)) - len(nearer)
        low = (nearer.sum() + tied[:wanted].sum()) / (len(nearer) + wanted)
        high = (nearer.sum() + tied[-wanted:].sum()) / (len(nearer) + wanted)
        assert low - 1e-5 <= filled[tuple(pixel)] <= high + 1e-4  # float32, and the step of a constant prompt


def test_prompt_is_filled_with_zeros_or_neighbours_and_never_constant():
    sparse = np.zeros((3, 5), np.float32)
    sparse[0, 0], sparse[2, 4], sparse[1, 1] = 2.0, 4.0, np.nan
    zeros, filled, mean = (make_prompt(sparse, fill) for fill in FILLS)
    assert np.count_nonzero(zeros) == 2
    assert (filled > 0).all()
    assert filled[0, 1] == filled[1, 0] == 2.0
    assert filled[2, 3] == 4.0
    assert mean[0, 0] == 2.0  # measurements stay
    assert mean[1, 3] == 3.0  # the mean of both, since there are fewer than four
    assert np.isnan(sparse[1, 1])  # the argument is as it was
    constant = make_prompt(np.full((2, 2), 50.0), "nearest")
    assert constant.max() > constant.min()  # else its normalisation would divide by zero


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(480, 640), (97, 131), (384, 512)])
def test_cells_of_the_paper_s_cases_are_their_means(rng, case, shape):
    """The method sees only the anchors; averaging them per cell gives back the grid that they were placed from."""
    reference = np.where(rng.random(shape) < 0.7, rng.uniform(1, 5, shape), np.nan).astype(np.float32)
    sparse = observe(reference, case).sparse
    grid = cell_means(sparse, module.STRIDE)
    rows, columns = (grid_cells(side, STRIDE)[1] for side in shape)
    anchors = sparse[np.ix_(rows, columns)]
    np.testing.assert_array_equal(grid, anchors)
    kept = np.isfinite(anchors)
    np.testing.assert_array_equal(grid[kept], cell_means(reference, STRIDE)[kept])
    assert np.count_nonzero(kept) == np.count_nonzero(np.isfinite(sparse))
    assert grid.shape == tuple(int(side / 7.5 + 0.5) for side in shape)


@pytest.mark.parametrize("enlarge", [False, True])
@pytest.mark.parametrize("size", [(1440, 1920), (1080, 1920), (480, 640), (2000, 300), (13, 20), (1008, 756)])
def test_image_is_resized_to_multiples_of_the_patch(size, enlarge):
    rows, columns = resize_image(np.zeros((*size, 3), np.uint8), enlarge=enlarge).shape[:2]
    assert rows % PATCH == columns % PATCH == 0
    assert max(rows, columns) <= LONGEST
    scale = LONGEST / max(size) if enlarge else min(1.0, LONGEST / max(size))
    for fed, side in ((rows, size[0]), (columns, size[1])):
        assert fed == PATCH or side * scale - PATCH < fed <= side * scale + 1e-6


def test_image_is_averaged_over_areas_and_not_rounded():
    # 255, 0, 255, ... over 20 pixels on 14: the first pixel covers 10/7 of a source pixel, the first whole.
    stripes = np.tile(np.array([255, 0], np.uint8), 10)
    small = resize_image(np.broadcast_to(stripes[None, :, None], (14, 20, 3)).copy())
    assert small.dtype == np.float32
    np.testing.assert_allclose(small[5, :4, 1], [0.7, 0.6, 0.3, 0.5], rtol=1e-6)


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


def library(model, image, prompt):
    """The library's own processor and network on a prompt."""
    import torch
    import transformers

    from support.tiny_networks import pil_processor

    network = transformers.PromptDepthAnythingForDepthEstimation.from_pretrained(model).eval()
    processor = pil_processor("PromptDepthAnything").from_pretrained(model)
    inputs = processor(
        images=resize_image(image),
        prompt_depth=prompt,
        prompt_scale_to_meter=1.0,
        do_resize=False,
        do_rescale=False,
        return_tensors="pt",
    )
    assert inputs["pixel_values"].shape[-2:] == (56, 84)
    with torch.inference_mode():
        outputs = network(**inputs)
    found = processor.post_process_depth_estimation(outputs, target_sizes=[image.shape[:2]])
    return found[0]["predicted_depth"].numpy()


@pytest.mark.parametrize("prompt", ["cells", "map"])
@pytest.mark.parametrize("fill", FILLS)
def test_equals_the_library_on_the_same_prompt(model, scene, fill, prompt):
    image, sparse = scene
    kept = image.copy(), sparse.copy()
    result = promptda(PRIOR, sparse, image=image, model=model, prompt=prompt, fill=fill, device="cpu")
    np.testing.assert_array_equal(image, kept[0])
    np.testing.assert_array_equal(sparse, kept[1])
    grid = cell_means(sparse, 7.5) if prompt == "cells" else sparse
    assert grid.shape == ((8, 11) if prompt == "cells" else (60, 84))
    expected = library(model, image, make_prompt(grid, fill))
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


def test_a_sensor_s_map_of_low_resolution_is_the_prompt_itself(model, scene, rng):
    image, _ = scene
    native = rng.uniform(1, 4, (15, 21)).astype(np.float32)
    native[3, 4] = 0.0
    found = promptda(PRIOR, native, image=image, model=model, prompt="map", device="cpu")
    np.testing.assert_allclose(found.depth, library(model, image, native), rtol=1e-5)
    assert found.parameters == {"measured": 314.0}
    for wrong in (native.T, np.ones((70, 98)), np.ones((15, 30))):
        with pytest.raises(InputError, match=r"`sparse` must show the same view as the image of 60x84"):
            promptda(PRIOR, wrong, image=image, model=model, prompt="map")
    with pytest.raises(InputError, match=r"`sparse` must have the prior's shape \(60, 84\), got \(15, 21\)"):
        promptda(PRIOR, native, image=image, model=model)


def test_zeros_between_measurements_leave_little_of_a_full_map_in_the_fusion_blocks(model):
    """At the paper's size for ARKit: the shares that docs/systems/promptda.md gives."""
    import torch
    import transformers

    image = np.zeros((384, 512, 3), np.uint8)
    # The least depth is scaled to 0, as a missing one is; here it is only that of one cell.
    sparse = observe(np.linspace(2, 5, 384 * 512).reshape(384, 512), "distributed").sparse
    network = transformers.PromptDepthAnythingForDepthEstimation.from_pretrained(model).eval()
    shares: list[float] = []
    for layer in network.neck.fusion_stage.layers:
        layer.prompt_depth_layer.register_forward_pre_hook(
            lambda _, inputs: shares.append(float((inputs[0] != 0).float().mean()))
        )
    pixels = torch.from_numpy(resize_image(image).transpose(2, 0, 1)[None])
    with torch.inference_mode():
        for grid in (sparse, cell_means(sparse, 7.5)):
            network(pixel_values=pixels, prompt_depth=torch.from_numpy(make_prompt(grid, "zeros"))[None, None])
    assert max(shares[:4]) < 0.12
    assert min(shares[4:]) > 0.99


def test_options_change_the_result_and_the_method_is_registered(model, scene):
    image, sparse = scene
    found = method("promptda")
    variants = [{}, {"fill": "nearest"}, {"fill": "knn"}, {"prompt": "map"}, {"stride": 10.0}]
    depths = [found(PRIOR, sparse, image=image, model=model, device="cpu", **options).depth for options in variants]
    for k, one in enumerate(depths):
        for other in depths[:k]:
            assert np.nanmax(np.abs(one - other)) > 1e-3
    again = promptda(PRIOR, sparse, image=image, model=model, device="cpu").depth
    np.testing.assert_array_equal(again, depths[0])


def test_a_small_image_is_enlarged_on_request(model, scene, monkeypatch):
    image, sparse = scene
    monkeypatch.setattr(module, "LONGEST", 112)
    sizes = []
    resize = module.resize_area
    monkeypatch.setattr(module, "resize_area", lambda values, shape: sizes.append(shape) or resize(values, shape))
    for enlarge in (False, True):
        promptda(PRIOR, sparse, image=image, model=model, enlarge=enlarge, device="cpu")
    assert sizes == [(56, 84), (70, 112)]


def test_nothing_measured_is_a_failed_result(scene):
    result = promptda(PRIOR, np.zeros((60, 84)), image=scene[0], model="not/needed")
    assert result.status == "failed: no usable measurement"
    assert np.isnan(result.depth).all()


def test_wrong_arguments_are_one_error(model, scene, tmp_path, monkeypatch):
    image, sparse = scene
    with pytest.raises(InputError, match="`fill` must be one of zeros, nearest, knn"):
        promptda(PRIOR, sparse, image=image, fill="mean")
    with pytest.raises(InputError, match="`prompt` must be one of cells, map"):
        promptda(PRIOR, sparse, image=image, prompt="grid")
    with pytest.raises(InputError, match=r"`stride` must be a finite number of at least 1 pixel, got 0\.5"):
        promptda(PRIOR, sparse, image=image, stride=0.5)
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
