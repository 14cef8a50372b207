"""Estimate the run time of the paper's protocol from the time of each method at the image size of each subset.

    python benchmarks/throughput.py

Everything runs on one core and on rendered rooms: the time of a method depends on the numbers of pixels and
measurements, hardly on the content of the image. Run it on an idle machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numba
from progress import show_progress

from leadline.bench.plan import plan_work_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import RecordStatus
from leadline.bench.run import Evaluator, compile_kernels

SUBSETS = {  # number of images, width, height
    "ARKit": (1141, 512, 384),
    "iBims": (100, 640, 480),
    "Tanks and Temples": (1678, 960, 540),
    "DIODE-in": (325, 1024, 768),
    "ETH3D": (454, 1512, 1008),
}
METHODS = ("raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "poisson", "response", "ours")
ROOMS = 2


def seconds_per_record(width: int, height: int) -> dict[str, float]:
    """Mean seconds over rooms and cases, by method."""
    rooms = DatasetEntry("rendered", options={"count": ROOMS, "width": width, "height": height})
    protocol = Protocol((rooms,), (PriorEntry("rendered"),), tuple(map(MethodEntry, METHODS)))
    spent = dict.fromkeys((entry.label for entry in protocol.methods), 0.0)
    compile_kernels(protocol)
    with tempfile.TemporaryDirectory() as cache:
        evaluator = Evaluator(protocol, Path(cache), threads=1)
        for item in plan_work_items(protocol):
            for record in evaluator(item):
                if record.status is RecordStatus.FAILED:
                    raise RuntimeError(record.reason)
                spent[record.method] += record.seconds / (ROOMS * len(protocol.cases))
    return spent


def main() -> None:
    numba.set_num_threads(1)
    sizes_of = show_progress(SUBSETS.items(), len(SUBSETS), "throughput, sizes")
    spent = {name: seconds_per_record(width, height) for name, (_, width, height) in sizes_of}
    sizes = [f"{width}×{height}" for _, width, height in SUBSETS.values()]
    rows = [["method", *sizes, "core-hours"], ["---", *("---:" for _ in sizes), "---:"]]
    total = 0.0
    for method in next(iter(spent.values())):
        hours = sum(3 * SUBSETS[name][0] * spent[name][method] for name in SUBSETS) / 3600
        total += hours
        rows.append([method, *(f"{1e3 * spent[name][method]:.1f}" for name in SUBSETS), f"{hours:.2f}"])
    rows.append(["all", *("" for _ in sizes), f"{total:.2f}"])
    images = sum(count for count, _, _ in SUBSETS.values())
    lines = [f"Milliseconds per record on one core; {images:,} images x 3 cases x {len(METHODS)} methods:", ""]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
