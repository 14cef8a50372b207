"""The work of a protocol, cut into units: one image with one prior, for all cases and methods."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from leadline.bench.protocol import DatasetEntry, MethodEntry, Protocol


@dataclass(frozen=True)
class Task:
    """One record to be: a method on the measurements of one case."""

    key: str
    case: str
    method: str  # label
    options: str  # of the method, JSON


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time, and what is lost at most when it is killed."""

    dataset: str  # label
    image: str
    prior: str  # label
    tasks: tuple[Task, ...]


def make_plan(protocol: Protocol, names: Mapping[str, list[str]], models: Mapping[str, str]) -> list[Unit]:
    """Every unit of the protocol, in a fixed order: by data set, image, prior.

    A task's key is made of its labels, readable, and of a digest of everything else that decides its result: the
    options of data set, prior and method, the stride, and the model's content. So it does not depend on the order
    of the protocol, on where data and model lie, or on anything else that is planned.

    Parameters
    ----------
    protocol : Protocol
    names : mapping
        Image names per data set label.
    models : mapping
        What identifies the prior per prior label, see `sources.identity`.
    """
    units = []
    for entry in protocol.datasets:
        digests = {
            (prior.label, case, method.label): _digest(entry, models[prior.label], case, protocol.stride, method)
            for prior in protocol.priors
            for case in protocol.cases
            for method in protocol.methods
        }
        for image in names[entry.label][: protocol.limit]:
            for prior in protocol.priors:
                tasks = tuple(
                    Task(
                        f"{entry.label}|{image}|{case}|{prior.label}|{method.label}"
                        f"|{digests[prior.label, case, method.label]}",
                        case,
                        method.label,
                        canonical(method.options),
                    )
                    for case in protocol.cases
                    for method in protocol.methods
                )
                units.append(Unit(entry.label, image, prior.label, tasks))
    return units


def remaining(units: list[Unit], done: Collection[str]) -> list[Unit]:
    """The units with the tasks that have no record yet; a unit that is done is left out."""
    left = []
    for unit in units:
        tasks = tuple(task for task in unit.tasks if task.key not in done)
        if tasks:
            left.append(unit if len(tasks) == len(unit.tasks) else replace(unit, tasks=tasks))
    return left


def canonical(value: object) -> str:
    """The same JSON for the same content, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _digest(entry: DatasetEntry, model: str, case: str, stride: float, method: MethodEntry) -> str:
    content = [entry.name, entry.normals, entry.options, model, case, float(stride), method.name, method.options]
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:12]
