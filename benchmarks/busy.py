"""How long a completion takes on a busy machine: with one thread and with all, beside other processes.

    python benchmarks/busy.py [--repeats 4] [--loads 0 2 6]

The load is that number of processes that compute without end. Times are medians of completions at 640x480, in rounds
that alternate between the numbers of threads, so that both meet the same load. The last column is the time with all
threads relative to the faster of the two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import numpy as np

import leadline
from leadline.base.executors import available_cores
from leadline.base.threads import set_thread_count

WIDTH, HEIGHT = 640, 480
ROUNDS = 20  # many and short ones: a scheduler leaves a process beside the same neighbours for seconds


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    prior = (2 + np.sin(columns / 90) + np.cos(rows / 70)).astype(np.float32)
    sparse = np.zeros_like(prior)
    noise = 0.1 * np.random.default_rng(0).standard_normal(prior.shape)
    sparse[::8, ::8] = (prior**1.2 + noise)[::8, ::8]
    return prior, sparse


def measure(options: str, threads: int, repeats: int) -> list[float]:
    set_thread_count(threads)
    prior, sparse = inputs()
    leadline.complete(prior, sparse, options=options)
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        leadline.complete(prior, sparse, options=options)
        times.append(time.perf_counter() - begun)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 6])
    arguments = parser.parse_args()
    cores = available_cores()
    print(f"| load | preset | 1 thread, ms | {cores} threads, ms | ratio to the faster |\n|---:|---|---:|---:|---:|")
    for load in arguments.loads:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            for options in ("paper", "best"):
                times: dict[int, list[float]] = {1: [], cores: []}
                for _ in range(ROUNDS):
                    for threads, found in times.items():
                        found += measure(options, threads, arguments.repeats)
                one, all_cores = (1e3 * float(np.median(times[threads])) for threads in (1, cores))
                print(f"| {load} | {options} | {one:.0f} | {all_cores:.0f} | {all_cores / min(one, all_cores):.2f} |")
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
