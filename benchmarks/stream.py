"""What a stream saves against completing each frame alone, what it changes, and how long its frames take.

    python benchmarks/stream.py FRAMES NETWORK.onnx [--count 200] [--every 1] [--first 0] [--preset paper]
    python benchmarks/stream.py                       a rendered room, seen through a window that moves by a pixel

FRAMES is a folder of a 7-Scenes sequence: frame-000000.color.jpg (or .png), frame-000000.depth.png in millimetres, ...
or of folders, each with a frame's rgb.jpg and depth.png. The network's time is not counted. Each frame goes through
`complete` and a stream, now one first, now the other; times are medians, and "faster" compares the processor's. Then a
stream alone sees 1,000 frames, for its latency.

Flicker is the mean of |e' - e| over pixels with a reference and no measurement in two frames that follow each other,
e = log depth - log reference being the error at a pixel: what changes beyond what the scene does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numba
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import distance_transform_edt

from leadline import Completion, CompletionOptions, Prior, Stream, StreamResult, complete
from leadline.bench.observations import Case, observe
from leadline.datasets.rendered import network_like_prior, render
from leadline.priors import prior_source

Map = NDArray[np.float32]
WARM_UP = 3  # frames that are not timed: kernels compile or are loaded
MILLIMETRES = 1e-3
NO_DEPTH = 65535
LATENCIES = 1000  # frames
WALL, CPU = range(2)  # clocks


@dataclass(frozen=True)
class Sensor:
    """Where and how the reference is measured."""

    name: str
    stride: float
    case: Case = "distributed"
    noise: float = 0.0  # of each measurement in each frame, relative
    holes: bool = False  # whether cells without a reference are left out, as they come; else the nearest fills them

    def __call__(self, reference: Map, filled: Map, rng: np.random.Generator) -> tuple[Map, NDArray[np.bool_]]:
        """Measurements, and the pixels to score."""
        observed = observe(reference if self.holes else filled, self.case, stride=self.stride)
        sparse = observed.sparse
        if self.noise:
            sparse = sparse * np.exp(self.noise * rng.standard_normal(reference.shape)).astype(np.float32)
        return sparse, observed.scored & np.isfinite(reference)


SENSORS = (
    Sensor("grid of 7.5 px", 7.5),
    Sensor("the same, its holes as they come", 7.5, holes=True),
    Sensor("the same, centre unseen", 7.5, "central"),
    Sensor("grid of 60 px, 3 % noise", 60.0, noise=0.03),
)


@dataclass
class Tally:
    """One way to complete the frames of one sensor."""

    seconds: list[tuple[float, float]] = field(default_factory=list)  # on the wall's clock, and of the processor
    errors: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    last: Map | None = None

    def add(self, seconds: tuple[float, float], result: Completion, reference: Map, scored: NDArray[np.bool_]) -> None:
        with np.errstate(invalid="ignore"):
            error = np.where(scored, np.log(result.depth / reference), np.nan)
        self.seconds.append(seconds)
        self.errors.append(float(np.nanmean(np.abs(np.expm1(error)))))
        if self.last is not None:
            self.changes.append(float(np.nanmean(np.abs(error - self.last))))
        self.last = error
        self.iterations.append(result.reconstruction.iterations)

    def milliseconds(self, clock: int) -> float:
        return 1e3 * float(np.median(self.seconds[WARM_UP:], axis=0)[clock])


def nearest(reference: Map) -> Map:
    """The reference, filled with the nearest where there is none."""
    index = distance_transform_edt(~np.isfinite(reference), return_distances=False, return_indices=True)
    filled: Map = reference[tuple(index)]
    return filled


def sequence(folder: Path, network: str, chosen: slice) -> Iterator[tuple[Prior, Map]]:
    source = prior_source(f"onnx:{network}", threads=1)
    paths = sorted(folder.glob("frame-*.color.*")) or sorted(folder.glob("*/rgb.*"))
    if not paths:
        sys.exit(f"{folder} has neither frame-*.color.* nor */rgb.*.")
    for path in paths[chosen]:
        depth = path.name.split(".")[0] + ".depth.png" if path.name.startswith("frame") else "depth.png"
        raw = np.asarray(Image.open(path.with_name(depth)))
        reference = np.where((raw > 0) & (raw < NO_DEPTH), raw * np.float32(MILLIMETRES), np.float32(np.nan))
        yield source(np.asarray(Image.open(path).convert("RGB"))), reference.astype(np.float32)


def pan(count: int) -> Iterator[tuple[Prior, Map]]:
    """A window of 640 x 480 over a wider rendered room, to and fro."""
    depth = render(1280, 480).reference
    assert depth is not None
    prior = network_like_prior(depth)
    for k in range(count):
        left = 640 - abs(k % 1280 - 640)
        window = np.s_[:, left : left + 640]
        yield Prior(np.ascontiguousarray(prior[window])), depth[window]


def compare(
    frames: Iterable[tuple[Prior, Map]], options: CompletionOptions
) -> tuple[list[list[str]], list[tuple[Prior, Map]]]:
    """A table of each sensor, alone and as a stream; and the frames as the first sensor sees them."""
    rng = np.random.default_rng(0)
    streams = {sensor: Stream(options) for sensor in SENSORS}
    tallies = {sensor: (Tally(), Tally()) for sensor in SENSORS}
    results: dict[Sensor, list[tuple[bool, bool, float]]] = {sensor: [] for sensor in SENSORS}
    seen = []
    for turn, (prior, reference) in enumerate(frames):
        filled = nearest(reference)
        for sensor in SENSORS:
            sparse, scored = sensor(reference, filled, rng)
            if sensor is SENSORS[0]:
                seen.append((prior, sparse))
            ways: list[Callable[[Prior, Map], Completion]] = [partial(complete, options=options), streams[sensor]]
            for k in (turn % 2, 1 - turn % 2):
                cpu, begun = process_time(), perf_counter()
                result = ways[k](prior, sparse)
                spent = perf_counter() - begun, process_time() - cpu
                tallies[sensor][k].add(spent, result, reference, scored)
                if isinstance(result, StreamResult):
                    results[sensor].append((result.reused, result.cut, result.gain))

    heads = ["measured", "", "wall, ms", "CPU, ms", "faster", "iterations", "AbsRel", "flicker"]
    heads += ["kept", "cuts", "gain"]
    rows = [heads, ["---" if k < 2 else "---:" for k in range(len(heads))]]
    for sensor in SENSORS:
        for name, tally in zip(("alone", "stream"), tallies[sensor], strict=True):
            ratio = tallies[sensor][0].milliseconds(CPU) / tally.milliseconds(CPU)
            row = [sensor.name, name, f"{tally.milliseconds(WALL):.1f}", f"{tally.milliseconds(CPU):.1f}"]
            row += [f"{ratio:.2f} ×", f"{np.mean(tally.iterations):.2f}", f"{np.mean(tally.errors):.4f}"]
            row += [f"{np.mean(tally.changes):.4f}"]
            reused, cuts, gain = np.mean(results[sensor], axis=0)
            of_stream = [f"{100 * reused:.0f} %", f"{len(seen) * cuts:.0f}", f"{gain:.2f}"]
            rows.append(row + (of_stream if name == "stream" else ["", "", ""]))
    return rows, seen


def latency(seen: list[tuple[Prior, Map]], options: CompletionOptions) -> str:
    """Of a stream alone, over LATENCIES frames: those that were seen, to and fro."""
    stream = Stream(options)
    there_and_back = seen + seen[-2:0:-1]
    cpu = []
    for turn in range(WARM_UP + LATENCIES):
        begun = process_time()
        stream(*there_and_back[turn % len(there_and_back)])
        cpu.append(1e3 * (process_time() - begun))
    p50, p99 = np.percentile(cpu[WARM_UP:], (50, 99))
    return f"{SENSORS[0].name}, to and fro: {stream.latency}; CPU {p50:.1f} ms p50, {p99:.1f} ms p99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frames", nargs="?", type=Path)
    parser.add_argument("network", nargs="?")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="take one frame of so many")
    parser.add_argument("--first", type=int, default=0, help="leave out so many")
    parser.add_argument("--preset", choices=("paper", "best"), default="paper")
    given = parser.parse_args()
    options = getattr(CompletionOptions, given.preset)()
    chosen = slice(given.first, given.first + given.count * given.every, given.every)
    frames = sequence(given.frames, given.network, chosen) if given.frames else pan(given.count)

    rows, seen = compare(frames, options)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    sys.stdout.write(f"{len(seen)} frames, {given.preset}, {numba.get_num_threads()} threads, load {load}\n\n")
    sys.stdout.write("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n\n")
    if given.preset == "paper":
        sys.stdout.write(latency(seen, options) + "\n")


if __name__ == "__main__":
    main()
