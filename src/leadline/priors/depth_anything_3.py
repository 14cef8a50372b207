"""Depth Anything 3 (Lin et al. 2025), run by its authors' package because transformers does not include it."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, require_positive
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.files import read_json
from leadline.priors import PriorSource, as_image, resize_map
from leadline.priors.model_files import local_weights, require_safetensors, short_name, weights_digest
from leadline.priors.torch_runtime import first_line, inference, require_packages, torch_device, torch_module

EXTRA = "depth-anything-3"
GAUGES = {"da3mono": "affine", "da3metric": "scale", "da3nested": "metric", "da3": "scale"}
"""Gauge by the prefix of the model's name. The metric model is "scale", since its metres need the focal length."""


class DepthAnything3Prior(PriorSource):
    """A prior from Depth Anything 3: depth, invalid in the sky, and a camera where the model predicts one.

    Parameters
    ----------
    model : str or path
        An id of the hub such as ``depth-anything/DA3MONO-LARGE``, or a folder with its config.json and weights.
    device : str
        "auto", "cpu", "cuda", ... The package chooses the dtype itself.
    resolution : int
        Longer side of the network's input in pixels.
    name, threads : optional
        Name for records, by default the last part of `model`; number of processor threads, by default torch's choice.
    """

    quantity: PriorKind = "depth"

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        resolution: int = 504,
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        require_positive(resolution=resolution)
        require_packages(("torch", "depth_anything_3"), EXTRA, f"the model {model}")
        self.folder = local_weights(model)
        require_safetensors(self.folder)
        label = str(read_json(self.folder / "config.json", "a model's configuration").get("model_name", ""))
        gauge = next((gauge for start, gauge in GAUGES.items() if label.startswith(start)), None)
        if gauge is None:
            raise FileError(f"{self.folder / 'config.json'}: its model_name must begin with da3, got {label!r}.")
        self.gauge, self.name = gauge, name or short_name(model)
        self.device, self.resolution, self._threads = device, int(resolution), threads
        self._loaded: tuple[Any, Any] | None = None

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((weights_digest(self.folder), self.resolution)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}  # each process loads the network itself

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = as_image(image).shape[:2]
        torch, network = self._load()
        with inference(torch, self._threads):
            found = network.inference([image], process_res=self.resolution)
        depth = np.asarray(found.depth, np.float32)[0]
        valid, camera = None, None
        if found.sky is not None:
            valid = resize_map(np.asarray(found.sky[0], np.float32), height, width) < 0.5
        if found.intrinsics is not None:
            # The intrinsics are for the resized image, with the centre of the first pixel at one half.
            (fx, _, cx), (_, fy, cy), _ = np.asarray(found.intrinsics[0], np.float64).tolist()
            rows, columns = depth.shape
            camera = Camera(columns, rows, fx, fy, cx - 0.5, cy - 0.5).scaled(width, height)
        return Prior(resize_map(depth, height, width), valid=valid, camera=camera)

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            torch = torch_module(EXTRA, f"the model {self.name}")
            device = torch_device(torch, self.device)
            try:
                network = import_module("depth_anything_3.api").DepthAnything3.from_pretrained(str(self.folder))
            except Exception as error:
                raise FileError(f"{self.folder}: depth_anything_3 cannot load it: {first_line(error)}.") from error
            self._loaded = torch, network.to(device).eval()
        return self._loaded
