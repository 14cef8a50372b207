"""The work of a protocol as work items: one image with one prior, for all cases and methods."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import canonical_json
from leadline.bench.protocol import DatasetEntry, MethodEntry, Protocol
from leadline.bench.scoring import PAPER_SCORING, Scoring
from leadline.bench.sources import effective_entry, inspect_priors, open_dataset, open_method
from leadline.datasets import DATASETS, Dataset
from leadline.methods import METHODS

METRIC = "metric"  # gauge of a prior in metres


@dataclass(frozen=True)
class Task:
    """One planned record: a method on the measurements of one case."""

    key: str
    case: str
    method: str  # label
    options: str  # options of the method as JSON


@dataclass(frozen=True)
class WorkItem:
    """The unit of work of an executor. A killed run loses at most the items that were in progress."""

    dataset: str  # label
    image: str
    prior: str  # label
    tasks: tuple[Task, ...]

    def __str__(self) -> str:
        return f"{self.dataset} {self.image} {self.prior}"


def plan_work_items(protocol: Protocol) -> list[WorkItem]:
    """All work items of a protocol, ordered by data set, image and prior.

    Everything that the protocol names is opened, so that mistakes are reported before the work begins. A prior whose
    model is missing and an external system that is not set up are planned nevertheless, as long as another prior can be
    opened: their records will fail with the reason.

    The key of a task consists of its labels and a digest of everything else that determines its result: the options of
    data set, prior and method, the stride, which pixels are scored, and the content of the model. It does not depend on
    the order of the protocol, on the location of data and model, or on the other tasks.

    A method that returns the prior's own depth (`raw`) is planned only with priors in metres: the depth of another
    prior has no unit to be scored in, which is a missing entry and no failure. So is an image whose scene folder has no
    stored prior, if the protocol names stored priors.
    """
    for method in protocol.methods:
        open_method(method)
    known = inspect_priors(protocol.priors)
    opened, images = _open_datasets(protocol.datasets)
    methods = tuple(effective_entry(entry) for entry in protocol.methods)
    runs = {
        prior.label: tuple(
            method
            for method in methods
            if (method.priors == "all" or place == 0)
            and (known[prior.label].gauge == METRIC or not _needs_metres(method))
        )
        for place, prior in enumerate(protocol.priors)
    }
    if not any(runs.values()):
        raise InputError(
            f"the method {methods[0].label!r} needs a prior in metres, and no prior has the gauge {METRIC!r}; give a "
            f"prior with {param('gauge', METRIC)}, or add other methods."
        )
    items = []
    for entry in protocol.datasets:
        if not images[entry.label]:
            raise InputError(f"The data set {entry.label!r} has no images under {entry.root}.")
        cases = entry.cases or protocol.cases
        digests = {
            (prior, case, method.label): _digest(entry, known[prior].identity, case, protocol, method)
            for prior, chosen in runs.items()
            for case in cases
            for method in chosen
        }
        for image in images[entry.label][: protocol.limit]:
            for prior, chosen in runs.items():
                tasks = tuple(
                    Task(
                        f"{entry.label}|{image}|{case}|{prior}|{method.label}|{digests[prior, case, method.label]}",
                        case,
                        method.label,
                        canonical_json(method.options),
                    )
                    for case in cases
                    for method in chosen
                )
                if tasks and known[prior].covers(opened[entry.label], image):
                    items.append(WorkItem(entry.label, image, prior, tasks))
    if not items:
        raise InputError("no image of the protocol has a stored prior; give a network as a prior.")
    return items


def _open_datasets(entries: tuple[DatasetEntry, ...]) -> tuple[dict[str, Dataset], dict[str, list[str]]]:
    """The data sets and the names of their images, by label. All that are not there are named in one error."""
    opened: dict[str, Dataset] = {}
    images: dict[str, list[str]] = {}
    absent: dict[str, FileError] = {}
    for entry in entries:
        try:
            opened[entry.label] = open_dataset(entry)
            images[entry.label] = opened[entry.label].names()[: entry.limit]
        except FileError as error:
            absent[entry.label] = error
    if absent:
        (_, first), *others = absent.items()
        also = f" Not there either: {', '.join(label for label, _ in others)}." if others else ""
        rest = f" {param('only')} chooses among those that are: {', '.join(images)}." if images else ""
        raise FileError(f"{first}{also}{rest}") from first
    return opened, images


def incomplete_datasets(protocol: Protocol) -> list[tuple[DatasetEntry, int, int]]:
    """The data sets with fewer images than were published, with both numbers; none if the run is limited anyway."""
    found = []
    for entry in protocol.datasets:
        facts = DATASETS.get(entry.name)
        if facts is None or facts.images is None or protocol.limit is not None:
            continue
        try:
            images = len(open_dataset(entry).names())
        except FileError:
            continue  # planning the run reports it
        published = facts.images if entry.limit is None else min(facts.images, entry.limit)
        if facts.absent(images, entry.options) and images < published:
            found.append((entry, images, published))
    return found


def remaining_items(items: list[WorkItem], done: Collection[str]) -> list[WorkItem]:
    """The items with those tasks whose key is not in `done`; an item without remaining tasks is left out."""
    remaining = []
    for item in items:
        tasks = tuple(task for task in item.tasks if task.key not in done)
        if tasks:
            remaining.append(replace(item, tasks=tasks))
    return remaining


def _needs_metres(entry: MethodEntry) -> bool:
    return entry.name in METHODS and METHODS[entry.name].metric_prior


def _digest(entry: DatasetEntry, prior: str, case: str, protocol: Protocol, method: MethodEntry) -> str:
    stride = float(protocol.stride)
    content = [entry.name, entry.normals, entry.options, prior, case, stride, method.name, method.options]
    content += _scored(protocol.scoring)
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]


def _scored(scoring: Scoring) -> list[str]:
    """What the key says about the scored pixels: nothing for the paper's, so that its records keep their keys."""
    return [] if scoring.per_image == PAPER_SCORING.per_image else [*map(str, scoring.per_image)]
