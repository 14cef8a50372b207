"""Test `sigma` on real scenes: coverage of held-out pixels, and how well it ranks their errors.

    python benchmarks/uncertainty.py DATA NETWORK [--size 640] [--further] [--workers 2]

DATA is a folder of scene folders, NETWORK an ONNX network with its card. The priors are the network, its blend with
0.9 of the reference (`strong`), and the predictions that a scene folder contains (`stored`). Prints the tables of
docs/uncertainty.md. Of the sequence 7scenes_seq only two frames are used; with `--further` only its other frames.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from progress import show_progress

from leadline.base.errors import InputError
from leadline.bench.observations import simulate
from leadline.bench.sources import blend_with_reference
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import complete
from leadline.core.prior import Prior
from leadline.core.uncertainty import distance_to
from leadline.datasets import Scene
from leadline.datasets.downsampling import downsample_depth, downsample_image
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors.onnx import OnnxPrior

CASES = ("distributed", "central", "outer")
PATTERNS = (*CASES, "random:500", "lidar:64")
PRESETS = {"paper": CompletionOptions.paper(), "best": CompletionOptions.best()}
SEQUENCE, TAKEN = "7scenes_seq/", ("7scenes_seq/frame000000", "7scenes_seq/frame000500")
PIXELS = 30_000  # largest number of scored pixels per image
STRONG = 0.9  # share of the reference in the strong prior


class Score(NamedTuple):
    """Shares of pixels within 1 and 1.96 sigma, and the sparsification error of sigma and of the distance."""

    one: float
    two: float
    ours: float
    distance: float


Key = tuple[str, str, str, str]  # scene, prior, preset, pattern


def names(folders: SceneFolders, further: bool = False) -> list[str]:
    """The scenes of the tables, or the other frames of the sequence."""
    every = folders.names()
    if further:
        return [name for name in every if name.startswith(SEQUENCE) and name not in TAKEN]
    return [name for name in every if not name.startswith(SEQUENCE) or name in TAKEN]


def load(folders: SceneFolders, name: str, size: int) -> Scene:
    """The scene, downsampled so that its longer side has at most `size` pixels."""
    scene = folders.load(name)
    height, width = scene.image.shape[:2]
    factor = min(1.0, size / max(height, width))
    shape = (round(height * factor), round(width * factor))
    if scene.reference is None:
        raise InputError(f"{name} has no reference.")
    reference = downsample_depth(scene.reference, shape, "nearest-valid").astype(np.float32)
    camera = None if scene.camera is None else scene.camera.scaled(shape[1], shape[0])  # type: ignore[union-attr]
    return Scene(name, downsample_image(scene.image, shape), reference, camera)


def priors(folders: SceneFolders, scene: Scene, network: OnnxPrior) -> dict[str, Prior]:
    weak = network(scene.image)
    assert scene.reference is not None
    found = {"network": weak, "strong": Prior(blend_with_reference(weak, scene.reference, STRONG))}
    for stored in folders.scene_priors(scene.name):
        values = downsample_depth(stored.values, scene.reference.shape, "nearest")
        found["stored"] = Prior(values, kind=stored.kind)
    return found


def sparsification(error: NDArray[np.float64], key: NDArray[np.float64]) -> float:
    """Area between the curves of the mean error of the remaining pixels, removed in order of `key` and of the error."""

    def left(order: NDArray[np.intp]) -> NDArray[np.float64]:
        kept: NDArray[np.float64] = np.cumsum(error[order][::-1])[::-1] / np.arange(error.size, 0, -1)
        return kept / float(error.mean())

    return float(np.mean(left(np.argsort(-key, kind="stable")) - left(np.argsort(-error, kind="stable"))))


def scores(name: str, data: Path, network: Path, size: int) -> list[tuple[Key, Score]]:
    numba.set_num_threads(1)
    folders = SceneFolders(data)
    scene = load(folders, name, size)
    reference = scene.reference
    assert reference is not None
    found = []
    for label, prior in priors(folders, scene, OnnxPrior(network, threads=1)).items():
        for pattern in PATTERNS:
            try:
                measured = simulate(scene, pattern, dataset="scenes")
            except InputError:  # the pattern lidar needs a camera
                continue
            for preset, options in PRESETS.items():
                result = complete(prior, measured.sparse, uncertainty=True, options=options)
                assert result.sigma is not None
                where = np.flatnonzero(measured.scored & np.isfinite(result.sigma))
                if where.size > PIXELS:
                    where = np.random.default_rng(0).choice(where, PIXELS, replace=False)
                error = np.abs(result.depth.astype(np.float64) - reference).flat[where]
                sigma = result.sigma.astype(np.float64).flat[where]
                away = distance_to(np.flatnonzero(np.isfinite(measured.sparse)), reference.shape).flat[where]
                score = Score(
                    float((error < sigma).mean()),
                    float((error < 1.96 * sigma).mean()),
                    sparsification(error, sigma),
                    sparsification(error, away),
                )
                found.append(((name, label, preset, pattern), score))
    return found


def mean(found: dict[Key, Score], label: str, preset: str, patterns: tuple[str, ...], scene: str = "") -> Score | None:
    chosen = [
        s for (n, p, o, c), s in found.items() if (p, o) == (label, preset) and c in patterns and scene in ("", n)
    ]
    return Score(*map(float, np.mean(chosen, axis=0))) if chosen else None


def cell(score: Score | None) -> str:
    return "–" if score is None else f"{100 * score.one:.0f} / {100 * score.two:.0f}"


def tables(found: dict[Key, Score]) -> Iterator[str]:
    yield "| prior, preset | three cases | " + " | ".join(PATTERNS) + " | AUSE: sigma | distance |"
    yield "|---" * (len(PATTERNS) + 4) + "|"
    for label in ("network", "strong", "stored"):
        for preset in PRESETS:
            pooled = mean(found, label, preset, CASES)
            if pooled is not None:
                single = " | ".join(cell(mean(found, label, preset, (pattern,))) for pattern in PATTERNS)
                yield (
                    f"| {label}, {preset} | **{cell(pooled)}** | {single} | {pooled.ours:.2f} | {pooled.distance:.2f} |"
                )
    yield ""
    both = " | ".join(f"{preset}: {case}" for preset in PRESETS for case in CASES)
    yield f"| scene | {both} | AUSE: sigma | distance |"
    yield "|---" * (len(PRESETS) * len(CASES) + 3) + "|"
    for scene in sorted({key[0] for key in found}):
        single = " | ".join(cell(mean(found, "network", preset, (c,), scene)) for preset in PRESETS for c in CASES)
        pooled = mean(found, "network", "paper", CASES, scene)
        assert pooled is not None
        yield f"| {scene} | {single} | {pooled.ours:.2f} | {pooled.distance:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("network", type=Path)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--further", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    chosen = names(SceneFolders(given.data), given.further)
    with ProcessPoolExecutor(given.workers) as pool:
        work = partial(scores, data=given.data, network=given.network, size=given.size)
        done = show_progress(pool.map(work, chosen), len(chosen), "uncertainty, scenes")
        found = dict(pair for pairs in done for pair in pairs)
    sys.stdout.write("\n".join(tables(found)) + "\n")


if __name__ == "__main__":
    main()
