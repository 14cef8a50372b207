"""PromptDA (Lin et al. 2025): a network whose inputs are the image and, as a prompt, a dense map of depth.

transformers runs it in this process. The network scales the prompt to [0, 1] by its minimum and maximum over *all*
pixels, and scales its prediction back by the same two numbers. It was trained on the dense maps of low resolution that
a phone's LiDAR gives, so with few measurements the pixels between them must be filled in first.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.core.prior import Prior
from leadline.io.files import read_json
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status
from leadline.priors import as_image
from leadline.priors.model_files import local_weights, require_safetensors
from leadline.priors.torch_runtime import check_dtype, inference, require_packages, torch_device, torch_module
from leadline.priors.transformers import EXTRA, load_network, load_processor, postprocess

MODEL = "depth-anything/prompt-depth-anything-vitl-hf"
LONGEST = 1008  # pixels of the longer side of the network's input, as its authors choose it
PATCH = 14  # pixels; both sides of the input are a multiple of it
MODEL_TYPE = "prompt_depth_anything"
_SPREAD = 1e-5  # relative step added to a constant prompt, which could not be scaled to [0, 1] otherwise

Fill = Literal["zeros", "nearest"]


def promptda(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    model: str = MODEL,
    fill: Fill = "zeros",
    device: str = "auto",
    dtype: str = "float32",
) -> MethodResult:
    """The depth that PromptDA predicts from the image and the measurements. Measured depths are not restored.

    Parameters
    ----------
    prior : Prior
        Only its shape is used, since the network takes no prior.
    model : str
        An id of the hub, or a folder with the model in the format of transformers.
    fill : {"zeros", "nearest"}
        Value of pixels without a measurement: 0, as in the paper's comparison, or the nearest measurement, as the
        network's author recommends. With zeros the minimum of the prompt is always 0, and few measurements hardly
        survive the resizing of the prompt.
    device, dtype : str
        As for the priors: "auto", "cpu", "cuda", ...; "float32", "float16", "bfloat16".
    """
    measured = measured_pixels(prior, sparse)
    if as_image(image).shape[:2] != prior.shape:
        raise InputError(f"{param('image')} must have the prior's shape {prior.shape}, got {image.shape[:2]} instead.")
    require_choice("fill", fill, Fill)
    check_dtype(dtype)
    count = int(np.count_nonzero(measured))
    if count == 0:
        return failure(prior.shape, "no usable measurement")
    torch, network, processor, config = _load(model, device, dtype)
    with inference(torch):
        pixels = processor(
            images=[resize_image(image)], do_resize=False, return_tensors="pt", input_data_format="channels_last"
        )["pixel_values"]
        prompt = torch.from_numpy(make_prompt(sparse, measured, fill))[None, None]
        place = (network.device, network.dtype)
        outputs = network(pixel_values=pixels.to(*place), prompt_depth=prompt.to(*place))
        outputs.predicted_depth = outputs.predicted_depth.float()
        depth = postprocess(torch, config, processor, outputs, prior.shape)[0].cpu().numpy()
    usable = np.isfinite(depth) & (depth > 0)
    status = pixel_status(int(np.count_nonzero(~usable)), depth.size)
    return MethodResult(np.where(usable, depth, np.float32(np.nan)), status, parameters={"measured": float(count)})


def resize_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image at the size of the network's input: at most `LONGEST` on its longer side, multiples of `PATCH`.

    Sides are rounded down and pixels are averaged over areas, as its authors do. An image is only enlarged if a side is
    shorter than one patch.
    """
    from PIL import Image

    height, width = image.shape[:2]
    scale = min(1.0, LONGEST / max(height, width))
    rows, columns = (max(1, int(side * scale + 1e-9) // PATCH) * PATCH for side in (height, width))
    return np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX))


def make_prompt(sparse: FloatArray, measured: NDArray[np.bool_], fill: Fill) -> NDArray[np.float32]:
    """The measurements with every gap filled, (H, W) metres, and not constant."""
    from scipy.ndimage import distance_transform_edt

    filled = np.where(measured, np.asarray(sparse), 0.0).astype(np.float32)
    if fill == "nearest":
        rows, columns = distance_transform_edt(~measured, return_distances=False, return_indices=True)
        filled = filled[rows, columns]
    if filled.min() == filled.max():
        filled[0, 0] *= np.float32(1.0 + _SPREAD)
    return filled


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
