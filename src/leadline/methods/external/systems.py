"""Trained systems as methods, each running in an environment of its own.

A system is called like any method. It never raises for what happens in its process: a system that is not set up,
crashes, hangs or answers with unusable data gives a failed result, whose status says why and quotes the last lines that
the system wrote. `process` holds the process, `server_program` is the program that runs in it.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera, CameraModel
from leadline.methods.external.process import SystemFailure, SystemProcess, system_process
from leadline.methods.external.setups import check_system_options, read_setups, system_options
from leadline.methods.inputs import measured_pixels, relative_depth
from leadline.methods.requirements import missing_requirement
from leadline.methods.result import MethodResult, failure, pixel_status

TIMEOUT = 600.0  # seconds for an image: Marigold-DC takes minutes without a GPU
START_TIMEOUT = 1800.0  # seconds to load, which may include a download of gigabytes


class System:
    """A trained system as a method: ``system(prior, sparse, image=image)``.

    The options are those of the set-up, overridden by those of the call. The first call starts the process that holds
    the model; it serves all further calls with the same options. `seconds` of a result is the system's own time,
    without loading and without the exchange of files.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature with the system's own options in place of ``**options``."""
        own = inspect.signature(self.__call__).parameters.values()
        fixed = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        return inspect.Signature([*fixed, *system_options(self.name).values()])

    def __call__(
        self,
        prior: Prior,
        sparse: FloatArray,
        *,
        image: NDArray[np.uint8] | None = None,
        camera: CameraModel | None = None,
        timeout: float = TIMEOUT,
        start_timeout: float = START_TIMEOUT,
        **options: Any,
    ) -> MethodResult:
        """The system's prediction, or a failed result that says why there is none.

        Parameters
        ----------
        prior : Prior
            Its shape; and its depth, for a system with an option to use it.
        sparse : (H, W) array
            Metres; 0, NaN and inf mean "not measured".
        image : (H, W, 3) uint8 array
        camera : Camera, optional
            Passed on if it is a pinhole camera.
        timeout, start_timeout : float
            Seconds for the prediction, and for loading the model.
        **options
            Options of the system; see `system_options`.

        Raises
        ------
        InputError
            Shapes differ, there is no image, or the system does not take such an option.
        """
        measured = measured_pixels(prior, sparse)
        if image is None or image.shape != (*prior.shape, 3) or image.dtype != np.uint8:
            got = "none" if image is None else f"{image.dtype} {image.shape}"
            raise InputError(
                f"{param('image')} must be a (H, W, 3) uint8 array of the prior's {prior.shape}, got {got}."
            )
        check_system_options(self.name, options)
        arrays: dict[str, NDArray[Any]] = {"image": image, "sparse": np.where(measured, sparse, 0).astype(np.float32)}
        if "geometric" in system_options(self.name):
            arrays["prior"] = np.nan_to_num(relative_depth(prior), nan=0.0).astype(np.float32)
        intrinsics = (
            {key: getattr(camera, key) for key in ("fx", "fy", "cx", "cy")} if isinstance(camera, Camera) else None
        )
        versions: dict[str, str] = {}
        try:
            if not measured.any():
                raise SystemFailure("no usable measurement")
            process = self._process(options)
            found = process.start(start_timeout)
            versions = {f"{self.name} {what}": value for what, value in found.items()}
            depth, seconds = process.predict(arrays, intrinsics, timeout)
            depth, status = _check_depth(depth, prior.shape)
        except (SystemFailure, FileError) as error:
            return failure(prior.shape, str(error), versions)
        return MethodResult(depth, status, seconds, versions=versions)

    def _process(self, options: dict[str, Any]) -> SystemProcess:
        missing = missing_requirement(self.name)
        if missing:
            raise SystemFailure(missing)
        setup = read_setups()[self.name]
        return system_process(self.name, setup.python, setup.repo, {**setup.options, **options})


def _check_depth(depth: FloatArray, shape: tuple[int, int]) -> tuple[NDArray[np.float32], str]:
    """The depth that a system answered, with NaN where it is not usable, and the status.

    Nothing is assumed about the answer of another program.
    """
    if depth.shape != shape or depth.dtype != np.float32:
        raise SystemFailure(f"it answered {depth.dtype} of shape {depth.shape}, expected float32 of {shape}")
    usable = np.isfinite(depth) & (depth > 0)
    if not usable.any():
        raise SystemFailure("it answered no positive, finite depth at all")
    status = pixel_status(int(np.count_nonzero(~usable)), depth.size)
    return np.where(usable, depth, np.float32(np.nan)), status


priorda = System("priorda")
ldcm = System("ldcm")
any2full = System("any2full")
omni_dc = System("omni-dc")
marigold_dc = System("marigold-dc")
