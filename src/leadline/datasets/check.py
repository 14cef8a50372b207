"""Is a data set's tree complete? Every file is looked for, and some images are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.errors import LeadlineError
from leadline.datasets import Dataset


@dataclass(frozen=True)
class TreeReport:
    """What was found in a tree.

    Parameters
    ----------
    images : int
        Listed by the data set.
    missing : tuple of Path
        Files that a listed image needs and that are not there, or are empty, each once.
    faults : tuple of (name, reason)
        Images that were read, or should have been, and could not.
    read : int
        Images that were read without fault.
    sizes : dict
        How many of those had each size, as "640x480".
    cameras : int
        How many of those had a camera.
    coverage : tuple of float
        Valid share of the reference of each of those that has one.
    """

    images: int
    missing: tuple[Path, ...]
    faults: tuple[tuple[str, str], ...]
    read: int
    sizes: dict[str, int]
    cameras: int
    coverage: tuple[float, ...]

    @property
    def sound(self) -> bool:
        return not self.missing and not self.faults


def check_tree(
    dataset: Dataset, reads: int | None = 8, progress: Callable[[int, int], None] | None = None
) -> TreeReport:
    """Look for every file of every image and read some images, evenly spread over the list.

    Parameters
    ----------
    dataset : Dataset
    reads : int, optional
        How many images to read; None for all.
    progress : callable, optional
        Called with the number of images read so far and in all.

    Raises
    ------
    LeadlineError
        There is nothing to list.
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
    cameras, coverage = 0, []
    for index, name in enumerate(chosen):
        try:
            scene = dataset.load(name)
        except LeadlineError as error:
            faults[name] = str(error)
        else:
            sizes[f"{scene.image.shape[1]}x{scene.image.shape[0]}"] += 1
            cameras += scene.camera is not None
            if scene.reference is not None:
                coverage.append(float(np.isfinite(scene.reference).mean()))
                if coverage[-1] == 0:
                    faults[name] = f"{name}: not one pixel of its reference is valid."
        if progress is not None:
            progress(index + 1, count)
    return TreeReport(
        len(names), tuple(missing), tuple(faults.items()), sum(sizes.values()), dict(sizes), cameras, tuple(coverage)
    )
