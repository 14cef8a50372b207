"""How long the paper's whole protocol takes: seconds of each method at each subset's size, on one core.

    python benchmarks/throughput.py

Rendered rooms stand in for the images: what a method costs depends on the number of pixels and measurements, hardly on
what they show. Numbers of a machine that does something else at the same time mean nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numba

from leadline.bench.campaign import plan
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.run import Runner, warm_up

SUBSETS = {  # images and size of each, as in the paper
    "ARKit": (1141, 512, 384),
    "iBims": (100, 640, 480),
    "Tanks and Temples": (1678, 960, 540),
    "DIODE-in": (325, 1024, 768),
    "ETH3D": (454, 1512, 1008),
}
METHODS = ("raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "poisson", "response", "ours")
ROOMS = 2


def seconds_per_record(width: int, height: int) -> dict[str, float]:
    """Mean over rooms and the three cases, by method."""
    rooms = DatasetEntry("rendered", options={"count": ROOMS, "width": width, "height": height})
    protocol = Protocol((rooms,), (PriorEntry("rendered"),), tuple(map(MethodEntry, METHODS)))
    spent = dict.fromkeys((entry.label for entry in protocol.methods), 0.0)
    warm_up(protocol)
    with tempfile.TemporaryDirectory() as cache:
        runner = Runner(protocol, Path(cache), threads=1)
        for unit in plan(protocol):
            for record in runner.run(unit):
                if record.status != "ok":
                    raise RuntimeError(record.reason)
                spent[record.method] += record.seconds / (ROOMS * len(protocol.cases))
    return spent


def main() -> None:
    numba.set_num_threads(1)
    spent = {name: seconds_per_record(width, height) for name, (_, width, height) in SUBSETS.items()}
    sizes = [f"{width}×{height}" for _, width, height in SUBSETS.values()]
    rows = [["method", *sizes, "core-hours"], ["---", *("---:" for _ in sizes), "---:"]]
    total = 0.0
    for method in next(iter(spent.values())):
        hours = sum(3 * SUBSETS[name][0] * spent[name][method] for name in SUBSETS) / 3600
        total += hours
        rows.append([method, *(f"{1e3 * spent[name][method]:.1f}" for name in SUBSETS), f"{hours:.2f}"])
    rows.append(["all", *("" for _ in sizes), f"{total:.2f}"])
    images = sum(count for count, _, _ in SUBSETS.values())
    lines = [f"Milliseconds a record on one core; {images:,} images x 3 cases x {len(METHODS)} methods:", ""]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
