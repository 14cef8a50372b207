"""Depth models that Hugging Face's transformers can load: Depth Anything V2, DPT, ZoeDepth, Depth Pro, GLPN, ..."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.priors import BatchedPrior, shift_floor
from leadline.priors.device import check_precision, inference, require_packages, torch_device, torch_module
from leadline.priors.weights import local_weights, model_config, require_safetensors, short_name, weights_digest

EXTRA = "transformers"
GAUGES = ("metric", "scale", "affine", "unknown")

MEANINGS: dict[str, tuple[PriorKind, str]] = {
    "depth_anything": ("disparity", "affine"),
    "dpt": ("disparity", "affine"),
    "zoedepth": ("depth", "metric"),
    "depth_pro": ("depth", "metric"),
    "glpn": ("depth", "metric"),
}
"""What the numbers of a type of model are, unless its configuration says more; see `meaning`."""


def meaning(config: dict[str, Any]) -> tuple[PriorKind, str] | None:
    """Quantity and gauge of the predictions of a model with that ``config.json``; None if its type is not known.

    Examples
    --------
    >>> meaning({"model_type": "depth_anything"})
    ('disparity', 'affine')
    >>> meaning({"model_type": "depth_anything", "depth_estimation_type": "metric"})
    ('depth', 'metric')
    """
    kind = config.get("model_type")
    if config.get("depth_estimation_type") == "metric":
        return "depth", "metric"
    backbone = config.get("backbone_config")
    if kind == "dpt" and isinstance(backbone, dict) and backbone.get("model_type") == "dinov2":
        return "depth", "metric"  # DINOv2's heads were trained on NYU's and KITTI's metres, not like MiDaS
    if kind == "depth_pro" and config.get("use_fov_model") is False:
        return "depth", "scale"  # metres need the field of view
    return MEANINGS.get(str(kind))


class TransformersPrior(BatchedPrior):
    """A prior from a model that ``AutoModelForDepthEstimation`` can load.

    Images are prepared by the model's own image processor, in its PIL form: the one with torchvision gives slightly
    different numbers, and a result should not depend on what else is installed. The prediction is resized to the
    image by the model's own rule.

    Parameters
    ----------
    model : str or path
        An id of the hub, or a folder with ``config.json``, ``preprocessor_config.json`` and ``model.safetensors``.
        An id that is not in the hub's cache is downloaded. Pickled weights and a model's own code are not loaded.
    kind, gauge : str, optional
        What the predictions are. Default: by the model's type and configuration, see `meaning`.
    floor : float, optional
        For disparity: see `Prior`. Default: a hundredth where the shift is unknown, see `shift_floor`.
    device : str
        "auto", "cpu", "cuda", "cuda:1", "mps", ...
    precision : {"float32", "float16", "bfloat16"}
        Of the network.
    name : str, optional
        For records. Default: the last part of `model`.
    threads : int, optional
        Of the network on the processor. Default: torch's own choice.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        kind: PriorKind | None = None,
        gauge: str | None = None,
        floor: float | None = None,
        device: str = "auto",
        precision: str = "float32",
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        require_packages(("torch", "transformers"), EXTRA, f"the model {model}")  # before a download for nothing
        self.precision = check_precision(precision)
        self.device = device
        self.folder = local_weights(model)
        require_safetensors(self.folder)
        self.name = name or short_name(model)
        self._config = model_config(self.folder)
        self.quantity, self.gauge = self._meaning(kind, gauge)
        self.floor = shift_floor(self.quantity, self.gauge, floor)
        self._threads = threads
        self._loaded: tuple[Any, Any, Any] | None = None

    def _meaning(self, kind: PriorKind | None, gauge: str | None) -> tuple[PriorKind, str]:
        if kind is not None and kind not in get_args(PriorKind):
            raise InputError(f"`kind` must be one of {', '.join(get_args(PriorKind))}, got {kind!r} instead.")
        if gauge is not None and gauge not in GAUGES:
            raise InputError(f"`gauge` must be one of {', '.join(GAUGES)}, got {gauge!r} instead.")
        known = meaning(self._config)
        if known is None:
            if kind is None:
                raise InputError(
                    f"{self.folder}: nothing is known here of models of type {self._config.get('model_type')!r}. "
                    f"Say what its predictions are by `kind` ({', '.join(get_args(PriorKind))}) and, if you know, "
                    f"`gauge` ({', '.join(GAUGES)})."
                )
            known = kind, "unknown"
        return kind or known[0], gauge or (known[1] if kind in (None, known[0]) else "unknown")

    def fingerprint(self) -> str:
        parts = (weights_digest(self.folder), self.quantity, self.gauge, self.floor, self.precision)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}  # a network belongs to its process

    def predict(self, images: Sequence[NDArray[np.uint8]]) -> list[Prior]:
        torch, network, processor = self._load()
        height, width = images[0].shape[:2]
        try:
            with inference(torch, self._threads):
                pixels = prepare(torch, processor, images)
                outputs = network(pixel_values=pixels.to(network.device, network.dtype))
                outputs.predicted_depth = outputs.predicted_depth.float()  # half precision ends at the network
                maps, fields = finish(torch, self._config, processor, outputs, (height, width))
                values = maps.cpu().numpy()
        except Exception as error:  # out of memory, too small for the patches: torch has no common base either
            raise InputError(
                f"{self.name}: the network failed on an image of {width}x{height}: {str(error).splitlines()[0]}"
            ) from error
        return [
            Prior(one, kind=self.quantity, floor=self.floor, camera=_camera(field, height, width))
            for one, field in zip(values, fields, strict=True)
        ]

    def _load(self) -> tuple[Any, Any, Any]:
        if self._loaded is None:
            torch = torch_module(EXTRA, f"the model {self.name}")
            device = torch_device(torch, self.device, self.precision)
            family = import_module("transformers").AutoModelForDepthEstimation
            network = load_network(family, self.folder, getattr(torch, self.precision))
            self._loaded = torch, network.to(device), load_processor(self.folder, self._config)
        return self._loaded


def load_network(family: Any, folder: Path, dtype: Any) -> Any:
    """The network of a folder in evaluation mode, on the processor, with every weight taken from the file.

    Raises
    ------
    FileError
        transformers cannot load it; or weights are missing or of another size, which would be left at random.
    """
    logging = import_module("transformers.utils.logging")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a library does not write to its user's terminal
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
        raise FileError(f"{folder}: transformers cannot load it: {str(error).strip().splitlines()[0]}") from error
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
    """The model's image processor; for Depth Pro, whose own needs torchvision, only its settings."""
    if config.get("model_type") == "depth_pro":
        return _DepthProSettings.read(folder)
    family = import_module("transformers").AutoImageProcessor
    try:
        return family.from_pretrained(folder, backend="pil", trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise FileError(
            f"{folder}: transformers cannot open its preprocessor_config.json: {str(error).strip().splitlines()[0]}"
        ) from error


def prepare(torch: Any, processor: Any, images: Sequence[NDArray[np.uint8]]) -> Any:
    """The tensor that is fed to the network for images of one size, (N, 3, h, w)."""
    if isinstance(processor, _DepthProSettings):
        return processor.prepare(torch, images)
    # Said, because the library would take a picture of three rows for one of three planes.
    return processor(images=list(images), return_tensors="pt", input_data_format="channels_last")["pixel_values"]


def finish(
    torch: Any, config: dict[str, Any], processor: Any, outputs: Any, size: tuple[int, int]
) -> tuple[Any, list[float | None]]:
    """The predictions at the images' `size`, (N, H, W), and the fields of view that come with them, in degrees."""
    raw = outputs.predicted_depth
    if isinstance(processor, _DepthProSettings):
        return processor.finish(torch, outputs, size)
    if config.get("model_type") == "zoedepth":  # the library's own does the same by torchvision
        # The processor reflects the picture at its borders by this much.
        margins = [int(np.sqrt(side / 2) * 3) if processor.do_pad else 0 for side in size]
        padded = [side + 2 * margin for side, margin in zip(size, margins, strict=True)]
        whole = torch.nn.functional.interpolate(raw[:, None], padded, mode="bicubic", align_corners=False)[:, 0]
        maps = whole[:, margins[0] : margins[0] + size[0], margins[1] : margins[1] + size[1]]
    else:
        found = processor.post_process_depth_estimation(outputs, target_sizes=[size] * len(raw))
        maps = torch.stack([one["predicted_depth"].reshape(size) for one in found])
    return maps, [None] * len(raw)


class _DepthProSettings:
    """How Depth Pro is fed and read (Bochkovskii et al. 2024): normalise, then resize; inverse depth times f / width.

    Parameters
    ----------
    size : (height, width)
        At which the network works.
    mean, std : three numbers each
        Of colours in [0, 1].
    """

    def __init__(self, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> None:
        self.size = size
        self.mean = np.asarray(mean, np.float32)
        self.std = np.asarray(std, np.float32)

    @classmethod
    def read(cls, folder: Path) -> _DepthProSettings:
        """From a model's ``preprocessor_config.json``; FileError if that is missing or lacks something."""
        found = model_config(folder, "preprocessor_config.json")
        try:
            size = int(found["size"]["height"]), int(found["size"]["width"])
            return cls(size, found["image_mean"], found["image_std"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{folder / 'preprocessor_config.json'}: lacks or garbles {error}.") from error

    def prepare(self, torch: Any, images: Sequence[NDArray[np.uint8]]) -> Any:
        colours = (np.stack(images).astype(np.float32) / 255.0 - self.mean) / self.std
        planes = torch.from_numpy(np.ascontiguousarray(colours.transpose(0, 3, 1, 2)))
        return torch.nn.functional.interpolate(planes, self.size, mode="bilinear", align_corners=False)

    def finish(self, torch: Any, outputs: Any, size: tuple[int, int]) -> tuple[Any, list[float | None]]:
        inverse = outputs.predicted_depth
        fields: list[float | None] = [None] * len(inverse)
        if outputs.field_of_view is not None:
            degrees = outputs.field_of_view.float().reshape(-1)
            # width / f, with f = width / (2 tan(fov / 2))
            inverse = inverse * (2.0 * torch.tan(0.5 * torch.deg2rad(degrees)))[:, None, None]
            fields = degrees.tolist()
        resized = torch.nn.functional.interpolate(inverse[:, None], size, mode="bilinear", align_corners=False)
        return 1.0 / resized[:, 0].clamp(1e-4, 1e4), fields


def _camera(field: float | None, height: int, width: int) -> Camera | None:
    """A pinhole in the middle of the picture with a horizontal field of view in degrees."""
    if field is None or not 0.0 < field < 180.0:
        return None
    focal = 0.5 * width / float(np.tan(0.5 * np.deg2rad(field)))
    return Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)
