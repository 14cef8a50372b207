"""Work items on a Ray cluster. Ray is imported here and nowhere else, and only when this executor is used."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from leadline.base.errors import FileError, MissingExtra
from leadline.base.executors import Item, Job, Result

ATTEMPTS = 5
"""Runs of an item, each ended by the loss of its worker or node, before its result is None."""
_IN_FLIGHT = 2  # submitted items per slot of the cluster

_log = logging.getLogger(__name__)
_started: dict[str, Callable[[Any], Any]] = {}


def on_ray(
    job: Job[Item, Result], items: Iterable[Item], *, address: str | None = None, threads: int = 1
) -> Iterator[tuple[Item, Result | None]]:
    """Run items as tasks of a Ray cluster; an item whose node is lost is repeated on another one.

    Every node needs leadline and the data under the same paths; relative ones are taken from this process's working
    folder. `address` is e.g. ``auto`` or ``ray://head:10001``; without one, a new cluster is started on this machine.
    `threads` is the number of cores of each task, at most those of the largest node.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", "the executor 'ray'") from error

    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=None if address else False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise FileError(f"Ray: no cluster answers at {address!r} ({error}).") from error
    try:
        yield from _drain(ray, job, deque(enumerate(items)), threads)
    finally:
        if started:
            ray.shutdown()


def _drain(ray: Any, job: Job[Any, Any], waiting: deque[tuple[int, Any]], threads: int) -> Iterator[tuple[Any, Any]]:
    largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    threads = max(1, min(threads, largest))  # a task that fits on no node would wait for ever
    # Ray's own retries are off, because the losses of each item are counted and logged here.
    task = ray.remote(num_cpus=threads, max_retries=0)(_run)
    shared, folder = ray.put(job), os.getcwd()
    running: dict[Any, tuple[int, Any]] = {}
    attempts: dict[int, int] = {}
    losses = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.RaySystemError,
        ray.exceptions.LocalRayletDiedError,
    )
    while waiting or running:
        slots = max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)  # nodes join and leave
        while waiting and len(running) < _IN_FLIGHT * slots:
            entry = waiting.popleft()
            running[task.remote(shared, shared.hex(), folder, threads, entry[1])] = entry
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            place, item = running.pop(reference)
            try:
                result = ray.get(reference)
            except losses as error:
                attempts[place] = attempts.get(place, 0) + 1
                _log.warning("lost %s at attempt %d: %s", item, attempts[place], type(error).__name__)
                if attempts[place] < ATTEMPTS:
                    waiting.append((place, item))
                else:
                    yield item, None
                continue
            yield item, result


def _run(job: Job[Any, Any], name: str, folder: str, threads: int, item: Any) -> Any:
    """Runs on a node. The job is started once and used for all later items in the same process."""
    if name not in _started:
        _started.clear()
        if os.path.isdir(folder):  # Ray starts its processes in folders of their own
            os.chdir(folder)
        from leadline.base.threads import set_thread_count

        set_thread_count(threads)
        _started[name] = job.start(threads)
    return _started[name](item)
