"""Figures of scores: what is drawn is what the records say; legible, and drawn where something is missing."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from click.testing import CliRunner

from leadline.apps.cli import LazyGroup
from leadline.base.errors import InputError, MissingExtra
from leadline.bench.published.numbers import published_results
from leadline.bench.records import Record
from leadline.bench.results import PERCENTILES, pool
from leadline.bench.tables import OURS, RESPONSE
from leadline.report.figures import FIGURES, Source, draw, plotting, published_source
from leadline.report.figures import cost as figures_cost
from leadline.report.figures import scores as figures_scores
from leadline.report.figures.plotting import SMALLEST, Drawing, save

METHODS = ("Raw", "GDisp", "KNN", RESPONSE, OURS, "stiff")
SUBSETS = ("A", "B")
ROUNDING = 1e-12
# CIE76 distance at which two small marks are told apart at a glance; 2.3 is just noticeable side by side.
APART = 15.0
# Linear RGB as seen without one kind of cone, full strength: Machado, Oliveira and Fernandes, 2009.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def make_records(cases=("distributed", "outer"), normals=True):
    """Every number different and known: two subsets of three images."""
    records = []
    for s, subset in enumerate(SUBSETS):
        for i in range(3):
            for c, case in enumerate(cases):
                for m, method in enumerate(METHODS):
                    error = (0.01 + 0.01 * m + 0.002 * i + 0.001 * c) * (1 + s) * (40 if method == "Raw" else 1)
                    records.append(
                        Record(
                            key=f"{subset}{i}{case}{method}",
                            dataset=subset,
                            image=f"i{i}",
                            case=case,
                            prior="net",
                            method=method,
                            status="ok",
                            absrel=error,
                            mae=2 * error,
                            nmed=10 + 100 * error if normals and method != "Raw" else math.nan,
                            measured=100 * 10**c,
                            seconds=0.01 * (m + 1),
                            options=json.dumps({"weight_data": 0.01} if method == "stiff" else {}),
                        )
                    )
    return records


def source_of(records):
    return Source(pool(records, subsets=SUBSETS, priors=["net"], methods=METHODS), "net", tuple(records))


@pytest.fixture(scope="module")
def source():
    return source_of(make_records())


def drawn(axes):
    """x and y of the lines of axes by their labels, without the unnamed ones."""
    return {
        line.get_label(): tuple(np.atleast_1d(line.get_data()[i]).tolist() for i in (0, 1))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def median(values):
    return float(np.median(values))


def score(subset, method, metric="absrel"):
    return median([getattr(r, metric) for r in make_records() if (r.dataset, r.method) == (subset, method)])


def test_macro_draws_the_mean_of_the_subsets_medians(source):
    figure = draw("macro", source).figure
    points = drawn(figure.axes[0])
    assert list(points) == ["GDisp", "KNN", RESPONSE, OURS]  # Raw has no normals, stiff is a sweep of weights
    for name, (x, y) in points.items():
        assert x[0] == pytest.approx((score("A", name) + score("B", name)) / 2, rel=ROUNDING)
        assert y[0] == pytest.approx((score("A", name, "nmed") + score("B", name, "nmed")) / 2, rel=ROUNDING)
    arrows = [text for text in figure.axes[0].texts if text.arrow_patch is not None]
    assert len(arrows) == 1
    assert tuple(arrows[0].xy) == (points[OURS][0][0], points[OURS][1][0])
    assert tuple(arrows[0].xyann) == (points[RESPONSE][0][0], points[RESPONSE][1][0])


def test_a_method_that_lies_far_off_goes_into_the_inset_with_the_box():
    drawing = draw("macro", published_source())
    main, inset = drawing.figure.axes[0], drawing.figure.axes[0].child_axes[0]
    assert "PromptDA" not in drawn(main)
    assert {"PromptDA", *drawn(main)} == set(drawn(inset))
    assert drawing.numbers["only in the inset"] == ["PromptDA"]
    x, y = drawn(main)[OURS]
    assert (x[0], y[0]) == (0.0301, pytest.approx(14.04))
    box = inset.patches[0]
    assert box.get_x() == pytest.approx(main.get_xlim()[0])
    assert box.get_x() + box.get_width() == pytest.approx(main.get_xlim()[1])
    assert box.get_y() == pytest.approx(main.get_ylim()[0])


def test_subsets_draw_each_median_in_its_row(source):
    figure = draw("subsets", source).figure
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == list(SUBSETS)
    for axes, metric in ((left, "absrel"), (right, "nmed")):
        points = drawn(axes)
        assert "Raw" not in points  # forty times the others
        for name, (x, y) in points.items():
            assert np.round(y).tolist() == [0, 1]
            assert x == pytest.approx([score(subset, name, metric) for subset in SUBSETS], rel=ROUNDING)


def test_macro_is_over_the_subsets_that_have_normals():
    records = [replace(record, nmed=math.nan) if record.dataset == "B" else record for record in make_records()]
    drawing = draw("macro", source_of(records))
    for name, (x, y) in drawn(drawing.figure.axes[0]).items():
        assert x[0] == pytest.approx(score("A", name), rel=ROUNDING)
        assert y[0] == pytest.approx(score("A", name, "nmed"), rel=ROUNDING)
    assert drawing.numbers["subsets without normals"] == ["B"]
    assert "over 1 of 2 subsets" in drawing.figure.axes[0].get_xlabel()


def test_subsets_without_normals_have_one_panel():
    figure = draw("subsets", source_of(make_records(normals=False))).figure
    assert len(figure.axes) == 1


def test_percentiles_draw_seven_of_each_subset(source):
    figure = draw("percentiles", source).figure
    assert len(figure.axes) == 4
    lines = drawn(figure.axes[2])  # second row, AbsRel
    assert list(lines) == ["KNN", RESPONSE, OURS]
    own = [r.absrel for r in make_records() if (r.dataset, r.method) == ("B", "KNN")]
    assert lines["KNN"][0] == list(PERCENTILES)
    assert lines["KNN"][1] == pytest.approx(np.percentile(own, PERCENTILES).tolist(), rel=ROUNDING)


def test_stages_draw_before_against_after():
    for name, metric in (("stages", "absrel"), ("stage-normals", "nmed")):
        axes = draw(name, published_source()).figure.axes[0]
        x, y = drawn(axes)["subsets"]
        numbers = published_results()
        assert x == [numbers.value("MoGe-3", RESPONSE, subset, metric) for subset in numbers.subsets]
        assert y == [numbers.value("MoGe-3", OURS, subset, metric) for subset in numbers.subsets]
        assert axes.get_xlim() == axes.get_ylim()


def test_weights_draw_a_line_per_curvature_weight():
    figure = draw("weights", published_source()).figure
    assert drawn(figure.axes[0])["0.01"] == ([1e-4, 1e-3, 1e-2], [0.1326, 0.1335, 0.1353])
    assert drawn(figure.axes[1])["0.0001"] == ([1e-4, 1e-3, 1e-2], [14.31, 14.04, 13.86])


def test_a_weight_that_a_variant_does_not_set_is_the_papers(source):
    lines = figures_scores.weight_lines(source, "mae")
    assert list(lines) == [1e-3]
    assert lines[1e-3][0] == [0.01]
    assert lines[1e-3][1] == pytest.approx([(score("A", "stiff", "mae") + score("B", "stiff", "mae")) / 2])


def test_coverage_draws_error_along_the_number_of_measurements():
    records = make_records(("random:100", "random:1000", "lidar:16"))
    drawing = draw("coverage", source_of(records))
    assert list(drawing.numbers["kinds"]) == ["random:N"]  # a single lidar pattern has no line
    (axes,) = drawing.figure.axes
    x, y = drawn(axes)["KNN"]
    assert x == [100, 1000]
    for case, value in zip(("random:100", "random:1000"), y, strict=True):
        own = [[r.absrel for r in records if (r.dataset, r.method, r.case) == (s, "KNN", case)] for s in SUBSETS]
        assert value == pytest.approx(sum(map(median, own)) / 2, rel=ROUNDING)
    assert "Raw" not in drawn(axes)


def test_the_papers_cases_are_not_joined_by_lines(source):
    axes = draw("coverage", source).figure.axes[0]
    points = [line for line in axes.get_lines() if line.get_label() == OURS]
    assert [line.get_linestyle() for line in points] == ["None"]
    assert np.round(points[0].get_xdata()).tolist() == [0, 1]
    assert [label.get_text().split("\n")[0] for label in axes.get_xticklabels()] == ["distributed", "outer"]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("random:100", "random:N"),
        ("lidar:16:-15:15+noise:0.1", "lidar:N:-15:15+noise:0.1"),
        ("outer", "the paper's cases"),
        ("central+holes:0.2", "the paper's cases+holes:0.2"),
    ],
)
def test_patterns_of_one_kind_differ_in_their_first_number(case, kind):
    assert figures_cost.pattern_kind(case) == kind


def test_speed_draws_median_seconds(source):
    drawing = draw("speed", source)
    points = drawn(drawing.figure.axes[0])
    assert points["KNN"][0] == [pytest.approx(0.03)]
    assert drawing.numbers["not shown"] == ["Raw"]
    assert "Raw" not in points


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("macro", "normal scores"),
        ("percentiles", "only medians"),
        ("stages", "on a subset"),
        ("weights", "weight_laplacian"),
        ("coverage", "random:100"),
        ("speed", "run time"),
        ("motivation", "published numbers have none"),
        ("qualitative", "needs 'Ours'"),
    ],
)
def test_a_figure_without_records_says_what_it_needs(name, reason):
    empty = Source(pool([], subsets=SUBSETS, priors=["net"], methods=METHODS), "net")
    with pytest.raises(InputError, match=reason) as caught:
        draw(name, empty)
    assert "\n" not in str(caught.value)


def every_figure():
    sources = {name: published_source() for name in ("macro", "subsets", "stages", "stage-normals", "weights")}
    run = source_of(make_records(("random:100", "random:1000")))
    sources |= dict.fromkeys(("percentiles", "coverage", "speed"), run)
    return {name: draw(name, own).figure for name, own in sources.items()}


def test_letters_are_legible_and_names_do_not_cover_each_other():
    from matplotlib.text import Annotation, Text

    for name, figure in every_figure().items():
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
        assert min(text.get_fontsize() for text in texts) >= SMALLEST, name
        for axes in figure.axes:
            notes = [text for text in axes.texts if isinstance(text, Annotation) and text.get_text()]
            boxes = [note.get_window_extent(renderer) for note in notes]
            for i, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[:i]), (name, notes[i].get_text())
            ticks = [label.get_window_extent(renderer) for label in axes.get_xticklabels() if label.get_text()]
            assert all(a.x1 <= b.x0 for a, b in pairwise(ticks)), name


def test_crowded_points_still_get_names_of_their_own():
    points = {f"method {i}": (0.5 + 0.01 * i, 0.5 + 0.008 * (i % 3)) for i in range(8)}
    figure = plotting.styled(plotting.new_figure)(3.0)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    plotting.label_points(axes, points)
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) == 8
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def lab(colour, kind):
    """CIE L*a*b* of a colour as seen with one kind of colour vision."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(BLINDNESS[kind]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / (0.9505, 1.0, 1.089), 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_families_of_methods_are_told_apart_by_any_eye(kind):
    colours = {mark.colour for mark in plotting._MARKS.values()} | {plotting.BLACK}
    groups = {plotting.BLUE, plotting.ORANGE, plotting.GREEN}
    for palette in (colours, groups):
        seen = [lab(colour, kind) for colour in sorted(palette)]
        assert min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]) > APART


def test_no_two_methods_of_a_family_share_a_marker():
    own = {**plotting.marks([*plotting._MARKS, "mine", "yours"])}
    looks = [(mark.colour, mark.marker, mark.open) for mark in own.values()]
    assert len(set(looks)) == len(looks)


def test_files_are_whole_the_same_each_time_and_hold_the_numbers(tmp_path, source):
    for folder in ("a", "b"):
        files = save(draw("stages", source), tmp_path / folder, "stages")
    assert sorted(path.name for path in files) == ["stages.json", "stages.pdf", "stages.png", "stages.svg"]
    for path in files:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    numbers = json.loads((tmp_path / "a" / "stages.json").read_text(encoding="utf-8"))
    assert numbers["points"]["A"] == pytest.approx([score("A", RESPONSE), score("A", OURS)])


def test_numbers_that_are_not_finite_are_null(tmp_path):
    path = plotting.save_numbers({"a": [math.nan, 1.0]}, tmp_path, "n")
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [None, 1.0]}


def test_the_users_own_style_neither_leaks_in_nor_is_changed(source):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red"}):
        drawing: Drawing = draw("speed", source)
        assert mpl.rcParams["font.size"] == 30.0
    assert drawing.figure.axes[0].xaxis.label.get_fontsize() < 10
    assert drawing.figure.axes[0].get_facecolor()[:3] == (1, 1, 1)


def test_without_matplotlib_the_extra_is_named(monkeypatch, source):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"leadline\[figures\]"):
        draw("speed", source)


def test_the_command_draws_what_it_can_and_notes_the_rest(tmp_path):
    group = LazyGroup(name="leadline", lazy={"figures": ("leadline.apps.figures:command", "")})
    arguments = ["figures", "--published", "weights", "percentiles", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 0
    assert "percentiles was not drawn" in result.stderr
    assert (tmp_path / "out" / "weights.png").is_file()
    for line, message in (
        (["--published", "weigths", "-o", "x"], "did you mean 'weights'"),
        (["--published"], "-o is missing"),
        (["-o", "x"], "RUN is missing"),
        ([str(tmp_path / "none"), "-o", "x"], "there is no such folder"),
        (["--published", "--image", "a", "-o", "x"], "need the images of a run"),
    ):
        result = CliRunner().invoke(group, ["figures", *line])
        assert result.exit_code == 2
        assert message in result.stderr
    assert all(name in CliRunner().invoke(group, ["figures", "--list"]).output for name in FIGURES)


def test_numbers_of_a_logarithmic_axis_keep_apart_and_round_ones_stay():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.set_xscale("log")
    low, high = 0.073, 0.177
    plotting.plain_log(axes.xaxis, low, high)
    ticks = axes.xaxis.get_majorticklocs()
    np.testing.assert_allclose(ticks, [0.08, 0.1, 0.15])
    assert np.diff(np.log10(ticks)).min() >= plotting.CLOSEST * np.log10(high / low)
