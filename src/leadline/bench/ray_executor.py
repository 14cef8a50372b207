"""Units on a Ray cluster. Ray is imported here and nowhere else, and only when it is asked for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError, MissingExtra
from leadline.bench.executors import limit_threads
from leadline.bench.plan import Unit
from leadline.bench.protocol import Protocol
from leadline.bench.records import Record
from leadline.bench.run import Runner, failed, warm_up

ATTEMPTS = 5  # at one unit whose worker or node is lost, before it counts as the unit's own fault
LOST = f"the worker or its node was lost {ATTEMPTS} times at this image."
_AHEAD = 2  # units per slot of the cluster that are handed out

_log = logging.getLogger(__name__)
_runners: dict[tuple[str, str], Runner] = {}


def on_ray(
    protocol: Protocol,
    units: Sequence[Unit],
    cache: Path,
    *,
    address: str | None = None,
    threads: int = 1,
) -> Iterator[list[Record]]:
    """Units as tasks of a Ray cluster; a unit whose node is lost is done again on another.

    Every node needs leadline and the data under the same paths. The folder for priors may be shared or not: where it
    is not, each node keeps its own.

    Parameters
    ----------
    address : str, optional
        Of the cluster, e.g. ``auto`` or ``ray://head:10001``; default: a new one on this machine.
    threads : int
        Cores that each task claims and uses.

    Raises
    ------
    MissingExtra
        Ray is not installed.
    FileError
        There is no cluster at that address.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", "the executor 'ray'") from error

    warm_up(protocol)
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=None if address else False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise FileError(f"Ray: no cluster answers at {address!r} ({error}).") from error
    try:
        yield from _drain(ray, protocol, deque(units), cache, threads)
    finally:
        if started:
            ray.shutdown()


def _drain(ray: Any, protocol: Protocol, waiting: deque[Unit], cache: Path, threads: int) -> Iterator[list[Record]]:
    # Losses are counted here, where a unit that takes its worker down can be told from a node that was lost.
    work = ray.remote(num_cpus=threads, max_retries=0)(_work)
    shared = ray.put(protocol)
    flying: dict[Any, Unit] = {}
    attempts: dict[tuple[str, str, str], int] = {}
    losses = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.RaySystemError,
        ray.exceptions.LocalRayletDiedError,
    )
    while waiting or flying:
        slots = max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)  # nodes come and go
        while waiting and len(flying) < _AHEAD * slots:
            unit = waiting.popleft()
            flying[work.remote(shared, str(cache), threads, unit)] = unit
        done, _ = ray.wait(list(flying), num_returns=1)
        for reference in done:
            unit = flying.pop(reference)
            try:
                yield ray.get(reference)
            except losses as error:
                name = (unit.dataset, unit.image, unit.prior)
                attempts[name] = attempts.get(name, 0) + 1
                _log.warning("lost %s at attempt %d: %s", " ".join(name), attempts[name], type(error).__name__)
                if attempts[name] < ATTEMPTS:
                    waiting.append(unit)
                else:
                    yield failed(unit, LOST)


def _work(protocol: Protocol, cache: str, threads: int, unit: Unit) -> list[Record]:
    """On a node: one unit, with what earlier units of the same protocol have opened in this process."""
    name = (repr(protocol), cache)
    if name not in _runners:
        _runners.clear()
        limit_threads(threads)
        warm_up(protocol)
        _runners[name] = Runner(protocol, Path(cache), threads)
    return _runners[name].run(unit)
