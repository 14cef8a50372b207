"""The work of a protocol as work items: one image with one prior, for all cases and methods."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from leadline.base.errors import InputError
from leadline.base.strict_json import canonical_json
from leadline.bench.protocol import DatasetEntry, MethodEntry, Protocol
from leadline.bench.sources import effective_entry, open_dataset, open_method, prior_identities


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
    data set, prior and method, the stride, and the content of the model. It does not depend on the order of the
    protocol, on the location of data and model, or on the other tasks.
    """
    for method in protocol.methods:
        open_method(method)
    identities = prior_identities(protocol.priors)
    images = {entry.label: open_dataset(entry).names() for entry in protocol.datasets}
    methods = tuple(effective_entry(entry) for entry in protocol.methods)
    items = []
    for entry in protocol.datasets:
        if not images[entry.label]:
            raise InputError(f"The data set {entry.label!r} has no images under {entry.root}.")
        digests = {
            (prior.label, case, method.label): _digest(entry, identities[prior.label], case, protocol.stride, method)
            for prior in protocol.priors
            for case in protocol.cases
            for method in methods
        }
        for image in images[entry.label][: protocol.limit]:
            for prior in protocol.priors:
                tasks = tuple(
                    Task(
                        f"{entry.label}|{image}|{case}|{prior.label}|{method.label}"
                        f"|{digests[prior.label, case, method.label]}",
                        case,
                        method.label,
                        canonical_json(method.options),
                    )
                    for case in protocol.cases
                    for method in methods
                )
                items.append(WorkItem(entry.label, image, prior.label, tasks))
    return items


def remaining_items(items: list[WorkItem], done: Collection[str]) -> list[WorkItem]:
    """The items with those tasks whose key is not in `done`; an item without remaining tasks is left out."""
    remaining = []
    for item in items:
        tasks = tuple(task for task in item.tasks if task.key not in done)
        if tasks:
            remaining.append(replace(item, tasks=tasks))
    return remaining


def _digest(entry: DatasetEntry, prior: str, case: str, stride: float, method: MethodEntry) -> str:
    content = [entry.name, entry.normals, entry.options, prior, case, float(stride), method.name, method.options]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]
