"""Opens the data sets, priors and methods that a protocol names, including those that need no files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.base.registry import check_option_types, check_options, suggestion
from leadline.base.strict_json import canonical_json
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.prior import Prior, PriorKind
from leadline.datasets import Dataset, dataset
from leadline.datasets.rendered import NAME as RENDERED
from leadline.datasets.rendered import RenderedDataset, network_like_prior
from leadline.methods import CONTEXT, Method, MethodResult, method
from leadline.methods.external.server_program import SYSTEMS
from leadline.methods.external.systems import read_setups
from leadline.priors import PRIORS, PriorSource, prior_options, prior_source
from leadline.priors.predictor import NOT_CACHED

_NO_MODEL = NOT_CACHED | {RENDERED}  # kinds of priors without a model file


def is_cached(entry: PriorEntry) -> bool:
    """Whether predictions are cached by the content of the image, which must then determine them."""
    return entry.kind not in _NO_MODEL and not entry.share


class RenderedPrior(PriorSource):
    """A prior with errors like those of a network for a rendered room, made from its exact depth."""

    name = RENDERED
    quantity: PriorKind = "depth"
    gauge = "unknown"

    def fingerprint(self) -> str:
        return RENDERED

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prior of the room `name`."""
        if not isinstance(dataset, RenderedDataset) or name is None:
            raise InputError("the prior 'rendered' is made from exact depth, so it needs the data set 'rendered'.")
        reference = dataset.load(name).reference
        if reference is None:
            raise InputError(f"{name}: the room has no depth to make a prior from.")
        return Prior(network_like_prior(reference, seed=dataset.seed(name)))


def open_dataset(entry: DatasetEntry) -> Dataset:
    """The data set of an entry."""
    if entry.name == RENDERED:
        check_options(f"The data set {RENDERED!r}", entry.options, inspect.signature(RenderedDataset).parameters)
        check_option_types(f"The data set {RENDERED!r}", entry.options, RenderedDataset)
        return RenderedDataset(**entry.options)
    try:
        return dataset(entry.name, entry.root, **entry.options)
    except TypeError as error:
        raise InputError(f"The data set {entry.label!r} cannot be opened with {entry.options}: {error}.") from error


def open_prior(entry: PriorEntry, threads: int | None = None) -> PriorSource:
    """The source of priors of an entry.

    `threads` is the number of threads of the network, if it has such an option.
    """
    if entry.kind == RENDERED:
        check_options(f"The prior {RENDERED!r}", entry.options, ())
        source: PriorSource = RenderedPrior()
    else:
        options = dict(entry.options)
        if threads is not None and entry.kind in PRIORS and "threads" in prior_options(entry.kind):
            options.setdefault("threads", threads)
        source = prior_source(entry.spec, **options)
    return OracleBlend(source, entry.share) if entry.share else source


class PlannedPrior(NamedTuple):
    """What the plan of a run must know about a prior."""

    identity: str  # what identifies it in the keys of records: the content of its model, or its spec and options
    gauge: str  # "metric" if its depth is in metres; see `PriorSource`
    covers: Callable[[Dataset, str], bool]  # whether there is a prior of an image


def inspect_priors(entries: tuple[PriorEntry, ...]) -> dict[str, PlannedPrior]:
    """By label, the identity and the gauge of each prior.

    Files of predictions are not hashed, so that an additional file does not invalidate all records. A prior that is not
    installed or whose model is missing is identified by its spec; its records will fail with the reason.
    """
    found, missing = {}, []
    for entry in entries:
        try:
            source = open_prior(entry)
            gauge = entry.gauge or source.gauge
            found[entry.label] = PlannedPrior(_identity(entry, source), gauge, source.covers)
        except (MissingExtra, FileError) as error:
            gauge = entry.gauge or (PRIORS[entry.kind].gauge if entry.kind in PRIORS else "unknown")
            identity = canonical_json([entry.source, entry.options])
            found[entry.label] = PlannedPrior(identity, gauge, lambda data, image: True)
            missing.append(error)
    if len(missing) == len(entries):
        raise missing[0]
    return found


def _identity(entry: PriorEntry, source: PriorSource) -> str:
    if entry.kind not in _NO_MODEL:
        return source.fingerprint()
    return canonical_json([entry.kind, entry.options, *([entry.share] if entry.share else [])])


def open_method(entry: MethodEntry) -> Method:
    """The method of an entry with its options bound.

    Options are keywords of the method's function. For a function that takes ``options: CompletionOptions``, like
    `ours`, they are the fields of the fit and the reconstruction, e.g. ``weight_data`` or ``fit.tolerance``.
    """
    found: Callable[..., MethodResult] = method(entry.name)
    if not entry.options:
        return found
    keywords = dict(inspect.signature(found).parameters)
    if "options" in keywords and "options" not in entry.options:
        return partial(found, options=_completion_options(entry))
    reserved = {*CONTEXT, *(found.keywords if isinstance(found, partial) else ())}
    accepted = [name for name in list(keywords)[2:] if name not in reserved]  # without prior and measurements
    check_options(f"The method {entry.label!r}", entry.options, accepted)
    check_option_types(f"The method {entry.label!r}", entry.options, found)
    return partial(found, **entry.options)


def effective_entry(entry: MethodEntry) -> MethodEntry:
    """The entry as it identifies records: with everything that determines the result, and nothing else.

    The options that an external system was set up with are added. The folder of ``predictions`` is removed, because
    the location of files does not affect the result.
    """
    kind = entry.name.partition(":")[0]
    if kind == "predictions":
        return replace(entry, name=kind)
    if entry.name not in SYSTEMS:
        return entry
    found = read_setups().get(entry.name)
    return entry if found is None else replace(entry, options={**found.options, **entry.options})


def _completion_options(entry: MethodEntry) -> CompletionOptions:
    """Options by the names of their fields, which need their group (``fit.``) only if both groups have such a field."""
    groups: dict[str, type[Any]] = {"fit": FitOptions, "reconstruction": ReconstructionOptions}
    known = [f"{group}.{item.name}" for group, kind in groups.items() for item in fields(kind)]
    values: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in entry.options.items():
        matches = [full for full in known if name in (full, full.partition(".")[2])]
        if len(matches) != 1:
            short = {full.partition(".")[2] for full in known}
            advice = f"write {' or '.join(matches)}." if matches else suggestion(name, short)
            raise InputError(f"The method {entry.label!r} takes no option {name!r}; {advice}")
        group, _, field = matches[0].partition(".")
        values[group][field] = value
    return CompletionOptions.paper(**{group: kind.paper(**values[group]) for group, kind in groups.items()})


POWER, OFFSET = 0.8, 0.1  # parameters of the final distortion (p / mean)^0.8 + 0.1


class OracleBlend(PriorSource):
    """The predictions of another source, blended with the reference depth of their image.

    `share` is that of the reference in log depth, in (0, 1]. Public samples that contain both a reference and the
    prediction of a strong network are rare, and the blend replaces one: its errors have the structure of a network's
    errors but are smaller, and its final distortion is outside the response family, so that the fit alone cannot
    remove it.
    """

    quantity: PriorKind = "depth"
    gauge = "unknown"

    def __init__(self, source: PriorSource, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"{param('share')} of the reference must be above 0 and at most 1, got {share!r}.")
        self.source, self.share = source, share
        self.name = f"{source.name}, blended with {share:g} of the reference"

    def fingerprint(self) -> str:
        return f"oracle {self.share!r} {self.source.fingerprint()}"

    def covers(self, dataset: Any, name: str) -> bool:
        return self.source.covers(dataset, name)

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The blended prior of image `name` of `dataset`."""
        reference = None if dataset is None or name is None else dataset.load(name).reference
        if reference is None:
            raise InputError(f"{name}: an oracle prior needs a reference depth, and the image has none.")
        return Prior(blend_with_reference(self.source(image, dataset=dataset, name=name), reference, self.share))


def blend_with_reference(prior: Prior, reference: FloatArray, share: float) -> NDArray[np.float32]:
    """log p = (1 - share) (a log h + b) + share log f, then (p / mean)^0.8 + 0.1 with the geometric mean of p.

    h is the prior; a and b are its least-squares fit to the reference in log depth. f is the reference with its holes
    filled by completing h, in the paper's configuration, with every valid reference pixel as a measurement.

    `reference` is in metres, (H, W); values that are not finite and positive are unknown. The result is relative depth.
    """
    from leadline.core.pipeline import complete

    h = np.asarray(prior.depth(), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(h), np.log(np.asarray(reference, np.float64))
    x[~np.isfinite(x)] = np.nan  # some networks predict 0, which is no depth and must not enter the mean below
    known = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(known) < 2:
        raise InputError(f"{param('reference')} and the prior must have at least two valid pixels in common.")
    centred = x[known] - x[known].mean()
    squares = float((centred**2).sum())
    slope = float((centred * y[known]).sum()) / squares if squares > 0 else 0.0
    aligned = y[known].mean() + slope * (x - x[known].mean())
    completed = complete(prior, reference, options="paper")
    blend = (1 - share) * aligned + share * np.log(np.asarray(completed.depth, np.float64))
    distorted: NDArray[np.float64] = np.exp(POWER * (blend - np.nanmean(blend))) + OFFSET
    return distorted.astype(np.float32)
