"""Opens what a protocol names: data sets, priors and methods, and the rendered ones that need no files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.bench.plan import canonical
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry
from leadline.bench.pulled import PulledPrior
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.prior import Prior, PriorKind
from leadline.datasets import Dataset, dataset
from leadline.datasets.rendered import network_like_prior
from leadline.datasets.rendered_set import NAME as RENDERED
from leadline.datasets.rendered_set import RenderedSet
from leadline.methods import CONTEXT, Method, MethodResult, method
from leadline.methods.bridge import SYSTEMS
from leadline.methods.systems import setups
from leadline.priors import PRIORS, PriorSource, prior_options, prior_source
from leadline.priors.cache import NOT_CACHED

READY = NOT_CACHED | {RENDERED}


def cached(entry: PriorEntry) -> bool:
    """Whether predictions are kept by the image's content, which must then decide them."""
    return entry.kind not in READY and not entry.pulled


class RenderedPrior(PriorSource):
    """What a network might say about a rendered room: `network_like_prior` of its exact depth."""

    name = RENDERED
    quantity: PriorKind = "depth"
    gauge = "unknown"

    def fingerprint(self) -> str:
        return RENDERED

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prior of the room `name`.

        Raises
        ------
        InputError
            The image is not one of the rendered data set, whose exact depth this needs.
        """
        if not isinstance(dataset, RenderedSet) or name is None:
            raise InputError("the prior 'rendered' is made from exact depth and only for the data set 'rendered'.")
        reference = dataset.load(name).reference
        if reference is None:
            raise InputError(f"{name}: has no depth to make a prior from.")
        return Prior(network_like_prior(reference, seed=dataset.seed(name)))


def open_dataset(entry: DatasetEntry) -> Dataset:
    """The data set of an entry.

    Raises
    ------
    LeadlineError
        There is no such data set or folder, or it does not take such an option.
    """
    if entry.name == RENDERED:
        _check(RenderedSet, entry.options, f"The data set {RENDERED!r}")
        return RenderedSet(**entry.options)
    try:
        return dataset(entry.name, entry.root, **entry.options)
    except TypeError as error:
        raise InputError(f"The data set {entry.label!r} cannot be opened with {entry.options}: {error}.") from error


def open_prior(entry: PriorEntry, threads: int | None = None) -> PriorSource:
    """The source of priors of an entry, told to use so many threads if it can be told."""
    if entry.kind == RENDERED:
        _check(RenderedPrior, entry.options, f"The prior {RENDERED!r}")
        return RenderedPrior()
    options = dict(entry.options)
    if threads is not None and entry.kind in PRIORS and "threads" in prior_options(entry.kind):
        options.setdefault("threads", threads)
    source = prior_source(entry.source, **options)
    return PulledPrior(source, entry.pulled) if entry.pulled else source


def identity(entry: PriorEntry, source: PriorSource) -> str:
    """What a record's key knows of its prior: a model's content; where there is no model, the spec.

    Files of predictions are not hashed, so that adding one does not make all others count as changed.
    """
    if entry.kind not in READY:
        return source.fingerprint()
    return canonical([entry.kind, entry.options, *([entry.pulled] if entry.pulled else [])])


def identities(entries: tuple[PriorEntry, ...]) -> dict[str, str]:
    """The identity of each prior by its label; one that is not installed or not there has its spec for one.

    Its records will then fail with the reason, and those of the other priors are made; unless there is no other.

    Raises
    ------
    LeadlineError
        A prior is misspelt or has a wrong option, or none of them can be opened.
    """
    found, missing = {}, []
    for entry in entries:
        try:
            found[entry.label] = identity(entry, open_prior(entry))
        except (MissingExtra, FileError) as error:
            found[entry.label] = canonical([entry.source, entry.options])
            missing.append(error)
    if len(missing) == len(entries):
        raise missing[0]
    return found


def open_method(entry: MethodEntry) -> Method:
    """The method of an entry with its options bound.

    Options are keywords of the method's function. A function that takes ``options: CompletionOptions``, like `ours`,
    is given the fields of these by their names, e.g. ``weight_data``.

    Raises
    ------
    InputError
        There is no such method, or it does not take such an option.
    """
    found: Callable[..., MethodResult] = method(entry.name)
    if not entry.options:
        return found
    keywords = dict(inspect.signature(found).parameters)
    if "options" in keywords and "options" not in entry.options:
        return partial(found, options=_completion_options(entry))
    given = {*CONTEXT, *(found.keywords if isinstance(found, partial) else ())}  # not for a protocol to say
    _check(found, entry.options, f"The method {entry.label!r}", skip=2, given=given)
    return partial(found, **entry.options)


def as_planned(entry: MethodEntry) -> MethodEntry:
    """The entry as a record's key knows it: with the options that a system was set up with, which decide its result as
    much as the entry's own, and without the folder of predictions, since where things lie decides nothing."""
    kind = entry.name.partition(":")[0]
    if kind == "predictions":
        return replace(entry, name=kind)
    if entry.name not in SYSTEMS:
        return entry
    found = setups().get(entry.name)
    return entry if found is None else replace(entry, options={**found.options, **entry.options})


def _completion_options(entry: MethodEntry) -> CompletionOptions:
    parts: dict[str, dict[str, Any]] = {"fit": {}, "reconstruction": {}}
    homes = {"fit": FitOptions, "reconstruction": ReconstructionOptions}
    known = {f"{home}.{item.name}" for home, kind in homes.items() for item in fields(kind)}
    for name, value in entry.options.items():
        homes_of = [full for full in sorted(known) if name in (full, full.partition(".")[2])]
        if len(homes_of) != 1:
            names = sorted(full.partition(".")[2] for full in known)
            advice = f"write {' or '.join(homes_of)}" if homes_of else f"it takes {', '.join(sorted(set(names)))}"
            raise InputError(f"The method {entry.label!r} takes no option {name!r}: {advice}.")
        home, _, field = homes_of[0].partition(".")
        parts[home][field] = value
    return CompletionOptions(
        fit=FitOptions(**parts["fit"]), reconstruction=ReconstructionOptions(**parts["reconstruction"])
    )


def _check(
    function: Callable[..., Any], options: dict[str, Any], what: str, skip: int = 0, given: Collection[str] = ()
) -> None:
    accepted = [name for name in list(inspect.signature(function).parameters)[skip:] if name not in given]
    unknown = sorted(options.keys() - set(accepted))
    if unknown:
        raise InputError(f"{what} takes no option {', '.join(unknown)}. It takes: {', '.join(accepted) or 'none'}.")
