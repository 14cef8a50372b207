"""Monocular networks as priors: `prior_source("onnx:model.onnx")(image)` gives a `Prior`."""

from __future__ import annotations

import difflib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError
from leadline.core.prior import Prior, PriorKind


class PriorSource(Protocol):
    """Something that predicts relative depth for an image. Subclass it: `batch` then comes for free."""

    name: str  # as it appears in records
    quantity: PriorKind
    gauge: str  # up to what the values are known: "metric", "scale", "affine", "unknown"

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever a prediction may: a hash of the model and of every option."""
        ...

    @abstractmethod
    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prediction for an (H, W, 3) image, which is image `name` of `dataset` where these are known."""
        ...

    def batch(
        self, images: Sequence[NDArray[np.uint8]], *, dataset: Any = None, names: Sequence[str | None] | None = None
    ) -> list[Prior]:
        """The predictions for several images, as one call each would give them; networks may do them together."""
        return [
            self(image, dataset=dataset, name=name)
            for image, name in zip(images, names if names is not None else [None] * len(images), strict=True)
        ]


class BatchedPrior(PriorSource):
    """A network that takes several images of one size at a time."""

    @abstractmethod
    def predict(self, images: Sequence[NDArray[np.uint8]]) -> list[Prior]:
        """The predictions for (H, W, 3) images of one size, by one pass of the network."""
        ...

    def takes_several(self) -> bool:
        """False for a network that was made for one image at a time."""
        return True

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        return self.predict([as_image(image)])[0]

    def batch(
        self, images: Sequence[NDArray[np.uint8]], *, dataset: Any = None, names: Sequence[str | None] | None = None
    ) -> list[Prior]:
        """As `PriorSource.batch`; images of one size go through the network together."""
        if len({as_image(image).shape for image in images}) == 1 and self.takes_several():
            return self.predict(images)
        return super().batch(images, dataset=dataset, names=names)


@dataclass(frozen=True)
class PriorFacts:
    """One row of the list of priors."""

    factory: str  # "module:Class"
    summary: str
    quantity: str  # "depth", "disparity", or "as declared" by the model's card, its configuration or the user
    gauge: str  # "metric", "scale", "affine", "unknown"
    model: str | None = None  # default id of the weights; None if the user must name one, or there are none
    size: str | None = None  # number of parameters
    licence: str = "your model's"  # of the weights
    commercial: bool = True  # whether the licence allows commercial use, as far as it is known here
    extra: str | None = None  # leadline's extra that installs what it needs
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the factory that the name stands for


_MOGE = PriorFacts(
    "leadline.priors.moge:MogePrior",
    "MoGe-2, 2025: points, mask and camera",
    quantity="depth",
    gauge="metric",
    licence="MIT",
    options={"version": 2},
)
_TRANSFORMERS = PriorFacts(
    "leadline.priors.transformers:TransformersPrior",
    "any depth model that transformers can load, by id or folder",
    quantity="as declared",
    gauge="unknown",
    extra="transformers",
)
_DEPTH_ANYTHING_2 = replace(
    _TRANSFORMERS, summary="Depth Anything V2, 2024", quantity="disparity", gauge="affine", licence="CC-BY-NC-4.0"
)

PRIORS: dict[str, PriorFacts] = {
    "moge-3": replace(
        _MOGE, summary="MoGe-3, 2026: the paper's prior", model="Ruicheng/moge-3-vitl", options={"version": 3}
    ),
    "moge-2": replace(_MOGE, model="Ruicheng/moge-2-vitl", size="326 M"),
    "moge-2-small": replace(_MOGE, model="Ruicheng/moge-2-vits-normal", size="35 M"),
    "depth-anything-v2-large": replace(
        _DEPTH_ANYTHING_2, model="depth-anything/Depth-Anything-V2-Large-hf", size="335 M", commercial=False
    ),
    "depth-anything-v2-base": replace(
        _DEPTH_ANYTHING_2, model="depth-anything/Depth-Anything-V2-Base-hf", size="97 M", commercial=False
    ),
    "depth-anything-v2-small": replace(
        _DEPTH_ANYTHING_2, model="depth-anything/Depth-Anything-V2-Small-hf", size="25 M", licence="Apache-2.0"
    ),
    "depth-anything-3": PriorFacts(
        "leadline.priors.depth_anything_3:DepthAnything3Prior",
        "Depth Anything 3, 2025, the monocular model",
        quantity="depth",
        gauge="affine",
        model="depth-anything/DA3MONO-LARGE",
        size="350 M",
        licence="Apache-2.0",
        extra="depth-anything-3",
    ),
    "transformers": _TRANSFORMERS,
    "onnx": PriorFacts(
        "leadline.priors.onnx:OnnxPrior",
        "any network in an .onnx file, fed as its card says",
        quantity="as declared",
        gauge="unknown",
        extra="onnx",
    ),
    "files": PriorFacts(
        "leadline.priors.stored:FilePriors",
        "predictions saved earlier, one file an image",
        quantity="as declared",
        gauge="unknown",
    ),
    "scene": PriorFacts(
        "leadline.priors.stored:ScenePriors",
        "the predictions that scene folders carry",
        quantity="as declared",
        gauge="unknown",
    ),
    "none": PriorFacts(
        "leadline.priors.stored:NoPrior",
        "no network: a constant, the floor for any other",
        quantity="depth",
        gauge="scale",
        licence="none needed",
    ),
}


def prior_source(spec: str, **options: Any) -> PriorSource:
    """The source that ``NAME``, ``NAME:path`` or ``NAME:id`` names; see `PRIORS` for the names.

    A name with a model of its own needs no argument; one that is given, an id of the hub or a path, replaces it:
    ``depth-anything-v2-small``, ``transformers:Intel/dpt-large``, ``onnx:model.onnx``, ``files:predictions/``.

    Parameters
    ----------
    spec : str
    **options
        Of that kind of source, e.g. ``device="cuda"``, ``floor=0.02``; `prior_options` has their names.

    Raises
    ------
    InputError
        If there is no such name, it does not take such an option, or its model is missing.
    MissingExtra, FileError
        What it needs is not installed, or the model is not there.
    """
    name, _, argument = spec.partition(":")
    facts, factory = _facts(name), _factory(name)
    model = argument or facts.model
    arguments = (model,) if model else ()
    accepted = prior_options(name)
    unknown = sorted(options.keys() - set(accepted))
    if unknown:
        raise InputError(
            f"The prior {name!r} takes no option {', '.join(unknown)}. It takes: {', '.join(accepted) or 'none'}."
        )
    bound = {**facts.options, **options}
    try:
        inspect.signature(factory).bind(*arguments, **bound)
    except TypeError as error:
        raise InputError(
            f"The prior {spec!r} cannot be opened: {error}. A model or folder follows a colon, as in onnx:model.onnx."
        ) from error
    return factory(*arguments, **bound)


def prior_options(name: str) -> tuple[str, ...]:
    """The options that a prior takes.

    Examples
    --------
    >>> prior_options("files")
    ('kind', 'floor', 'name')
    """
    facts, parameters = _facts(name), inspect.signature(_factory(name)).parameters.values()
    keywords = (parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    return tuple(keyword for keyword in keywords if keyword not in facts.options)


def shift_floor(quantity: str, gauge: str, floor: float | None = None) -> float:
    """The floor of a network's disparity (see `Prior`): `floor` if given, else a choice that its gauge calls for.

    A disparity of unknown shift reaches zero at far pixels, which would have no depth: a hundredth of the largest is
    then the least. What has no such shift is left as it is.

    Examples
    --------
    >>> shift_floor("disparity", "affine"), shift_floor("disparity", "scale"), shift_floor("disparity", "affine", 0.0)
    (0.01, 0.0, 0.0)
    """
    if floor is not None:
        return floor
    return 0.01 if quantity == "disparity" and gauge in ("affine", "unknown") else 0.0


def as_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same array if it is an (H, W, 3) picture of uint8; InputError otherwise."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise InputError(f"`image` must be a non-empty (H, W, 3) uint8, got shape {image.shape} of {image.dtype}.")
    return image


def _facts(name: str) -> PriorFacts:
    if name not in PRIORS:
        close = difflib.get_close_matches(name, PRIORS, n=3)
        advice = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(PRIORS)}."
        raise InputError(f"There is no prior {name!r}: {advice}")
    return PRIORS[name]


def _factory(name: str) -> Callable[..., PriorSource]:
    module, _, attribute = _facts(name).factory.partition(":")
    factory: Callable[..., PriorSource] = getattr(import_module(module), attribute)
    return factory
