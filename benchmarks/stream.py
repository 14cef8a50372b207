"""Compare a stream with independent completions of its frames: run time, error and flicker; and measure its latency.

    python benchmarks/stream.py FRAMES NETWORK.onnx [--count 200] [--every 1] [--first 0] [--preset paper]
    python benchmarks/stream.py FRAMES NETWORK.onnx --poses --preset best      with frame-000000.pose.txt
    python benchmarks/stream.py FRAMES NETWORK.onnx --poses --faults --preset best --count 24
    python benchmarks/stream.py                       a rendered room, in a window that moves one pixel per frame

FRAMES is a folder of a 7-Scenes sequence: frame-000000.color.jpg (or .png), frame-000000.depth.png in millimetres, ...
or of folders, each with the rgb.jpg and depth.png of a frame. The time of the network is not counted. Each frame is
completed alone and by a stream, in alternating order. Times are medians, and "faster" is the ratio of CPU times. The
latency is measured with a stream alone on 1,000 frames.

Flicker is the mean of |e' - e| between consecutive frames, with the error e = log depth - log reference, over pixels
with a reference and without a measurement in both frames. With --poses (camera-intrinsics.txt and camera to world per
frame) it is the change of the depth of the same surface point instead: log D'(p') - log D(p) minus the change that the
reference geometry and the poses predict, where p' is the pixel of p's surface point. "reference" is the same number for
the reference itself. Points are measured at strong gradients of the image, other ones in each frame, with 1 % of noise.

With --faults the stream gets wrong poses, an object that moves, or optical flow, on the first sensor. The flicker is
that of the right poses, without the object. "Worst" is the largest ratio of the errors of a single frame.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import binary_dilation, distance_transform_edt, gaussian_gradient_magnitude
from scipy.spatial.transform import Rotation

from leadline import Camera, Completion, CompletionOptions, Prior, Stream, StreamResult, complete
from leadline.bench.observations import Case, observe
from leadline.datasets.rendered import network_like_prior, render
from leadline.geometry.reprojection import carry_depth
from leadline.priors import prior_source

Map = NDArray[np.float32]
WARM_UP = 3  # frames that are not timed, because kernels are compiled or loaded
MILLIMETRES = 1e-3
NO_DEPTH = 65535
LATENCIES = 1000  # frames
WALL, CPU = range(2)  # clocks
WRONG_BY = 0.05, 2.0  # metres and degrees
OBJECT, OBJECT_DEPTH, OBJECT_STEP = (120, 160), 0.9, 22  # pixels, metres, pixels per frame
BESIDE = 8  # pixels
SAME_SURFACE = 0.05  # log depth between the reference and that of the frame before, carried along


@dataclass(frozen=True)
class SimulatedSensor:
    """How the reference is measured."""

    name: str
    stride: float
    case: Case = "distributed"
    noise: float = 0.0  # relative noise of each measurement
    holes: bool = False  # True: cells without a reference are not measured; False: they are filled from the nearest one

    def __call__(self, reference: Map, filled: Map, rng: np.random.Generator) -> tuple[Map, NDArray[np.bool_]]:
        """The measurements and the scored pixels."""
        observed = observe(reference if self.holes else filled, self.case, stride=self.stride)
        sparse = observed.sparse
        if self.noise:
            sparse = sparse * np.exp(self.noise * rng.standard_normal(reference.shape)).astype(np.float32)
        return sparse, observed.scored & np.isfinite(reference)


@dataclass(frozen=True)
class SimulatedPoints:
    """Points at strong gradients of the image, as a feature detector finds them; other ones in each frame."""

    name: str
    count: int
    noise: float = 0.01

    def __call__(self, reference: Map, strength: Map, rng: np.random.Generator) -> tuple[Map, NDArray[np.bool_]]:
        strength = np.where(np.isfinite(reference), strength, 0.0)
        where = rng.choice(np.flatnonzero(strength > np.quantile(strength, 0.7)), self.count, replace=False)
        sparse = np.zeros(reference.shape, np.float32)
        sparse.flat[where] = reference.flat[where] * np.exp(self.noise * rng.standard_normal(self.count))
        return sparse, np.isfinite(reference) & (sparse == 0)


POINTS = tuple(SimulatedPoints(f"{count} points, 1 % noise", count) for count in (80, 300, 1500))
SENSORS = (
    SimulatedSensor("grid of 7.5 px", 7.5),
    SimulatedSensor("the same, with holes", 7.5, holes=True),
    SimulatedSensor("the same, without the centre", 7.5, "central"),
    SimulatedSensor("grid of 60 px, 3 % noise", 60.0, noise=0.03),
)


@dataclass
class FrameStatistics:
    """Times and errors of all frames of one sensor, completed alone or by a stream."""

    seconds: list[tuple[float, float]] = field(default_factory=list)  # wall time and CPU time
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


def fill_from_nearest(reference: Map) -> Map:
    """The reference with holes filled from the nearest valid pixel."""
    index = distance_transform_edt(~np.isfinite(reference), return_distances=False, return_indices=True)
    filled: Map = reference[tuple(index)]
    return filled


def read_sequence(folder: Path, network: str, chosen: slice) -> Iterator[tuple[Prior, Map]]:
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
    """A window of 640 x 480 pixels that moves over a wider rendered room, back and forth."""
    depth = render(1280, 480).reference
    assert depth is not None
    prior = network_like_prior(depth)
    for k in range(count):
        left = 640 - abs(k % 1280 - 640)
        window = np.s_[:, left : left + 640]
        yield Prior(np.ascontiguousarray(prior[window])), depth[window]


@dataclass
class PosedScores:
    """Errors and flicker over posed frames."""

    errors: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    last: tuple[Map, Map, NDArray[np.float64]] | None = None

    def add(
        self,
        depth: Map,
        reference: Map,
        pose: NDArray[np.float64],
        camera: Camera,
        scored: NDArray[np.bool_],
        still: NDArray[np.bool_] | None = None,
    ) -> None:
        """The flicker is that of the scored pixels, or of those that are `still`."""
        self.errors.append(float(np.nanmean(np.abs(depth / reference - 1)[scored])))
        if self.last is not None:
            before, old_reference, old_pose = self.last
            carried = carry_depth(old_reference, camera, camera, np.linalg.inv(pose) @ old_pose)
            expected = np.log(carried.depth / carried.sample(old_reference))
            change = np.abs(np.log(depth / carried.sample(before)) - expected)
            same = np.abs(np.log(carried.depth / reference)) < SAME_SURFACE  # False where NaN
            self.changes.append(float(np.nanmean(change[same & (scored if still is None else still)])))
        self.last = depth, reference, pose

    def values(self) -> tuple[list[float], list[float]]:
        return self.errors, self.changes


def compare_posed(folder: Path, network: str, chosen: slice, options: CompletionOptions) -> list[list[str]]:
    """Rows of error and flicker: alone, a stream without poses, a stream with them, and the reference itself."""
    camera, paths = posed_paths(folder, chosen)
    frames = list(zip(paths, read_sequence(folder, network, chosen), strict=True))
    rows = [["measured", "", "AbsRel", "ratio", "flicker", "ratio", "mean weight"], ["---", "---"] + ["---:"] * 5]
    for sensor in (*SENSORS, *POINTS):
        rng = np.random.default_rng(0)
        scores = {name: PosedScores() for name in ("alone", "stream", "with poses", "reference")}
        plain, posed, weights = Stream(options), Stream(options), []
        for path, (prior, reference) in frames:
            pose = np.loadtxt(path.with_name(path.name.split(".")[0] + ".pose.txt"))
            if isinstance(sensor, SimulatedPoints):
                gray = np.asarray(Image.open(path).convert("L"), np.float32)
                sparse, scored = sensor(reference, gaussian_gradient_magnitude(gray, 1.5), rng)
            else:
                sparse, scored = sensor(reference, fill_from_nearest(reference), rng)
            result = posed(prior, sparse, camera=camera, camera_to_world=pose)
            weights.append(result.carried_weight)
            maps = complete(prior, sparse, options=options).depth, plain(prior, sparse).depth, result.depth, reference
            for score, depth in zip(scores.values(), maps, strict=True):
                score.add(depth, reference, pose, camera, scored)
        alone = [float(np.mean(values)) for values in (scores["alone"].errors, scores["alone"].changes)]
        for name, score in scores.items():
            error, change = float(np.mean(score.errors)), float(np.mean(score.changes))
            row = [sensor.name, name, f"{error:.4f}", f"{error / alone[0]:.3f}", f"{change:.4f}"]
            rows.append([*row, f"{change / alone[1]:.3f}", f"{np.mean(weights):.2f}" if name == "with poses" else ""])
    return rows


def wrong_pose(pose: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """A pose that is wrong by WRONG_BY metres and degrees, in random directions."""
    shift, axis = (vector / np.linalg.norm(vector) for vector in rng.standard_normal((2, 3)))
    error = np.eye(4)
    error[:3, :3] = Rotation.from_rotvec(np.radians(WRONG_BY[1]) * axis).as_matrix()
    error[:3, 3] = WRONG_BY[0] * shift
    return pose @ error


def object_in(frame: int) -> NDArray[np.bool_]:
    """The pixels of an object that moves by OBJECT_STEP pixels per frame, back and forth."""
    left = OBJECT_STEP * frame % (2 * (640 - OBJECT[1]))
    left = min(left, 2 * (640 - OBJECT[1]) - left)
    where = np.zeros((480, 640), np.bool_)
    where[180 : 180 + OBJECT[0], left : left + OBJECT[1]] = True
    return where


def compare_faults(folder: Path, network: str, chosen: slice, options: CompletionOptions) -> list[list[str]]:
    """Rows of error and flicker, relative to frames alone, with wrong poses, a moving object and optical flow."""
    camera, paths = posed_paths(folder, chosen)
    frames = list(read_sequence(folder, network, chosen))
    poses = [np.loadtxt(path.with_name(path.name.split(".")[0] + ".pose.txt")) for path in paths]
    rng = np.random.default_rng(0)
    wrong = [wrong_pose(pose, rng) for pose in poses]
    given = {
        "right poses": poses,
        "one pose in ten wrong": [wrong[k] if k % 10 == 5 else pose for k, pose in enumerate(poses)],
        "all poses wrong": wrong,
        "a pose that never changes": [poses[0]] * len(poses),
        "right poses, a moving object": poses,
        "flow": poses,
    }
    rows = [["poses or flow", "AbsRel", "flicker", "worst", "on and beside the object"], ["---"] + ["---:"] * 4]
    for fault, used in given.items():
        stream, alone, together = Stream(options), PosedScores(), PosedScores()
        near: list[tuple[float, float]] = []
        for k, (prior, reference) in enumerate(frames):
            rest = np.ones(reference.shape, np.bool_)
            if "object" in fault:
                rest = ~object_in(k)
                nearer = float(np.nanmean(reference < OBJECT_DEPTH))  # the network sees that the object is near
                quantile = 1 - nearer if prior.kind == "disparity" else nearer
                values = np.where(rest, prior.values, np.quantile(prior.values, quantile)).astype(np.float32)
                prior, reference = replace(prior, values=values), np.where(rest, reference, np.float32(OBJECT_DEPTH))
            sparse, scored = SENSORS[0](reference, fill_from_nearest(reference), rng)
            motion: dict[str, Any] = {"camera": camera, "camera_to_world": used[k]}
            if fault == "flow":
                flow = np.full((*reference.shape, 2), np.nan, np.float32)
                if k:
                    transform = np.linalg.inv(poses[k]) @ poses[k - 1]
                    carried = carry_depth(frames[k - 1][1], camera, camera, transform)
                    flow[..., 0] = carried.columns - np.arange(reference.shape[1])
                    flow[..., 1] = carried.rows - np.arange(reference.shape[0])[:, None]
                motion = {"flow": flow}
            maps = complete(prior, sparse, options=options).depth, stream(prior, sparse, **motion).depth
            for score, depth in zip((alone, together), maps, strict=True):
                score.add(depth, reference, poses[k], camera, scored, scored & rest)
            if not rest.all():
                beside = scored & binary_dilation(~rest, iterations=BESIDE)
                errors = [float(np.nanmean(np.abs(depth / reference - 1)[beside])) for depth in maps]
                near.append((errors[0], errors[1]))
        ratios = [f"{np.mean(b) / np.mean(a):.2f}" for a, b in zip(alone.values(), together.values(), strict=True)]
        worst = np.max(np.array(together.errors) / np.array(alone.errors))
        row = [fault, *ratios, f"{worst:.2f}", f"{np.divide(*np.mean(near, axis=0)[::-1]):.2f}" if near else ""]
        rows.append(row)
    return rows


def posed_paths(folder: Path, chosen: slice) -> tuple[Camera, list[Path]]:
    matrix = np.loadtxt(folder / "camera-intrinsics.txt")
    camera = Camera(640, 480, matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2])
    return camera, sorted(folder.glob("frame-*.color.*"))[chosen]


def compare(
    frames: Iterable[tuple[Prior, Map]], options: CompletionOptions
) -> tuple[list[list[str]], list[tuple[Prior, Map]]]:
    """The rows of the table, and the frames with the measurements of the first sensor."""
    rng = np.random.default_rng(0)
    streams = {sensor: Stream(options) for sensor in SENSORS}
    tallies = {sensor: (FrameStatistics(), FrameStatistics()) for sensor in SENSORS}
    results: dict[SimulatedSensor, list[tuple[bool, bool, float]]] = {sensor: [] for sensor in SENSORS}
    seen = []
    for turn, (prior, reference) in enumerate(frames):
        filled = fill_from_nearest(reference)
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
                    results[sensor].append((result.system_reused, result.restarted, result.filter_weight))

    heads = ["measured", "", "wall, ms", "CPU, ms", "faster", "iterations", "AbsRel", "flicker"]
    heads += ["system reused", "restarts", "filter weight"]
    rows = [heads, ["---" if k < 2 else "---:" for k in range(len(heads))]]
    for sensor in SENSORS:
        for name, tally in zip(("alone", "stream"), tallies[sensor], strict=True):
            ratio = tallies[sensor][0].milliseconds(CPU) / tally.milliseconds(CPU)
            row = [sensor.name, name, f"{tally.milliseconds(WALL):.1f}", f"{tally.milliseconds(CPU):.1f}"]
            row += [f"{ratio:.2f} ×", f"{np.mean(tally.iterations):.2f}", f"{np.mean(tally.errors):.4f}"]
            row += [f"{np.mean(tally.changes):.4f}"]
            reused, restarts, weight = np.mean(results[sensor], axis=0)
            of_stream = [f"{100 * reused:.0f} %", f"{len(seen) * restarts:.0f}", f"{weight:.2f}"]
            rows.append(row + (of_stream if name == "stream" else ["", "", ""]))
    return rows, seen


def latency(seen: list[tuple[Prior, Map]], options: CompletionOptions) -> str:
    """Latency of a stream over LATENCIES frames: the given ones, back and forth."""
    stream = Stream(options)
    there_and_back = seen + seen[-2:0:-1]
    cpu = []
    for turn in range(WARM_UP + LATENCIES):
        begun = process_time()
        stream(*there_and_back[turn % len(there_and_back)])
        cpu.append(1e3 * (process_time() - begun))
    p50, p99 = np.percentile(cpu[WARM_UP:], (50, 99))
    return f"{SENSORS[0].name}, back and forth: {stream.latency}; CPU {p50:.1f} ms p50, {p99:.1f} ms p99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frames", nargs="?", type=Path)
    parser.add_argument("network", nargs="?")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="use every n-th frame")
    parser.add_argument("--first", type=int, default=0, help="number of frames to skip at the beginning")
    parser.add_argument("--preset", choices=("paper", "best"), default="paper")
    parser.add_argument("--poses", action="store_true", help="error and flicker with the poses of the frames")
    parser.add_argument("--faults", action="store_true", help="with --poses: wrong poses, a moving object, and flow")
    given = parser.parse_args()
    options = getattr(CompletionOptions, given.preset)()
    chosen = slice(given.first, given.first + given.count * given.every, given.every)
    if given.poses:
        measure = compare_faults if given.faults else compare_posed
        rows = measure(given.frames, given.network, chosen, options)
        sys.stdout.write("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n")
        return
    frames = read_sequence(given.frames, given.network, chosen) if given.frames else pan(given.count)

    rows, seen = compare(frames, options)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    sys.stdout.write(f"{len(seen)} frames, {given.preset}, {numba.get_num_threads()} threads, load {load}\n\n")
    sys.stdout.write("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n\n")
    sys.stdout.write(latency(seen, options) + "\n")


if __name__ == "__main__":
    main()
