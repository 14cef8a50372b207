"""Trained systems as methods, each running in its own environment, and the file that records these environments.

A system is called like any method. Failures of its process raise no error: a system that is not set up,
crashes, hangs or answers with unusable data gives a failed result, whose status says why and quotes the last lines that
the system wrote. `process` starts and ends the process, `server_program` is the program that runs in it.
"""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.base.registry import check_options, suggestion
from leadline.base.strict_json import dump_json
from leadline.base.user_folders import user_config_folder
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera, CameraModel
from leadline.io.files import write_text
from leadline.methods import MethodResult, failure, measured_pixels, missing_requirement, pixel_status, relative_depth
from leadline.methods.external.process import SystemFailure, SystemProcess, system_process
from leadline.methods.external.server_program import SYSTEMS

TIMEOUT = 600.0  # seconds for an image: Marigold-DC takes minutes without a GPU
START_TIMEOUT = 1800.0  # seconds to load, which may include a download of gigabytes

CHECK_TIMEOUT = 300.0  # seconds to import the system's package
_PATH_OPTIONS = ("checkpoint", "moge", "mde_dir", "ckpt_dir", "tiny_vae")  # options that take a file or an id


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

        The camera is passed on if it is a pinhole camera, the prior to a system with an option to use it. `timeout` and
        `start_timeout` are in seconds, for the prediction and for loading the model.
        """
        measured = measured_pixels(prior, sparse)
        if image is None or image.shape != (*prior.shape, 3) or image.dtype != np.uint8:
            got = "none" if image is None else f"{image.dtype} {image.shape}"
            raise InputError(f"{param('image')} must be (H, W, 3) uint8 with the prior's {prior.shape}, got {got}.")
        check_options(f"The system {self.name!r}", options, system_options(self.name))
        arrays: dict[str, NDArray[Any]] = {"image": image, "sparse": np.where(measured, sparse, 0).astype(np.float32)}
        if "geometric" in system_options(self.name):
            arrays["prior"] = np.nan_to_num(relative_depth(prior), nan=0.0).astype(np.float32)
        keys = ("fx", "fy", "cx", "cy")
        intrinsics = {key: getattr(camera, key) for key in keys} if isinstance(camera, Camera) else None
        versions: dict[str, str] = {}
        try:
            if not measured.any():
                raise SystemFailure("no usable measurement")
            missing = missing_requirement(self.name)
            if missing:
                raise SystemFailure(missing)
            setup = read_setups()[self.name]
            process = system_process(self.name, setup.python, setup.repo, {**setup.options, **options})
            found = process.start(start_timeout)
            versions = {f"{self.name} {what}": value for what, value in found.items()}
            depth, seconds = process.predict(arrays, intrinsics, timeout)
            if depth.shape != prior.shape or depth.dtype != np.float32:  # another program may answer anything
                got = f"{depth.dtype} of shape {depth.shape}"
                raise SystemFailure(f"it answered {got}, expected float32 of {prior.shape}")
            usable = np.isfinite(depth) & (depth > 0)
            if not usable.any():
                raise SystemFailure("it answered no positive, finite depth at all")
        except (SystemFailure, FileError) as error:
            return failure(prior.shape, str(error), versions)
        status = pixel_status(int(np.count_nonzero(~usable)), depth.size)
        return MethodResult(np.where(usable, depth, np.float32(np.nan)), status, seconds, versions=versions)


priorda, ldcm, any2full, omni_dc, marigold_dc, testpromptdc = map(System, SYSTEMS)


@dataclass(frozen=True)
class SystemSetup:
    """Where a system is installed and how it is called."""

    python: str  # interpreter of its environment
    repo: str | None = None  # its checkout, where it is not installed as a package
    options: dict[str, Any] = field(default_factory=dict)  # of every call, unless a call overrides them
    versions: dict[str, str] = field(default_factory=dict)  # found at set-up


def setups_path() -> Path:
    """The file that records the set-ups."""
    return user_config_folder() / "systems.json"


def read_setups() -> dict[str, SystemSetup]:
    """Every system that is set up."""
    file = setups_path()
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {name: SystemSetup(**entry) for name, entry in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FileError(
            f"{file}: is not a record of set-ups ({error}). Repair or delete it, and set the systems up again."
        ) from error


def set_up(name: str, python: str, repo: str | None = None, options: dict[str, Any] | None = None) -> SystemSetup:
    """Record where a system is installed, after importing its package there as a check.

    `python` is the interpreter of its environment, `repo` its checkout, not needed where it is installed as a package,
    and `options` are those of every call; see `system_options`.
    """
    _check_name(name)
    options = options or {}
    check_options(f"The system {name!r}", options, system_options(name))
    missing = [key for key in required_options(name) if key not in options]
    if missing:
        raise InputError(f"{param('options')}: {name} needs the option {missing[0]!r}.")
    # The link is not resolved: the interpreter of a virtual environment finds its packages by the place of the link.
    python = _absolute(python)
    repo = None if repo is None else _absolute(repo)
    paths = {key: _absolute(str(options[key])) for key in _PATH_OPTIONS if key in options}
    options = {**options, **{key: path for key, path in paths.items() if os.path.exists(path)}}
    if not os.path.isfile(python):
        raise FileError(f"{python}: there is no such interpreter. {param('python')} is its environment's bin/python.")
    if repo is not None and not os.path.isdir(repo):
        raise FileError(f"{repo}: there is no such folder. {param('repo')} is the checkout of {name}'s repository.")
    process = SystemProcess(name, python, repo, options, check=True)
    try:
        versions = process.start(CHECK_TIMEOUT)
    except SystemFailure as error:
        hint = "" if repo else f" If it is not installed as a package, give its checkout as {param('repo')}."
        raise FileError(f"{name}: cannot be used with {python}: {error}.{hint}") from error
    finally:
        process.stop()
    setup = SystemSetup(python, repo, options, versions)
    _write({**read_setups(), name: setup})
    return setup


def remove_setup(name: str) -> None:
    """Remove a system from the record."""
    _check_name(name)
    remaining = read_setups()
    if remaining.pop(name, None) is None:
        raise InputError(f"{name} is not set up, so there is nothing to remove.")
    _write(remaining)


def system_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a system, with their defaults."""
    return dict(inspect.signature(SYSTEMS[name]).parameters)


def required_options(name: str) -> list[str]:
    """The options of a system that have no default and so must be set up."""
    return [key for key, parameter in system_options(name).items() if parameter.default is parameter.empty]


def _check_name(name: str) -> None:
    if name not in SYSTEMS:
        raise InputError(f"{param('name')}: there is no system {name!r}; {suggestion(name, SYSTEMS)}")


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _write(setups: dict[str, SystemSetup]) -> None:
    file = setups_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{file.parent}: cannot be made ({error.strerror}).") from error
    write_text(file, dump_json({name: asdict(setup) for name, setup in sorted(setups.items())}))
