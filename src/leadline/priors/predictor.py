"""A network that predicts priors: opened once per process, with its predictions cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.io.notes import Note, NoteKind
from leadline.io.priors import SourcedPrior

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leadline.priors import PriorSource


class Predictor:
    """A prior by its name in the registry, opened when it is first used.

    It can be pickled: each process opens the network for itself.

    Parameters
    ----------
    spec : str
        As for `leadline.priors.prior_source`, e.g. ``onnx:model.onnx``.
    options : mapping, optional
        As for `leadline.priors.prior_source`.
    cache : Path, optional
        Folder where predictions are cached. Default: they are not cached.
    """

    def __init__(self, spec: str, options: Mapping[str, Any] | None = None, cache: Path | None = None) -> None:
        self.spec, self.options, self.cache = spec, dict(options or {}), cache
        self._opened: tuple[PriorSource, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def open(self) -> PriorSource:
        """The network; see `leadline.priors.prior_source` for the errors."""
        return self._open()[0]

    @property
    def fingerprint(self) -> str:
        """A hash of the model and its options, which changes whenever a prediction may change."""
        return self._open()[1]

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a user should know about the predictions of this network."""
        text = str(getattr(self.open(), "note", ""))
        return (Note(NoteKind.PRIOR, text),) if text else ()

    def predict(self, image: NDArray[np.uint8], name: str) -> SourcedPrior:
        """The prior of an image.

        Parameters
        ----------
        image : (H, W, 3) uint8 array
        name : str
            Name of the image, by which stored predictions are found.

        Raises
        ------
        LeadlineError
            The network cannot be opened, or it fails.
        """
        from leadline.priors.prediction_cache import NOT_CACHED, PriorCache

        source, fingerprint = self._open()
        record = {"gauge": source.gauge, "model": source.name, "fingerprint": fingerprint}
        if self.cache is None or self.spec.partition(":")[0] in NOT_CACHED:
            prior = source(image, name=name)
        else:
            prior = PriorCache(self.cache).predict(source, image, fingerprint)
        return SourcedPrior(prior, record, self.notes)

    def _open(self) -> tuple[PriorSource, str]:
        if self._opened is None:
            from leadline.priors import prior_source

            source = prior_source(self.spec, **self.options)
            self._opened = source, source.fingerprint()
        return self._opened


def find_prior_file(spec: str) -> Path | None:
    """The file or folder that `spec` names, which need not exist; None if it names a network.

    ``files:PATH`` is a file or a folder, even if a network has that name.

    Raises
    ------
    FileError
        It is neither.
    """
    from leadline.base.errors import FileError, param
    from leadline.base.registry import suggestion
    from leadline.io.depth.files import DEPTH_SUFFIXES
    from leadline.priors import PRIORS

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
