"""Runs work on a Ray cluster of two nodes on this machine and kills one of them in the middle.

python ray_cluster.py bench PROTOCOL RUN    a protocol of the benchmark
python ray_cluster.py refine ...            the command `leadline refine` with these arguments

Both connect to the cluster by its address, as a user would.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import ray
from ray.cluster_utils import Cluster

from leadline.apps.cli import group
from leadline.batch import frame
from leadline.batch.outcome import Outcome
from leadline.bench.protocol_files import read_protocol
from leadline.bench.run import run_protocol
from leadline.io.frames import FrameFiles
from support.bench_methods import DOOMED, PATIENCE, wait_under_the_doomed


@dataclass(frozen=True, kw_only=True)
class WaitingJob(frame.FrameJob):
    """Completes frames, but waits before each of them until a node is lost."""

    def start(self, threads: int) -> Callable[[FrameFiles], Outcome]:
        complete = super().start(threads)

        def work(files: FrameFiles) -> Outcome:
            wait_under_the_doomed()
            return complete(files)

        return work


def bench(address: str, protocol: str, folder: str) -> None:
    end = run_protocol(read_protocol(protocol), Path(folder), executor="ray", workers=2, address=address)
    sys.stdout.write(f"done {end.done} of {end.planned}\n")


def refine(address: str, *arguments: str) -> None:
    frame.FrameJob = WaitingJob  # type: ignore[misc]  # the command makes one and sends it to the nodes
    line = ("refine", *arguments, "--executor", "ray", "--address", address)
    code = group.main(line, prog_name="leadline", standalone_mode=False)
    sys.stdout.write(f"exit code {code}\n")


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # prints which work items were lost
    # By default, Ray takes half a minute to notice that a node is lost.
    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": watchful}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    # A worker's parent is its node. The work waits under the doomed one, so an item is in progress when it goes.
    doomed = Path(os.environ[DOOMED])
    doomed.write_text(f"{second.all_processes['raylet'][0].process.pid}", encoding="utf-8")

    def kill_at_work() -> None:
        while not doomed.with_suffix(".begun").exists():
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    Thread(target=kill_at_work, daemon=True).start()
    {"bench": bench, "refine": refine}[sys.argv[1]](cluster.address, *sys.argv[2:])
    ray.init(address=cluster.address, log_to_driver=False)
    deadline = time.monotonic() + PATIENCE
    while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alive = sum(node["Alive"] for node in ray.nodes())
    sys.stdout.write(f"nodes alive {alive}\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
