"""The results of the speed benchmark as tables and a figure, and the section of docs/speed.md that contains them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import LONGEST, OURS, PAPER, PARDISO, PYAMG, PYAMG_CLASSICAL, SCIPY_CG, SUPERLU, SolverTimes
from timing import FIRST_CALLS, CaseTimes, Size, Times

from leadline.bench.observations import CASES, Case

BEGIN = "<!-- speed: begin; what follows is written by benchmarks/speed.py -->"
END = "<!-- speed: end -->"
FIGURE = Path("images") / "speed.png"

VGA, ONE_MEGAPIXEL, EIGHT_MEGAPIXELS = Size(640, 480), Size(1024, 1024), Size(4096, 2048)

# Colours of Okabe and Ito; markers and line styles differ as well.
STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#D55E00", "marker": "o", "linestyle": "-", "linewidth": 2.6},
    PAPER: {"color": "#E69F00", "marker": "s", "linestyle": "-"},
    SCIPY_CG: {"color": "#56B4E9", "marker": "^", "linestyle": "--"},
    PYAMG: {"color": "#0072B2", "marker": "v", "linestyle": "--"},
    PYAMG_CLASSICAL: {"color": "#009E73", "marker": "D", "linestyle": "--"},
    PARDISO: {"color": "#CC79A7", "marker": "P", "linestyle": ":"},
    SUPERLU: {"color": "#000000", "marker": "X", "linestyle": ":"},
}


@dataclass(frozen=True)
class Report:
    """All results of one run."""

    machine: dict[str, str]
    repeats: int
    quick: bool
    cases: list[CaseTimes]
    comparisons: dict[Case, list[SolverTimes]]  # at 640 x 480; empty without peers
    sweep: dict[Size, list[SolverTimes]]
    start_up: dict[str, Times]
    first_calls: dict[str, Times]  # empty in a quick run

    def of(self, preset: str) -> list[CaseTimes]:
        return [times for times in self.cases if times.preset == preset]


@dataclass(frozen=True)
class Promise:
    """A bound that the project promises, and the value that this run measured; None if not measured."""

    text: str
    bound: float
    measured: float | None
    unit: str
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        return "met" if (self.measured >= self.bound if self.at_least else self.measured <= self.bound) else "MISSED"

    def row(self) -> list[str]:
        bound = f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"
        measured = "–" if self.measured is None else f"{_digits(self.measured)} {self.unit}"
        return [self.text, bound.strip(), measured.strip(), self.verdict]


def promises(report: Report) -> list[Promise]:
    """All bounds with the worst case of this run: medians, and the fastest run for the start-up."""
    one = [times for times in report.of("paper") if times.size == ONE_MEGAPIXEL]
    large = report.of("paper") if not report.quick else []
    pairs = list(zip(large, report.of("best"), strict=False))
    ratio = _worst(best.stages["complete"].median / paper.stages["complete"].median for paper, best in pairs)
    peaks = [_worst(times.memory for times in report.of(preset)) if large else None for preset in ("paper", "best")]
    start = {name: min(times.runs) for name, times in report.start_up.items()}
    found = [
        Promise("solve at 1 Mpx, worst case", 300, _worst(times.triads("solve") for times in one), "triads"),
        Promise("`complete` at 1 Mpx, worst case", 450, _worst(times.triads("complete") for times in one), "triads"),
        Promise("`complete`, time per pixel, 8 Mpx against 1 Mpx", 1.5, _growth(report, "complete"), "×"),
        Promise("solve, time per pixel, 8 Mpx against 1 Mpx", 1.5, _growth(report, "solve"), "×"),
        Promise("solve against SciPy's CG with Jacobi, outer", 20, _gain(report, (SCIPY_CG,), ("outer",)), "×", True),
        Promise(
            "solve against pyamg's faster solver, worst case", 10, _gain(report, (PYAMG, PYAMG_CLASSICAL)), "×", True
        ),
    ]
    found.append(Promise("`best` against the paper's configuration, worst size and case", 1.6, ratio, "×"))
    for preset, peak in zip(("paper", "best"), peaks, strict=True):
        found.append(Promise(f"memory of `complete` beyond the inputs, {preset}", 40, peak, "bytes per pixel"))
    for name in FIRST_CALLS:
        times = report.first_calls.get(name)
        seconds = None if times is None else min(times.runs)
        found.append(Promise(f"{name}, from an empty cache of kernels", 10, seconds, "s"))
    return found + [Promise(f"`{name}`, fastest start", 0.3, seconds, "s") for name, seconds in start.items()]


def _worst(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def _growth(report: Report, stage: str) -> float | None:
    """Seconds per pixel at 8 Mpx over those at 1 Mpx, worst case."""
    cost = {(times.size, times.case): times.stages[stage].median / times.size.pixels for times in report.of("paper")}
    pairs = [(cost.get((EIGHT_MEGAPIXELS, case)), cost.get((ONE_MEGAPIXEL, case))) for case in CASES]
    return _worst(large / small for large, small in pairs if large is not None and small is not None)


def _gain(report: Report, peers: tuple[str, ...], cases: tuple[Case, ...] = CASES) -> float | None:
    """Ratio of the time of the fastest of the other solvers to ours, worst case."""
    ratios = []
    for case in cases:
        times = {row.solver: row.times.median for row in report.comparisons.get(case, []) if row.times is not None}
        ratios += [times[peer] / times[OURS] for peer in peers if peer in times]
    return min(ratios, default=None)


# --- text -------------------------------------------------------------------------------------------------------------


def markdown(report: Report, *, figure: bool) -> str:
    """The generated section without its markers."""
    parts = ["**A quick run: small sizes, no other solvers. Not for publication.**"] if report.quick else []
    parts += [
        "### Machine",
        _table(["", ""], [[name, value] for name, value in report.machine.items()], "ll"),
        "### Promises",
        _table(["what", "promised", "measured", ""], [promise.row() for promise in promises(report)], "lrrl"),
        "### The whole call",
        f"Milliseconds: the median over the repetitions ({report.repeats}), in brackets the fastest and the slowest. A "
        "triad is measured over 16 Mpx, which fit into no cache, and scaled to the pixels of the image. Bytes are "
        "those that a call allocates at its peak.",
        _whole(report),
        "### Its stages",
        "Medians in milliseconds, each taken inside the whole call. The solve includes its set-up, and the "
        "reconstruction includes the solve.",
        _stages(report),
    ]
    if report.comparisons:
        parts += ["### Other solvers", *_comparison(report)]
    if figure:
        parts += [
            "### Time against size",
            f"![Seconds of the solve against the number of pixels, for every solver]({FIGURE.as_posix()})",
            "The outer case, set-up included. A line ends where the next point was expected to take more than "
            f"{LONGEST:g} s.",
        ]
    start = [[f"`{name}`", f"{min(times.runs):.3f}", f"{times.median:.3f}"] for name, times in report.start_up.items()]
    parts += ["### Start-up", _table(["command", "fastest, s", "median, s"], start, "lrr")]
    if report.first_calls:
        rows = [[name, f"{times.median:.1f}"] for name, times in report.first_calls.items()]
        parts += ["### First call, from an empty cache of compiled kernels", _table(["what", "s"], rows, "lr")]
    if not report.quick:
        parts += ["### For the README", _summary(report)]
    return "\n\n".join(parts)


def _summary(report: Report) -> str:
    """The table of the README, the central case of both presets at every size, and the range of their ratio."""
    rows, ratios = [], []
    for paper, best in zip(report.of("paper"), report.of("best"), strict=True):
        ratios.append(best.stages["complete"].median / paper.stages["complete"].median)
        if paper.case == "central":
            times = (paper.stages["complete"], paper.stages["solve"], best.stages["complete"])
            whole, solve, other = (f"{1e3 * seconds.median:.0f} ms" for seconds in times)
            rows.append([str(paper.size), whole, solve, str(paper.iterations), other, str(best.iterations)])
    heads = ["image", "`complete`, `paper`", "of it the solve", "iterations", "`complete`, `best`", "iterations"]
    spread = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    return f"{_table(heads, rows, 'lrrrrr')}\n\nOver all sizes and cases `best` takes {spread} as long as `paper`."


def _whole(report: Report) -> str:
    rows = [
        [
            str(times.size),
            times.case,
            times.preset,
            f"{times.measurements:,}",
            _milliseconds(times.triad),
            _spread(times.stages["complete"]),
            f"{times.triads('complete'):.0f}",
            _digits(1e9 * times.stages["complete"].median / times.size.pixels),
            f"{1 / times.stages['complete'].median:.1f}",
            f"{times.memory:.0f}",
        ]
        for times in report.cases
    ]
    heads = ["size", "case", "preset", "measurements", "one triad", "`complete`", "in triads", "ns per pixel", "Hz"]
    return _table([*heads, "bytes per pixel"], rows, "lllrrrrrrr")


def _stages(report: Report) -> str:
    rows = [
        [
            str(times.size),
            times.case,
            times.preset,
            *(_milliseconds(times.stages[name]) for name in ("fit", "calibrate", "set-up", "solve")),
            f"{times.triads('solve'):.0f}",
            _milliseconds(times.stages["reconstruct"]),
            str(times.iterations),
            f"{times.residual:.1e}",
        ]
        for times in report.cases
    ]
    heads = [
        "size",
        "case",
        "preset",
        "fit",
        "calibrate",
        "set-up",
        "solve",
        "in triads",
        "reconstruct",
        "iterations",
        "residual",
    ]
    return _table(heads, rows, "lllrrrrrrrr")


def _comparison(report: Report) -> list[str]:
    rows = []
    for case, solvers in report.comparisons.items():
        ours = next((row.times.median for row in solvers if row.solver == OURS and row.times is not None), float("nan"))
        for row in solvers:
            if row.times is None:
                rows.append([case, row.solver, row.trouble.replace("|", "\\|"), *["–"] * 6])
                continue
            rows.append(
                [
                    case,
                    row.solver,
                    _spread(row.times),
                    "–" if row.setup is None else _milliseconds(row.setup),
                    "–" if row.iterations is None else str(row.iterations),
                    _digits(row.times.median / ours),
                    f"{row.residual:.1e}",
                    f"{row.difference:.1e}",
                    str(len(row.times.runs)),
                ]
            )
    heads = [
        "case",
        "solver",
        "set-up + solve",
        "of it set-up",
        "iterations",
        "against ours",
        "residual",
        "difference",
        "runs",
    ]
    text = (
        f"{VGA}, one system per case, milliseconds as above. *Residual* is |b − Qr| / |b| with the explicit matrix in "
        "float64, *difference* the largest one from our solution, in units of the largest log residual. A solver that "
        "disagrees, or that cannot be imported, has no time."
    )
    return [text, _table(heads, rows, "llrrrrrrr")]


def _table(heads: list[str], rows: list[list[str]], align: str) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *rows])


def _digits(value: float) -> str:
    """Three significant digits, never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _milliseconds(times: Times) -> str:
    return _digits(1e3 * times.median)


def _spread(times: Times) -> str:
    if len(times.runs) == 1:
        return _milliseconds(times)
    return f"{_milliseconds(times)} ({_digits(1e3 * min(times.runs))}–{_digits(1e3 * max(times.runs))})"


def write(report: Report, folder: Path, *, figure: bool) -> Path:
    """Write the section into speed.md, between the markers if the page exists; returns the path of the page."""
    page = folder / "speed.md"
    section = f"{BEGIN}\n\n{markdown(report, figure=figure)}\n\n{END}"
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} has no lines '{BEGIN}' and '{END}' to write between: put them where the numbers go.")
    page.write_text(before + section + after, encoding="utf-8")
    return page


# --- picture ----------------------------------------------------------------------------------------------------------


def draw(report: Report, folder: Path) -> bool:
    """Write the figure; returns False if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9.0, 5.0), layout="constrained")
    lines: list[tuple[float, Any]] = []
    guide = None
    for name, style in STYLES.items():
        points = [
            (size.pixels / 1e6, row.times)
            for size, rows in report.sweep.items()
            for row in rows
            if row.solver == name and row.times is not None
        ]
        if not points:
            continue
        x, y = [pixels for pixels, _ in points], [times.median for _, times in points]
        low, high = ([abs(times.median - end(times.runs)) for _, times in points] for end in (min, max))
        bars = axes.errorbar(x, y, yerr=(low, high), label=name, markersize=6, capsize=2, elinewidth=0.8, **style)
        lines.append((math.log(y[-1] / x[-1]), bars))
        if name == OURS:
            # Through our largest size: a cost per pixel that rises with the size shows as points below the line.
            (guide,) = axes.plot(
                x, [y[-1] * value / x[-1] for value in x], color="0.5", linestyle=(0, (1, 2)), zorder=0
            )
            guide.set_label("in proportion to the pixels")
    axes.set(xscale="log", yscale="log", xlabel="megapixels", ylabel="set-up and solve")
    axes.set_title("One solve to a relative residual of 1e-6, outer case", loc="left", fontsize=11)
    pixels = [size.pixels / 1e6 for size in report.sweep]
    axes.set_xticks(pixels, [f"{value:.1g}" if value < 1 else f"{value:.2g}" for value in pixels])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms")
    axes.grid(True, which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    # Names in the order of the heights of the lines, and the guide last.
    ordered = [bars for _, bars in sorted(lines, key=lambda entry: -entry[0])] + ([guide] if guide else [])
    axes.legend(handles=ordered, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    (folder / FIGURE).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / FIGURE, dpi=150)
    plt.close(figure)
    return True
