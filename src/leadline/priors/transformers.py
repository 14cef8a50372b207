"""Depth models that Hugging Face's transformers loads: Depth Anything V2, DPT, ZoeDepth, Depth Pro, GLPN, ..."""

from __future__ import annotations

import hashlib
import math
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param, require_choice
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.files import read_json
from leadline.priors import Gauge, PriorSource, as_image, default_floor, torch_runtime
from leadline.priors.model_files import local_weights, require_safetensors, short_name, weights_digest

EXTRA = "transformers"
Resize = Literal["lower_bound", "processor"]

MEANINGS: dict[str, tuple[PriorKind, str]] = {
    "depth_anything": ("disparity", "affine"),
    "dpt": ("disparity", "affine"),
    "zoedepth": ("depth", "metric"),
    "depth_pro": ("depth", "metric"),
    "glpn": ("depth", "metric"),
}
"""Quantity and gauge by type of model; see `meaning` for the exceptions."""


def meaning(config: dict[str, Any]) -> tuple[PriorKind, str] | None:
    """Quantity and gauge of the predictions of a model with that ``config.json``; None if its type is not known."""
    kind = config.get("model_type")
    if config.get("depth_estimation_type") == "metric":
        return "depth", "metric"
    backbone = config.get("backbone_config")
    if kind == "dpt" and isinstance(backbone, dict) and backbone.get("model_type") == "dinov2":
        return "depth", "metric"  # heads on DINOv2 were trained on metric depth of NYU and KITTI, unlike MiDaS
    if kind == "depth_pro" and config.get("use_fov_model") is False:
        return "depth", "scale"  # metres need the field of view
    return MEANINGS.get(str(kind))


class TransformersPrior(PriorSource):
    """A prior from a model that ``AutoModelForDepthEstimation`` can load.

    The model's own image processor prepares the image, in its PIL version: the version with torchvision gives slightly
    different numbers, and a result should not depend on which packages are installed. The prediction is resized to the
    image as the model's processor defines.

    Parameters
    ----------
    model : str or path
        An id of the hub, or a folder with ``config.json``, ``preprocessor_config.json`` and ``model.safetensors``.
        An id that is not in the hub's cache is downloaded. Pickled weights and a model's own code are not loaded.
    kind, gauge : str, optional
        What the predictions are. Default: by the model's type and configuration, see `meaning`.
    resize : {"lower_bound", "processor"}, optional
        Size of the network's input: the smallest of the image's aspect ratio at which no side is below that of the
        model's processor, as the authors of Depth Anything do, see `lower_bound`; or as transformers' processor
        decides, which scales as little as it can. The two differ for images smaller than the processor's size.
        Default: the authors' rule for Depth Anything, the processor's for all others.
    floor : float, optional
        For disparity: see `Prior`. Default: `default_floor`.
    device : str
        "auto", "cpu", "cuda", "cuda:1", "mps", ...
    dtype : {"float32", "float16", "bfloat16"}
    name, threads : optional
        Name for records, by default the last part of `model`; number of processor threads, by default torch's choice.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        kind: PriorKind | None = None,
        gauge: str | None = None,
        resize: Resize | None = None,
        floor: float | None = None,
        device: str = "auto",
        dtype: str = "float32",
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        # Checked before a download.
        torch_runtime.require_packages(("torch", "transformers"), EXTRA, f"the model {model}")
        torch_runtime.check_dtype(dtype)
        self.device, self.dtype = device, dtype
        self.folder = local_weights(model)
        require_safetensors(self.folder)
        self.name = name or short_name(model)
        self._config = read_json(self.folder / "config.json", "a model's configuration")
        self.quantity, self.gauge = self._meaning(kind, gauge)
        self.resize = self._resize_rule(resize)
        self.floor = default_floor(self.quantity, self.gauge, floor)
        self._threads = threads
        self._loaded: tuple[Any, Any, Any] | None = None

    def _meaning(self, kind: PriorKind | None, gauge: str | None) -> tuple[PriorKind, str]:
        if kind is not None:
            require_choice("kind", kind, PriorKind)
        if gauge is not None:
            require_choice("gauge", gauge, Gauge)
        known = meaning(self._config)
        if known is None:
            if kind is None:
                raise InputError(
                    f"{self.folder}: models of type {self._config.get('model_type')!r} are not known here. Set "
                    f"{param('kind')} ({', '.join(get_args(PriorKind))}) to what it predicts and, if you know it, "
                    f"{param('gauge')} ({', '.join(get_args(Gauge))})."
                )
            known = kind, "unknown"
        return kind or known[0], gauge or (known[1] if kind in (None, known[0]) else "unknown")

    def _resize_rule(self, resize: Resize | None) -> Resize:
        authors = self._config.get("model_type") == "depth_anything"
        if resize is None:
            return "lower_bound" if authors else "processor"
        require_choice("resize", resize, Resize)
        if resize == "lower_bound" and not authors:
            raise InputError(
                f"{param('resize')} lower_bound is the rule of Depth Anything's authors, and {self.folder} is a model "
                f"of type {self._config.get('model_type')!r}; use processor."
            )
        return resize

    def fingerprint(self) -> str:
        parts = (weights_digest(self.folder), self.quantity, self.gauge, self.resize, self.floor, self.dtype)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}  # each process loads the network itself

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = as_image(image).shape[:2]
        torch, network, processor = self._load()
        try:
            with torch_runtime.inference(torch, self._threads):
                pixels = preprocess(torch, processor, image, self.resize)
                outputs = network(pixel_values=pixels.to(network.device, network.dtype))
                outputs.predicted_depth = outputs.predicted_depth.float()  # only the network uses a smaller dtype
                depth, field_of_view = postprocess(torch, self._config, processor, outputs, (height, width))
                values = depth.cpu().numpy()
        except Exception as error:  # out of memory, too small for the patches: torch's errors share no base class
            raise InputError(
                f"{self.name}: the network failed on an image of {width}x{height}: {torch_runtime.first_line(error)}."
            ) from error
        camera = None
        if field_of_view is not None and 0.0 < field_of_view < 180.0:  # horizontal, in degrees
            focal = 0.5 * width / float(np.tan(0.5 * np.deg2rad(field_of_view)))
            camera = Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)
        return Prior(values, kind=self.quantity, floor=self.floor, camera=camera)

    def _load(self) -> tuple[Any, Any, Any]:
        if self._loaded is None:
            torch = torch_runtime.torch_module(EXTRA, f"the model {self.name}")
            device = torch_runtime.torch_device(torch, self.device, self.dtype)
            family = import_module("transformers").AutoModelForDepthEstimation
            network = load_network(family, self.folder, getattr(torch, self.dtype))
            self._loaded = torch, network.to(device), load_processor(self.folder, self._config)
        return self._loaded


def load_network(family: Any, folder: Path, dtype: Any) -> Any:
    """The network of a folder in evaluation mode, on the processor, with every weight from the file."""
    logging = import_module("transformers.utils.logging")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a library must not write to the terminal
    try:
        network, report = family.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise FileError(f"{folder}: transformers cannot load it: {torch_runtime.first_line(error)}.") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    lacking = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if lacking:
        raise FileError(
            f"{folder}: {len(lacking)} weights are missing or do not fit, such as {lacking[0]}; "
            "the file and its config.json are not of one model."
        )
    return network.eval()


def load_processor(folder: Path, config: dict[str, Any]) -> Any:
    """The model's image processor; for Depth Pro, whose processor needs torchvision, our own with its settings."""
    if config.get("model_type") == "depth_pro":
        return _DepthProProcessor(folder)
    library = import_module("transformers")
    # Earlier versions call the classes that use PIL "slow".
    pil: dict[str, Any] = {"backend": "pil"} if hasattr(library, "DPTImageProcessorPil") else {"use_fast": False}
    try:
        return library.AutoImageProcessor.from_pretrained(folder, **pil, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise FileError(
            f"{folder}: transformers cannot open its preprocessor_config.json: {torch_runtime.first_line(error)}."
        ) from error


def preprocess(torch: Any, processor: Any, image: NDArray[np.uint8], resize: Resize = "processor") -> Any:
    """The network's input for an image, (1, 3, h, w)."""
    if isinstance(processor, _DepthProProcessor):
        return processor.preprocess(torch, image)
    size: dict[str, Any] = {}
    if resize == "lower_bound":
        least, multiple = processor.size, processor.ensure_multiple_of
        rows, columns = lower_bound(image.shape[:2], (least["height"], least["width"]), multiple)
        size = {"size": {"height": rows, "width": columns}, "keep_aspect_ratio": False}
    # Without the format, transformers would take an image of three rows for one of three planes.
    return processor(images=[image], return_tensors="pt", input_data_format="channels_last", **size)["pixel_values"]


def lower_bound(shape: tuple[int, ...], least: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Height and width of the input of Depth Anything for an image of that shape, by its authors' rule.

    The image is scaled so that both sides are at least `least` and one of them equals it; each side is rounded to the
    nearest multiple, or up where that would be below `least`.

    Examples
    --------
    >>> lower_bound((384, 512), (518, 518), 14)
    (518, 686)
    """
    scale = max(wanted / side for wanted, side in zip(least, shape, strict=True))

    def rounded(side: int, wanted: int) -> int:
        nearest = round(scale * side / multiple) * multiple
        return nearest if nearest >= wanted else math.ceil(scale * side / multiple) * multiple

    return rounded(shape[0], least[0]), rounded(shape[1], least[1])


def postprocess(
    torch: Any, config: dict[str, Any], processor: Any, outputs: Any, size: tuple[int, int]
) -> tuple[Any, float | None]:
    """The prediction at the image's `size`, (H, W), and the predicted field of view in degrees, if there is one."""
    if isinstance(processor, _DepthProProcessor):
        return processor.postprocess(torch, outputs, size)
    if config.get("model_type") == "zoedepth":  # the processor's own method needs torchvision
        # The processor pads the image by reflection; these are the widths of its margins.
        margins = [int(np.sqrt(side / 2) * 3) if processor.do_pad else 0 for side in size]
        padded = [side + 2 * margin for side, margin in zip(size, margins, strict=True)]
        depth = outputs.predicted_depth[:, None]
        whole = torch.nn.functional.interpolate(depth, padded, mode="bicubic", align_corners=False)[0, 0]
        return whole[margins[0] : margins[0] + size[0], margins[1] : margins[1] + size[1]], None
    (found,) = processor.post_process_depth_estimation(outputs, target_sizes=[size])
    return found["predicted_depth"].reshape(size), None


class _DepthProProcessor:
    """Input and output of Depth Pro (Bochkovskii et al. 2024), without torchvision.

    The image is normalised and then resized. The network predicts inverse depth times f / width.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "preprocessor_config.json"
        found = read_json(file, "the settings of an image processor")
        try:
            self.size = int(found["size"]["height"]), int(found["size"]["width"])  # of the network's input
            self.mean, self.std = (np.asarray(found[key], np.float32) for key in ("image_mean", "image_std"))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{file}: a key is missing or wrong ({error}).") from error

    def preprocess(self, torch: Any, image: NDArray[np.uint8]) -> Any:
        """The network's input for an image, (1, 3, h, w)."""
        colours = (image.astype(np.float32) / 255.0 - self.mean) / self.std
        planes = torch.from_numpy(np.ascontiguousarray(colours.transpose(2, 0, 1)[None]))
        return torch.nn.functional.interpolate(planes, self.size, mode="bilinear", align_corners=False)

    def postprocess(self, torch: Any, outputs: Any, size: tuple[int, int]) -> tuple[Any, float | None]:
        """The depth at the image's `size`, (H, W), and the field of view in degrees, if it is predicted."""
        inverse, field_of_view = outputs.predicted_depth, None
        if outputs.field_of_view is not None:
            degrees = outputs.field_of_view.float().reshape(())
            # The factor is width / f, with f = width / (2 tan(fov / 2)).
            inverse = inverse * (2.0 * torch.tan(0.5 * torch.deg2rad(degrees)))
            field_of_view = float(degrees)
        resized = torch.nn.functional.interpolate(inverse[:, None], size, mode="bilinear", align_corners=False)
        return 1.0 / resized[0, 0].clamp(1e-4, 1e4), field_of_view
