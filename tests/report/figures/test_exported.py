"""Figures from the exported CSV files alone."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from click.testing import CliRunner

from leadline.apps.cli import LazyGroup
from leadline.base.errors import FileError, InputError
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.render import write_csvs
from leadline.bench.results import MACRO, PERCENTILES, read_results
from leadline.bench.tables import CSV_METRICS, OURS, RESPONSE
from leadline.report.figures import draw, exported_source, plotting, published_source, run_source
from leadline.report.figures.exported import read_exported
from support.bench_runs import run

DECIMALS = 1e-6  # absolute: the files have six decimals
ABSREL = "table3_depth_absrel.csv"
EIGHT = ("PriorDA", "LDCM", "Any2Full", "KNN", "LWLR", "Poisson", RESPONSE, OURS)
SPREAD = np.exp(np.linspace(-1, 1, len(PERCENTILES)))


@pytest.fixture
def tables(run_folder, tmp_path):
    write_csvs(read_results(run_folder), tmp_path / "TABLES")
    return tmp_path / "TABLES"


def numbers_of(value, place=""):
    """All numbers of nested dicts and lists by their place."""
    if isinstance(value, dict):
        return {k: n for key, entry in value.items() for k, n in numbers_of(entry, f"{place}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: n for i, entry in enumerate(value) for k, n in numbers_of(entry, f"{place}/{i}").items()}
    return {place: value} if isinstance(value, float) else {}


@pytest.mark.parametrize("name", ["macro", "subsets", "percentiles", "stages", "stage-normals"])
def test_figures_from_csv_files_have_the_numbers_of_those_from_the_run(name, run_folder, tables):
    source, missing = exported_source(tables)
    assert missing == ()
    expected = numbers_of(draw(name, run_source(run_folder)).numbers)
    found = numbers_of(draw(name, source).numbers)
    assert len(found) > 1
    assert found == pytest.approx(expected, abs=DECIMALS)


def test_the_weights_of_a_sweep_are_taken_from_the_labels(tmp_path):
    sweep = tuple(
        MethodEntry(
            "ours", f"data {data}, laplacian {lap}", {"weight_data": float(data), "weight_laplacian": float(lap)}
        )
        for data in ("1e-4", "1e-2")
        for lap in ("1e-3", "1e-2")
    )
    rooms = DatasetEntry("rendered", "Rooms", options={"count": 1, "width": 60, "height": 44})
    run(Protocol((rooms,), (PriorEntry("rendered", "made"),), sweep, ("distributed",)), tmp_path / "run")
    write_csvs(read_results(tmp_path / "run"), tmp_path / "csv")
    found = draw("weights", exported_source(tmp_path / "csv")[0]).numbers
    expected = draw("weights", run_source(tmp_path / "run")).numbers
    assert [line["weight_laplacian"] for line in found["mae"]] == [1e-3, 1e-2]
    assert numbers_of(found) == pytest.approx(numbers_of(expected), abs=DECIMALS)


def write_paper_tables(folder):
    """Files with the paper's labels: its medians where they are published, and made up percentiles around them."""
    folder.mkdir()
    published = published_source().results
    for name, metric in CSV_METRICS.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["subset", "prior", "method", *(f"p{p}" for p in PERCENTILES), "count", "failures"])
            for subset in published.subsets:
                for method in (*EIGHT, "PromptDA", "Raw", "GDisp"):
                    median = published.value("MoGe-3", method, subset, metric)
                    values = (median if np.isfinite(median) else 12.0) * SPREAD
                    writer.writerow([subset, "MoGe-3", method, *(f"{value:.6f}" for value in values), 30, 0])
    return folder


def test_the_percentile_figure_has_the_papers_eight_methods_nine_subsets_and_two_columns(tmp_path):
    drawing = draw("percentiles", exported_source(write_paper_tables(tmp_path / "csv"))[0])
    figure = drawing.figure
    assert drawing.numbers["percentiles"] == [7, 16, 31, 50, 69, 84, 93]
    assert len(figure.axes) == 18
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == list(published_source().results.subsets)
    for metric in ("absrel", "nmed"):
        shown = drawing.numbers[metric]
        assert list(shown) == list(published_source().results.subsets)
        assert all(set(methods) == set(EIGHT) for methods in shown.values())
    assert figure.get_size_inches()[1] < 9  # a page
    assert_apart(figure)


def test_names_of_many_subsets_do_not_overlap(tables):
    with (tables / ABSREL).open(encoding="utf-8", newline="") as stream:
        head, *rows = [row for row in csv.reader(stream) if row[0] != MACRO]
    for name in CSV_METRICS:
        with (tables / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(head)
            for i in range(16):
                subset = f"a_long_name_of_a_folder_of_scenes_that_goes_on_{i}"
                writer.writerows([subset, *row[1:3], *(float(x) * 1.1**i for x in row[3:10])] for row in rows)
    source, _ = exported_source(tables)
    for name in ("percentiles", "subsets", "stages"):
        assert_apart(draw(name, source).figure)


def assert_apart(figure):
    """No label of an axis, title, tick or note overlaps another one."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    texts = [
        text
        for axes in figure.axes
        for part in (axes.title, axes._left_title, axes.xaxis, axes.yaxis, *axes.texts)
        for text in part.findobj(Text)
        if text.get_text().strip() and text.get_visible()
    ]
    boxes = [text.get_window_extent(renderer).padded(-0.5) for text in texts]
    assert len(boxes) > 5
    inside = figure.bbox
    for i, box in enumerate(boxes):
        touched = [text.get_text() for text, other in zip(texts[:i], boxes, strict=False) if box.overlaps(other)]
        assert not touched, texts[i].get_text()
        assert box.x0 >= inside.x0, texts[i].get_text()
        assert box.x1 <= inside.x1, texts[i].get_text()


def test_macro_of_the_files_is_used_only_where_there_are_no_subsets(tables):
    results, _ = read_exported(tables)
    assert MACRO not in results.subsets
    values = [results.value("made", OURS, subset, "absrel") for subset in results.subsets]
    assert results.value("made", OURS, MACRO, "absrel") == pytest.approx(np.mean(values))
    (tables / ABSREL).write_text(f"subset,prior,method,p50\nMacro,made,{OURS},0.25\n", encoding="utf-8")
    assert read_exported(tables)[0].value("made", OURS, MACRO, "absrel") == 0.25


HEAD = "subset,prior,method,p7,p50,p93,count,failures\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("subset,method,p50\n", "lacks the column prior"),
        ("", "lacks the column subset and prior and method and p50"),
        (f"{HEAD}A,net,KNN,0.1,big,0.3,9,0\n", r"line 2: p50 must be a number of at least 0, or empty, got 'big'"),
        (f"{HEAD}A,net,KNN,0.1,-0.2,0.3,9,0\n", "line 2: p50 must be a number of at least 0"),
        (f"{HEAD}A,net,KNN,0.1,inf,0.3,9,0\n", "line 2: p50 must be a number of at least 0"),
        (f"{HEAD}A,net,KNN,0.4,0.2,0.3,9,0\n", "line 2: the percentiles must not decrease"),
        (f"{HEAD}A,net,KNN,0.1,0.2,0.3,9,0\nA,net,KNN,0.1,0.2,0.3,9,0\n", "line 3: there is a second row of KNN"),
        (f"{HEAD}A,,KNN,0.1,0.2,0.3,9,0\n", "line 2: prior must not be empty"),
        (f"{HEAD}A,net,KNN,0.1,0.2,0.3,9,0,7\n", "line 2: more fields than columns"),
        (f'{HEAD}A,net,"KNN,0.1\n', "is not a CSV file"),
        ("\ufffd\x00".encode("utf-16"), "is not a CSV file in UTF-8"),
    ],
)
def test_a_file_that_is_not_as_expected_is_named_with_its_line(tables, text, message):
    (tables / ABSREL).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=message) as caught:
        read_exported(tables)
    assert ABSREL in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_may_have_other_columns_and_unknown_percentiles(tables):
    text = "note,method,prior,subset,p50,p93\nx,KNN,net,A,0.2,\n"
    for name in CSV_METRICS:
        (tables / f"{name}.csv").write_text(text, encoding="utf-8-sig")
    results, _ = read_exported(tables)
    assert results.value("net", "KNN", "A", "absrel") == 0.2
    assert np.isnan(results.value("net", "KNN", "A", "absrel", 93))
    with pytest.raises(InputError, match="no prior 'nett'; did you mean 'net'"):
        exported_source(tables, prior="nett")


def leadline(*arguments):
    group = LazyGroup(name="leadline", lazy={"figures": ("leadline.apps.figures:command", "")})
    return CliRunner().invoke(group, ["figures", *map(str, arguments)])


def test_the_command_draws_from_a_folder_of_files(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(plotting, "FORMATS", ("png",))
    (tables / "table2_normal_median.csv").unlink()
    result = leadline("--csv", tables, "stages", "stage-normals", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "there is no table2_normal_median.csv" in result.stderr
    assert "stage-normals was not drawn: the figure needs NMed" in result.stderr
    assert json.loads((tmp_path / "out" / "stages.json").read_text(encoding="utf-8"))["prior"] == "made"
    for line, message in (
        (["--csv", tmp_path / "none"], "there is no such folder"),
        (["--csv", tmp_path / "out"], "none of table1_normal_mean.csv"),
        (["--csv", tables, "--published"], "exclude each other"),
        (["--csv", tables, "--image", "room-0"], "need the images of a run"),
        (["--csv", tables, "--largest-error", "1"], "need the images of a run"),
        (["--csv", tables, "speed"], "needs the records of a run"),
        (["--published", "--prior", "DAV2"], "did you mean 'DAV2-B' or 'DAV2-L'"),
    ):
        result = leadline(*line, "-o", tmp_path / "x")
        assert result.exit_code == 2
        assert message in result.stderr
