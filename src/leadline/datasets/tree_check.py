"""A check whether the folder of a data set is complete: all files must exist, and some images are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import LeadlineError
from leadline.datasets import Dataset

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TreeReport:
    """The result of `check_tree`."""

    images: int  # number of images that the data set lists
    missing: tuple[Path, ...]  # files of listed images that do not exist or are empty, each once
    faults: tuple[tuple[str, str], ...]  # names of images that could not be read, with the error
    read: int  # number of images that were read without a fault
    sizes: dict[str, int]  # number of images read by size, e.g. "640x480"
    cameras: int  # number of images read that have a camera
    coverage: tuple[float, ...]  # valid fraction of each reference that was read
    measurements: dict[str, int]  # number of images read that have stored measurements, by their label

    @property
    def sound(self) -> bool:
        return not self.missing and not self.faults


def check_tree(dataset: Dataset, reads: int | None = 8, progress: Progress | None = None) -> TreeReport:
    """Check that every file of every image exists, and read `reads` images (None: all), evenly spaced in the list.

    `progress` is called with the number of images read so far and in all.
    """
    names = dataset.names()
    missing: dict[Path, None] = {}
    faults: dict[str, str] = {}
    complete: list[str] = []
    for name in names:
        try:
            absent = [path for path in dataset.files(name) if not path.is_file() or path.stat().st_size == 0]
        except LeadlineError as error:
            faults[name] = str(error)
            continue
        missing |= dict.fromkeys(absent)
        if not absent:
            complete.append(name)
    count = len(complete) if reads is None else min(reads, len(complete))
    chosen = [complete[(2 * index + 1) * len(complete) // (2 * count)] for index in range(count)]
    sizes: Counter[str] = Counter()
    measurements: Counter[str] = Counter()
    cameras, coverage = 0, []
    for index, name in enumerate(chosen):
        try:
            scene = dataset.load(name)
        except LeadlineError as error:
            faults[name] = str(error)
        else:
            sizes[f"{scene.image.shape[1]}x{scene.image.shape[0]}"] += 1
            cameras += scene.camera is not None
            measurements.update(list(scene.sparse))
            if scene.reference is not None:
                coverage.append(float(np.isfinite(scene.reference).mean()))
                if coverage[-1] == 0:
                    faults[name] = f"{name}: no pixel of its reference is valid."
        if progress is not None:
            progress(index + 1, count)
    return TreeReport(
        len(names),
        tuple(missing),
        tuple(faults.items()),
        sum(sizes.values()),
        dict(sizes),
        cameras,
        tuple(coverage),
        dict(measurements),
    )
