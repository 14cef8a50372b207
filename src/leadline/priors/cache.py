"""Priors kept on disk by the content of image and model, so that a network sees each image once."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.io.atomic import atomic_write

if TYPE_CHECKING:
    from leadline.priors import PriorSource

NOT_CACHED = frozenset({"files", "scene", "none"})
"""Names of priors that are only read or made up: by an image's name, so keeping them by its content would be wrong."""


def content_hash(*parts: NDArray[Any] | str) -> str:
    """Of arrays (type, shape and values) and texts; 32 hexadecimal digits.

    Examples
    --------
    >>> content_hash(np.zeros(3)) == content_hash(np.zeros((3, 1)))
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"text {len(part)} {part}".encode())
        else:
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype.str} {np.shape(part)}".encode())
            digest.update(array.data if array.size else b"")
    return digest.hexdigest()[:32]


def user_cache() -> Path:
    """The folder for predictions where no other is named, by the platform's rule; it may not exist yet.

    ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        named = os.environ.get("XDG_CACHE_HOME", "")
        base = named if os.path.isabs(named) else Path.home() / ".cache"  # the rule says: ignore relative ones
    return Path(base) / "leadline" / "priors"


class PriorCache:
    """A folder of priors, each file whole or absent.

    A file is a series of NumPy arrays, so that ``np.load`` gives the values; after them come a JSON text with the rest
    and the validity, if the prior has one. Nothing is ever removed: a folder that grew too large may be deleted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def predict(
        self,
        source: PriorSource,
        image: NDArray[np.uint8],
        fingerprint: str,
        *,
        image_hash: str | None = None,
        dataset: Any = None,
        name: str | None = None,
    ) -> Prior:
        """What `source` says about an image, from the folder if it said so before.

        Parameters
        ----------
        source : PriorSource
        image : (H, W, 3) uint8 array
        fingerprint : str
            Of the source; asked for once and not for each image, as it may hash a large file. With "" nothing is
            looked up or kept.
        image_hash : str, optional
            ``content_hash(image)``, where it is known already.
        dataset, name
            As for a `PriorSource`.
        """
        if not fingerprint:
            return source(image, dataset=dataset, name=name)
        key = content_hash(content_hash(image) if image_hash is None else image_hash, fingerprint)
        prior = self.get(key)
        if prior is None:
            prior = source(image, dataset=dataset, name=name)
            self.put(key, prior)
        return prior

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"

    def get(self, key: str) -> Prior | None:
        """The prior of that key; None if it is not there or its file is damaged."""
        try:
            with self._path(key).open("rb") as file:
                values = np.load(file)
                facts = json.loads(np.load(file).tobytes())
                valid = np.load(file) if facts.pop("masked") else None
            camera = facts.pop("camera", None)
            return Prior(values, valid=valid, camera=None if camera is None else Camera(**camera), **facts)
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            return None

    def put(self, key: str, prior: Prior) -> None:
        """Keep a prior. A folder that cannot be written is no reason to stop: it is then predicted again."""
        facts = {
            "kind": prior.kind,
            "floor": prior.floor,
            "masked": prior.valid is not None,
            "camera": None if prior.camera is None else asdict(prior.camera),
        }

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.save(file, prior.values)
                np.save(file, np.frombuffer(json.dumps(facts).encode(), np.uint8))
                if prior.valid is not None:
                    np.save(file, prior.valid)

        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, write)
        except (OSError, FileError):
            return


def without_copies(prior: Prior) -> Prior:
    """The prior with contiguous arrays, which every method and the hash would otherwise copy for themselves."""
    valid = None if prior.valid is None else np.ascontiguousarray(prior.valid)
    return replace(prior, values=np.ascontiguousarray(prior.values), valid=valid)
