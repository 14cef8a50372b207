"""Runs a protocol on a Ray cluster of two nodes on this machine and kills one of them in the middle.

python bench_ray_cluster.py PROTOCOL RUN
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from threading import Thread

import ray
from ray.cluster_utils import Cluster

from leadline.bench.protocol_files import read_protocol
from leadline.bench.run import run_protocol
from support.bench_methods import DOOMED, PATIENCE


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # prints which work items were lost
    # By default, Ray takes half a minute to notice that a node is lost.
    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": watchful}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    # A worker's parent is its node. The method waits under the doomed one, so an item is in progress when it goes.
    doomed = Path(os.environ[DOOMED])
    doomed.write_text(f"{second.all_processes['raylet'][0].process.pid}", encoding="utf-8")

    def kill_at_work() -> None:
        while not doomed.with_suffix(".begun").exists():
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    Thread(target=kill_at_work, daemon=True).start()
    end = run_protocol(read_protocol(sys.argv[1]), Path(sys.argv[2]), executor="ray", workers=2)
    deadline = time.monotonic() + PATIENCE
    while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alive = sum(node["Alive"] for node in ray.nodes())
    sys.stdout.write(f"done {end.done} of {end.planned}, nodes alive {alive}\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
