"""The files of a model: a path, files placed by hand, an entry of the Hugging Face hub's cache, or a download."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from leadline.base.errors import FileError, InputError, param
from leadline.base.user_folders import user_cache_folder
from leadline.priors import PRIORS, hub

SAFE = ("*.json", "*.safetensors")  # files that are downloaded: no pickles, no code
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_WEIGHTS = (".safetensors", ".onnx", *PICKLED)
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CONNECT_TIMEOUT = 5.0  # seconds to reach the hub before the machine counts as offline
_CHUNK = 1 << 22


def hub_cache() -> Path:
    """The hub's download folder, found by the same environment variables as in the hub's client."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    found = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(found)).expanduser()


def placed_folder(name: str) -> Path:
    """The folder in which a model's files are found if they are placed by hand, for machines without the hub."""
    return user_cache_folder() / "models" / name.replace("/", "--")


def weights_present(model: str) -> bool:
    """Whether a model can be loaded without a download; it is a name in `PRIORS`, an id of the hub, or a path."""
    known = PRIORS[model].model if model in PRIORS else model
    if known is None:
        return False
    return Path(known).expanduser().exists() or _find_here(known) is not None


def needs_download(spec: str) -> bool:
    """Whether opening the prior `spec` would download a model: one that is named by its id and is not here."""
    name, _, argument = spec.partition(":")
    model = argument or (PRIORS[name].model if name in PRIORS else None)
    return model is not None and _ID.fullmatch(model) is not None and not weights_present(model)


def local_weights(model: str | Path, *, patterns: Sequence[str] = SAFE) -> Path:
    """The file or folder on this machine that holds a model, given by its path or its id on the hub.

    An id is searched in `placed_folder` and in the hub's cache. If it is in neither, it is downloaded: the files of the
    repository that match `patterns`. By default these are no pickles, since loading a pickle can run any code.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    name = str(model)
    if not _ID.fullmatch(name):
        raise FileError(f"{name}: there is no such model file or folder, and it is not an id like owner/name either.")
    found = _find_here(name)
    if found is not None:
        return found
    if (problem := _offline_reason()) is not None:
        raise FileError(_not_downloaded(name, problem, patterns))
    try:
        return hub.download(name, patterns, hub_cache())
    except FileError as error:
        raise FileError(_not_downloaded(name, str(error).rstrip("."), patterns)) from error


def weights_digest(place: Path) -> str:
    """An identifier of the weights: the commit for a folder of the hub's cache, or else a hash of the files."""
    if place.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", place.name):
        return f"{place.parent.parent.name}@{place.name}"
    digest = hashlib.sha256()
    files = [place] if place.is_file() else sorted(place.iterdir())
    for file in files:
        if file.is_file() and (file == place or file.suffix in (".json", *_WEIGHTS)):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            with file.open("rb") as content:
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


def require_safetensors(folder: Path) -> None:
    """Raise `FileError` unless a folder holds weights in the safetensors format. Pickled weights are not loaded."""
    if not folder.is_dir():
        raise FileError(f"{folder}: expected a model's folder with its config.json and weights, got a file.")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if pickled:
        raise FileError(
            f"{folder}: its weights are pickled ({pickled[0]}), and loading a pickle can run any code. "
            "Use a model with model.safetensors, or convert the file if you trust it."
        )
    raise FileError(f"{folder}: there are no weights in it; expected model.safetensors.")


def short_name(model: str | Path) -> str:
    """The last part of an id or path, as it appears in records."""
    name = Path(model).name
    if not name:
        raise InputError(f"{param('model')} must be an id or a path, got {str(model)!r} instead.")
    return name


def _find_here(name: str) -> Path | None:
    """The folder of an id on this machine: placed by hand, or in the hub's cache."""
    if not _ID.fullmatch(name):
        return None
    placed = placed_folder(name)
    return placed if placed.is_dir() and _is_complete(placed) else _find_snapshot(name)


def _find_snapshot(name: str) -> Path | None:
    """The newest complete snapshot of an id in the hub's cache, that of the main branch first; None without one."""
    home = hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        main = (home / "refs" / "main").read_text(encoding="utf-8").strip()
        snapshots = sorted((home / "snapshots").iterdir(), key=lambda one: (one.name == main, one.stat().st_mtime_ns))
    except (OSError, ValueError):
        return None
    return next((snapshot for snapshot in reversed(snapshots) if _is_complete(snapshot)), None)


def _is_complete(snapshot: Path) -> bool:
    """Whether a download was finished: all files of the weights exist."""
    for index in snapshot.glob("*.index.json"):
        try:
            parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        if not all((snapshot / str(part)).is_file() for part in parts):
            return False
    # A file of the cache is a link, which is broken until its content has been downloaded; is_file() follows it.
    return any(file.suffix in _WEIGHTS and file.is_file() for file in snapshot.rglob("*"))


def _offline_reason() -> str | None:
    """Why the hub cannot be reached, or None. Its own client would try for half a minute before it reports that."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{variable} is set"
    if any(os.environ.get(proxy) for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None  # a proxy may resolve names that this machine does not
    address = urlsplit(hub.endpoint())
    host, port = address.hostname or "huggingface.co", address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT).close()
    except OSError as error:
        return f"{host} cannot be reached: {error.strerror or error}"
    return None


def _not_downloaded(name: str, problem: str, patterns: Sequence[str]) -> str:
    files = (
        "config.json, preprocessor_config.json and model.safetensors" if patterns is SAFE else " and ".join(patterns)
    )
    return (
        f"The model {name} is not here and was not downloaded ({problem}). Place {files} of {hub.endpoint()}/{name} in "
        f"{placed_folder(name)}, or run on a machine with a network: hf download {name}, into {hub_cache()}."
    )
