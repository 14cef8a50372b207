"""Compare the run times of the presets `paper` and `best`, with and without uncertainty, at several image sizes.

    python benchmarks/presets.py [SCENES MODEL.onnx]

With a folder of scene folders and a network, their images are timed, too. The variants alternate in one process, and
the ratios are between medians of CPU time, so that the load of other programs affects all of them equally.
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

from leadline import CompletionOptions, complete
from leadline.bench.observations import CASES, simulate
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors import prior_source

SIZES = (Size(320, 240), Size(640, 480), Size(1024, 1024), Size(1536, 1024), Size(1920, 1080))
PRESETS = {"paper": CompletionOptions.paper(), "best": CompletionOptions.best()}
REPEATS = 3


def compare(name: str, prior: NDArray[np.float32], sparse: NDArray[np.float32]) -> None:
    """Print milliseconds and iterations of both presets, their ratio, and the ratio of each with sigma to without."""
    runs: dict[tuple[str, bool], list[float]] = {}
    iterations: dict[str, int] = {}
    for _ in range(REPEATS + 1):  # the first run compiles
        for preset, options in PRESETS.items():
            for sigma in (False, True):
                start = process_time()
                result = complete(prior, sparse, options=options, uncertainty=sigma)
                runs.setdefault((preset, sigma), []).append(process_time() - start)
                iterations[preset] = result.reconstruction.iterations
    times = {key: median(seconds[1:]) for key, seconds in runs.items()}
    columns = "  ".join(
        f"{preset} {1e3 * times[preset, False]:7.1f} ms, {iterations[preset]:2d} it." for preset in PRESETS
    )
    sigmas = ", ".join(f"{times[preset, True] / times[preset, False]:.2f}" for preset in PRESETS)
    ratio = times["best", False] / times["paper", False]
    sys.stdout.write(f"{name:44s}  {columns}  ratio {ratio:.2f}  with sigma {sigmas}\n")
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
            prior = np.asarray(network(found.image, dataset=folders, name=name).depth(), np.float32)
            for case in CASES:
                compare(f"{name}, {case}", prior, simulate(found, case, dataset=folders.name).sparse)


if __name__ == "__main__":
    main()
