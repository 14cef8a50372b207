"""Priors kept on disk by the content of image and model, so that a network sees each image once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import FileError, Prior
from leadline.sensors.atomic import atomic_write


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


class PriorCache:
    """A folder of priors, each file whole or absent.

    A file is a series of NumPy arrays, so that ``np.load`` gives the values; after them come the validity, if the
    prior has one, and a JSON text with the rest.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"

    def get(self, key: str) -> Prior | None:
        """The prior of that key; None if it is not there or its file is damaged."""
        try:
            with self._path(key).open("rb") as file:
                values = np.load(file)
                facts = json.loads(np.load(file).tobytes())
                valid = np.load(file) if facts.pop("masked") else None
            return Prior(values, valid=valid, **facts)
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            return None

    def put(self, key: str, prior: Prior) -> None:
        """Keep a prior. A folder that cannot be written is no reason to stop: it is then predicted again."""
        facts = {"kind": prior.kind, "floor": prior.floor, "masked": prior.valid is not None}

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
