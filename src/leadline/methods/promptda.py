"""PromptDA (Lin et al. 2025): a network whose inputs are the image and, as a prompt, a depth map of low resolution.

transformers runs it in this process, with the input that the authors' released code prepares: an image of at most 1008
pixels, and the depth of a phone's LiDAR at its own resolution, a 7.5th of the image's (192 of 1440 pixels). The network
scales the prompt to [0, 1] by its minimum and maximum over *all* pixels, scales its prediction back by the same two
numbers, and resizes the prompt bilinearly to each of its four fusion blocks. A map at the image's resolution with zeros
between few measurements hardly survives that resizing, which reads two of every 3.5 to 28 pixels along each axis.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, as_map, is_measured
from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.core.prior import Prior
from leadline.geometry.grids import cell_means
from leadline.io.files import read_json
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status
from leadline.priors import as_image
from leadline.priors.area import resize_area
from leadline.priors.model_files import local_weights, require_safetensors
from leadline.priors.torch_runtime import check_dtype, inference, require_packages, torch_device, torch_module
from leadline.priors.transformers import EXTRA, load_network, load_processor, postprocess

MODEL = "depth-anything/prompt-depth-anything-vitl-hf"
LONGEST = 1008  # pixels of the longer side of the network's input, as its authors choose it
PATCH = 14  # pixels; both sides of the input are a multiple of it
STRIDE = 7.5  # pixels of the image per pixel of the prompt, as in the released setting for ARKit: 1440 / 192
MODEL_TYPE = "prompt_depth_anything"
_SPREAD = 1e-5  # relative step added to a constant prompt, which could not be scaled to [0, 1] otherwise
_ASPECT_TOLERANCE = 0.1  # relative; a map of another aspect ratio does not show the same view, or is turned

Prompt = Literal["cells", "map"]
Fill = Literal["zeros", "nearest", "knn"]
_NEIGHBOURS = {"nearest": 1, "knn": 4}


def promptda(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    model: str = MODEL,
    prompt: Prompt = "cells",
    stride: float = STRIDE,
    fill: Fill = "zeros",
    enlarge: bool = False,
    device: str = "auto",
    dtype: str = "float32",
) -> MethodResult:
    """The depth that PromptDA predicts from the image and the measurements. Measured depths are not restored.

    Parameters
    ----------
    prior : Prior
        Only its shape is used, since the network takes no prior.
    sparse : (H, W) array, or a smaller one with ``prompt="map"``
        Metric depth in metres; values that are not finite and positive are not measured.
    model : str
        An id of the hub, or a folder with the model in the format of transformers.
    prompt : {"cells", "map"}
        The prompt: a grid of low resolution with the mean of the measurements in each cell, which in the paper's cases
        is the cell's mean depth; or `sparse` as it is, at the image's resolution or at the sensor's own, such as
        ARKit's 192x256. A map of the sensor must show the same view as the image.
    stride : float
        For "cells": their size in pixels, at least 1. Must be that of the measurements if these form a grid.
    fill : {"zeros", "nearest", "knn"}
        Value of the prompt's pixels without a measurement: 0, the nearest measurement, or the mean of the four nearest.
        KNN completion with k = 4 is how the network's author prepares the points of a vehicle's LiDAR.
    enlarge : bool
        Enlarge an image whose longer side is below 1008 pixels. The authors' code only shrinks.
    device, dtype : str
        As for the priors: "auto", "cpu", "cuda", ...; "float32", "float16", "bfloat16".
    """
    if as_image(image).shape[:2] != prior.shape:
        raise InputError(f"{param('image')} must have the prior's shape {prior.shape}, got {image.shape[:2]} instead.")
    require_choice("prompt", prompt, Prompt)
    require_choice("fill", fill, Fill)
    check_dtype(dtype)
    if not (math.isfinite(stride) and stride >= 1):
        raise InputError(f"{param('stride')} must be a finite number of at least 1 pixel, got {stride!r} instead.")
    depths = as_map(sparse, "sparse")
    if prompt == "map":
        _require_same_view(depths.shape, prior.shape)
    else:
        measured_pixels(prior, depths)  # raises an error if the shapes differ
    count = int(np.count_nonzero(is_measured(depths)))
    if count == 0:
        return failure(prior.shape, "no usable measurement")
    torch, network, processor, config = _load(model, device, dtype)
    with inference(torch):
        pixels = processor(
            images=[resize_image(image, enlarge=enlarge)],
            do_resize=False,
            do_rescale=False,
            return_tensors="pt",
            input_data_format="channels_last",
        )["pixel_values"]
        values = make_prompt(depths if prompt == "map" else cell_means(depths, stride), fill)
        place = (network.device, network.dtype)
        outputs = network(pixel_values=pixels.to(*place), prompt_depth=torch.from_numpy(values)[None, None].to(*place))
        outputs.predicted_depth = outputs.predicted_depth.float()
        depth = postprocess(torch, config, processor, outputs, prior.shape)[0].cpu().numpy()
    usable = np.isfinite(depth) & (depth > 0)
    status = pixel_status(int(np.count_nonzero(~usable)), depth.size)
    return MethodResult(np.where(usable, depth, np.float32(np.nan)), status, parameters={"measured": float(count)})


def resize_image(image: NDArray[np.uint8], *, enlarge: bool = False) -> NDArray[np.float32]:
    """The image in [0, 1] at the size of the network's input: at most `LONGEST` long, sides multiples of `PATCH`.

    Sides are rounded down and pixels are averaged over areas, as the authors do; they do not round the result to whole
    grey levels. Without `enlarge` an image only becomes larger if a side is shorter than one patch.
    """
    height, width = image.shape[:2]
    scale = LONGEST / max(height, width)
    if not enlarge:
        scale = min(1.0, scale)
    rows, columns = (max(1, int(side * scale + 1e-9) // PATCH) * PATCH for side in (height, width))
    return resize_area(image, (rows, columns)) / np.float32(255.0)


def make_prompt(depths: FloatArray, fill: Fill) -> NDArray[np.float32]:
    """`depths`, (h, w) metres, with every gap filled, and not constant."""
    measured = is_measured(depths)
    filled = np.where(measured, depths, 0.0).astype(np.float32)
    if fill != "zeros":
        filled[~measured] = _nearest_mean(measured, filled[measured], _NEIGHBOURS[fill])
    if filled.min() == filled.max():
        filled[0, 0] *= np.float32(1.0 + _SPREAD)
    return filled


def _nearest_mean(measured: NDArray[np.bool_], values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """For each pixel that is not measured, the mean of the `count` nearest measurements, or of all if there are fewer.

    The author gives no weights, so all neighbours count alike.
    """
    from scipy.spatial import cKDTree

    ranks = list(range(1, min(count, values.size) + 1))
    _, nearest = cKDTree(np.argwhere(measured)).query(np.argwhere(~measured), k=ranks)
    return np.asarray(values[nearest].mean(axis=-1, dtype=np.float64), np.float32)


def _require_same_view(shape: tuple[int, ...], image: tuple[int, int]) -> None:
    """Raise `InputError` if a map is larger than the image or has another aspect ratio."""
    (rows, columns), (height, width) = shape, image
    fits = rows <= height and columns <= width
    if not fits or abs(rows * width / (columns * height) - 1.0) > max(_ASPECT_TOLERANCE, 1.0 / min(rows, columns)):
        raise InputError(
            f"{param('sparse')} must show the same view as the image of {height}x{width} (rows x columns) at that "
            f"resolution or a lower one, got {rows}x{columns}. Turn or crop it first."
        )


@lru_cache(maxsize=1)
def _load(model: str, device: str, dtype: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """torch, the network, its image processor and its configuration; cached, so that a benchmark loads them once."""
    require_packages(("torch", "transformers"), EXTRA, "PromptDA")
    folder = local_weights(model)
    require_safetensors(folder)
    config = read_json(folder / "config.json", "a model's configuration")
    if config.get("model_type") != MODEL_TYPE:
        raise FileError(f"{folder}: expected a model of type {MODEL_TYPE}, got {config.get('model_type')!r}.")
    torch = torch_module(EXTRA, "PromptDA")
    place = torch_device(torch, device, dtype)
    family = import_module("transformers").PromptDepthAnythingForDepthEstimation
    network = load_network(family, folder, getattr(torch, dtype)).to(place)
    return torch, network, load_processor(folder, config), config
