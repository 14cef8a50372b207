"""The folders of the user's account in which leadline keeps files: its cache and its configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs

_APPLICATION = "leadline"


def user_cache_folder() -> Path:
    """The folder for files that can be made again; it may not exist yet.

    It is ``leadline`` in ``$XDG_CACHE_HOME`` (Windows: ``%LOCALAPPDATA%``) if that is set to an absolute path, or else
    the platform's cache folder, e.g. ``~/.cache/leadline``.
    """
    override = _override("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return override or platformdirs.user_cache_path(_APPLICATION, appauthor=False)


def user_config_folder() -> Path:
    """The folder for settings; it may not exist yet.

    It is ``leadline`` in ``$XDG_CONFIG_HOME`` (Windows: ``%APPDATA%``) if that is set to an absolute path, or else the
    platform's folder for settings, e.g. ``~/.config/leadline``.
    """
    override = _override("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME")
    return override or platformdirs.user_config_path(_APPLICATION, appauthor=False)


def _override(variable: str) -> Path | None:
    folder = os.environ.get(variable, "")
    return Path(folder) / _APPLICATION if os.path.isabs(folder) else None
