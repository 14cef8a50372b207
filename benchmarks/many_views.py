"""Time and memory of completing many views together: `leadline refine --poses` on 60, 250 and 1,000 of them.

    python benchmarks/many_views.py FRAMES MODEL.onnx FOLDER [--views 60 250 1000] [--rounds 2] [--jobs 2] [--kill 250]

FRAMES is a sequence of 7-Scenes, as for ``benchmarks/views.py``. Its frames are repeated as often as needed, each time
100 m farther away, so that every view has the neighbours of a real sequence. The measurements are every 16th pixel of
the depth in both directions, the priors are predicted by MODEL once. FOLDER receives the sequence and the results.

For each number of views it prints the time of each step (wall clock and processor), the largest resident memory of a
single process and of all together, and the bytes of the stored maps. With ``--kill N`` a run over N views is killed
(SIGKILL) during its first round and started again, and its depth must be that of an uninterrupted run, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from leadline.priors import prior_source

SPACING = 16  # pixels between measurements
APART = 100.0  # metres between the copies of the sequence
PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
INTERVAL = 0.2  # seconds between two looks at the processes


def make_sequence(frames: Path, model: Path, folder: Path, count: int) -> tuple[Path, Path]:
    """The folder of a sequence of `count` views, and that of their priors."""
    base, sequence, priors = folder / "frames", folder / f"sequence-{count}", folder / f"priors-{count}"
    names = [path.name.removesuffix(".color.jpg") for path in sorted(frames.glob("*.color.jpg"))]
    if not base.is_dir():
        base.mkdir(parents=True)
        network = prior_source(f"onnx:{model}")
        for name in names:
            with Image.open(frames / f"{name}.color.jpg") as picture:
                np.save(base / f"{name}.npy", network(np.asarray(picture.convert("RGB"))).values)
            with Image.open(frames / f"{name}.depth.png") as picture:
                depth = np.asarray(picture)
            grid = np.zeros_like(depth)
            grid[SPACING // 2 :: SPACING, SPACING // 2 :: SPACING] = depth[
                SPACING // 2 :: SPACING, SPACING // 2 :: SPACING
            ]
            Image.fromarray(grid).save(base / f"{name}.depth.png")
    if not sequence.is_dir():
        sequence.mkdir()
        priors.mkdir()
        (sequence / "camera-intrinsics.txt").symlink_to(frames.resolve() / "camera-intrinsics.txt")
        for number in range(count):
            copy, name = number // len(names), names[number % len(names)]
            pose = np.loadtxt(frames / f"{name}.pose.txt")
            pose[0, 3] += APART * copy
            np.savetxt(sequence / f"{copy:02d}-{name}.pose.txt", pose)
            (sequence / f"{copy:02d}-{name}.color.jpg").symlink_to(frames.resolve() / f"{name}.color.jpg")
            (sequence / f"{copy:02d}-{name}.depth.png").symlink_to(base.resolve() / f"{name}.depth.png")
            (priors / f"{copy:02d}-{name}.npy").symlink_to(base.resolve() / f"{name}.npy")
    return sequence, priors


@dataclass
class Observed:
    """What was seen of a run and of its worker processes."""

    steps: list[tuple[str, float, float]] = field(default_factory=list)  # end of a step, wall clock and processor
    one: int = 0  # largest resident memory of one process in bytes
    all: int = 0  # of all processes at one time


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += tree(int(child))
    except OSError:
        pass  # it has ended
    return found


def memory_and_time(pid: int) -> tuple[list[int], float]:
    """Resident memory of each process of the tree in bytes, and their processor time in seconds."""
    sizes, seconds = [], 0.0
    for number in tree(pid):
        try:
            numbers = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        sizes.append(int(numbers[21]) * PAGE)
        seconds += sum(map(int, numbers[11:15] if number == pid else numbers[11:13])) / TICK
    return sizes, seconds


def run(command: list[str], kill_in: Path | None = None) -> Observed:
    """Run a command to its end; or kill it in its first round, whose maps are in the output folder `kill_in`."""
    begun, seen = time.monotonic(), Observed()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    ended, processor = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(INTERVAL):
            sizes, processor[0] = memory_and_time(process.pid)
            seen.one, seen.all = max(seen.one, *sizes, 0), max(seen.all, sum(sizes))
            if kill_in is not None and any(kill_in.glob("rounds/maps-*/round-1/*.npz")):
                process.send_signal(signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stderr is not None
    for line in process.stderr:
        step, colon, _ = line.partition(":")
        if colon and not line.startswith(("note", "error")) and "/" not in step:
            seen.steps.append((step, time.monotonic() - begun, memory_and_time(process.pid)[1]))
        elif line.startswith("error"):
            print(line.rstrip(), flush=True)
    code = process.wait()
    ended.set()
    watcher.join()
    seen.steps.append(("last round and results", time.monotonic() - begun, processor[0]))
    if code != (-signal.SIGKILL if kill_in is not None else 0):
        raise SystemExit(f"the command ended with {code}")
    return seen


def report(count: int, seen: Observed) -> None:
    before = (0.0, 0.0)
    print(f"\n{count} views")
    for step, wall, processor in seen.steps:
        taken = wall - before[0], processor - before[1]
        print(f"  {step:24s} {taken[0]:8.1f} s, {taken[0] / count:.3f} a view; {taken[1] / count:.3f} s of processor")
        before = wall, processor
    print(
        f"  largest memory           {seen.one / 2**20:.0f} MiB of one process, {seen.all / 2**20:.0f} MiB of all",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frames", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--views", type=int, nargs="*", default=[60, 250, 1000])
    parser.add_argument("--kind", default="disparity", help="what MODEL predicts")
    parser.add_argument("--rounds", type=int, default=2, help="the first one is timed by itself, the last with results")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kill", type=int, default=None, metavar="N", help="kill and continue a run over N views")
    arguments = parser.parse_args()

    def command(count: int, out: Path) -> list[str]:
        sequence, priors = make_sequence(arguments.frames, arguments.model, arguments.folder, count)
        program = [sys.executable, "-m", "leadline", "refine", str(sequence), "--poses", str(sequence)]
        options = ["--rounds", str(arguments.rounds), "--jobs", str(arguments.jobs), "--sheet", "0"]
        return [*program, "--prior", str(priors), "--prior-kind", arguments.kind, "-o", str(out), *options]

    for count in arguments.views:
        out = arguments.folder / f"out-{count}"
        shutil.rmtree(out, ignore_errors=True)
        report(count, run(command(count, out)))
    if arguments.kill:
        whole, killed = (arguments.folder / f"{name}-{arguments.kill}" for name in ("out", "killed"))
        shutil.rmtree(killed, ignore_errors=True)
        if not whole.is_dir():
            run(command(arguments.kill, whole))
        run(command(arguments.kill, killed), kill_in=killed)
        stored = len(list(killed.glob("rounds/maps-*/*/*.npz")))
        run(command(arguments.kill, killed))
        depths = sorted(whole.glob("*_depth.png"))
        same = sum(path.read_bytes() == (killed / path.name).read_bytes() for path in depths)
        print(
            f"\nkilled with {stored} stored maps and continued: {same} of {len(depths)} depth maps are the same bytes"
        )


if __name__ == "__main__":
    main()
