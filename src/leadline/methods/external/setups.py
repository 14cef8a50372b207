"""Where each trained system is installed: the record that ``leadline methods setup`` writes."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError, InputError, param
from leadline.base.registry import check_options, suggestion
from leadline.base.strict_json import dump_json
from leadline.base.user_folders import user_config_folder
from leadline.io.atomic import write_text
from leadline.methods.external.process import SystemFailure, SystemProcess
from leadline.methods.external.server_program import SYSTEMS

CHECK_TIMEOUT = 300.0  # seconds to import the system's package
_PATH_OPTIONS = ("checkpoint", "moge", "mde_dir", "ckpt_dir", "tiny_vae")  # options that take a file or an id


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
    """Every system that is set up.

    Raises
    ------
    FileError
        The file that records the set-ups is damaged.
    """
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

    Parameters
    ----------
    name : str
        One of `SYSTEMS`.
    python : str
        The interpreter of its environment.
    repo : str, optional
        Its checkout; not needed where it is installed as a package.
    options : dict, optional
        Options of the system for every call; see `system_options`.

    Raises
    ------
    InputError
        There is no such system, it does not take such an option, or a required option is missing.
    FileError
        The interpreter or the checkout does not exist, or the system cannot be imported.
    """
    _check_name(name)
    options = options or {}
    check_system_options(name, options)
    missing = [key for key in required_options(name) if key not in options]
    if missing:
        raise InputError(f"{param('options')}: {name} needs the option {missing[0]!r}.")
    # The link is not resolved: the interpreter of a virtual environment finds its packages by the place of the link.
    python = _absolute(python)
    repo = None if repo is None else _absolute(repo)
    paths = {key: _absolute(str(options[key])) for key in _PATH_OPTIONS if key in options}
    options = {**options, **{key: path for key, path in paths.items() if os.path.exists(path)}}
    if not os.path.isfile(python):
        raise FileError(
            f"{python}: there is no such interpreter. {param('python')} is bin/python of the system's environment."
        )
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
    """Remove a system from the record.

    Raises
    ------
    InputError
        There is no such system, or it is not set up.
    """
    _check_name(name)
    remaining = read_setups()
    if remaining.pop(name, None) is None:
        raise InputError(f"{name} is not set up, so there is nothing to remove.")
    _write(remaining)


def system_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a system, with their defaults."""
    return dict(inspect.signature(SYSTEMS[name]).parameters)


def required_options(name: str) -> list[str]:
    """The options of a system that have no default and so must be set up.

    Examples
    --------
    >>> required_options("any2full")
    ['checkpoint']
    """
    return [key for key, parameter in system_options(name).items() if parameter.default is parameter.empty]


def check_system_options(name: str, options: dict[str, Any]) -> None:
    """Raise `InputError` if the system does not take one of the options."""
    check_options(f"The system {name!r}", options, system_options(name))


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
