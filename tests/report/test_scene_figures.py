"""Figures and diagnoses of single images: maps recomputed from a run, and the two commands from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from support.paths import SHARED

pytest.importorskip("matplotlib")

from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.base.errors import FileError, InputError
from leadline.bench.campaign import protocol_of
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import read_records
from leadline.bench.tables import FIXED, OURS, RESPONSE
from leadline.core.prior import Prior
from leadline.report import diagnostic_plots, trial
from leadline.report.colour import colourise
from leadline.report.diagnosis import SCALED, diagnose
from leadline.report.figures import plotting
from leadline.report.figures import scenes as figures_scenes
from leadline.report.figures.catalogue import draw, run_source
from leadline.report.figures.plotting import BLUE, ORANGE, SMALLEST
from leadline.report.trial import Place, recompute, try_methods
from support.bench_runs import run

SCENE, NETWORK = SHARED / "data" / "ibims1" / "restaurant_11", SHARED / "models" / "tcmonodepth_small.onnx"
METHODS = ("raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "response", "ours")
COMMANDS = {name: (f"leadline.apps.{name}:command", "") for name in ("figures", "diagnose")}
FLOAT32 = 1e-6  # relative: a score is formed in float64 from float32 maps, here and there in another order


def leadline(*arguments):
    return CliRunner().invoke(LazyGroup(name="leadline", lazy=COMMANDS), list(map(str, arguments)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run over two rendered rooms."""
    rooms = DatasetEntry("rendered", "Rooms", options={"count": 2, "width": 120, "height": 90})
    methods = tuple(MethodEntry(name) for name in METHODS)
    made = tmp_path_factory.mktemp("scenes") / "run"
    run(Protocol((rooms,), (PriorEntry("rendered", "made"),), methods, ("distributed", "outer")), made)
    return made


@pytest.fixture(scope="module")
def place(folder):
    record = read_records(folder)[0]
    return Place(record.dataset, record.image, "outer", record.prior)


@pytest.fixture(scope="module")
def recomputed(folder, place):
    return recompute(folder, place, (*FIXED, RESPONSE, OURS))


# --- maps from a run ------------------------------------------------------------------------------------------------


def test_recomputed_maps_have_the_records_scores(folder, place, recomputed):
    for record in read_records(folder):
        if record.method in recomputed.predictions and Place(*place)[:3] == (record.dataset, record.image, record.case):
            found = recomputed.predictions[record.method]
            error = np.abs(found.depth - recomputed.reference)[recomputed.scored]
            assert float(np.nanmean(error, dtype=np.float64)) == pytest.approx(record.mae, rel=FLOAT32)
            assert found.parameters == json.loads(record.parameters)


def test_the_second_time_no_method_runs(folder, place, recomputed, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a method ran again")

    monkeypatch.setattr(trial, "run_method", refuse)
    again = recompute(folder, place, (*FIXED, RESPONSE, OURS))
    np.testing.assert_array_equal(again.predictions[OURS].depth, recomputed.predictions[OURS].depth)
    with pytest.raises(AssertionError, match="ran again"):
        recompute(folder, place, ("KNN",))


def test_other_data_than_the_runs_are_refused(folder, place, monkeypatch):
    class Other(trial.Sensor):
        def __init__(self, scene, **settings):
            super().__init__(replace(scene, reference=scene.reference + 1), **settings)

    monkeypatch.setattr(trial, "Sensor", Other)
    with pytest.raises(InputError, match="the reference is not the one that the run was made with"):
        recompute(folder, place, (OURS,))


def test_the_protocol_comes_back_as_it_was(folder, tmp_path):
    found = protocol_of(folder)
    assert [entry.name for entry in found.methods] == list(METHODS)
    assert found.datasets[0].options["width"] == 120
    with pytest.raises(FileError, match="holds no run"):
        protocol_of(tmp_path)


def test_a_record_that_is_not_there_is_named(folder, place):
    with pytest.raises(InputError, match="no 'Poisson' for Rooms"):
        recompute(folder, place, ("Poisson",))


# --- what is drawn --------------------------------------------------------------------------------------------------


def lines(axes):
    return {line.get_label(): np.array(line.get_data()) for line in axes.get_lines()}


def test_linearity_draws_the_relations_and_the_error_maps(recomputed):
    found = diagnose(recomputed, bin_width=0.2)
    figure = diagnostic_plots.linearity(recomputed, found.relations)
    columns = len(found.relations)
    for axes, (name, entry) in zip(figure.axes[columns:], found.relations.items(), strict=False):
        drawn = lines(axes)
        np.testing.assert_array_equal(drawn["held-out pixels"], (entry.predicted, entry.reference))
        np.testing.assert_array_equal(drawn["local median"], (entry.path_predicted, entry.path_reference))
        assert drawn["identity"][0].tolist() == drawn["identity"][1].tolist() == list(entry.window)
        assert f"r = {entry.pearson:.4f}" in axes.get_title(loc="left")
        assert (f"MAE {entry.mae:.3f} m" in axes.get_title(loc="left")) == (name != SCALED)
    every = np.concatenate([np.abs(p.depth - recomputed.reference).ravel() for p in recomputed.predictions.values()])
    for axes, name in zip(figure.axes[1:columns], recomputed.predictions, strict=True):
        error = np.abs(recomputed.predictions[name].depth - recomputed.reference)
        high = diagnostic_plots._round_up(float(np.nanpercentile(every, 95)))
        expected = colourise(error, low=0.0, high=high, scheme="error")
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), expected)


def test_the_response_plot_draws_the_profile_and_marks_the_exponents(recomputed):
    found = diagnose(recomputed)
    left, right = diagnostic_plots.response_plot(found).axes
    drawn = lines(right)
    np.testing.assert_array_equal(drawn["RMSE at measurements"][1], found.profile.rmse)
    for name, exponent in {"disparity": -1.0, "log depth": 0.0, "depth": 1.0, "adaptive": found.profile.chosen}.items():
        assert drawn[name][0].tolist() == [exponent, exponent]
        assert drawn[name][1].tolist() == list(found.profile.at(exponent))
        np.testing.assert_array_equal(lines(left)[name], (found.gains[name].depth, found.gains[name].slope))


def test_the_error_plot_draws_the_bands(recomputed):
    found = diagnose(recomputed)
    left, right = diagnostic_plots.error_plot(found).axes
    for name in (*FIXED, RESPONSE, OURS):
        np.testing.assert_array_equal(lines(left)[name], (found.residuals[name].at, found.residuals[name].median))
        np.testing.assert_array_equal(lines(right)[name], (found.distances[name].at, found.distances[name].median))
    assert len(right.collections) == 1  # the spread of ours alone: several would hide each other


def test_groups_draw_every_point_and_its_colour():
    x, y = np.array([0.05, 0.05, 0.95]), np.array([0.05, 0.05, 0.95])
    picture = diagnostic_plots.point_picture(x, y, np.array([0, 1, 0], np.int8), ((0.0, 1.0), (0.0, 1.0)), cells=10)
    assert (picture[..., 3] > 0).sum() == 2
    blue, orange = (np.array(diagnostic_plots._rgb(colour)) for colour in (BLUE, ORANGE))
    np.testing.assert_allclose(picture[9, 9, :3], blue)
    np.testing.assert_allclose(picture[0, 0, :3], (blue + orange) / 2)
    assert picture[0, 0, 3] > picture[9, 9, 3]


def test_groups_need_pixels(recomputed):
    few = np.full_like(recomputed.reference, np.nan)
    few[:2] = recomputed.reference[:2]
    with pytest.raises(InputError, match="fewer than 300"):
        diagnostic_plots.group_plot(trial.Trial(**{**vars(recomputed), "reference": few}))


def test_rules_choose_the_image(folder):
    source = run_source(folder)
    first, second = list(dict.fromkeys(record.image for record in source.records))

    def changed(image, method, **scores):
        return tuple(replace(r, **scores) if (r.image, r.method) == (image, method) else r for r in source.records)

    needed = (*FIXED, RESPONSE)
    for image in (first, second):
        better = replace(source, records=changed(image, RESPONSE, mae=1e-6))
        chosen = figures_scenes.choose(better, needed, figures_scenes._gain)
        assert (chosen.image, chosen.case) == (image, "distributed")
    failed = replace(source, records=changed(first, RESPONSE, status="failed"))
    assert figures_scenes.choose(failed, needed, figures_scenes._gain).image == second
    asked = replace(source, image=second, case="outer")
    assert figures_scenes.choose(asked, needed, figures_scenes._gain) == Place("Rooms", second, "outer", "made")
    with pytest.raises(InputError, match="no image of the run has a score of each of"):
        figures_scenes.choose(source, ("Poisson",), figures_scenes._gain)


def test_complete_systems_are_shown_before_baselines_and_ours_last():
    assert figures_scenes.compared(["Raw", "GDisp", "KNN", "Mine", OURS, "LWLR", RESPONSE]) == [
        "Mine",
        "KNN",
        "LWLR",
        OURS,
    ]


@pytest.mark.parametrize("name", ["regions", "motivation", "near-linear", "qualitative"])
def test_figures_of_one_image_are_drawn_from_the_run(folder, name):
    from matplotlib.text import Text

    drawing = draw(name, run_source(folder, cases=["outer"]))
    assert drawing.numbers["title"].endswith("outer")
    texts = [text for text in drawing.figure.findobj(Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= SMALLEST
    if name == "qualitative":
        there = run_source(folder).at(
            Place("Rooms", drawing.numbers["title"].split(": ")[1].split(",")[0], "outer", "made")
        )
        for method, mae in drawing.numbers["held_out_mae"].items():
            assert mae == pytest.approx(there[method].mae, rel=FLOAT32)
            assert any(f"{method}, {mae:.3f} m" in text.get_text() for text in texts)


# --- the commands ---------------------------------------------------------------------------------------------------


def examples():
    texts = [import_module(f"leadline.apps.{name}").command.epilog for name in COMMANDS]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip().startswith("leadline ")]


@pytest.mark.parametrize("line", examples())
def test_examples_in_the_help_run(line, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plotting, "FORMS", ("png",))  # that all three are written is tested below
    monkeypatch.setitem(plotting._STYLE, "savefig.dpi", 50)
    Path("RUN").symlink_to(folder)
    write_files(tmp_path)
    result = leadline(*line.split()[1:])
    assert result.exit_code == 0, result.output
    if " -o " in line:
        assert list(tmp_path.glob("*/*.png"))


def test_diagnose_writes_numbers_and_pictures_of_a_runs_image(folder, place, tmp_path, monkeypatch):
    monkeypatch.setitem(plotting._STYLE, "savefig.dpi", 50)
    out = tmp_path / "out"
    result = leadline("diagnose", "--run", folder, "--image", place.image, "--method", OURS, "-o", out)
    assert result.exit_code == 0, result.output
    numbers = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    assert list(numbers["relations"]) == [SCALED, OURS]
    for name in ("linearity", "response", "errors", "groups"):
        assert {path.suffix for path in out.glob(f"{name}.*")} == {".png", ".svg", ".pdf"}


def test_diagnose_and_figures_refuse_what_they_cannot_do(folder, place, tmp_path):
    out = ("-o", tmp_path / "x")
    for line, message in (
        (["diagnose", *out], "IMAGE, --sparse, --prior, --reference missing"),
        (["diagnose", "--run", folder, *out], "--image is missing"),
        (["diagnose", "--run", folder, "--image", "nothing", *out], "did you mean"),
        (["diagnose", "--run", folder, "--image", place.image, "--unit", "mm", *out], "--unit does not go with this"),
        (["diagnose", "--run", folder, "--image", place.image, "--weight-data", "1", *out], "--weight-data does not"),
        (["diagnose", "--run", folder, "--image", place.image, "--case", "mist", *out], "no case 'mist'"),
        (["diagnose", "--run", folder, "--image", place.image, "--method", "Mine", *out], "no 'Mine'"),
        (["diagnose", "--case", "outer", "a.png", *out], "--case does not go with this"),
        (["diagnose", "a.png", "--sparse", "a.png", "--prior", "a.npy", "--reference", "a.npy", *out], "no such file"),
        (["figures", folder, "--prior", "other", *out], "no prior 'other'"),
        (["figures", folder, "regions", "--image", "nothing", *out], "no image 'nothing'"),
    ):
        result = leadline(*line)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert "Traceback" not in result.output


def write_files(place):
    """Picture, measurements, prior and reference of a bent ramp; the last row is not to be used."""
    rows, columns = np.indices((60, 80))
    depth = (1.5 + 0.02 * rows + 0.01 * columns).astype(np.float32)
    sparse = np.where((rows % 8 == 4) & (columns % 8 == 4), np.rint(depth * 1000), 0).astype(np.uint16)
    Image.fromarray(np.full((60, 80, 3), 90, np.uint8)).save(place / "photo.jpg")
    Image.fromarray(sparse).save(place / "lidar.png")
    Image.fromarray(np.where(rows < 59, 255, 0).astype(np.uint8)).save(place / "valid.png")
    np.save(place / "prior.npy", depth**1.5)
    np.save(place / "depth.npy", depth)
    return ["diagnose", place / "photo.jpg", "--sparse", place / "lidar.png", "--unit", "mm"]


def test_diagnose_takes_files(tmp_path, monkeypatch):
    monkeypatch.setattr(plotting, "FORMS", ("png",))
    line = write_files(tmp_path)
    files = ["--prior", tmp_path / "prior.npy", "--reference", tmp_path / "depth.npy", "--reference-unit", "m"]
    result = leadline(*line, *files, "--valid", tmp_path / "valid.png", "-o", tmp_path / "out", "--bin", "0.1")
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "out" / "diagnosis.json").read_text(encoding="utf-8"))
    exponent = numbers["exponent_profile"]["chosen"]
    assert numbers["relations"][RESPONSE]["mae"] < numbers["relations"]["GMetric"]["mae"]
    assert f"exponent {exponent:.4g}" in result.output
    np.save(tmp_path / "small.npy", np.ones((6, 8), np.float32))
    files[3] = tmp_path / "small.npy"
    result = leadline(*line, *files, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "is 8x6 and the image 80x60" in result.stderr


def test_a_mask_keeps_pixels_out_of_the_pairs_but_not_out_of_the_score():
    depth = np.linspace(1, 2, 400, dtype=np.float32).reshape(20, 20)
    sparse = np.where(np.arange(400).reshape(20, 20) % 7 == 0, depth, 0)
    valid = np.arange(20)[:, np.newaxis] < 15
    found = try_methods("made", np.zeros((20, 20, 3), np.uint8), Prior(depth), sparse, depth, valid=valid & (depth > 0))
    assert np.isnan(found.sparse[15:]).all()
    assert found.pairs()[0].size == np.count_nonzero(sparse[:15])
    assert found.scored[15:].all()
    assert not found.scored[:15][sparse[:15] > 0].any()


@pytest.mark.skipif(not (SCENE.is_dir() and NETWORK.is_file()), reason=f"needs a scene and the network in {SHARED}")
def test_a_photograph_with_a_real_network(tmp_path):
    """The profile of a real fit: lowest at what was estimated, and the three coordinates above it."""
    pytest.importorskip("onnxruntime")
    entry = DatasetEntry("scenes", "iBims", root=str(SCENE.parent))
    source = PriorEntry(f"onnx:{NETWORK}", "net")
    made = Protocol((entry,), (source,), (MethodEntry("gdisp"), MethodEntry("response")), ("distributed",), limit=3)
    records = run(made, tmp_path / "run")
    place = Place("iBims", SCENE.name, "distributed", "net")
    found = diagnose(recompute(tmp_path / "run", place, ("GDisp", RESPONSE)))
    own = next(r for r in records if (r.image, r.method) == (SCENE.name, RESPONSE))
    assert found.relations[RESPONSE].mae == pytest.approx(own.mae, rel=FLOAT32)
    lowest = found.profile.exponents[int(np.nanargmin(found.profile.rmse))]
    assert lowest == pytest.approx(json.loads(own.parameters)["exponent"], abs=0.1)
    assert found.relations[RESPONSE].trend_cm < found.relations["GDisp"].trend_cm
