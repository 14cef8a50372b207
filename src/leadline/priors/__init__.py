"""Monocular predictions as priors: `prior_source("onnx:model.onnx")(image)` gives a `Prior`."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import InputError, Prior, PriorKind


class PriorSource(Protocol):
    """Something that predicts relative depth for an image."""

    name: str  # as it appears in records
    quantity: PriorKind
    gauge: str  # up to what the values are known: "metric", "scale", "affine", "unknown"

    def fingerprint(self) -> str:
        """Changes whenever a prediction may: a hash of the model and of every option."""
        ...

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prediction for an (H, W, 3) image, which is image `name` of `dataset` where these are known."""
        ...


PRIORS: dict[str, str] = {
    "onnx": "leadline.priors.onnx:OnnxPrior",
    "files": "leadline.priors.stored:FilePriors",
    "scene": "leadline.priors.stored:ScenePriors",
    "none": "leadline.priors.stored:NoPrior",
}


def prior_source(spec: str, **options: Any) -> PriorSource:
    """The source that ``KIND`` or ``KIND:ARGUMENT`` names, e.g. ``onnx:model.onnx`` or ``files:predictions/``.

    Raises
    ------
    InputError
        If there is no such kind, or it does not take an option.
    """
    kind, _, argument = spec.partition(":")
    if kind not in PRIORS:
        close = difflib.get_close_matches(kind, PRIORS, n=3) or list(PRIORS)
        raise InputError(f"there is no prior {kind!r}: did you mean {' or '.join(close)}?")
    module, factory = PRIORS[kind].split(":")
    arguments = (argument,) if argument else ()
    try:
        source: PriorSource = getattr(import_module(module), factory)(*arguments, **options)
    except TypeError as error:
        raise InputError(f"prior {spec!r}: {error}. A model or folder follows a colon: onnx:model.onnx.") from error
    return source
