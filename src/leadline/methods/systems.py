"""Trained systems, each in an environment of its own: where they are set up, and the call across to them.

A system is called like any method and never raises for what happens on the other side: one that is not set up, that
crashes, hangs or answers nonsense gives a result whose status begins with "failed" and says why, with the last lines
that the system wrote. `session` keeps the process, `bridge` is the program at the other end.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera, RayCamera
from leadline.io.atomic import write_text
from leadline.methods import METHODS, MethodResult, bridge
from leadline.methods.global_fits import measured_pixels, relative_depth
from leadline.methods.session import Session, SystemFailure, session
from leadline.priors.weights import weights_present

TIMEOUT = 600.0  # seconds for an image: Marigold-DC takes minutes without a GPU
START_TIMEOUT = 1800.0  # seconds to load, which may include a download of gigabytes
CHECK_TIMEOUT = 300.0  # seconds to import
_PATHS = ("checkpoint", "moge", "mde_dir", "ckpt_dir", "tiny_vae")  # options that may name a file instead of an id


@dataclass(frozen=True)
class SystemSetup:
    """Where a system lives, as `leadline methods setup` records it."""

    python: str  # interpreter of its environment
    repo: str | None = None  # its checkout, where it is not installed as a package
    options: dict[str, Any] = field(default_factory=dict)  # of every call, unless a call gives its own
    versions: dict[str, str] = field(default_factory=dict)  # found at set-up


def setup_file() -> Path:
    """The file of the set-ups: ``leadline/systems.json`` in XDG_CONFIG_HOME or ~/.config; on Windows in APPDATA."""
    default = os.environ.get("APPDATA") if sys.platform == "win32" else os.environ.get("XDG_CONFIG_HOME")
    return Path(default or Path.home() / ".config") / "leadline" / "systems.json"


def setups() -> dict[str, SystemSetup]:
    """Every system that is set up.

    Raises
    ------
    FileError
        The file of the set-ups is damaged.
    """
    file = setup_file()
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {name: SystemSetup(**entry) for name, entry in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FileError(
            f"{file}: is not a record of set-ups ({error}). Mend or delete it, and set the systems up again."
        ) from error


def set_up(name: str, python: str, repo: str | None = None, options: dict[str, Any] | None = None) -> SystemSetup:
    """Record where a system lives, after its package could be imported there.

    Parameters
    ----------
    name : str
        One of `bridge.SYSTEMS`.
    python : str
        The interpreter of its environment.
    repo : str, optional
        Its checkout; not needed where it is installed as a package.
    options : dict, optional
        Of the system, for every call; see `system_options`.

    Raises
    ------
    InputError
        There is no such system, or it does not take such an option, or needs one that is missing.
    FileError
        The interpreter or the checkout is not there, or the system cannot be imported.
    """
    _known(name)
    options = _checked(name, options or {}, whole=True)
    # Not resolved: the interpreter of a virtual environment is a link, and knows its packages by its own place.
    python = _absolute(python)
    repo = None if repo is None else _absolute(repo)
    paths = {key: _absolute(str(options[key])) for key in _PATHS if key in options}
    options = {**options, **{key: path for key, path in paths.items() if os.path.exists(path)}}
    if not os.path.isfile(python):
        raise FileError(f"{python}: there is no such interpreter. Give that of the system's environment, bin/python.")
    if repo is not None and not os.path.isdir(repo):
        raise FileError(f"{repo}: there is no such folder. Give the checkout of {name}'s repository.")
    probe = Session(name, python, repo, options, check=True)
    try:
        versions = probe.start(CHECK_TIMEOUT)
    except SystemFailure as error:
        hint = "" if repo else " Is it installed there? If not, give its checkout with --repo."
        raise FileError(f"{name}: cannot be used with {python}: {error}.{hint}") from error
    finally:
        probe.stop()
    found = SystemSetup(python, repo, options, versions)
    _write({**setups(), name: found})
    return found


def forget(name: str) -> None:
    """Remove a system's set-up.

    Raises
    ------
    InputError
        There is no such system, or it is not set up.
    """
    _known(name)
    left = setups()
    if left.pop(name, None) is None:
        raise InputError(f"{name} is not set up, so there is nothing to remove.")
    _write(left)


def system_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a system, with their defaults; one without a default must be set up."""
    return dict(inspect.signature(bridge.SYSTEMS[name]).parameters)


def readiness(name: str) -> str:
    """What is missing before a method of `METHODS` can run here, in words; empty if nothing is.

    The weights of a system in its own environment are not looked for: it fetches them or says that it cannot.
    """
    facts = METHODS[name]
    if facts.extra is not None and find_spec(facts.extra) is None:
        return f"not installed: pip install 'leadline[{facts.extra}]'"
    if facts.model is not None and not weights_present(facts.model):
        return f"its weights are not here: hf download {facts.model}"
    if name not in bridge.SYSTEMS:
        return ""
    try:
        found = setups().get(name)
    except FileError as error:
        return str(error)
    if found is None:
        return f"not set up: {advice(name)}"
    gone = [path for path in (found.python, found.repo) if path is not None and not os.path.exists(path)]
    return f"{gone[0]} is gone; again: {advice(name)}" if gone else ""


def advice(name: str) -> str:
    """The command that sets a system up.

    Examples
    --------
    >>> advice("any2full")
    'leadline methods setup any2full --python PATH --repo PATH --option checkpoint=VALUE'
    """
    needed = [key for key, parameter in system_options(name).items() if parameter.default is parameter.empty]
    return " ".join(
        [f"leadline methods setup {name} --python PATH --repo PATH", *(f"--option {key}=VALUE" for key in needed)]
    )


class System:
    """A trained system as a method: ``system(prior, sparse, image=image)``.

    Its options are those of the set-up, with those of the call in their place, and `timeout` and `start_timeout`, in
    seconds. The process that holds the model is started by the first call and serves all that follow with the same
    options; `seconds` of a result is the system's own time, without loading and without the way there and back.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def __signature__(self) -> inspect.Signature:
        """For those who ask which keywords it takes: the system's options are known only by name."""
        own = inspect.signature(self.__call__).parameters.values()
        fixed = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        return inspect.Signature([*fixed, *system_options(self.name).values()])

    def __call__(
        self,
        prior: Prior,
        sparse: FloatArray,
        *,
        image: NDArray[np.uint8] | None = None,
        camera: Camera | RayCamera | None = None,
        timeout: float = TIMEOUT,
        start_timeout: float = START_TIMEOUT,
        **options: Any,
    ) -> MethodResult:
        """The system's prediction, or a failed result that says why there is none.

        Raises
        ------
        InputError
            Shapes differ, there is no image, or the system does not take such an option.
        """
        measured = measured_pixels(prior, sparse)
        if image is None or image.shape != (*prior.shape, 3) or image.dtype != np.uint8:
            came = "none" if image is None else f"{image.dtype} {image.shape}"
            raise InputError(f"`image` must be the (H, W, 3) uint8 picture of the prior {prior.shape}, got {came}.")
        _checked(self.name, options)
        arrays: dict[str, NDArray[Any]] = {"image": image, "sparse": np.where(measured, sparse, 0).astype(np.float32)}
        if "geometric" in system_options(self.name):
            arrays["prior"] = np.nan_to_num(relative_depth(prior), nan=0.0).astype(np.float32)
        pinhole = (
            {key: getattr(camera, key) for key in ("fx", "fy", "cx", "cy")} if isinstance(camera, Camera) else None
        )
        versions: dict[str, str] = {}
        try:
            if not measured.any():
                raise SystemFailure("no usable measurement")
            found = _setup_of(self.name)
            server = session(self.name, found.python, found.repo, {**found.options, **options})
            versions = server.start(start_timeout)
            depth, seconds = server.predict(arrays, pinhole, timeout)
            depth, status = _usable(depth, prior.shape)
        except (SystemFailure, FileError) as error:
            empty = np.full(prior.shape, np.nan, np.float32)
            return MethodResult(empty, f"failed: {error}", 0.0, {}, _named(self.name, versions))
        return MethodResult(depth, status, seconds, {}, _named(self.name, versions))


def _setup_of(name: str) -> SystemSetup:
    missing = readiness(name)
    if missing:
        raise SystemFailure(missing)
    return setups()[name]


def _usable(depth: FloatArray, shape: tuple[int, int]) -> tuple[NDArray[np.float32], str]:
    """What a system answered, with NaN for what is no depth; it is not to be trusted in any respect."""
    if depth.shape != shape or depth.dtype != np.float32:
        raise SystemFailure(f"it answered {depth.dtype} of shape {depth.shape}, expected float32 of {shape}")
    good = np.isfinite(depth) & (depth > 0)
    missing = int(depth.size - np.count_nonzero(good))
    if missing == depth.size:
        raise SystemFailure("it answered no positive, finite depth at all")
    status = f"ok, but {missing} of {depth.size} pixels came out non-positive or infinite" if missing else "ok"
    return np.where(good, depth, np.float32(np.nan)), status


def _named(name: str, versions: dict[str, str]) -> dict[str, str]:
    """Versions under names that say whose they are: ``{"ldcm commit": …}``."""
    return {f"{name} {what}": value for what, value in versions.items()}


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _known(name: str) -> None:
    if name not in bridge.SYSTEMS:
        raise InputError(f"There is no system {name!r} to be set up. There are: {', '.join(bridge.SYSTEMS)}.")


def _checked(name: str, options: dict[str, Any], whole: bool = False) -> dict[str, Any]:
    """The same options if the system takes them and, for a `whole` set, none is missing."""
    known = system_options(name)
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise InputError(f"{name} takes no option {', '.join(unknown)}. It takes: {', '.join(known)}.")
    missing = [key for key, value in known.items() if value.default is value.empty and key not in options]
    if whole and missing:
        raise InputError(f"{name} needs the option {missing[0]}: {advice(name)}")
    return options


def _write(entries: dict[str, SystemSetup]) -> None:
    file = setup_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{file.parent}: cannot be made ({error.strerror}).") from error
    text = json.dumps({name: asdict(entry) for name, entry in sorted(entries.items())}, indent=2) + "\n"
    write_text(file, text)


priorda = System("priorda")
ldcm = System("ldcm")
any2full = System("any2full")
omni_dc = System("omni-dc")
marigold_dc = System("marigold-dc")
