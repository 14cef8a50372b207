"""Measure the run time of a completion, relative to memory traffic and to other solvers, and write docs/speed.md.

    python benchmarks/speed.py            everything: about five minutes, on an idle machine
    python benchmarks/speed.py --quick    small sizes, no other solvers: a few seconds, to test the program

All ratios are between medians of the same run with the same number of threads.
"""

from __future__ import annotations

import argparse
import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import numba
from peers import LOADERS, OUR_SOLVERS, SolverTimes, System, compare, load_peers, sweep
from speed_report import EIGHT_MEGAPIXELS, ONE_MEGAPIXEL, VGA, Report, draw, promises, write
from timing import Size, Triad, time_case, time_first_calls, time_start_up

import leadline
from leadline.bench.observations import CASES, Case

ROOT = Path(__file__).resolve().parents[1]

SIZES = [VGA, ONE_MEGAPIXEL, Size(1920, 1080), EIGHT_MEGAPIXELS]
SWEEP = [Size(160, 120), Size(320, 240), *SIZES]
QUICK_SIZES = [Size(80, 60), Size(160, 120)]
REPEATS, QUICK_REPEATS = 7, 2
BEGUN = perf_counter()
BUSY = 0.5  # largest load average of an idle machine
PACKAGES = ("numpy", "numba", "scipy", "pyamg", "pypardiso", "mkl")


def main() -> None:
    arguments = _arguments()
    sizes, swept = (QUICK_SIZES, QUICK_SIZES) if arguments.quick else (SIZES, SWEEP)
    machine = _machine()
    for name, value in machine.items():
        _say(f"{name}: {value}")

    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:
        _say("the machine is busy: the times will be too long and their ratios unreliable")

    cases, triad = [], Triad()
    for size in sizes:
        for case in CASES:
            for times in time_case(size, case, arguments.repeats, triad):
                cases.append(times)
                whole, solve = (f"{1e3 * times.stages[stage].median:.1f} ms" for stage in ("complete", "solve"))
                text = f"complete {whole}, of it solve {solve} in {times.iterations} iterations"
                _say(f"{size}, {case}, {times.preset}: {text}")
    machine["Threads"] += f" ({numba.threading_layer()})"  # known only after the first parallel call

    peers, missing = ({}, {}) if arguments.quick else load_peers()
    solvers = sweep(swept, peers, arguments.repeats, _say)
    comparisons: dict[Case, list[SolverTimes]] = {}
    if not arguments.quick:
        absent = [SolverTimes(name, trouble=reason) for name, reason in missing.items()]
        for case in CASES:
            _say(f"solvers at {VGA}, {case}: all")
            names = [*OUR_SOLVERS, *(name for name in LOADERS if name in peers)]
            comparisons[case] = compare(System.of(VGA, case), names, peers, arguments.repeats) + absent

    _say("start-up")
    start_up = time_start_up(arguments.repeats)
    first_calls = {} if arguments.quick else time_first_calls()
    report = Report(machine, arguments.repeats, arguments.quick, cases, comparisons, solvers, start_up, first_calls)
    for promise in promises(report):
        _say("  ".join(promise.row()))
    arguments.output.mkdir(parents=True, exist_ok=True)
    drawn = draw(report, arguments.output)
    if not drawn:
        _say("no figure: matplotlib is not installed (pip install 'leadline[bench]')")
    _say(f"written: {write(report, arguments.output, figure=drawn)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and no other solvers, to test the program")
    parser.add_argument("--repeats", type=int, help=f"number of runs (default {REPEATS}, quick {QUICK_REPEATS})")
    parser.add_argument(
        "--output", type=Path, help="folder of speed.md and its picture (default docs, quick out/speed)"
    )
    arguments = parser.parse_args()
    if arguments.repeats is None:
        arguments.repeats = QUICK_REPEATS if arguments.quick else REPEATS
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    if arguments.output is None:
        # A quick run must not replace published numbers.
        arguments.output = ROOT / "out" / "speed" if arguments.quick else ROOT / "docs"
    return arguments


def _machine() -> dict[str, str]:
    versions = [f"Python {platform.python_version()}", f"leadline {leadline.__version__}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Threads": f"{numba.get_num_threads()}",
        "System": f"{platform.system()} {platform.machine()}",
        "Versions": ", ".join(versions),
        "Date": datetime.now(timezone.utc).date().isoformat(),
        "Load before": f"{load} (running processes, averaged over a minute)",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _say(text: str) -> None:
    """Print a line after the minutes and seconds since the start."""
    minutes, seconds = divmod(int(perf_counter() - BEGUN), 60)
    print(f"{minutes}:{seconds:02d}  {text}", flush=True)


if __name__ == "__main__":
    main()
