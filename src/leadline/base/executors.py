"""Run independent work items in this process or in several; `ray_executor` runs them on a Ray cluster.

Every executor is a generator of pairs (item, result) in the order of completion. The result of an item is None if
its worker process died twice. Only the process that iterates sees the results, so that it alone writes files.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any, Protocol, TypeVar

from leadline.base.errors import InputError, param

Item = TypeVar("Item")
Result = TypeVar("Result")
ItemIn = TypeVar("ItemIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)

_BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_IN_FLIGHT = 2  # submitted items per worker: workers need not wait for the parent, and few are lost if one dies


class Job(Protocol[ItemIn, ResultOut]):
    """The work to do on each item. A job is pickled once per worker and must return a result for every failure."""

    def start(self, threads: int) -> Callable[[ItemIn], ResultOut]:
        """Called once in each process, with the number of threads to use; returns the function to call on each item.

        If that function has a method ``prefetch``, the serial executor calls it with the next item before each item.
        """
        ...


def serial(job: Job[Item, Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | None]]:
    """Run one item after the other in this process, with all of its threads."""
    work = job.start(available_cores())
    prefetch = getattr(work, "prefetch", None)
    waiting = deque(items)
    while waiting:
        item = waiting.popleft()
        if prefetch is not None and waiting:
            prefetch(waiting[0])
        yield item, work(item)


def processes(
    job: Job[Item, Result], items: Iterable[Item], *, workers: int | None = None
) -> Iterator[tuple[Item, Result | None]]:
    """Run several items at a time, in worker processes that share the cores.

    If a process dies, the items in flight are lost. Each of them is then repeated alone in a new process. If that
    process dies as well, the result of the item is None, and the other items continue. Closing the generator, or
    Ctrl-C, ends the workers.
    """
    workers = worker_count(workers)
    threads = max(1, available_cores() // workers)
    waiting = deque(items)
    with _blas_threads(threads):
        while waiting:
            lost: list[Item] = []
            with _pool(job, workers, threads) as pool:
                yield from _drain(pool, waiting, _IN_FLIGHT * workers, lost)
            for item in lost:
                lost_again: list[Item] = []
                with _pool(job, 1, threads) as pool:
                    yield from _drain(pool, deque([item]), 1, lost_again)
                if lost_again:
                    yield item, None


def available_cores() -> int:
    """Number of cores that this process may use; in a container or under a scheduler these may not be all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(workers: int | None) -> int:
    """The given number of workers, by default one per core."""
    if workers is not None and workers < 1:
        raise InputError(f"{param('workers')} must be at least 1, got {workers}.")
    return workers or available_cores()


def _drain(
    pool: ProcessPoolExecutor, waiting: deque[Item], in_flight: int, lost: list[Item]
) -> Iterator[tuple[Item, Any]]:
    """Results until all items are done or the pool breaks; then the items in flight are appended to `lost`."""
    running: dict[Future[Any], Item] = {}
    try:
        while waiting or running:
            while waiting and len(running) < in_flight:
                item = waiting.popleft()
                try:
                    running[pool.submit(_run, item)] = item
                except BrokenProcessPool:
                    waiting.appendleft(item)
                    raise
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()  # raises if the pool is broken
                yield running.pop(future), result
    except BrokenProcessPool:
        # Futures that finished before the pool broke still hold their results.
        for future, item in running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                yield item, future.result()
            else:
                lost.append(item)


@contextmanager
def _pool(job: Job[Any, Any], workers: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    # Spawned, not forked: a process forked after GNU OpenMP has run aborts at its first parallel kernel.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start, initargs=(job, threads))
    try:
        yield pool
    finally:
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:  # after an error or Ctrl-C the items in flight are not needed
            process.kill()  # SIGTERM would do, but pycolmap prints a stack trace for it
        for process in running:
            process.join()


@contextmanager
def _blas_threads(threads: int) -> Iterator[None]:
    """Limit the BLAS threads of processes started inside; BLAS reads its limit from the environment only."""
    unset = [name for name in _BLAS_VARIABLES if name not in os.environ]
    os.environ.update({name: str(threads) for name in unset})
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


class _Worker:
    """State of a worker process."""

    work: Callable[[Any], Any] | None = None


def _start(job: Job[Any, Any], threads: int) -> None:
    """Runs in each new worker before its first item."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=exit_with_parent, daemon=True).start()
    from leadline.base.threads import set_thread_count  # imports numba, which is not needed to list or plan work

    set_thread_count(threads)
    _Worker.work = job.start(threads)


def exit_with_parent() -> None:
    """Exit when the parent ends: a killed parent cannot stop its workers, which would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(item: Any) -> Any:
    if _Worker.work is None:
        raise RuntimeError("a worker process received an item before it was started")
    return _Worker.work(item)
