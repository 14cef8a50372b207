"""PromptDA (Lin et al. 2025): a network that is shown the picture and, as a prompt, the measurements.

It is run in this process, by transformers. Inside, the prompt is brought to [0, 1] by its least and largest value,
over *all* of its pixels, and the prediction is brought back by the same two. It was trained on the dense maps of low
resolution that a phone's LiDAR gives. With few measurements, the pixels between them must be filled with something.
"""

from __future__ import annotations

import time
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.base.jit import compiled
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.global_fits import measured_pixels
from leadline.priors import as_image
from leadline.priors.device import check_precision, inference, require_packages, torch_device, torch_module
from leadline.priors.transformers import EXTRA, finish, load_network, load_processor
from leadline.priors.weights import local_weights, model_config, require_safetensors

MODEL = "depth-anything/prompt-depth-anything-vitl-hf"
LONGEST = 1008  # pixels of the picture's longer side, as its authors feed it
PATCH = 14  # pixels; both sides are a multiple of it
TYPE = "prompt_depth_anything"
_SPREAD = 1e-5  # relative step given to a constant prompt, which could not be brought to [0, 1] otherwise

Fill = Literal["zeros", "nearest"]


def promptda(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    model: str = MODEL,
    fill: Fill = "zeros",
    device: str = "auto",
    precision: str = "float32",
) -> MethodResult:
    """The depth that PromptDA predicts from picture and measurements; the prior gives no more than its shape.

    Measurements are not restored: the network need not agree with them.

    Parameters
    ----------
    prior : Prior
        Not used, since the network is its own.
    sparse : (H, W) array
        Metres; 0, NaN and inf mean "not measured".
    image : (H, W, 3) uint8 array
    model : str
        An id of the hub, or a folder with the model in transformers' form.
    fill : {"zeros", "nearest"}
        What stands where nothing was measured: 0, as in the paper's comparison, or the nearest measurement, as the
        network's author advises. With zeros the least value of the prompt is always 0, and few measurements hardly
        survive the resizing of the prompt.
    device, precision : str
        As for the priors: "auto", "cpu", "cuda", ...; "float32", "float16", "bfloat16".

    Raises
    ------
    LeadlineError
        An argument is wrong, transformers is not installed, or the model cannot be had.
    """
    begun = time.perf_counter()
    measured = measured_pixels(prior, sparse)
    if as_image(image).shape[:2] != prior.shape:
        raise InputError(f"`image` must have the prior's shape {prior.shape}, got {image.shape[:2]} instead.")
    if fill not in get_args(Fill):
        raise InputError(f"`fill` must be one of {', '.join(get_args(Fill))}, got {fill!r} instead.")
    count = int(np.count_nonzero(measured))
    if count == 0:
        depth, status = np.full(prior.shape, np.nan, np.float32), "failed: no usable measurement"
    else:
        torch, network, processor, config = _load(model, device, check_precision(precision))
        with inference(torch):
            pixels = processor(
                images=[resized(image)], do_resize=False, return_tensors="pt", input_data_format="channels_last"
            )["pixel_values"]
            shown = torch.from_numpy(prompt(sparse, measured, fill))[None, None]
            outputs = network(
                pixel_values=pixels.to(network.device, network.dtype),
                prompt_depth=shown.to(network.device, network.dtype),
            )
            outputs.predicted_depth = outputs.predicted_depth.float()
            depth = finish(torch, config, processor, outputs, prior.shape)[0][0].cpu().numpy()
        bad = ~(np.isfinite(depth) & (depth > 0))
        depth = np.where(bad, np.float32(np.nan), depth)
        failed = int(np.count_nonzero(bad))
        status = f"ok, but {failed} of {depth.size} pixels came out non-positive or infinite" if failed else "ok"
    return MethodResult(depth, status, time.perf_counter() - begun, {"measured": float(count)})


def resized(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture at the size it is fed: at most `LONGEST` on its longer side, both sides a multiple of `PATCH`.

    Sides are rounded down and the picture is averaged over areas, as its authors do; it is never enlarged beyond the
    one patch that the network needs.

    Examples
    --------
    >>> resized(np.zeros((1440, 1920, 3), np.uint8)).shape
    (756, 1008, 3)
    """
    from PIL import Image

    height, width = image.shape[:2]
    scale = min(1.0, LONGEST / max(height, width))
    rows, columns = (max(1, int(side * scale + 1e-9) // PATCH) * PATCH for side in (height, width))
    return np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX))


def prompt(sparse: FloatArray, measured: NDArray[np.bool_], fill: Fill) -> NDArray[np.float32]:
    """The measurements with every gap filled, (H, W) metres, and not constant.

    Examples
    --------
    >>> sparse = np.array([[0.0, 2.0, 0.0, 0.0, 5.0]])
    >>> prompt(sparse, sparse > 0, "nearest")
    array([[2., 2., 2., 5., 5.]], dtype=float32)
    """
    filled = np.where(measured, np.asarray(sparse), 0.0).astype(np.float32)
    if fill == "nearest":
        filled = filled.ravel()[nearest(measured)]
    if filled.min() == filled.max():
        filled[0, 0] *= np.float32(1.0 + _SPREAD)
    return filled


def nearest(measured: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Flat index of the nearest measured pixel, for every pixel; of equally near ones, any but always the same.

    Exact: the nearest within each column first; then, along a row, only columns that are nearer than the best so far.
    """
    height, width = measured.shape
    rows = np.broadcast_to(np.arange(height, dtype=np.int64)[:, None], measured.shape)
    far = np.int64(4 * (height + width))  # farther than anything measured
    above = np.maximum.accumulate(np.where(measured, rows, -far), axis=0)
    below = np.minimum.accumulate(np.where(measured, rows, far + height)[::-1], axis=0)[::-1]
    return _across(np.where(rows - above <= below - rows, above, below))  # type: ignore[no-any-return]


@compiled()
def _across(near: NDArray[np.int64]) -> NDArray[np.int64]:
    height, width = near.shape
    found = np.empty((height, width), np.int64)
    for i in range(height):
        for j in range(width):
            best, at = (near[i, j] - i) ** 2, j
            step = 1
            while step * step < best and step < width:
                for k in (j - step, j + step):
                    if 0 <= k < width:
                        distance = step * step + (near[i, k] - i) ** 2
                        if distance < best:
                            best, at = distance, k
                step += 1
            found[i, j] = near[i, at] * width + at
    return found


@lru_cache(maxsize=1)
def _load(model: str, device: str, precision: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """torch, the network, its image processor and its configuration: kept, so that a benchmark loads them once."""
    require_packages(("torch", "transformers"), EXTRA, "PromptDA")
    folder = local_weights(model)
    require_safetensors(folder)
    config = model_config(folder)
    if config.get("model_type") != TYPE:
        raise FileError(f"{folder}: expected a model of type {TYPE}, got {config.get('model_type')!r}.")
    torch = torch_module(EXTRA, "PromptDA")
    place = torch_device(torch, device, precision)
    family = import_module("transformers").PromptDepthAnythingForDepthEstimation
    network = load_network(family, folder, getattr(torch, precision)).to(place)
    return torch, network, load_processor(folder, config), config
