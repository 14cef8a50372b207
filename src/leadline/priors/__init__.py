"""Monocular networks as priors: ``prior_source("onnx:model.onnx")(image)`` returns a `Prior`."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError, param
from leadline.base.registry import Registry, check_option_types, check_options
from leadline.core.prior import Prior, PriorKind

Gauge = Literal["metric", "scale", "affine", "unknown"]
"""Transformation up to which the values of a prior are known.

============  =====================================================================================================
metric        none: the network predicts metres. Only such a prior can be scored as it is, without a fit
scale         a positive factor: depth is scale-invariant
affine        a positive factor and a shift: depth or disparity, whichever `PriorSource.quantity` says, is
              affine-invariant
unknown       not stated by the model, its card or the user
============  =====================================================================================================
"""


class PriorSource(Protocol):
    """A source of priors: predicts relative depth for an image."""

    name: str  # as it appears in records
    quantity: PriorKind
    gauge: str  # one of `Gauge`: the transformation up to which the values are known

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the model and of every option, which changes whenever a prediction may change."""
        ...

    @abstractmethod
    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prior of an (H, W, 3) image; `dataset` and `name` identify its origin, if that is known."""
        ...

    def covers(self, dataset: Any, name: str) -> bool:
        """Whether there is a prior of that image. It is False only if the data set itself says that it has none."""
        return True


@dataclass(frozen=True)
class PriorFacts:
    """One row of the list of priors."""

    target: str  # "module:Class", imported when the prior is used
    summary: str
    quantity: str  # "depth", "disparity", or "as declared" by the model's card, its configuration or the user
    gauge: str  # "metric", "scale", "affine", "unknown"
    model: str | None = None  # default id of the weights; None if the user must name one, or there are none
    size: str | None = None  # number of parameters
    licence: str = "your model's"  # of the weights
    commercial: bool = True  # whether the licence allows commercial use, as far as known
    extra: str | None = None  # leadline's extra that installs the packages it needs
    install: str | None = None  # the command that installs them, where no extra does
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the class that the name implies


_MOGE = PriorFacts(
    "leadline.priors.moge:MogePrior",
    "MoGe-2, 2025: depth, mask and camera",
    quantity="depth",
    gauge="metric",
    licence="MIT",
    install="pip install 'leadline[moge]' git+https://github.com/microsoft/MoGe.git",
    options={"version": 2},
)
_MOGE_3 = replace(_MOGE, summary="MoGe-3, 2026: depth, mask and camera", options={"version": 3})
_WITHOUT = "leadline.priors.without_network"
_DECLARED = ("as declared", "unknown")  # quantity and gauge
_TRANSFORMERS = PriorFacts(
    "leadline.priors.transformers:TransformersPrior",
    "any depth model that transformers can load, by id or folder",
    *_DECLARED,
    extra="transformers",
)
_DEPTH_ANYTHING_2 = replace(
    _TRANSFORMERS, summary="Depth Anything V2, 2024", quantity="disparity", gauge="affine", licence="CC-BY-NC-4.0"
)

PRIORS: dict[str, PriorFacts] = {
    "moge-3": replace(_MOGE_3, summary="MoGe-3, 2026: the paper's prior", model="Ruicheng/moge-3-vitl", size="370 M"),
    "moge-3-giant": replace(_MOGE_3, model="Ruicheng/moge-3-vitg", size="1.25 B"),
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
        "leadline.priors.onnx:OnnxPrior", "any network in an .onnx file with a model card", *_DECLARED, extra="onnx"
    ),
    "files": PriorFacts(f"{_WITHOUT}:FilePriors", "predictions saved earlier, one file per image", *_DECLARED),
    "scene": PriorFacts(f"{_WITHOUT}:ScenePriors", "the predictions that scene folders contain", *_DECLARED),
    "none": PriorFacts(f"{_WITHOUT}:NoPrior", "no network: a constant prior", "depth", "scale", licence="none needed"),
}

RECOMMENDED = "depth-anything-v2-small"
"""The network to begin with: small, and free for any use. The commands take it if no prior is named."""


def prior_source(spec: str, **options: Any) -> PriorSource:
    """Open the source of priors ``NAME``, ``NAME:path`` or ``NAME:id``; `PRIORS` lists the names.

    A name with a default model needs no argument. An id of the hub or a path after the colon replaces that model:
    ``depth-anything-v2-small``, ``transformers:Intel/dpt-large``, ``onnx:model.onnx``, ``files:predictions/``.

    Parameters
    ----------
    spec : str
    **options
        Options of that kind of source, e.g. ``device="cuda"``, ``floor=0.02``; `prior_options` lists them.

    Raises
    ------
    InputError
        There is no such name, it does not take such an option, or it needs a model.
    MissingExtra
        A package that it needs is not installed.
    FileError
        The model does not exist.
    """
    name, _, argument = spec.partition(":")
    target = _load(name)
    check_options(f"The prior {name!r}", options, prior_options(name))
    check_option_types(f"The prior {name!r}", options, target)
    facts = PRIORS[name]
    model = argument or facts.model
    arguments, keywords = (model,) if model else (), {**facts.options, **options}
    try:
        inspect.signature(target).bind(*arguments, **keywords)
    except TypeError as error:
        raise InputError(
            f"{param('prior')}: {spec!r} cannot be opened: {error}. A model or folder follows a colon, as in "
            "onnx:model.onnx."
        ) from error
    return target(*arguments, **keywords)


def prior_options(name: str) -> tuple[str, ...]:
    """The options that a prior takes."""
    parameters = inspect.signature(_load(name)).parameters.values()
    keywords = (parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    return tuple(keyword for keyword in keywords if keyword not in PRIORS[name].options)


def default_floor(quantity: str, gauge: str, floor: float | None = None) -> float:
    """The floor of a network's disparity (see `Prior`): `floor` if it is given, or else a default for its gauge.

    A disparity of unknown shift reaches zero at far pixels, which would have no depth. It is raised to at least a
    hundredth of its maximum. Other quantities and gauges have no such shift, and the floor is 0.
    """
    if floor is not None:
        return floor
    return 0.01 if quantity == "disparity" and gauge in ("affine", "unknown") else 0.0


def as_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`image` itself if it is a non-empty (H, W, 3) array of uint8; `InputError` otherwise."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise InputError(
            f"{param('image')} must be a non-empty (H, W, 3) uint8 array, got {image.dtype} {image.shape}."
        )
    return image


def resize_map(values: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """A map at another size, by bilinear interpolation (averaged where it shrinks)."""
    from PIL import Image

    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR))


def _load(name: str) -> Callable[..., PriorSource]:
    return Registry("prior", {key: facts.target for key, facts in PRIORS.items()}).load(name)
