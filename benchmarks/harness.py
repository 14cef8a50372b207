"""Measure the overhead of `leadline bench run`: its share of the run time, its memory, and the gain of more processes.

    python benchmarks/harness.py [FOLDER]

Rendered rooms of 640 x 480 pixels are written as scene folders with priors, so that the times include reading files.
Run it on an idle machine.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from leadline.base.executors import available_cores, processes, serial
from leadline.bench.plan import WorkItem, plan_work_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import Record, RecordStore
from leadline.bench.run import EvaluationJob
from leadline.datasets.rendered import network_like_prior, render

ROOMS, COPIES = 2, 12  # rendered rooms, and copies of each that are written
ROUNDS = 6  # passes over all images, so that the start of the workers has little weight
MANY = 10_000  # records of the memory test


def write_scenes(folder: Path) -> Protocol:
    """Write scene folders and priors; returns the protocol that runs `ours` on them."""
    for seed in range(ROOMS):
        scene = render(640, 480, seed=seed)
        assert scene.reference is not None
        assert scene.camera is not None
        prior = network_like_prior(scene.reference, seed=seed)
        for copy in range(COPIES):
            home = folder / "scenes" / f"room-{seed}-{copy}"
            home.mkdir(parents=True)
            (folder / "priors").mkdir(exist_ok=True)
            Image.fromarray(scene.image).save(home / "rgb.png")
            Image.fromarray(np.rint(scene.reference * 1000).astype(np.uint16)).save(home / "depth.png")
            np.save(folder / "priors" / f"{home.name}.npy", prior)
            camera = {name: getattr(scene.camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
            reference = {"file": "depth.png", "key": None, "metres_per_unit": 0.001, "invalid": [0], "mask": None}
            content = {
                "name": home.name,
                "image": "rgb.png",
                "reference": {**reference, "max_m": None},
                "sparse": [],
                "priors": [],
                "intrinsics": camera,
                "intrinsics_source": "dataset",
            }
            (home / "scene.json").write_text(json.dumps(content), encoding="utf-8")
    return Protocol(
        (DatasetEntry("scenes", root=str(folder / "scenes")),),
        (PriorEntry(f"files:{folder / 'priors'}", "files"),),
        (MethodEntry("ours"),),
    )


def timed(work: Iterator[tuple[WorkItem, list[Record] | None]], store: RecordStore) -> tuple[float, float, int]:
    """Seconds from the end of the first round to the end, those spent in methods, and the number of records."""
    for _ in range(ROOMS * COPIES):  # by then every worker has started
        store.add(next(work)[1] or [])
    begun, method, count = time.perf_counter(), 0.0, 0
    for _, records in work:
        assert records is not None
        store.add(records)
        method += sum(record.seconds for record in records)
        count += len(records)
    return time.perf_counter() - begun, method, count


def main(folder: Path) -> None:
    protocol = write_scenes(folder)
    items = plan_work_items(protocol) * ROUNDS
    job = EvaluationJob(protocol, folder / "cache")
    cores = available_cores()
    rates = {}
    for name, work in (
        ("serial", serial(job, items)),
        ("1 process", processes(job, items, workers=1)),
        (f"{cores} processes", processes(job, items, workers=cores)),
    ):
        with RecordStore(folder / name, create=True) as store:
            seconds, method, count = timed(work, store)
        rates[name] = count / seconds
        share = f", {100 * (1 - method / seconds):.1f} % not in the method" if name == "serial" else ""
        sys.stdout.write(f"{name:>12}: {rates[name]:.1f} records/s{share}\n")

    glog = Protocol(protocol.datasets, protocol.priors, (MethodEntry("glog"),), protocol.cases)
    some = plan_work_items(glog)
    many = serial(EvaluationJob(glog, folder / "cache"), some * (MANY // (3 * len(some)) + 1))
    done, peak = 0, 0
    for _, records in many:
        done += len(records or ())
        if done >= MANY // 10 and not peak:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    sys.stdout.write(f"memory: {peak / 1024:.0f} MB after {MANY // 10} records, {grown / 1024:+.1f} MB after {done}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
