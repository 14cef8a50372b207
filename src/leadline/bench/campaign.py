"""A run from beginning to end: open, plan, do what is left, write it down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from leadline.base.errors import FileError, InputError
from leadline.bench.executors import cores, processes, serial, worker_count
from leadline.bench.plan import Unit, canonical, make_plan, remaining
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import Record, RecordStore
from leadline.bench.run import CACHE
from leadline.bench.sources import as_planned, identities, open_dataset, open_method

ExecutorName = Literal["serial", "processes", "ray"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)


@dataclass(frozen=True)
class Progress:
    """How far a run is: records planned, done, of these failed, and done by this call."""

    planned: int
    done: int
    failed: int
    fresh: int


def plan(protocol: Protocol) -> list[Unit]:
    """The units of a protocol. Opens all it names, so that what is missing is found before the work begins.

    A prior whose model is not there and a system that is not set up are planned all the same, for failed records that
    say so, as long as there is another prior.

    Raises
    ------
    LeadlineError
        A data set, method or every prior cannot be opened, or a data set has no images.
    """
    for method in protocol.methods:
        open_method(method)
    models = identities(protocol.priors)
    names = {}
    for entry in protocol.datasets:
        names[entry.label] = open_dataset(entry).names()
        if not names[entry.label]:
            raise InputError(f"The data set {entry.label!r} has no images under {entry.root}.")
    methods = tuple(as_planned(entry) for entry in protocol.methods)
    return make_plan(replace(protocol, methods=methods), names, models)


def protocol_of(folder: Path) -> Protocol:
    """The protocol that a run was made by.

    Raises
    ------
    FileError
        The folder holds no run, or one without its protocol.
    """
    with RecordStore(folder) as store:
        text = store.fact("protocol")
    kinds: dict[str, Any] = {"datasets": DatasetEntry, "priors": PriorEntry, "methods": MethodEntry}
    try:
        content = json.loads(text)
        parts = {name: tuple(kind(**entry) for entry in content[name]) for name, kind in kinds.items()}
        return Protocol(**{**content, **parts, "cases": tuple(content["cases"])})
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{folder}: the run does not carry its protocol; run it again with this version.") from error


def conduct(
    protocol: Protocol,
    folder: Path,
    *,
    executor: ExecutorName = "serial",
    workers: int | None = None,
    address: str | None = None,
    retry: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Do what a protocol plans and `folder` does not hold yet; returns how it ended.

    Called again after having been killed, it goes on where the last record was written.

    Parameters
    ----------
    protocol : Protocol
    folder : path
        Of the run; made if need be.
    executor : {"serial", "processes", "ray"}
    workers : int, optional
        Processes, or for Ray the number of tasks that share this machine's cores; default: one per core.
    address : str, optional
        Of a Ray cluster.
    retry : bool
        Do failed records again.
    report : callable, optional
        Is told how far it is, at the beginning and after each unit.

    Raises
    ------
    LeadlineError
        Something that the protocol names is missing, or the folder cannot be written.
    """
    if executor not in EXECUTORS:
        raise InputError(f"`executor` must be one of {', '.join(EXECUTORS)}, got {executor!r}.")
    if workers is not None and executor == "serial":
        raise InputError("`workers` is for the executors processes and ray; serial has one.")
    if address is not None and executor != "ray":
        raise InputError(f"`address` is for the executor ray, got {executor!r}.")
    units = plan(protocol)
    with RecordStore(folder, create=True) as store:
        store.set_plan(units, protocol=canonical(asdict(protocol)))
        if retry:
            store.forget_failed()
        left = remaining(units, store.keys())
        counts = store.counts()
        planned, done, bad = (sum(column) for column in zip(*(row[2:5] for row in counts), strict=True))
        progress = Progress(planned, done, bad, 0)
        report(progress)
        for records in _execute(protocol, left, folder / CACHE, executor, workers, address) if left else ():
            store.add(records)
            bad = sum(record.status == "failed" for record in records)
            progress = Progress(
                progress.planned,
                progress.done + len(records),
                progress.failed + bad,
                progress.fresh + len(records),
            )
            report(progress)
    return progress


def _execute(
    protocol: Protocol,
    units: list[Unit],
    cache: Path,
    executor: ExecutorName,
    workers: int | None,
    address: str | None,
) -> Iterator[list[Record]]:
    if executor == "serial":
        return serial(protocol, units, cache)
    if executor == "processes":
        return processes(protocol, units, cache, workers=workers)
    from leadline.bench.ray_executor import on_ray

    return on_ray(protocol, units, cache, address=address, threads=max(1, cores() // worker_count(workers)))
