"""MoGe-2 and MoGe-3 through Microsoft's own package: metric depth, where it holds, and the camera they believe in."""

from __future__ import annotations

import hashlib
import math
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.priors import BatchedPrior
from leadline.priors.device import check_precision, first_line, inference, torch_device, torch_module
from leadline.priors.weights import local_weights, short_name, weights_digest

CHECKPOINT = "model.pt"
INSTALL = "pip install git+https://github.com/microsoft/MoGe.git"
REFINE_STEPS = 3  # MoGe-3's own default
_REFINER = "moge.model.modules.sparse_unet"  # the one module of MoGe-3 that needs FlexGEMM


class MissingMoge(MissingExtra):
    """The package is not on PyPI, so no extra of leadline can bring it."""

    def __init__(self, reason: str) -> None:
        ImportError.__init__(self, f"MoGe needs the package 'moge', {reason}: {INSTALL}")


class MogePrior(BatchedPrior):
    """A prior from MoGe-2 or MoGe-3: depth in metres as far as a network can tell, a mask, and a camera.

    Pixels outside of its mask, mostly sky, are not valid. MoGe-3 refines its depth by sparse convolutions of the
    package FlexGEMM, which run on CUDA only; elsewhere the network is loaded without its refiner, and `note` says so.

    Parameters
    ----------
    model : str or path
        An id of the hub such as ``Ruicheng/moge-2-vitl``, a checkpoint, or a folder with a ``model.pt``. An id that is
        not in the hub's cache is downloaded. The package reads checkpoints with torch's ``weights_only``.
    version : {2, 3}
        Of MoGe; must be that of the model.
    device : str
        "auto", "cpu", "cuda", ...
    precision : {"float32", "float16"}
        float16 is MoGe's own mixed precision.
    fov_x : float, optional
        Horizontal field of view in degrees, if it is known. Default: predicted.
    focal : float, optional
        The same as a focal length fx in pixels, for images that differ in width.
    resolution_level : int
        From 0, coarse and quick, to 9.
    refine_steps : int, optional
        Of MoGe-3. Default: 3 where its refiner can run, 0 elsewhere.
    name : str, optional
        For records. Default: the last part of `model`.
    threads : int, optional
        Of the network on the processor. Default: torch's own choice.

    Raises
    ------
    MissingExtra
        The package, or torch, is not installed.
    InputError
        An option is out of its range or not for this version or device.
    FileError
        There is no such model.
    """

    quantity: PriorKind = "depth"
    gauge = "metric"

    def __init__(
        self,
        model: str | Path,
        *,
        version: int = 2,
        device: str = "auto",
        precision: str = "float32",
        fov_x: float | None = None,
        focal: float | None = None,
        resolution_level: int = 9,
        refine_steps: int | None = None,
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        _check(version, precision, fov_x, focal, resolution_level, refine_steps)
        if find_spec("moge") is None:  # before a download, which would be for nothing
            raise MissingMoge("which is not on PyPI")
        self.name = name or short_name(model)
        self.version, self.device, self.precision = version, device, precision
        self.fov_x, self.focal, self.resolution_level = fov_x, focal, resolution_level
        self._place = local_weights(model, patterns=(CHECKPOINT,))
        self.checkpoint = _checkpoint(self._place)
        self._threads = threads
        self._asked_steps = refine_steps
        self._network: Any = None
        self._plan: tuple[Any, Any, int] | None = None  # class, device, refinement steps

    @property
    def note(self) -> str:
        """What a user should know of these predictions; "" if nothing."""
        if self.version != 3 or self._asked_steps == 0 or self._planned()[2]:
            return ""
        return (
            f"{self.name}: without its refiner, which needs a CUDA device and the package FlexGEMM; fine detail is "
            "that of MoGe-3's first pass."
        )

    def fingerprint(self) -> str:
        """Of the weights and every option; of the device only whether the refiner runs on it."""
        options = (self.version, self.precision, self.fov_x, self.focal, self.resolution_level, self._planned()[2])
        return hashlib.sha256(repr((weights_digest(self._place), options)).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_network": None, "_plan": None}  # a network belongs to its process

    def predict(self, images: Sequence[NDArray[np.uint8]]) -> list[Prior]:
        torch, network = _torch(), self._load()
        _, device, steps = self._planned()
        height, width = images[0].shape[:2]
        options: dict[str, Any] = {"refine_steps": steps} if self.version == 3 else {}
        try:
            with inference(torch, self._threads):
                pixels = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2).float() / 255
                found = network.infer(
                    pixels,
                    fov_x=_field_of_view(self.fov_x, self.focal, width),
                    resolution_level=self.resolution_level,
                    apply_mask=False,  # the mask comes as `valid`, and what is below it stays readable
                    use_fp16=self.precision == "float16",
                    **options,
                )
                depth, mask, cameras = (
                    None if found.get(key) is None else found[key].cpu().numpy()
                    for key in ("depth", "mask", "intrinsics")
                )
        except Exception as error:  # out of memory, a foreign checkpoint: torch's errors share no base
            raise InputError(
                f"{self.name} failed on {len(images)} image(s) of {width}x{height} pixels on {device}: "
                f"{first_line(error)}. Try a smaller image, a lower resolution_level, or another device."
            ) from error
        if depth is None:
            raise FileError(f"{self.checkpoint}: this MoGe predicts no depth; use a model with a head for points.")
        return [
            Prior(
                depth[i].astype(np.float32),
                valid=None if mask is None else mask[i].astype(bool),
                camera=None if cameras is None else pixel_camera(cameras[i], width, height),
            )
            for i in range(len(images))
        ]

    def _planned(self) -> tuple[Any, Any, int]:
        """The class of the network, its device, and how often it refines; decided once a process."""
        if self._plan is None:
            torch = _torch()
            device = torch_device(torch, self.device, self.precision)
            kind, refiner = _network_class(self.version)
            able = refiner and device.type == "cuda"
            if self._asked_steps and not able:
                raise InputError(
                    f"`refine_steps` must be 0 here, got {self._asked_steps}: the refiner of MoGe-3 needs a CUDA "
                    f"device (this is {device}) and the package FlexGEMM ({'found' if refiner else 'not usable'})."
                )
            steps = REFINE_STEPS if self._asked_steps is None else self._asked_steps
            self._plan = kind, device, steps if able else 0
        return self._plan

    def _load(self) -> Any:
        if self._network is None:
            kind, device, steps = self._planned()
            # Without steps to refine, its refiner would be so much memory for nothing, or could not be built at all.
            options = {} if self.version == 2 or steps else {"model_kwargs": {"refiner": None}}
            try:
                with warnings.catch_warnings():
                    if options:
                        warnings.simplefilter("ignore")  # that the refiner's weights are left over is in `note`
                    network = kind.from_pretrained(str(self.checkpoint), **options)
                self._network = network.to(device).eval()
            except Exception as error:  # a pickle with more than weights, another version's keys, no memory
                raise FileError(
                    f"{self.checkpoint}: cannot be loaded as MoGe-{self.version} ({first_line(error)})."
                ) from error
        return self._network


def pixel_camera(intrinsics: NDArray[Any], width: int, height: int) -> Camera:
    """The camera of MoGe's normalised (3, 3) intrinsics, in pixels whose centres are at integers.

    MoGe counts from the picture's border, half a pixel before the first centre, in widths and heights of the picture.

    Examples
    --------
    >>> pixel_camera(np.array([[0.5, 0, 0.5], [0, 1.0, 0.5], [0, 0, 1]]), 4, 2)
    Camera(width=4, height=2, fx=2.0, fy=2.0, cx=1.5, cy=0.5)
    """
    (fx, _, cx), (_, fy, cy), _ = intrinsics.astype(np.float64).tolist()
    return Camera(width, height, fx * width, fy * height, cx * width - 0.5, cy * height - 0.5)


def _field_of_view(fov_x: float | None, focal: float | None, width: int) -> float | None:
    return fov_x if focal is None else math.degrees(2 * math.atan(width / (2 * focal)))


def _checkpoint(place: Path) -> Path:
    checkpoint = place / CHECKPOINT if place.is_dir() else place
    if not checkpoint.is_file():
        raise FileError(f"{place}: there is no {CHECKPOINT} in it; give a MoGe checkpoint, or its folder.")
    return checkpoint


def _network_class(version: int) -> tuple[Any, bool]:
    """The class of the network, and whether its refiner can be built.

    FlexGEMM is imported by the package itself, and fails to be where it is not installed or finds no Triton. A
    placeholder for the one module that uses it lets the rest be imported: networks then have no refiner.
    """
    module = f"moge.model.v{version}"
    try:
        return import_module(module).MoGeModel, version == 3
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise MissingMoge(f"and the one installed has no {module}; a newer one") from error
        cause: Exception = error
    except Exception as error:  # what a broken CUDA library raises is not always an ImportError
        cause = error
    sys.modules.setdefault(_REFINER, _placeholder())
    try:
        return import_module(module).MoGeModel, False
    except Exception as error:
        sys.modules.pop(_REFINER, None)
        raise MissingMoge(f"and the one installed cannot be imported ({first_line(cause)}); again") from error


def _placeholder() -> ModuleType:
    placeholder = ModuleType(_REFINER)
    placeholder.Sparse3DUNet = None  # type: ignore[attr-defined]
    return placeholder


def _torch() -> Any:
    return torch_module("transformers", "MoGe")


def _check(
    version: int,
    precision: str,
    fov_x: float | None,
    focal: float | None,
    resolution_level: int,
    refine_steps: int | None,
) -> None:
    if version not in (2, 3):
        raise InputError(f"`version` must be 2 or 3, got {version!r} instead.")
    if check_precision(precision) == "bfloat16":
        raise InputError("`precision` must be float32 or float16 for MoGe, got 'bfloat16' instead.")
    if fov_x is not None and focal is not None:
        raise InputError("`fov_x` and `focal` say the same; give one of them.")
    if fov_x is not None and not 0 < fov_x < 180:
        raise InputError(f"`fov_x` must be an angle between 0 and 180 degrees, got {fov_x!r} instead.")
    if focal is not None and not (focal > 0 and math.isfinite(focal)):
        raise InputError(f"`focal` must be a positive number of pixels, got {focal!r} instead.")
    if resolution_level not in range(10):
        raise InputError(f"`resolution_level` must be a whole number from 0 to 9, got {resolution_level!r} instead.")
    if refine_steps is not None and (version != 3 or not isinstance(refine_steps, int) or refine_steps < 0):
        raise InputError(f"`refine_steps` must be at least 0, and is for MoGe-3 only, got {refine_steps!r} instead.")
