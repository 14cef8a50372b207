"""The commands `figures` and `diagnose` from end to end."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from support.paths import SHARED

pytest.importorskip("matplotlib")

from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.render import write_csvs
from leadline.bench.results import read_results
from leadline.bench.tables import OURS, RESPONSE
from leadline.report.diagnostics import SCALED_PRIOR, diagnose
from leadline.report.figures import plotting
from leadline.report.image_results import ImageCase, recompute_results
from support.bench_runs import run

SCENE, NETWORK = SHARED / "data" / "ibims1" / "restaurant_11", SHARED / "models" / "tcmonodepth_small.onnx"
COMMANDS = {name: (f"leadline.apps.{name}:command", "") for name in ("figures", "diagnose")}
FLOAT32 = 1e-6  # relative: both scores are sums in float64 of float32 errors, in different orders


def leadline(*arguments):
    return CliRunner().invoke(LazyGroup(name="leadline", lazy=COMMANDS), list(map(str, arguments)))


def examples():
    texts = [import_module(f"leadline.apps.{name}").command.epilog for name in COMMANDS]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip().startswith("leadline ")]


@pytest.mark.parametrize("line", examples())
def test_examples_in_the_help_run(line, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plotting, "FORMATS", ("png",))  # that all three are written is tested below
    monkeypatch.setitem(plotting._STYLE, "savefig.dpi", 50)
    Path("RUN").symlink_to(run_folder)
    write_csvs(read_results(run_folder), Path("TABLES"))
    write_files(tmp_path)
    result = leadline(*line.split()[1:])
    assert result.exit_code == 0, result.output
    if " -o " in line:
        assert list(tmp_path.glob("*/*.png"))


def test_diagnose_writes_numbers_and_pictures_of_a_runs_image(run_folder, image_case, tmp_path, monkeypatch):
    monkeypatch.setitem(plotting._STYLE, "savefig.dpi", 50)
    out = tmp_path / "out"
    result = leadline("diagnose", "--run", run_folder, "--image", image_case.image, "--method", OURS, "-o", out)
    assert result.exit_code == 0, result.output
    numbers = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    assert list(numbers["linearity"]) == [SCALED_PRIOR, OURS]
    for name in ("linearity", "response", "errors", "groups"):
        assert {path.suffix for path in out.glob(f"{name}.*")} == {".png", ".svg", ".pdf"}


def test_diagnose_and_figures_refuse_what_they_cannot_do(run_folder, image_case, tmp_path):
    out = ("-o", tmp_path / "x")
    image = ("diagnose", "--run", run_folder, "--image", image_case.image)
    for line, message in (
        (["diagnose", *out], "IMAGE, --sparse, --reference missing"),
        (["diagnose", "--run", run_folder, *out], "--image is missing"),
        (["diagnose", "--run", run_folder, "--image", "nothing", *out], "its first images are room-0, room-1."),
        (
            [*image, "--unit", "mm", *out],
            "--unit has no effect here",
        ),
        (
            [*image, "--preset", "paper", *out],
            "--preset has no effect",
        ),
        ([*image, "--case", "mist", *out], "no case 'mist'"),
        ([*image, "--method", "Mine", *out], "no 'Mine'"),
        (["diagnose", "--case", "outer", "a.png", *out], "--case has no effect here"),
        (["diagnose", "a.png", "--sparse", "a.png", "--prior", "a.npy", "--reference", "a.npy", *out], "no such file"),
        (["figures", run_folder, "--prior", "other", *out], "no prior 'other'"),
        (["figures", run_folder, "regions", "--image", "nothing", *out], "no image 'nothing'"),
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
    monkeypatch.setattr(plotting, "FORMATS", ("png",))
    line = write_files(tmp_path)
    files = ["--prior", tmp_path / "prior.npy", "--reference", tmp_path / "depth.npy", "--reference-unit", "m"]
    result = leadline(*line, *files, "--valid", tmp_path / "valid.png", "-o", tmp_path / "out", "--bin", "0.1")
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "out" / "diagnosis.json").read_text(encoding="utf-8"))
    exponent = numbers["exponent_profile"]["chosen"]
    assert numbers["linearity"][RESPONSE]["mae"] < numbers["linearity"]["GMetric"]["mae"]
    assert f"exponent {exponent:.4g}" in result.output
    np.save(tmp_path / "small.npy", np.ones((6, 8), np.float32))
    files[3] = tmp_path / "small.npy"
    result = leadline(*line, *files, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "is 8x6 and the image 80x60" in result.stderr


def test_the_unit_of_the_measurements_is_that_of_a_reference_in_counts(tmp_path, monkeypatch):
    """The counts of a dense map in KITTI's unit would be taken for those of another camera."""
    monkeypatch.setattr(plotting, "FORMATS", ("png",))
    line = write_files(tmp_path)[:-1]
    rows, columns = np.indices((60, 80))
    depth = 25.0 + 1.5 * rows + columns
    sparse = np.where((rows % 8 == 4) & (columns % 8 == 4), depth, 0)
    for name, values in (("lidar", sparse), ("truth", depth)):
        Image.fromarray(np.rint(values * 256).astype(np.uint16)).save(tmp_path / f"{name}.png")
    np.save(tmp_path / "prior.npy", depth**1.5)
    files = ["--prior", tmp_path / "prior.npy", "--reference", tmp_path / "truth.png", "-o", tmp_path / "out"]
    result = leadline(*line, "kitti", *files)
    assert result.exit_code == 0, result.output
    assert "note: reference: unit taken from the measurements, kitti; set --reference-unit" in result.stderr
    numbers = json.loads((tmp_path / "out" / "diagnosis.json").read_text(encoding="utf-8"))
    assert numbers["linearity"][RESPONSE]["mae"] < 1  # metres of up to 190; in the guessed unit 50 and more
    result = leadline(*line, "kitti", *files, "--reference-unit", "mm")
    assert "is --reference-unit right? It was read in the unit mm." in result.stderr


@pytest.mark.skipif(not (SCENE.is_dir() and NETWORK.is_file()), reason=f"needs a scene and the network in {SHARED}")
def test_a_photograph_with_a_real_network(tmp_path):
    """The profile of a real fit: lowest at what was estimated, and the three coordinates above it."""
    pytest.importorskip("onnxruntime")
    entry = DatasetEntry("scenes", "iBims", root=str(SCENE.parent))
    source = PriorEntry(f"onnx:{NETWORK}", "net")
    made = Protocol((entry,), (source,), (MethodEntry("gdisp"), MethodEntry("response")), ("distributed",), limit=3)
    records = run(made, tmp_path / "run")
    image_case = ImageCase("iBims", SCENE.name, "distributed", "net")
    found = diagnose(recompute_results(tmp_path / "run", image_case, ("GDisp", RESPONSE)))
    own = next(r for r in records if (r.image, r.method) == (SCENE.name, RESPONSE))
    assert found.linearity[RESPONSE].mae == pytest.approx(own.mae, rel=FLOAT32)
    lowest = found.profile.exponents[int(np.nanargmin(found.profile.rmse))]
    assert lowest == pytest.approx(json.loads(own.parameters)["exponent"], abs=0.1)
    assert found.linearity[RESPONSE].trend_cm < found.linearity["GDisp"].trend_cm
