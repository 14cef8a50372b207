"""Runs work on a Ray cluster of two nodes on this machine and kills one of them in the middle.

python ray_cluster.py PROTOCOL RUN       a protocol of the benchmark
python ray_cluster.py --refine OUTPUT    the frames of the working folder, as `refine_job` has them
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

from leadline.batch.folder import complete_folder, match_frames
from leadline.batch.frame import FrameJob
from leadline.batch.outcome import Outcome
from leadline.batch.outputs import OutputOptions
from leadline.bench.protocol_files import read_protocol
from leadline.bench.run import run_protocol
from leadline.io.frames import FrameFiles, FrameOptions
from support.bench_methods import DOOMED, PATIENCE, wait_under_the_doomed


@dataclass(frozen=True, kw_only=True)
class WaitingJob(FrameJob):
    """Completes frames, but waits before each of them until a node is lost."""

    def start(self, threads: int) -> Callable[[FrameFiles], Outcome]:
        complete = super().start(threads)

        def work(files: FrameFiles) -> Outcome:
            wait_under_the_doomed()
            return complete(files)

        return work


def refine(output: Path) -> str:
    frames = match_frames({"image": Path("frames"), "sparse": Path("depth"), "prior": Path("priors")}).frames
    # Ray starts its workers in folders of their own.
    paths = [FrameFiles(**{name: path.resolve() for name, path in files.paths().items()}) for files in frames]
    outputs = OutputOptions(mask=True, preview=False)
    job = WaitingJob(folder=output.resolve(), inputs=FrameOptions(unit="mm"), outputs=outputs)
    outcomes: list[Outcome] = []
    complete_folder(paths, job, outcomes.append, workers=2, executor="ray")
    return ", ".join(sorted(f"{outcome.stem} {outcome.state.value}" for outcome in outcomes))


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # prints which work items were lost
    # By default, Ray takes half a minute to notice that a node is lost.
    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": watchful}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    # A worker's parent is its node. The work waits under the doomed one, so an item is in progress when it goes.
    doomed = Path(os.environ[DOOMED])
    doomed.write_text(f"{second.all_processes['raylet'][0].process.pid}", encoding="utf-8")

    def kill_at_work() -> None:
        while not doomed.with_suffix(".begun").exists():
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    Thread(target=kill_at_work, daemon=True).start()
    if sys.argv[1] == "--refine":
        done = refine(Path(sys.argv[2]))
    else:
        end = run_protocol(read_protocol(sys.argv[1]), Path(sys.argv[2]), executor="ray", workers=2)
        done = f"done {end.done} of {end.planned}"
    deadline = time.monotonic() + PATIENCE
    while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    alive = sum(node["Alive"] for node in ray.nodes())
    sys.stdout.write(f"{done}, nodes alive {alive}\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
