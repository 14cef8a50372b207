"""Runs a protocol on a Ray cluster of two nodes on this machine and kills one of them in the middle.

python bench_ray_cluster.py PROTOCOL RUN
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from bench_methods import SEEN
from leadline.bench.campaign import Progress, conduct
from leadline.bench.protocol import read_protocol

PATIENCE = 60.0  # seconds until Ray must have noticed the loss


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # says which units were lost
    # Ray takes half a minute to notice a silent node unless it is told to look more often.
    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": watchful}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    killed = []

    def kill_once(progress: Progress) -> None:
        # A worker's parent is its node: two parents, and both nodes are at work.
        if not killed and len(os.listdir(os.environ[SEEN])) == 2:
            time.sleep(0.1)  # into the middle of its next unit
            killed.append(progress.done)
            cluster.remove_node(second, allow_graceful=False)

    end = conduct(read_protocol(sys.argv[1]), Path(sys.argv[2]), executor="ray", workers=2, report=kill_once)
    deadline = time.monotonic() + PATIENCE
    while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alive = sum(node["Alive"] for node in ray.nodes())
    sys.stdout.write(f"done {end.done} of {end.planned}, killed after {killed}, nodes alive {alive}\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
