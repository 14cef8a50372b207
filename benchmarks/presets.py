"""What the preset `best` costs: the whole completion over that of the paper's configuration, size by size.

    python benchmarks/presets.py [SCENES MODEL.onnx]

With a folder of scene folders and a network their images are timed, too, at their own sizes. Both presets take turns
in one process; ratios are between medians of processor time, so that another program's load cancels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
from numpy.typing import NDArray
from timing import Size, scene

from leadline import Completion, CompletionOptions, complete
from leadline.bench.observations import CASES
from leadline.bench.patterns import Sensor
from leadline.datasets.scenes import SceneFolders
from leadline.priors import prior_source

SIZES = (Size(320, 240), Size(640, 480), Size(1024, 1024), Size(1920, 1080), Size(3840, 2160))
PRESETS = {"paper": CompletionOptions.paper(), "best": CompletionOptions.best()}
REPEATS = 5


def compare(name: str, prior: NDArray[np.float32], sparse: NDArray[np.float32]) -> None:
    """Print one line: milliseconds and iterations of both presets, and the ratio of the times."""
    runs: dict[str, list[float]] = {preset: [] for preset in PRESETS}
    last: dict[str, Completion] = {}
    for _ in range(REPEATS + 1):  # the first compiles
        for preset, options in PRESETS.items():
            start = process_time()
            last[preset] = complete(prior, sparse, options=options)
            runs[preset].append(process_time() - start)
    times = {preset: median(seconds[1:]) for preset, seconds in runs.items()}
    iterations = {preset: result.reconstruction.iterations for preset, result in last.items()}
    columns = "  ".join(f"{preset} {1e3 * times[preset]:7.1f} ms, {iterations[preset]:2d} it." for preset in PRESETS)
    sys.stdout.write(f"{name:44s}  {columns}  ratio {times['best'] / times['paper']:.2f}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenes", nargs="?", type=Path)
    parser.add_argument("model", nargs="?")
    arguments = parser.parse_args()
    for size in SIZES:
        for case in CASES:
            compare(f"{size}, {case}", *scene(size, case))
    if arguments.scenes and arguments.model:
        folders = SceneFolders(arguments.scenes)
        network = prior_source(f"onnx:{arguments.model}")
        for name in folders.names():
            found = folders.load(name)
            sensor = Sensor(found, dataset=folders.name)
            prior = np.asarray(network(found.image, dataset=folders, name=name).depth(), np.float32)
            for case in CASES:
                compare(f"{name}, {case}", prior, sensor.measure(case).sparse)


if __name__ == "__main__":
    main()
