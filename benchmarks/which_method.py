"""Which method when: error against the number of measurements, the quality of the prior, and noise.

    python benchmarks/which_method.py SCENES MODEL.onnx RUN [--sweep NAME] [-o FIGURES]

SCENES contains scene folders with ``scene.json``, of which those with a reference are used; MODEL is the network of the
weak prior. The three sweeps are ordinary runs in RUN, which a killed script continues. Three figures are written to
FIGURES, and their numbers as JSON to RUN. Without SCENES and MODEL (``python benchmarks/which_method.py RUN``) the
figures are drawn from existing runs. ``--sweep density`` makes one of the three.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.bench.protocol import DatasetEntry, MethodEntry, Protocol
from leadline.bench.protocol_files import parse_prior
from leadline.bench.records import Record, RecordStatus, read_records
from leadline.bench.run import run_protocol
from leadline.report.figures.plotting import Drawing, new_figure, save_numbers, styled, use_log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = {  # label of the record: label in the figure, colour, line
    "Ours (best)": ("leadline (best)", "#D55E00", "-"),
    "Ours": ("the paper's method", "#D55E00", ":"),
    "KNN": ("KNN: a line through 5 neighbours", "#0072B2", "-"),
    "kriging": ("kriging of the residual", "#009E73", "-"),
    "Poisson": ("Poisson: the prior's gradients", "#009E73", ":"),
    "GDisp": ("one scale and shift for the image", "#595959", "--"),
    "natural-neighbour": ("interpolation without a prior", "#CC79A7", "-."),
}
METHODS = (
    MethodEntry("best"),
    MethodEntry("ours"),
    MethodEntry("knn"),
    MethodEntry("kriging"),
    MethodEntry("poisson"),
    MethodEntry("gdisp", options={"undefined": "drop"}),
    MethodEntry("natural-neighbour", priors="first"),
)
COUNTS = (50, 200, 1000, 5000, 20_000, 100_000)
DENSEST = "share:0.9"  # the other pixels are scored
QUALITIES = (0.0, 0.3, 0.6, 0.9, 1.0)
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Sweep:
    """One figure: the records of a case and a prior for each position on its axis."""

    name: str
    title: str
    label: str  # of the axis
    positions: tuple[float, ...]  # empty: the mean numbers of measured pixels of the cases
    cases: tuple[str, ...]
    priors: tuple[str, ...]  # shares of the reference in the priors
    panels: tuple[str, ...] = ()  # titles, one per prior; without them the priors are the positions of one panel


WEAK, STRONG = "weak prior: a small network", "strong prior: 0.9 of the reference blended in"
SWEEPS = (
    Sweep(
        "density",
        "More measurements: every interpolation improves, one line for the image does not",
        "measured pixels of an image, up to nine in ten of all",
        (),
        (*(f"random:{count}" for count in COUNTS), DENSEST),
        ("0", "0.9"),
        (WEAK, STRONG),
    ),
    Sweep(
        "quality",
        "Better priors, 500 measured pixels: the prior's quality decides more than the method",
        "quality of the prior: 0 is the small network, 1 the reference, distorted by a curve",
        QUALITIES,
        ("random:500",),
        tuple(f"{share:g}" for share in QUALITIES),
    ),
    Sweep(
        "noise",
        "Noisier measurements, 500 of them: exact interpolation follows the noise",
        "noise of the measurements, per cent of the depth",
        tuple(100 * noise for noise in NOISES),
        tuple("random:500" + (f"+noise:{noise:g}" if noise else "") for noise in NOISES),
        ("0", "0.9"),
        (WEAK, STRONG),
    ),
)


def run(sweep: Sweep, scenes: Path, model: Path, folder: Path) -> None:
    """Compute the records of a sweep that its folder does not have yet."""
    sources = {share: f"onnx:{model}" if share == "0" else f"oracle:{share}:onnx:{model}" for share in sweep.priors}
    priors = tuple(parse_prior(f"{share}={source}") for share, source in sources.items())
    data = DatasetEntry("scenes", root=str(scenes), label="Scenes")
    protocol = Protocol((data,), priors, METHODS, cases=sweep.cases)
    run_protocol(protocol, folder, report=lambda progress: print(f"{sweep.name}: {progress.done}/{progress.planned}"))


def mean_errors(records: Sequence[Record]) -> dict[tuple[str, str, str], float]:
    """Geometric mean over images of AbsRel in per cent, by prior, case and method.

    A case counts the images that all methods have scores of. A method that does not use the prior has records of the
    first prior only, which stand for all.
    """
    scores = {(r.prior, r.case, r.method, r.image): r.absrel for r in records if r.status is RecordStatus.OK}
    priors = dict.fromkeys(r.prior for r in records)
    first = next(iter(priors))
    means = {}
    for prior in priors:
        for case in dict.fromkeys(r.case for r in records):
            by_method: dict[str, dict[str, float]] = {}
            for method in DRAWN:
                own = {i: v for (p, c, m, i), v in scores.items() if (p, c, m) == (prior, case, method)}
                shared = {i: v for (p, c, m, i), v in scores.items() if (p, c, m) == (first, case, method)}
                by_method[method] = own or shared
            images = set.intersection(*(set(found) for found in by_method.values()))
            for method, found in by_method.items():
                values = [found[image] for image in images]
                means[prior, case, method] = 100 * float(np.exp(np.mean(np.log(values)))) if values else math.nan
    return means


@styled
def draw(sweep: Sweep, records: Sequence[Record]) -> Drawing:
    """The figure of a sweep: one panel per prior, or one panel whose axis is the prior."""
    means = mean_errors(records)
    counts = {case: [record.measured for record in records if record.case == case] for case in sweep.cases}
    places = sweep.positions or tuple(float(np.mean(found)) for found in counts.values())
    images = len({record.image for record in records})
    panels = sweep.panels or ("",)
    figure = new_figure(3.2 if len(panels) > 1 else 3.5, 6.6 if len(panels) > 1 else 5.2)
    figure.suptitle(f"{sweep.title}\n(geometric mean over {images} real scenes)", fontsize=8.5)
    axes: list[Axes] = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
    numbers: dict[str, Any] = {"images": images, "unit": "per cent of depth", "axis": sweep.label}
    drawn: list[float] = []
    for place, (panel, title) in enumerate(zip(axes, panels, strict=True)):
        for method, (label, colour, line) in DRAWN.items():
            keys = [(sweep.priors[place], case) for case in sweep.cases]
            if not sweep.panels:
                keys = [(prior, sweep.cases[0]) for prior in sweep.priors]
            errors = [means[prior, case, method] for prior, case in keys]
            positions = list(places)
            if sweep.name == "noise":
                positions[0] = positions[1] / 3  # a place for zero on the logarithmic axis
            width = 2.0 if method == "Ours (best)" else 1.1
            panel.plot(
                positions, errors, color=colour, linestyle=line, linewidth=width, marker="o", ms=2.5, label=label
            )
            numbers.setdefault(title or "errors", {})[method] = dict(zip(map(str, places), errors, strict=True))
            drawn += [error for error in errors if error > 0]
        panel.set_title(title)
        panel.set_xlabel(sweep.label)
        panel.grid(visible=True, which="major")
        if sweep.name != "quality":
            use_log_axis(panel, "x", positions)
        if sweep.name == "noise":
            panel.set_xticks(positions, ["none", *(f"{noise:g}" for noise in sweep.positions[1:])])
    use_log_axis(axes[0], "y", drawn)
    axes[0].set_ylabel("mean error, per cent of the depth\n(AbsRel, pixels that were not measured)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3 if len(panels) > 1 else 2)
    return Drawing(figure, numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="SCENES MODEL RUN", help="or only RUN")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images"), metavar="FIGURES")
    parser.add_argument("--sweep", choices=[sweep.name for sweep in SWEEPS], help="default: all three")
    options = parser.parse_args()
    *sources, folder = options.inputs
    if len(sources) not in (0, 2):
        parser.error("give SCENES, MODEL and RUN, or RUN alone.")
    for sweep in SWEEPS:
        if options.sweep not in (None, sweep.name):
            continue
        if sources:
            run(sweep, *(source.resolve() for source in sources), folder / sweep.name)
        drawing = draw(sweep, read_records(folder / sweep.name))
        save_numbers(drawing.numbers, folder, sweep.name)
        options.output.mkdir(parents=True, exist_ok=True)
        drawing.figure.savefig(options.output / f"which-{sweep.name}.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
