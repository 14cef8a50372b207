"""Measure how 30 % outliers, and the errors of real sensors, change the fit and the completion.

    python benchmarks/outliers.py DATA NETWORK [--size 320] [--workers 2]

DATA and NETWORK as in `uncertainty.py`. Prints the tables of docs/fitting.md and docs/uncertainty.md. The first table
has ratios of AbsRel with outliers to AbsRel without: of a fit to the correct measurements, or of a completion without
the outliers. Each cell has the share of ratios up to 1.1, their geometric mean, and the largest one in brackets. The
second table has AbsRel with the measurements of real sensors.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray
from progress import show_progress
from uncertainty import PRESETS, STRONG, load, names

from leadline.base.arrays import BoolArray
from leadline.bench.observations import simulate
from leadline.bench.sources import blend_with_reference
from leadline.core.options import CompletionOptions, FitOptions, LossName
from leadline.core.pipeline import align, complete
from leadline.core.prior import Prior
from leadline.datasets.scene_folders import SceneFolders
from leadline.io.depth import read_values
from leadline.priors.onnx import OnnxPrior

SHARE = 0.3  # share of outliers among the measurements
UNAFFECTED = 1.10  # largest ratio of a case that counts as unaffected
KINDS = ("anywhere", "too far", "too near", "none")
PATTERNS = ("distributed", "random:1000")
LOSSES: tuple[LossName, ...] = ("huber", "cauchy", "gnc")
STRIDE = 7  # pixels between the measurements that are used of a dense sensor
SENSORS = (
    "kitti_dc/2011_09_26_drive_0001_f005_cam02",
    "kitti_dc/ttaz_ex4_cyclist",
    "cleargrasp_d435/real_val_080",
    "cleargrasp_d435/real_val_123",
)
Map = NDArray[np.float32]
Key = tuple[str, str, str, str]  # prior, method, kind of error, outlier policy


def add_outliers(sparse: Map, kind: str, rng: np.random.Generator) -> tuple[Map, BoolArray]:
    """The measurements with a share of outliers, and the mask of the outliers.

    `kind` is "anywhere" for depths between half the smallest and twice the largest one, "too far" or "too near" for
    errors by factors of 1.5 to 4, or "none".
    """
    if kind == "none":
        return sparse, np.zeros(sparse.shape, np.bool_)
    measured = np.flatnonzero(np.isfinite(sparse))
    replaced = rng.permutation(measured)[: round(SHARE * measured.size)]
    corrupted, outlier = sparse.copy(), np.zeros(sparse.shape, np.bool_)
    outlier.flat[replaced] = True
    if kind == "anywhere":
        ends = np.log(np.nanmin(sparse) / 2), np.log(np.nanmax(sparse) * 2)
        corrupted.flat[replaced] = np.exp(rng.uniform(*ends, replaced.size))
    else:
        factor = rng.uniform(1.5, 4.0, replaced.size)
        corrupted.flat[replaced] *= factor if kind == "too far" else 1.0 / factor
    return corrupted, outlier


def absrel(depth: NDArray[np.floating], reference: Map, where: BoolArray) -> float:
    return float(np.nanmean(np.abs(depth - reference)[where] / reference[where]))


def ratios(name: str, data: Path, network: Path, size: int) -> list[tuple[Key, float]]:
    numba.set_num_threads(1)
    scene = load(SceneFolders(data), name, size)
    reference = scene.reference
    assert reference is not None
    weak = OnnxPrior(network, threads=1)(scene.image)
    found = []
    for label, prior in (("network", weak), ("strong", Prior(blend_with_reference(weak, reference, STRONG)))):
        for pattern in PATTERNS:
            measured = simulate(scene, pattern, dataset="scenes")
            error = partial(absrel, reference=reference, where=measured.scored)
            for kind in KINDS:
                rng = np.random.default_rng([len(name), PATTERNS.index(pattern), KINDS.index(kind)])
                corrupted, outlier = add_outliers(measured.sparse, kind, rng)
                for loss in LOSSES:
                    options = CompletionOptions.paper(fit=FitOptions.paper(residual="log", loss=loss))
                    clean = error(align(prior, measured.sparse, options=options).calibrated)
                    for outliers in ("keep", "single"):
                        fitted = align(prior, corrupted, options=replace(options, outliers=outliers)).calibrated
                        found.append(((label, f"fit, {loss}", kind, outliers), error(fitted) / clean))
                right = np.where(outlier, np.float32(np.nan), measured.sparse)
                for preset, options in PRESETS.items():
                    known = error(complete(prior, right, options=options).depth)
                    for outliers in ("keep", "single"):
                        depth = complete(prior, corrupted, options=replace(options, outliers=outliers)).depth
                        found.append(((label, f"completion, {preset}", kind, outliers), error(depth) / known))
    return found


def sensors(data: Path, network: Path) -> Iterator[str]:
    """Lines of the table of AbsRel with real measurements, on the whole image and on the regions of the scene."""
    columns = [(preset, outliers) for preset in PRESETS for outliers in ("keep", "single")]
    heads = [f"{preset}, {outliers}" for preset, outliers in columns]
    yield f"| scene | where | measurements | {' | '.join(heads)} |"
    yield "|---" * (3 + len(heads)) + "|"
    folders = SceneFolders(data)
    for name in show_progress(SENSORS, len(SENSORS), "outliers, sensors"):
        scene = folders.load(name)
        reference, sparse = scene.reference, next(iter(scene.sparse.values())).values
        assert reference is not None
        if np.isfinite(sparse).mean() > 0.2:
            thin = np.full_like(sparse, np.nan)
            grid = np.s_[STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE]
            thin[grid] = sparse[grid]
            sparse = thin
        prior = OnnxPrior(network, threads=1)(scene.image)
        scored = np.isfinite(reference) & (reference > 0) & ~(sparse > 0)
        parts = {"all": scored}
        for region in folders.describe(name).get("regions") or []:
            parts[region["name"]] = scored & (read_values(data / name / region["file"]) > 0)
        depths = [
            complete(prior, sparse, options=replace(PRESETS[preset], outliers=outliers)).depth
            for preset, outliers in columns
        ]
        for part, where in parts.items():
            numbers = " | ".join(f"{absrel(depth, reference, where):.4f}" for depth in depths)
            yield f"| {name} | {part} | {int((sparse > 0).sum())} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("network", type=Path)
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    found: dict[Key, list[float]] = defaultdict(list)
    with ProcessPoolExecutor(given.workers) as pool:
        work = partial(ratios, data=given.data, network=given.network, size=given.size)
        chosen = names(SceneFolders(given.data))
        for pairs in show_progress(pool.map(work, chosen), len(chosen), "outliers, scenes"):
            for key, ratio in pairs:
                found[key].append(ratio)
    lines = [f"| prior, what | outliers | {' | '.join(KINDS)} |", "|---" * (2 + len(KINDS)) + "|"]
    for label, what, outliers in dict.fromkeys((key[0], key[1], key[3]) for key in found):
        cells = []
        for kind in KINDS:
            r = np.array(found[label, what, kind, outliers])
            cells.append(f"{100 * (r <= UNAFFECTED).mean():.0f} %, {np.exp(np.log(r).mean()):.2f} ({r.max():.2f})")
        lines.append(f"| {label}, {what} | {outliers} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n\n")
    for line in sensors(given.data, given.network):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
