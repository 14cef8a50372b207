"""Tiny networks of transformers with random weights, each with its image processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'transformers'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'transformers'")


def pil_processor(family: str):
    """The image processor of a family that uses PIL; before transformers named it so, it was the only one or "slow"."""
    return getattr(transformers, f"{family}ImageProcessorPil", None) or getattr(transformers, f"{family}ImageProcessor")


def dinov2(**changes):
    return {
        "model_type": "dinov2",
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "image_size": 70,
        "patch_size": 14,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
        **changes,
    }


def depth_anything(**changes):
    sizes = {"reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8}
    config = transformers.DepthAnythingConfig(backbone_config=dinov2(), head_hidden_size=8, **sizes, **changes)
    processor = pil_processor("DPT")(
        size={"height": 70, "width": 70},
        keep_aspect_ratio=True,
        ensure_multiple_of=14,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    return transformers.DepthAnythingForDepthEstimation(config), processor


def depth_anything_metric():
    return depth_anything(depth_estimation_type="metric", max_depth=20)


def dpt():
    config = transformers.DPTConfig(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=64,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=8,
        is_hybrid=False,
    )
    processor = pil_processor("DPT")(size={"height": 64, "width": 64})
    return transformers.DPTForDepthEstimation(config), processor


def glpn():
    config = transformers.GLPNConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16
    )
    return transformers.GLPNForDepthEstimation(config), pil_processor("GLPN")()


def zoedepth():
    backbone = dinov2(model_type="beit", image_size=64, patch_size=16, use_relative_position_bias=True)
    config = transformers.ZoeDepthConfig(
        backbone_config=backbone,
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        bottleneck_features=16,
        bin_embedding_dim=16,
        num_relative_features=8,
        num_attractors=[4, 2, 2, 1],
        bin_configurations=[{"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0, "name": None}],
    )
    processor = pil_processor("ZoeDepth")(size={"height": 64, "width": 64}, ensure_multiple_of=32)
    return transformers.ZoeDepthForDepthEstimation(config), processor


def depth_pro():
    vit = dinov2(hidden_size=16, num_hidden_layers=2, patch_size=8, image_size=16, out_indices=[2])
    config = transformers.DepthProConfig(
        patch_size=16,
        image_size=64,
        fusion_hidden_size=8,
        intermediate_hook_ids=[1, 0],
        intermediate_feature_dims=[8, 8],
        scaled_images_ratios=[0.5, 1.0],
        scaled_images_overlap_ratios=[0.0, 0.2],
        scaled_images_feature_dims=[12, 12],
        use_fov_model=True,
        image_model_config=vit,
        patch_model_config=vit,
        fov_model_config=vit,
    )
    network = transformers.DepthProForDepthEstimation(config)
    for name, weight in network.named_parameters():
        if name.endswith(
            "head.layers.4.bias"
        ):  # the last offsets: a field of view in degrees, and an inverse depth above 0
            torch.nn.init.constant_(weight, 60.0 if "fov" in name else 3.0)
    settings = {"size": {"height": 64, "width": 64}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    return network, settings


def prompt_depth_anything():
    sizes = {"reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8}
    config = transformers.PromptDepthAnythingConfig(
        backbone_config=dinov2(), head_hidden_size=8, depth_estimation_type="metric", **sizes
    )
    processor = pil_processor("PromptDepthAnything")(
        size={"height": 70, "width": 70},
        keep_aspect_ratio=True,
        ensure_multiple_of=14,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    return transformers.PromptDepthAnythingForDepthEstimation(config), processor


MODELS = {make.__name__: make for make in (depth_anything, depth_anything_metric, dpt, glpn, zoedepth, depth_pro)}


def save(make, folder: Path) -> Path:
    torch.manual_seed(1)  # with this one about a sixth of Depth Anything's disparities are zero
    network, processor = make()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:  # their own small beginnings would give a constant
                weight.normal_(0.0, 1.0 / weight[0].numel() ** 0.5)
    network.save_pretrained(folder)
    if isinstance(processor, dict):
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    else:
        processor.save_pretrained(folder)
    return folder
