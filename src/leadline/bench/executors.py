"""Where the units are done: in this process, in several, or on a Ray cluster (`ray_executor`).

An executor is a generator of the records of one unit after the other, in any order. It never writes: the records go
to the process that was started, which alone writes them. No array crosses a process's border; a worker reads its
scenes itself, and what comes back is a few hundred bytes per record.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path

from leadline.base.errors import InputError
from leadline.bench.plan import Unit
from leadline.bench.protocol import Protocol
from leadline.bench.records import Record
from leadline.bench.run import Runner, failed, warm_up

LOST = "the worker process died twice at this image (killed, perhaps for want of memory)."
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_AHEAD = 2  # units per worker that are handed out: none waits for the parent, and few are in flight


def serial(protocol: Protocol, units: Sequence[Unit], cache: Path) -> Iterator[list[Record]]:
    """One unit after the other, in this process, with all of its threads."""
    warm_up(protocol)
    import numba

    # Loaders may have compiled kernels too, and the simplest of numba's thread pools breaks if two threads use it.
    ahead = numba.threading_layer() != "workqueue"
    with closing(Runner(protocol, cache)) as runner:
        for place, unit in enumerate(units):
            following = units[place + 1] if ahead and place + 1 < len(units) else None
            yield runner.run(unit, following)


def processes(
    protocol: Protocol, units: Sequence[Unit], cache: Path, *, workers: int | None = None
) -> Iterator[list[Record]]:
    """Several units at a time, each in a process of its own with its share of the cores.

    A process that dies takes the units in flight with it. Each of these is then done again alone, in a fresh process:
    the one at which that dies as well gets failed records, and the run goes on.

    Parameters
    ----------
    workers : int, optional
        Number of processes; default: one per core.
    """
    workers = worker_count(workers)
    threads = max(1, cores() // workers)
    warm_up(protocol)  # here first: workers that start together would all compile the same
    waiting = deque(units)
    with _few_threads(threads):
        while waiting:
            lost: list[Unit] = []
            with _pool(protocol, cache, workers, threads) as pool:
                yield from _drain(pool, waiting, workers, lost)
            for unit in lost:
                alone: list[Unit] = []
                with _pool(protocol, cache, 1, threads) as pool:
                    yield from _drain(pool, deque([unit]), 1, alone)
                if alone:
                    yield failed(unit, LOST)


def cores() -> int:
    """Cores that this process may use, which in a container or under a scheduler are not all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(workers: int | None) -> int:
    """The number of workers asked for, or one per core."""
    if workers is not None and workers < 1:
        raise InputError(f"`workers` must be at least 1, got {workers}.")
    return workers or cores()


def _drain(pool: ProcessPoolExecutor, waiting: deque[Unit], workers: int, lost: list[Unit]) -> Iterator[list[Record]]:
    """Hand out the waiting units until they are done or the pool breaks; then those in flight are in `lost`."""
    flying: dict[Future[list[Record]], Unit] = {}
    try:
        while waiting or flying:
            while waiting and len(flying) < _AHEAD * workers:
                unit = waiting.popleft()
                try:
                    flying[pool.submit(_work, unit)] = unit
                except BrokenProcessPool:
                    waiting.appendleft(unit)
                    raise
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                records = future.result()  # raises where the pool is broken
                del flying[future]
                yield records
    except BrokenProcessPool:
        # Some of the futures may have finished before: what they found is not thrown away.
        for future, unit in flying.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                yield future.result()
            else:
                lost.append(unit)


@contextmanager
def _pool(protocol: Protocol, cache: Path, workers: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(protocol, cache, threads)
    )
    try:
        yield pool
    finally:
        # After an error or Ctrl-C nobody wants the units that are still in flight.
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        for process in running:
            process.join()


@contextmanager
def _few_threads(threads: int) -> Iterator[None]:
    """The linear algebra of workers that start inside uses so many threads; it can be told by the environment only."""
    before = {name: os.environ.get(name) for name in _POOLS}
    os.environ.update({name: str(threads) for name in _POOLS if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


_runner: Runner | None = None


def _start(protocol: Protocol, cache: Path, threads: int) -> None:
    """In each new worker, before its first unit."""
    global _runner
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()
    limit_threads(threads)
    warm_up(protocol)
    _runner = Runner(protocol, cache, threads)


def _follow_parent() -> None:
    """End with the parent: killed, it can tell no one, and the worker would wait for it for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def limit_threads(threads: int) -> None:
    """Let compiled kernels use so many threads in this process."""
    import numba

    numba.set_num_threads(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))


def _work(unit: Unit) -> list[Record]:
    if _runner is None:
        raise RuntimeError("a worker was given work before it was started")
    return _runner.run(unit)
