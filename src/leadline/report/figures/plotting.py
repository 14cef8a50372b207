"""Shared parts of all figures: style for print, colours and markers of methods, labels, writing of files.

A method's colour shows its family and its marker the method, so that no two methods differ by colour alone. Figures are
at most 5.5 inches wide, the text width of a conference paper, and no letter is smaller than 6.5 points, so they can be
included without scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, MissingExtra
from leadline.base.strict_json import dump_json
from leadline.bench.tables import BEST, FIXED, OURS, RAW, RESPONSE
from leadline.io.files import atomic_write, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
Vector = NDArray[np.float64]

WIDTH = 5.5  # inches
SMALLEST = 6.5  # points
CLOSEST = 0.12  # least distance of two tick labels of a logarithmic axis, as a share of its length
FORMATS = ("png", "svg", "pdf")
_STYLE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType: publishers require text that stays text
    "svg.hashsalt": "leadline",  # element ids that do not change from run to run
}
# Without dates and versions, a figure that is drawn again from the same records has the same bytes.
_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

# The colours of Okabe and Ito, which readers with any colour vision can distinguish.
BLACK, BLUE, GREEN, ORANGE, PURPLE, GREY = "#000000", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#595959"


@dataclass(frozen=True)
class Mark:
    """Colour, marker and line style of a method."""

    colour: str
    marker: str
    line: Any = "-"
    open: bool = False


_MARKS = {
    OURS: Mark(ORANGE, "*"),
    RESPONSE: Mark(ORANGE, "*", "--", open=True),
    BEST: Mark(ORANGE, "D", "-."),
    FIXED[0]: Mark(BLUE, "v"),
    FIXED[1]: Mark(BLUE, "s", "--"),
    FIXED[2]: Mark(BLUE, "^", ":"),
    "KNN": Mark(GREEN, "o"),
    "LWLR": Mark(GREEN, "P", "--"),
    "Poisson": Mark(GREEN, "X", ":"),
    "PriorDA": Mark(PURPLE, "o"),
    "LDCM": Mark(PURPLE, "s", "--"),
    "Any2Full": Mark(PURPLE, "D", ":"),
    "PromptDA": Mark(PURPLE, "X", "-."),
    RAW: Mark(GREY, "o", open=True),
}
_OTHERS = tuple(Mark(BLACK, marker, line) for line in ("-", "--", ":") for marker in ("<", ">", "h", "p", "d", "8"))


@dataclass(frozen=True)
class Drawing:
    """A figure, and the numbers in it, which are written to a JSON file beside it."""

    figure: Figure
    numbers: dict[str, Any]


def marks(methods: Sequence[str]) -> dict[str, Mark]:
    """A mark for each label: fixed ones for known methods, and in order the remaining ones for others."""
    others = iter(_OTHERS * (1 + len(methods) // len(_OTHERS)))
    return {name: _MARKS[name] if name in _MARKS else next(others) for name in methods}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorator: run a function that plots with the style of the figures instead of the user's own."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with _styling():
            return draw(*args, **kwargs)

    return inside


@contextmanager
def _styling() -> Iterator[None]:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("matplotlib", "figures", "Drawing a figure") from error
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type,unused-ignore]
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of a size in inches, not connected to a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(drawing: Drawing, folder: Path, name: str) -> list[Path]:
    """Write a drawing as PNG, SVG and PDF, and its numbers as JSON; returns the paths, that of the JSON file first."""
    return [save_numbers(drawing.numbers, folder, name), *save_figure(drawing.figure, folder, name)]


def save_numbers(numbers: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Write numbers as ``NAME.json``, with null for numbers that are not finite."""
    _create(folder)
    path = folder / f"{name}.json"
    write_text(path, dump_json(numbers, indent=1))
    return path


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF."""
    _create(folder)
    paths = [folder / f"{name}.{format_}" for format_ in FORMATS]
    with _styling():
        for path, format_ in zip(paths, FORMATS, strict=True):
            atomic_write(path, partial(figure.savefig, format=format_, metadata=_METADATA[format_]))
    return paths


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be created ({error.strerror}); choose another folder.") from error


def plain_log(axis: Axis, low: float, high: float, *, closest: float = CLOSEST) -> None:
    """Label a logarithmic axis with up to eight plain numbers, instead of powers of ten, a share `closest` apart."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(range(1, 10)), tuple(np.arange(1, 10, 0.5))):
        ticks = [float(f"{step * 10.0**decade:.3g}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    axis.set_major_locator(FixedLocator(_apart(ticks, closest * math.log10(high / low))))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _apart(ticks: Sequence[float], closest: float) -> list[float]:
    """Ticks that are at least `closest` decades apart; powers of ten have priority, then numbers with fewer digits."""
    digits = {tick: f"{tick:.3e}".partition("e")[0].rstrip("0") for tick in ticks}
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: (digits[tick] != "1.", len(digits[tick]))):
        if all(abs(math.log10(tick / other)) >= closest for other in kept):
            kept.append(tick)
    return sorted(kept)


def use_log_axis(
    axes: Axes, which: Literal["x", "y"], values: Sequence[float], margin: float = 0.08, *, closest: float = CLOSEST
) -> tuple[float, float]:
    """Make an axis logarithmic, with plain numbers; returns its limits, with a margin around positive `values`."""
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(margin * (high - low), 0.02)
    limits = float(10 ** (low - pad)), float(10 ** (high + pad))
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    plain_log(axes.xaxis if which == "x" else axes.yaxis, *limits, closest=closest)
    return limits


def plot_points(axes: Axes, points: Mapping[str, tuple[Any, Any]], size: float = 5.0) -> None:
    """Draw markers of each method at x and y, which are numbers or sequences; the artists' labels are the methods."""
    for name, mark in marks(list(points)).items():
        axes.plot(*points[name], linestyle="none", label=name, **_face(mark, size))


def plot_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], size: float = 3.5) -> None:
    """Draw one line with markers per method; the artists' labels are the methods."""
    for name, mark in marks(list(lines)).items():
        axes.plot(*lines[name], linestyle=mark.line, label=name, **_face(mark, size, rim=False))


def _face(mark: Mark, size: float, *, rim: bool = True) -> dict[str, Any]:
    """Arguments of a marker; a white rim separates markers that touch, but would interrupt a line."""
    return {
        "color": mark.colour,
        "marker": mark.marker,
        "markersize": size * (1.6 if mark.marker == "*" else 1.0),  # a star covers less of its bounding box
        "markerfacecolor": "white" if mark.open else mark.colour,
        "markeredgecolor": "white" if rim and not mark.open else mark.colour,
        "markeredgewidth": 0.9 if mark.open else 0.4,
        "zorder": 4 if mark.colour == ORANGE else 3,
    }


def add_legend(figure: Figure, methods: Sequence[str], *, lines: bool) -> None:
    """Add a legend of methods below all axes, in rows of similar length."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle=mark.line if lines else "none", label=name, **_face(mark, 5.0, rim=False))
        for name, mark in marks(methods).items()
    ]
    rows = -(-len(methods) // 5)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(methods) // rows), columnspacing=1.4)


def label_points(
    axes: Axes,
    points: Mapping[str, tuple[float, float]],
    avoid: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> None:
    """Write the name of each point beside it such that it covers neither another name nor a point nor a line.

    Positions close to the point are tried first, then farther ones, which get a leader line. If every position covers
    something, the one that covers least is used. The axes must have their final limits. `avoid` has the ends of lines
    that names should not cover, in the axes' units as the points.
    """
    figure: Any = axes.get_figure()
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    inner = axes.get_window_extent(renderer)
    pixels = figure.dpi / 72  # per typographic point
    centres = {name: axes.transData.transform(point) for name, point in points.items()}
    taken = [_box(centre, 4.0 * pixels) for centre in centres.values()]  # half the size of a marker
    for ends in avoid:
        start, end = axes.transData.transform(ends)
        taken += [_box(place, 1.0) for place in np.linspace(start, end, 120)]
    # Points with the most neighbours come first, since the others find a free position in any case.
    crowd = {
        name: sum(math.hypot(*(own - other)) < 60 * pixels for other in centres.values())
        for name, own in centres.items()
    }
    angles = np.radians([0, 180, 90, 270, 45, 135, 315, 225, 20, 160, 340, 200])
    directions = np.round(np.stack((np.cos(angles), np.sin(angles)), axis=1), 9)
    for name in sorted(points, key=lambda name: -crowd[name]):
        centre, colour = centres[name], marks([name])[name].colour
        note = axes.annotate(
            name, points[name], (0, 0), textcoords="offset points", fontsize=7.0, color=colour, zorder=6
        )
        note.set_in_layout(False)
        extent = note.get_window_extent(renderer)
        half = np.array((extent.width, extent.height)) / 2
        best, place, distance = math.inf, centre, 0.0
        for radius in (6.0, 11.0, 17.0, 24.0, 33.0, 45.0):
            for direction in directions:
                tried = centre + direction * radius * pixels + np.sign(direction) * half
                own = _box(tried, half + 1)
                outside = max(0.0, *(inner.min - own[:2]), *(own[2:] - inner.max))
                cost = _overlap(own, np.array(taken)) + 1e3 * outside
                if cost < best:
                    best, place, distance = cost, tried, radius
            if best == 0:
                break
        taken.append(_box(place, half))
        note.set(ha="center", va="center", position=(place - centre) / pixels)
        if distance > 12:
            near = axes.transData.inverted().transform(np.clip(centre, place - half, place + half))
            axes.plot(*zip(points[name], near, strict=True), color="0.6", linewidth=0.5, zorder=2)


def _box(centre: Vector, half: float | Vector) -> Vector:
    """Left, bottom, right and top of a box."""
    return np.concatenate((centre - half, centre + half))


def _overlap(box: Vector, others: Vector) -> float:
    """The sum of the areas that a box shares with each of the others, (n, 4)."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.maximum(sides, 0).prod(axis=1).sum())
