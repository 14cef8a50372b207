"""What three wrong measurements in ten do to the fit and to the completion, and what real sensors' errors do.

    python benchmarks/outliers.py DATA NETWORK [--size 320] [--workers 2]

DATA and NETWORK as in `uncertainty.py`. Prints the tables of docs/fitting.md and docs/uncertainty.md: share of cases
within 10 %, geometric mean and worst of AbsRel over AbsRel of the same fit without wrong measurements, or of the same
completion without those that are wrong; and AbsRel with measurements as a sensor gave them.
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
from uncertainty import PRESETS, STRONG, load, names

from leadline.base.arrays import BoolArray
from leadline.bench.patterns import Sensor
from leadline.bench.pulled import pull
from leadline.core.options import CompletionOptions, FitOptions, LossName
from leadline.core.pipeline import complete, respond
from leadline.core.prior import Prior
from leadline.datasets.scenes import SceneFolders
from leadline.io.depth.files import read_values
from leadline.priors.onnx import OnnxPrior

SHARE = 0.3  # of the measurements that are wrong
NEAR = 1.10  # ratio that counts as unharmed
KINDS = ("anywhere", "too far", "too near", "none")
PATTERNS = ("distributed", "random:1000")
LOSSES: tuple[LossName, ...] = ("huber", "cauchy", "gnc")
EVERY = 7  # pixels between the measurements that are taken of a dense sensor
SENSORS = (
    "kitti_dc/2011_09_26_drive_0001_f005_cam02",
    "kitti_dc/ttaz_ex4_cyclist",
    "cleargrasp_d435/real_val_080",
    "cleargrasp_d435/real_val_123",
)
Map = NDArray[np.float32]
Key = tuple[str, str, str, bool]  # prior, what, kind of error, rejected


def spoil(sparse: Map, kind: str, rng: np.random.Generator) -> tuple[Map, BoolArray]:
    """The measurements with SHARE of them wrong, and which: anywhere between half the nearest and twice the farthest
    depth, or too far, or too near, by factors of 1.5 to 4; or none of them."""
    if kind == "none":
        return sparse, np.zeros(sparse.shape, np.bool_)
    places = np.flatnonzero(np.isfinite(sparse))
    hit = rng.permutation(places)[: round(SHARE * places.size)]
    spoilt, wrong = sparse.copy(), np.zeros(sparse.shape, np.bool_)
    wrong.flat[hit] = True
    if kind == "anywhere":
        ends = np.log(np.nanmin(sparse) / 2), np.log(np.nanmax(sparse) * 2)
        spoilt.flat[hit] = np.exp(rng.uniform(*ends, hit.size))
    else:
        factor = rng.uniform(1.5, 4.0, hit.size)
        spoilt.flat[hit] *= factor if kind == "too far" else 1.0 / factor
    return spoilt, wrong


def absrel(depth: NDArray[np.floating], reference: Map, where: BoolArray) -> float:
    return float(np.nanmean(np.abs(depth - reference)[where] / reference[where]))


def ratios(name: str, data: Path, network: Path, size: int) -> list[tuple[Key, float]]:
    numba.set_num_threads(1)
    scene = load(SceneFolders(data), name, size)
    reference = scene.reference
    assert reference is not None
    weak = OnnxPrior(network, threads=1)(scene.image)
    sensor = Sensor(scene, dataset="scenes")
    found = []
    for label, prior in (("network", weak), ("strong", Prior(pull(weak, reference, STRONG)))):
        for pattern in PATTERNS:
            measured = sensor.measure(pattern)
            error = partial(absrel, reference=reference, where=measured.scored)
            for kind in KINDS:
                rng = np.random.default_rng([len(name), PATTERNS.index(pattern), KINDS.index(kind)])
                spoilt, wrong = spoil(measured.sparse, kind, rng)
                for loss in LOSSES:
                    options = CompletionOptions(fit=FitOptions(residual="log", loss=loss))
                    clean = error(respond(prior, measured.sparse, options=options)[1])
                    for reject in (False, True):
                        fitted = respond(prior, spoilt, options=replace(options, reject=reject))[1]
                        found.append(((label, f"fit, {loss}", kind, reject), error(fitted) / clean))
                right = np.where(wrong, np.float32(np.nan), measured.sparse)
                for preset, options in PRESETS.items():
                    known = error(complete(prior, right, options=options).depth)
                    for reject in (False, True):
                        depth = complete(prior, spoilt, options=replace(options, reject=reject)).depth
                        found.append(((label, f"completion, {preset}", kind, reject), error(depth) / known))
    return found


def sensors(data: Path, network: Path) -> Iterator[str]:
    """AbsRel with a sensor's own measurements, of the whole image and of the scene's regions."""
    columns = [(preset, reject) for preset in PRESETS for reject in (False, True)]
    heads = [f"{preset}{', reject' * reject}" for preset, reject in columns]
    yield f"| scene | where | measurements | {' | '.join(heads)} |"
    yield "|---" * (3 + len(heads)) + "|"
    folders = SceneFolders(data)
    for name in SENSORS:
        scene = folders.load(name)
        reference, sparse = scene.reference, folders.scene_sparse(name)[0].values
        assert reference is not None
        if np.isfinite(sparse).mean() > 0.2:
            thin = np.full_like(sparse, np.nan)
            thin[EVERY // 2 :: EVERY, EVERY // 2 :: EVERY] = sparse[EVERY // 2 :: EVERY, EVERY // 2 :: EVERY]
            sparse = thin
        prior = OnnxPrior(network, threads=1)(scene.image)
        scored = np.isfinite(reference) & (reference > 0) & ~(sparse > 0)
        parts = {"all": scored}
        for region in folders.describe(name).get("regions") or []:
            parts[region["name"]] = scored & (read_values(data / name / region["file"]) > 0)
        depths = [
            complete(prior, sparse, options=replace(PRESETS[preset], reject=reject)).depth for preset, reject in columns
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
        for pairs in pool.map(work, names(SceneFolders(given.data))):
            for key, ratio in pairs:
                found[key].append(ratio)
    lines = [f"| prior, what | reject | {' | '.join(KINDS)} |", "|---" * (2 + len(KINDS)) + "|"]
    for label, what, reject in dict.fromkeys((key[0], key[1], key[3]) for key in found):
        cells = []
        for kind in KINDS:
            r = np.array(found[label, what, kind, reject])
            cells.append(f"{100 * (r <= NEAR).mean():.0f} %, {np.exp(np.log(r).mean()):.2f} ({r.max():.2f})")
        lines.append(f"| {label}, {what} | {'yes' if reject else 'no'} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join([*lines, "", *sensors(given.data, given.network)]) + "\n")


if __name__ == "__main__":
    main()
