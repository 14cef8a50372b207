"""Measure what `outliers="regions"` leaves out, and what that changes, with real glass and with regions made up.

    python benchmarks/regions.py DATA NETWORK [--only glass]

DATA and NETWORK as in `uncertainty.py`. Prints the tables of docs/regions.md. *weak* is the network itself, *strong*
nine tenths of the way from it to the ground truth. The made-up regions are squares of 60 pixels, two of these, and
parts of surfaces with one depth, all measured 15 to 40 % too far, and windows of 80 x 100 pixels with a plane behind.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import BoolArray
from leadline.bench.sources import blend_with_reference
from leadline.core.inputs import check_inputs
from leadline.core.options import CompletionOptions
from leadline.core.outliers import Outliers
from leadline.core.pipeline import complete, remove_outliers
from leadline.core.prior import Prior
from leadline.datasets.scene_folders import SceneFolders
from leadline.io.depth import read_values
from leadline.priors.onnx import OnnxPrior

STRONG = 0.9
SHARES = (0.0, 0.5, 0.7, 0.8, 0.9)  # of the way to the ground truth, for the false alarms
SEEDS = range(4, 7)  # of the made-up regions; most constants of the search were chosen with others
GLASS = ("cleargrasp_d435/real_val_080", "cleargrasp_d435/real_val_123")
MADE_UP = (
    "nyuv2/basement_00000",
    "nyuv2/unidepth_livingroom",
    "tum_rgbd/fr2_desk_1",
    "tum_rgbd/open3d_office_desk",
    "7scenes_seq/frame000100",
    "7scenes_seq/frame000600",
    "ibims1/restaurant_11",
    "diode_indoor/00019_00183_indoors_150_000",
    "prior_da/sample1_hotel_with_prior",
    "middlebury2014/motorcycle_q",
)
KINDS = ("none", "block", "two", "object", "window")
PATTERNS = ("every 8th", "all", "random:1500")
TOO_FAR = (1.15, 1.40)
BLOCK, WINDOW, REACH = (60, 60), (80, 100), 60  # pixels; an object lies within REACH of its centre
SAME_DEPTH, OBJECT_SIZE = 0.04, (1500, 9000)  # log depth; pixels
Map = NDArray[np.float32]


class Scenes:
    """The scenes with their two priors, each computed once."""

    def __init__(self, data: Path, network: Path) -> None:
        self.data, self.folders = data, SceneFolders(data)
        self._network = OnnxPrior(network, threads=1)
        self.load = cache(self.folders.load)
        self.weak = cache(lambda name: self._network(self.load(name).image))
        self.priors = cache(self._priors)

    def reference(self, name: str) -> Map:
        reference = self.load(name).reference
        assert reference is not None
        return reference

    def _priors(self, name: str) -> dict[str, Prior]:
        return {"strong": self.towards_reference(name, STRONG), "weak": self.weak(name)}

    def towards_reference(self, name: str, share: float) -> Prior:
        weak = self.weak(name)
        return Prior(blend_with_reference(weak, self.reference(name), share)) if share else weak


def sample(depth: Map, pattern: str, name: str) -> Map:
    """The measurements of a pattern, NaN elsewhere."""
    measured = np.zeros(depth.shape, np.bool_)
    if pattern.startswith("random"):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        known = np.flatnonzero(np.isfinite(depth))
        measured.flat[rng.permutation(known)[: int(pattern.split(":")[1])]] = True
    else:
        step = 8 if pattern == "every 8th" else 1
        measured[step // 2 :: step, step // 2 :: step] = True
    return np.where(measured, depth, np.float32(np.nan))


def made_up(reference: Map, kind: str, rng: np.random.Generator) -> tuple[Map, BoolArray]:
    """The reference with regions that are too far, and the mask of the regions."""
    height, width = reference.shape
    depth, mask = reference.copy(), np.zeros(reference.shape, np.bool_)

    def block(size: tuple[int, int]) -> BoolArray:
        row, column = rng.integers(0, height - size[0]), rng.integers(0, width - size[1])
        found = np.zeros(reference.shape, np.bool_)
        found[row : row + size[0], column : column + size[1]] = True
        return found

    if kind == "window":
        mask = block(WINDOW)
        while not np.isfinite(reference[mask]).any():
            mask = block(WINDOW)
        behind = max(np.nanmedian(reference[mask]) * rng.uniform(*TOO_FAR), np.nanmax(reference[mask]))
        slope = 1 + 3e-4 * (np.arange(width) - width / 2)
        depth[mask] = np.broadcast_to(behind * slope, reference.shape)[mask]
        return depth, mask
    parts = [block(BLOCK) for _ in range({"none": 0, "two": 2}.get(kind, 1))]
    if kind == "object":
        parts = [_object(reference, rng, parts[0])]
    for part in parts:
        depth[part] = reference[part] * rng.uniform(*TOO_FAR)
        mask |= part
    return depth, mask


def _object(reference: Map, rng: np.random.Generator, otherwise: BoolArray) -> BoolArray:
    """A connected part of a surface with nearly one depth."""
    for _ in range(50):
        row, column = (int(rng.integers(40, size - 40)) for size in reference.shape)
        if not np.isfinite(reference[row, column]):
            continue
        with np.errstate(invalid="ignore"):
            same = np.abs(np.log(reference / reference[row, column])) < SAME_DEPTH
        near = np.zeros_like(same)
        near[max(0, row - REACH) : row + REACH, max(0, column - REACH) : column + REACH] = True
        labels = ndimage.label(ndimage.binary_opening(same & near))[0]
        found: BoolArray = labels == labels[row, column]
        if labels[row, column] and OBJECT_SIZE[0] < found.sum() < OBJECT_SIZE[1]:
            return found
    return otherwise


def absrel(depth: NDArray[np.floating], reference: Map, where: BoolArray | None = None) -> float:
    error = np.abs(depth - reference) / reference
    return float(np.nanmean(error if where is None else error[where]))


def look_for(prior: Prior, sparse: Map) -> tuple[Outliers, BoolArray]:
    outliers = remove_outliers(check_inputs(prior, sparse).pairs, "regions")[1]
    assert outliers is not None
    mask = np.zeros(sparse.shape, np.bool_)
    mask.flat[outliers.where] = True
    return outliers, mask


def depth_of(prior: Prior, sparse: Map, outliers: str = "keep") -> Map:
    return complete(prior, sparse, options=CompletionOptions(outliers=outliers)).depth  # type: ignore[arg-type]


def glass(scenes: Scenes) -> Iterator[str]:
    heads = ("scene", "prior", "every", "`keep`", "`single`", "`regions`", "by hand", "ratio", "outside")
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name in GLASS:
        reference = scenes.reference(name)
        region = scenes.folders.describe(name)["regions"][0]
        inside = np.atleast_3d(read_values(scenes.data / name / region["file"]))[..., 0] > 0
        sensor = next(iter(scenes.load(name).sparse.values())).values
        for label, prior in scenes.priors(name).items():
            for step in (1, 8):
                sparse = np.full_like(sensor, np.nan)
                sparse[::step, ::step] = sensor[::step, ::step]
                known = depth_of(prior, np.where(inside, np.float32(np.nan), sparse))
                depths = [depth_of(prior, sparse, policy) for policy in ("keep", "single", "regions")]
                errors = [absrel(depth, reference, inside) for depth in (*depths, known)]
                outside = absrel(depths[2], reference, ~inside) / absrel(depths[0], reference, ~inside)
                numbers = " | ".join(f"{error:.4f}" for error in errors)
                yield f"| {name} | {label} | {step} | {numbers} | {errors[2] / errors[3]:.2f} | {outside:.3f} |"


def regions(scenes: Scenes) -> Iterator[str]:
    """Lines of the table of ratios of AbsRel: geometric mean, and in brackets the largest.

    With the strong prior they are ratios to a completion that knows the regions, with the weak one to `keep`.
    """
    yield f"| prior | measured | {' | '.join(KINDS)} |"
    yield "|---" * (2 + len(KINDS)) + "|"
    for label in ("strong", "weak"):
        for pattern in PATTERNS:
            cells = []
            for kind in KINDS:
                seeds = SEEDS[:1] if kind == "none" else SEEDS
                found = [_ratio(scenes, name, label, pattern, kind, seed) for name in MADE_UP for seed in seeds]
                cells.append(f"{np.exp(np.mean(np.log(found))):.3f} ({max(found):.2f})")
            yield f"| {label} | {pattern} | {' | '.join(cells)} |"


def _ratio(scenes: Scenes, name: str, label: str, pattern: str, kind: str, seed: int) -> float:
    reference, prior = scenes.reference(name), scenes.priors(name)[label]
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed, KINDS.index(kind)])
    depth, mask = made_up(reference, kind, rng)
    sparse = sample(depth, pattern, name)
    left_out = look_for(prior, sparse)[1]
    known = mask if label == "strong" else np.zeros_like(mask)  # a weak prior is compared with keeping all
    if np.array_equal(left_out & np.isfinite(sparse), known & np.isfinite(sparse)):
        return 1.0
    found, expected = (
        absrel(depth_of(prior, np.where(without, np.float32(np.nan), sparse)), reference)
        for without in (left_out, known)
    )
    return found / expected if expected else np.inf  # if all pixels are measured exactly, `keep` has no error


def false_alarms(scenes: Scenes) -> Iterator[str]:
    """Lines for the scenes in which something was left out, without a region, and one for all others."""
    yield "| scene | prior | measured | error of the prior | left out | AbsRel / `keep` |"
    yield "|---|---|---|---|---|---|"
    count = 0
    for name in scenes.folders.names():
        if scenes.load(name).reference is None or name in GLASS:
            continue
        for share in SHARES:
            prior = scenes.towards_reference(name, share)
            for pattern in PATTERNS:
                count += 1
                sparse = sample(scenes.reference(name), pattern, name)
                outliers, mask = look_for(prior, sparse)
                if mask.any():
                    errors = [
                        absrel(depth_of(prior, s), scenes.reference(name))
                        for s in (np.where(mask, np.float32(np.nan), sparse), sparse)
                    ]
                    left_out = f"{mask.sum()} of {int((sparse > 0).sum())}"
                    yield (
                        f"| {name} | {share} | {pattern} | {outliers.prior_error:.3f} | {left_out} "
                        f"| {errors[0] / errors[1]:.3f} |"
                    )
    yield f"| all {count} cases, the others | | | | 0 | 1 |"


def cost(scenes: Scenes) -> Iterator[str]:
    """Lines of the process times of a completion with and without looking for regions, the shortest of five each.

    Run it with one thread. The two take turns, so that other work on the machine slows both down.
    """
    yield "| size | measurements | left out | `keep` | `regions` | ratio |"
    yield "|---|---|---|---|---|---|"
    name = GLASS[0]
    strong = scenes.priors(name)["strong"].depth()
    sensor = next(iter(scenes.load(name).sparse.values())).values
    for size in ((480, 640), (720, 1280)):
        grid = np.ix_(*(np.arange(n) * old // n for n, old in zip(size, sensor.shape, strict=True)))
        for step in (1, 8):
            prior, sparse = Prior(strong[grid]), np.full(size, np.nan, np.float32)
            sparse[::step, ::step] = sensor[grid][::step, ::step]
            left_out = int(look_for(prior, sparse)[1].sum())
            seconds: dict[str, list[float]] = {"keep": [], "regions": []}
            for _ in range(6):  # the first time may compile
                for policy, times in seconds.items():
                    begun = time.process_time()
                    depth_of(prior, sparse, policy)
                    times.append(time.process_time() - begun)
            keep, regions = (min(times[1:]) for times in seconds.values())
            counts = f"{int(np.isfinite(sparse).sum())} | {left_out}"
            yield f"| {size[1]} x {size[0]} | {counts} | {keep:.3f} s | {regions:.3f} s | {regions / keep:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("network", type=Path)
    parser.add_argument("--only", choices=("glass", "regions", "false_alarms", "cost"))
    given = parser.parse_args()
    scenes = Scenes(given.data, given.network)
    tables = {
        "glass": glass(scenes),
        "regions": regions(scenes),
        "false_alarms": false_alarms(scenes),
        "cost": cost(scenes),
    }
    for name, lines in tables.items():
        if given.only in (None, name):
            for line in lines:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            sys.stdout.write("\n")


if __name__ == "__main__":
    main()
