"""A network that predicts priors, opened once per process, and the cache of its predictions on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, param
from leadline.base.registry import suggestion
from leadline.base.user_folders import user_cache_folder
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera
from leadline.io.depth import DEPTH_SUFFIXES
from leadline.io.files import atomic_write
from leadline.io.notes import Note, NoteKind
from leadline.io.priors import SourcedPrior
from leadline.priors import PRIORS, PriorSource, prior_source

NOT_CACHED = frozenset({"files", "scene", "none"})
"""Priors from files and constant priors. They may depend on the image's name, which is not in the cache's key."""


class Predictor:
    """A prior by its name in the registry, opened when it is first used.

    It can be pickled: each process opens the network for itself.

    Parameters
    ----------
    spec : str
        As for `leadline.priors.prior_source`, e.g. ``onnx:model.onnx``.
    options : mapping, optional
        Options of the source.
    cache : Path, optional
        Folder where predictions are cached. Default: they are not cached.
    """

    def __init__(self, spec: str, options: Mapping[str, Any] | None = None, cache: Path | None = None) -> None:
        self.spec, self.options, self.cache = spec, dict(options or {}), cache

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_opened"}

    @cached_property
    def _opened(self) -> tuple[PriorSource, str]:
        source = prior_source(self.spec, **self.options)
        return source, source.fingerprint()

    def open(self) -> PriorSource:
        """The network; see `leadline.priors.prior_source` for the errors."""
        return self._opened[0]

    @property
    def fingerprint(self) -> str:
        """A hash of the model and its options, which changes whenever a prediction may change."""
        return self._opened[1]

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes for the user about the predictions of this network."""
        text = str(getattr(self.open(), "note", ""))
        return (Note(NoteKind.PRIOR, text),) if text else ()

    def predict(self, image: NDArray[np.uint8], name: str) -> SourcedPrior:
        """The prior of an (H, W, 3) uint8 image; stored predictions are found by its name."""
        source, fingerprint = self._opened
        record = {"gauge": source.gauge, "model": source.name, "fingerprint": fingerprint}
        if self.cache is None or self.spec.partition(":")[0] in NOT_CACHED:
            prior = source(image, name=name)
        else:
            prior = PriorCache(self.cache).predict(source, image, fingerprint)
        return SourcedPrior(prior, record, self.notes)


def find_prior_file(spec: str) -> Path | None:
    """The file or folder that `spec` names, which need not exist; None if it names a network.

    ``files:PATH`` is a file or a folder, even if a network has that name.
    """
    path, (name, _, argument) = Path(spec), spec.partition(":")
    if path.exists():
        return path
    if name == "files" and argument:
        return Path(argument)
    if name in PRIORS:
        return None
    if path.suffix.lower() in DEPTH_SUFFIXES or len(path.parts) > 1:
        return path  # a missing file is reported together with the other files
    raise FileError(
        f"{param('prior')} {spec}: there is no such file or folder, and no prior of that name; "
        f"{suggestion(name, PRIORS)}"
    )


def content_hash(*parts: NDArray[Any] | str) -> str:
    """The hash of arrays (type, shape and values) and texts, 32 hexadecimal digits."""
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

        The source's `fingerprint` is an argument, so that the caller computes it once: it may hash a large file. With
        "" the cache is not used. `image_hash` is ``content_hash(image)``, if it is known already.
        """
        if not fingerprint:
            return source(image, dataset=dataset, name=name)
        key = content_hash(content_hash(image) if image_hash is None else image_hash, fingerprint)
        prior = self.get(key)
        if prior is None:
            prior = source(image, dataset=dataset, name=name)
            self.put(key, prior)
        return prior

    def get(self, key: str) -> Prior | None:
        """The prior of that key; None if there is none or its file is damaged."""
        try:
            with (self.folder / key[:2] / f"{key}.npy").open("rb") as file:
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

        path = self.folder / key[:2] / f"{key}.npy"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, write)
        except (OSError, FileError):
            return


def with_contiguous_arrays(prior: Prior) -> Prior:
    """The prior with contiguous arrays, so that neither the methods nor the hash need to copy them."""
    valid = None if prior.valid is None else np.ascontiguousarray(prior.valid)
    return replace(prior, values=np.ascontiguousarray(prior.values), valid=valid)
