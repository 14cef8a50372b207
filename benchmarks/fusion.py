"""Meshes from completed depth: each view alone against all views together, measured against the fused reference.

    python benchmarks/fusion.py FRAMES MODEL.onnx [--points 80 300 1500] [--every 1] [--cases corners sfm scale]

FRAMES and MODEL are those of ``benchmarks/views.py``. All three meshes, alone, together and reference, are fused with
the same poses, voxels and options. The distance of a mesh is that of its vertices to the nearest vertex of the fused
reference, and back; voxels of 1 cm limit it to some millimetres. The case ``sfm`` uses the poses and points of a COLMAP
model that pycolmap makes from the images, in the scale of the reference.

The case ``scale`` repeats the frames 1, 2 and 4 times at other places, with a store on disk, and prints the processor
time of a view in each round and the largest memory.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

import leadline
from leadline import CompletionOptions
from leadline.batch.fusion import DepthView, FusedSurface, FusionOptions, fuse
from views import WITH_CHECK, Frame, Maps, read_frames, with_sfm

VOXEL = 0.01  # metres
OPTIONS = FusionOptions(voxel=VOXEL, max_depth=4.0)  # the sensor of the reference measures up to about 4 m


def surface_of(frames: Sequence[Frame], maps: Maps) -> FusedSurface:
    """The fused surface of depth maps."""
    views = []
    for frame in frames:
        # Only pixels with a reference count, so that all surfaces show the same part of the scene.
        depth = np.where(np.isfinite(frame.reference), maps[frame.name], np.nan)
        views.append(DepthView(depth, frame.image, frame.camera, frame.pose))
    return fuse(views, OPTIONS)


def distances(found: FusedSurface, reference: FusedSurface) -> tuple[float, float]:
    """Median distance of the vertices to the reference, and of the reference to them, in metres."""
    forth, _ = cKDTree(reference.points).query(found.points)
    back, _ = cKDTree(found.points).query(reference.points)
    return float(np.median(forth)), float(np.median(back))


def complete_all(frames: Sequence[Frame], options: CompletionOptions | str) -> tuple[Maps, Maps]:
    """The depth of each view alone, and of all together."""
    views = leadline.Views(options)
    for frame in frames:
        views.add(frame.name, frame.prior, frame.sparse, frame.camera, frame.pose, frame.noise)
    together = {name: completion.depth for name, completion in views.complete()}
    return {frame.name: views.alone(frame.name) for frame in frames}, together


def compare(title: str, frames: Sequence[Frame], options: CompletionOptions | str = "best") -> None:
    alone, together = complete_all(frames, options)
    reference = surface_of(frames, {frame.name: frame.reference for frame in frames})
    rows = {}
    for name, maps in (("alone", alone), ("together", together)):
        error = np.mean([np.nanmean(np.abs(maps[f.name] / f.reference - 1)) for f in frames])
        rows[name] = (float(error), *distances(surface_of(frames, maps), reference))
    ratios = [after / before for before, after in zip(rows["alone"], rows["together"], strict=True)]
    print(f"\n{title}: {len(frames)} frames")
    for label, column in (("AbsRel", 0), ("mesh to reference", 1), ("reference to mesh", 2)):
        before, after = rows["alone"][column], rows["together"][column]
        shown = f"{before:.4f} -> {after:.4f}" if column == 0 else f"{1000 * before:.1f} -> {1000 * after:.1f} mm"
        print(f"  {label:18s} {shown}, ratio {ratios[column]:.3f}")
    sys.stdout.flush()


def measure_scale(frames: Sequence[Frame], copies: Sequence[int]) -> None:
    """Processor time of each round and the largest memory for growing numbers of views."""
    print("\nscale: processor time of a view in seconds, by round, and the largest memory of the process")
    for count in copies:
        seconds: dict[int, float] = {}
        last = time.process_time()

        def note(number: int, done: int, total: int, seconds: dict[int, float] = seconds) -> None:
            nonlocal last
            now = time.process_time()
            seconds[number] = seconds.get(number, 0.0) + now - last
            last = now

        with tempfile.TemporaryDirectory() as folder:
            views = leadline.Views(store=Path(folder) / "store", on_progress=note)
            inputs = Path(folder) / "inputs"
            inputs.mkdir()
            for copy in range(count):
                for frame in frames:
                    name, pose = f"{copy}-{frame.name}", frame.pose.copy()
                    pose[0, 3] += 100.0 * copy  # so far apart that the copies do not see each other
                    files = {kind: inputs / f"{frame.name}_{kind}.npy" for kind in ("prior", "sparse", "noise")}
                    if not copy:
                        np.save(files["sparse"], np.where(frame.sparse > 0, frame.sparse, np.nan))
                        np.save(files["noise"], np.where(frame.sparse > 0, frame.noise, np.nan))
                    load = {kind: _Load(path) for kind, path in files.items()}
                    views.add(name, frame.prior, load["sparse"], frame.camera, pose, load["noise"])
            last = time.process_time()
            for _ in views.complete(3):
                pass
            total = count * len(frames)
            seconds[3] = time.process_time() - last
            size = sum(path.stat().st_size for path in (Path(folder) / "store").rglob("*.npz")) / total
            shutil.rmtree(Path(folder) / "store")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        parts = ", ".join(f"round {number} {seconds[number] / total:.3f}" for number in sorted(seconds))
        print(f"  {total:5d} views: {parts}; {memory:.0f} MiB; {size / 1e6:.1f} MB of files a view", flush=True)


class _Load:
    """A map that is read when it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> np.ndarray:
        return np.load(self.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frames", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--points", type=int, nargs="*", default=[80, 300, 1500], help="measurements a frame")
    parser.add_argument("--every", type=int, default=1, help="use every n-th frame")
    parser.add_argument("--cases", nargs="*", default=["corners", "sfm", "scale"])
    parser.add_argument("--copies", type=int, nargs="*", default=[1, 2, 4], help="of the frames, for the case scale")
    parser.add_argument("--sfm", type=Path, default=None, help="folder for the COLMAP model, which is used again")
    arguments = parser.parse_args()
    frames = read_frames(arguments.frames, arguments.model, arguments.every)
    if "corners" in arguments.cases:
        for count in arguments.points:
            compare(f"{count} points a frame", [frame.measured(count, k) for k, frame in enumerate(frames)])
    if "sfm" in arguments.cases:
        with tempfile.TemporaryDirectory() as temporary:
            sfm, facts = with_sfm(frames, arguments.sfm or Path(temporary) / "model")
        print(f"\nCOLMAP model: {facts}")
        compare("real SfM points", sfm, WITH_CHECK)
    if "scale" in arguments.cases:
        measure_scale([frame.measured(300, k) for k, frame in enumerate(frames)], arguments.copies)


if __name__ == "__main__":
    main()
