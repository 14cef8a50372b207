"""Predictions of networks, cached on disk by the content of image and model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.base.user_folders import user_cache_folder
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.io.atomic import atomic_write

if TYPE_CHECKING:
    from leadline.priors import PriorSource

NOT_CACHED = frozenset({"files", "scene", "none"})
"""Priors that are read from files or constant. They may depend on the image's name, which the cache does not know."""


def content_hash(*parts: NDArray[Any] | str) -> str:
    """The hash of arrays (type, shape and values) and texts, 32 hexadecimal digits.

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


def default_cache_folder() -> Path:
    """The folder for predictions if no other is given; it may not exist yet."""
    return user_cache_folder() / "priors"


class PriorCache:
    """A folder of cached priors.

    Each file is a sequence of NumPy arrays: the values, so that ``np.load`` returns them; a JSON text with the other
    fields; and the validity mask, if the prior has one. Files are never removed. The folder may be deleted at any time.
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
        """The prior of an image: from the folder if it is there, else predicted by `source` and stored.

        Parameters
        ----------
        source : PriorSource
        image : (H, W, 3) uint8 array
        fingerprint : str
            That of the source. It is an argument, so that the caller computes it once: it may hash a large file. With
            "" the cache is not used.
        image_hash : str, optional
            ``content_hash(image)``, if it is known already.
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
        """The prior of that key; None if there is none or its file is damaged."""
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
        """Store a prior. A folder that cannot be written is ignored, and the prior is predicted again next time."""
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


def with_contiguous_arrays(prior: Prior) -> Prior:
    """The prior with contiguous arrays, so that neither the methods nor the hash need to copy them."""
    valid = None if prior.valid is None else np.ascontiguousarray(prior.valid)
    return replace(prior, values=np.ascontiguousarray(prior.values), valid=valid)
