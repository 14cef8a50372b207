"""MoGe-2 and MoGe-3 through Microsoft's own package: metric depth, a mask and a camera."""

from __future__ import annotations

import hashlib
import math
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.priors import PRIORS, PriorSource, as_image
from leadline.priors.model_files import local_weights, short_name, weights_digest
from leadline.priors.torch_runtime import check_dtype, first_line, inference, torch_device, torch_module

CHECKPOINT = "model.pt"
REFINE_STEPS = 3  # the default of MoGe-3
_REFINER = "moge.model.modules.sparse_unet"  # the only module of MoGe-3 that needs FlexGEMM


class MissingMoge(MissingExtra):
    """The package moge is not installed; it is not on PyPI. The extra `moge` installs what it needs from there."""

    def __init__(self, reason: str) -> None:
        ImportError.__init__(self, f"MoGe needs the package 'moge', {reason}: {PRIORS['moge-2'].install}")


class MogePrior(PriorSource):
    """A prior from MoGe-2 or MoGe-3: an estimate of metric depth, a mask, and a camera.

    Pixels outside of its mask, mostly sky, are not valid. MoGe-3 refines its depth by sparse convolutions of the
    package FlexGEMM, which run on CUDA only; elsewhere the network runs without its refiner, and `note` reports it.

    Parameters
    ----------
    model : str or path
        An id of the hub such as ``Ruicheng/moge-2-vitl``, a checkpoint, or a folder with a ``model.pt``. An id that is
        not in the hub's cache is downloaded. The package reads checkpoints with torch's ``weights_only``.
    version : {2, 3}
        Version of MoGe; a checkpoint of the other version is refused.
    device : str
        "auto", "cpu", "cuda", ...
    dtype : {"float32", "float16"}
        float16 is the mixed precision of MoGe.
    fov_x : float, optional
        Horizontal field of view in degrees, if it is known. Default: predicted.
    focal : float, optional
        The focal length fx in pixels, instead of `fov_x`; for images that differ in width.
    resolution_level : int
        From 0, coarse and fast, to 9.
    refine_steps : int, optional
        Refinement steps of MoGe-3. Default: 3 where its refiner can run, 0 elsewhere.
    name, threads : optional
        Name for records, by default the last part of `model`; number of processor threads, by default torch's choice.
    """

    quantity: PriorKind = "depth"
    gauge = "metric"

    def __init__(
        self,
        model: str | Path,
        *,
        version: int = 2,
        device: str = "auto",
        dtype: str = "float32",
        fov_x: float | None = None,
        focal: float | None = None,
        resolution_level: int = 9,
        refine_steps: int | None = None,
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        if version not in (2, 3):
            raise InputError(f"{param('version')} must be 2 or 3, got {version!r} instead.")
        check_dtype(dtype, ("float32", "float16"))
        if fov_x is not None and focal is not None:
            raise InputError(f"{param('fov_x')} and {param('focal')} exclude each other; give one of them.")
        if fov_x is not None and not 0 < fov_x < 180:
            raise InputError(f"{param('fov_x')} must be an angle between 0 and 180 degrees, got {fov_x!r} instead.")
        if focal is not None and not (focal > 0 and math.isfinite(focal)):
            raise InputError(f"{param('focal')} must be a positive number of pixels, got {focal!r} instead.")
        if resolution_level not in range(10):
            raise InputError(f"{param('resolution_level')} must be an integer from 0 to 9, got {resolution_level!r}.")
        if refine_steps is not None and (version != 3 or not isinstance(refine_steps, int) or refine_steps < 0):
            raise InputError(
                f"{param('refine_steps')} must be at least 0, and is for MoGe-3 only, got {refine_steps!r}."
            )
        if find_spec("moge") is None:  # checked before a download
            raise MissingMoge("which is not on PyPI")
        self.name = name or short_name(model)
        self.version, self.device, self.dtype = version, device, dtype
        self.fov_x, self.focal, self.resolution_level = fov_x, focal, resolution_level
        self._location = local_weights(model, patterns=(CHECKPOINT,))
        self.checkpoint = self._location / CHECKPOINT if self._location.is_dir() else self._location
        if not self.checkpoint.is_file():
            raise FileError(f"{self._location}: there is no {CHECKPOINT} in it; give a MoGe checkpoint, or its folder.")
        self._threads = threads
        self._requested_steps = refine_steps
        self._network: Any = None
        self._choice: tuple[Any, Any, int] | None = None  # class, device, refinement steps

    @property
    def note(self) -> str:
        """A remark about these predictions for the user, or ""."""
        if self.version != 3 or self._requested_steps == 0 or self._choose()[2]:
            return ""
        return (
            f"{self.name} runs without its refiner, which needs a CUDA device and the package FlexGEMM; fine detail is "
            "that of MoGe-3's first pass."
        )

    def fingerprint(self) -> str:
        """A hash of the weights, of every option, and of whether the refiner runs on this device."""
        options = (self.version, self.dtype, self.fov_x, self.focal, self.resolution_level, self._choose()[2])
        return hashlib.sha256(repr((weights_digest(self._location), options)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_network": None, "_choice": None}  # each process loads the network itself

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = as_image(image).shape[:2]
        torch, network = torch_module("transformers", "MoGe"), self._load()
        _, device, steps = self._choose()
        options: dict[str, Any] = {"refine_steps": steps} if self.version == 3 else {}
        fov_x = self.fov_x if self.focal is None else math.degrees(2 * math.atan(width / (2 * self.focal)))
        try:
            with inference(torch, self._threads):
                pixels = torch.from_numpy(image[None].copy()).to(device).permute(0, 3, 1, 2).float() / 255
                found = network.infer(
                    pixels,
                    fov_x=fov_x,
                    resolution_level=self.resolution_level,
                    apply_mask=False,  # the mask is returned as `valid`; depth outside of it stays readable
                    use_fp16=self.dtype == "float16",
                    **options,
                )
                depth, mask, intrinsics = (
                    None if found.get(key) is None else found[key][0].cpu().numpy()
                    for key in ("depth", "mask", "intrinsics")
                )
        except Exception as error:  # out of memory, a foreign checkpoint: torch's errors share no base class
            raise InputError(
                f"{self.name} failed on an image of {width}x{height} pixels on {device}: {first_line(error)}. "
                f"Try a smaller image, a lower {param('resolution_level')}, or another {param('device')}."
            ) from error
        if depth is None:
            raise FileError(f"{self.checkpoint}: this MoGe predicts no depth; use a model with a head for points.")
        return Prior(
            depth.astype(np.float32),
            valid=None if mask is None else mask.astype(bool),
            camera=None if intrinsics is None else pixel_camera(intrinsics, width, height),
        )

    def _choose(self) -> tuple[Any, Any, int]:
        """The class of the network, its device, and the number of refinement steps; chosen once per process."""
        if self._choice is None:
            device = torch_device(torch_module("transformers", "MoGe"), self.device, self.dtype)
            kind, refiner = _network_class(self.version)
            able = refiner and device.type == "cuda"
            if self._requested_steps and not able:
                raise InputError(
                    f"{param('refine_steps')} must be 0 here, got {self._requested_steps}: MoGe-3's refiner needs a "
                    f"CUDA device (it runs on {device}) and FlexGEMM ({'found' if refiner else 'not usable'})."
                )
            steps = REFINE_STEPS if self._requested_steps is None else self._requested_steps
            self._choice = kind, device, steps if able else 0
        return self._choice

    def _load(self) -> Any:
        if self._network is None:
            kind, device, steps = self._choose()
            # Without refinement steps the refiner only takes memory, and without FlexGEMM it cannot be built at all.
            options = {} if self.version == 2 or steps else {"model_kwargs": {"refiner": None}}
            try:
                stored, version = _read_checkpoint(torch_module("transformers", "MoGe"), self.checkpoint)
                with warnings.catch_warnings():
                    if options:
                        warnings.simplefilter("ignore")  # a warning that the refiner's weights are not used
                    network = kind.from_pretrained(str(self.checkpoint), **options) if version == self.version else None
            except Exception as error:  # a pickle with more than weights, a foreign configuration, no memory
                raise FileError(
                    f"{self.checkpoint}: cannot be loaded as MoGe-{self.version} ({first_line(error)})."
                ) from error
            if network is None:
                raise FileError(
                    f"{self.checkpoint}: is a checkpoint of MoGe-{version}, and {param('version')} is {self.version}; "
                    f"use the prior moge-{version}."
                )
            # The package ignores missing weights, and the network would predict with random ones. Buffers are constants
            # that the package sets itself, and the mask token is for training only.
            weights = (name for name, _ in network.named_parameters() if not name.endswith("mask_token"))
            lacking = sorted(name for name in weights if name not in stored)
            if lacking:
                raise FileError(
                    f"{self.checkpoint}: {len(lacking)} weights of MoGe-{self.version} are missing, such as "
                    f"{lacking[0]}; the file is incomplete or of another model."
                )
            self._network = network.to(device).eval()
        return self._network


def pixel_camera(intrinsics: NDArray[Any], width: int, height: int) -> Camera:
    """The camera of MoGe's normalised (3, 3) intrinsics, in pixels whose centres are at integers.

    MoGe measures in widths and heights of the image from its corner, half a pixel before the first centre.
    """
    (fx, _, cx), (_, fy, cy), _ = intrinsics.astype(np.float64).tolist()
    return Camera(width, height, fx * width, fy * height, cx * width - 0.5, cy * height - 0.5)


def _read_checkpoint(torch: Any, path: Path) -> tuple[frozenset[str], int]:
    """The names of the weights in a checkpoint, and the version of MoGe that it is for.

    Only MoGe-3 has a refiner. The package would load either version as the other: it ignores configuration and weights
    that it does not know, but takes the output of MoGe-3, a logarithm, for something else. The weights themselves are
    not read where the file allows it.
    """
    found = torch.load(str(path), map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    stored = frozenset(found["model"])
    refiner = "refiner" in found["model_config"] or any(name.startswith("refiner.") for name in stored)
    return stored, 3 if refiner else 2


def _network_class(version: int) -> tuple[Any, bool]:
    """The class of the network, and whether its refiner can be built.

    The package imports FlexGEMM, which fails where that is not installed or finds no Triton. With a placeholder for the
    only module that uses it, the rest can be imported, and networks have no refiner. The placeholder stays for the
    process, so that later calls import the package at the first attempt and must look for it.
    """
    module = f"moge.model.v{version}"
    try:
        found = import_module(module).MoGeModel
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise MissingMoge(f"and the one installed has no {module}; a newer one") from error
        cause: Exception = error
    except Exception as error:  # a broken CUDA library may raise other errors than ImportError
        cause = error
    else:
        refiner = getattr(sys.modules.get(_REFINER), "Sparse3DUNet", None)
        return found, version == 3 and refiner is not None
    placeholder = ModuleType(_REFINER)
    placeholder.Sparse3DUNet = None  # type: ignore[attr-defined]
    sys.modules.setdefault(_REFINER, placeholder)
    try:
        return import_module(module).MoGeModel, False
    except Exception as error:
        sys.modules.pop(_REFINER, None)
        raise MissingMoge(f"and the one installed cannot be imported ({first_line(cause)}); again") from error
