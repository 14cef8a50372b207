"""The studio's server: what it computes from the files of a session."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leadline
from leadline.apps.studio.form import form_fields, parse_options
from leadline.apps.studio.scene import ASSUMED_VIEW_DEG
from leadline.apps.studio.server import Studio
from leadline.core.options import CompletionOptions, as_options
from leadline.geometry.cameras import Camera
from leadline.geometry.surface import surface_from_depth
from leadline.io.depth import read_depth, read_values, write_depth
from leadline.io.frames import FrameFiles, read_frame
from leadline.io.ply import read_ply
from support.paths import ROOT
from support.studio_client import KIND, SIZE, Visitor, read_points

BEST = CompletionOptions.best()


def complete_files(scene: dict[str, Path], options: CompletionOptions = BEST, **arguments: Any) -> leadline.Completion:
    """The same completion from Python."""
    prior = leadline.Prior(read_values(scene["prior"]), kind="disparity")
    return leadline.complete(prior, read_depth(scene["sparse"], "mm").values, options=options, **arguments)


def downloaded_depth(visitor: Visitor, summary: dict[str, Any]) -> Any:
    return np.load(io.BytesIO(visitor.download(summary, "depth.npy")))


def test_downloads_equal_complete(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    visitor.give(scene)
    summary, result = visitor.complete(KIND), complete_files(scene)
    assert downloaded_depth(visitor, summary).tobytes() == result.depth.tobytes()
    assert summary["exponent"] == result.fit.response.exponent
    write_depth(tmp_path / "own.png", result.depth, "mm")
    assert visitor.download(summary, "depth.png") == (tmp_path / "own.png").read_bytes()
    (tmp_path / "cloud.ply").write_bytes(visitor.download(summary, "cloud.ply"))
    camera = Camera.from_view_angle(*SIZE, ASSUMED_VIEW_DEG)
    assert len(read_ply(tmp_path / "cloud.ply")[0]) == len(surface_from_depth(result.depth, camera).points)
    assert visitor.download(summary, "mesh.glb")[:4] == b"glTF"
    report = json.loads(visitor.download(summary, "report.json"))
    assert report["result"] == json.loads(json.dumps(result.to_dict()))
    assert report["inputs"]["sparse"]["name"] == "tof.png"
    assert str(Path(os.sep, "tmp")) not in json.dumps(report["notes"])


OPTIONS = {
    "nothing": ({}, BEST),
    "the paper's": ({"preset": "paper"}, CompletionOptions.paper()),
    "a switch off": ({"fit_screen_outliers": "no"}, replace(BEST, fit=replace(BEST.fit, screen_outliers=False))),
    "two fields": (
        {"fit_loss": "cauchy", "outliers": "single"},
        replace(BEST, outliers="single", fit=replace(BEST.fit, loss="cauchy")),
    ),
    "a number": (
        {"preset": "paper", "tolerance": "1e-5"},
        CompletionOptions.paper(reconstruction=replace(CompletionOptions.paper().reconstruction, tolerance=1e-5)),
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_the_form(case: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    entered, chosen = OPTIONS[case]
    flags, options = parse_options(entered)
    assert options == chosen
    visitor.give(scene)
    summary = visitor.complete({**KIND, "options": entered})
    assert downloaded_depth(visitor, summary).tobytes() == complete_files(scene, chosen).depth.tobytes()
    assert options_of(summary["recipe"]["python"]) == chosen
    assert set(flags) <= set(summary["recipe"]["command"].split())


def options_of(program: str) -> CompletionOptions:
    """The options that the page's program passes to `complete`."""
    (call,) = (node for node in ast.walk(ast.parse(program)) if ast.unparse(node).startswith("leadline.complete("))
    assert isinstance(call, ast.Call)
    given = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "options"]
    return as_options(eval(given[0], {"leadline": leadline})) if given else CompletionOptions()


def test_the_form_is_made_from_the_options() -> None:
    fields = form_fields()
    assert fields["fit_loss"].choices is not None
    assert fields["fit_loss"].choices[:2] == ["", "squared"]  # empty: as in the preset
    assert fields["preset"].choices == ["best", "paper"]
    assert fields["preset"].default == "best"
    assert fields["fit_max_iterations"].label == "Fit: max iterations"
    assert not any("--" in field.help or "flag" in field.help for field in fields.values())
    assert parse_options({name: field.default for name, field in fields.items()}) == ((), BEST)


def test_uncertainty_and_outliers(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    summary = visitor.complete({**KIND, "uncertainty": True, "options": {"outliers": "single"}})
    result = complete_files(scene, replace(BEST, outliers="single"), uncertainty=True)
    assert result.sigma is not None
    assert result.outliers is not None
    sigma = np.load(io.BytesIO(visitor.download(summary, "sigma.npy")))
    assert sigma.tobytes() == result.sigma.tobytes()
    assert summary["outliers"] == result.outliers.where.size
    assert "uncertainty" in summary["views"]
    header, _ = read_points(visitor.get(f"/api/points/{summary['revision']}"))
    assert header["points"] == np.isfinite(result.depth).sum()
    assert header["colourings"] == ["image", "depth", "uncertainty"]
    assert header["left_out"] == result.outliers.where.size
    values = json.loads(visitor.get(f"/api/values/{summary['revision']}/7/5"))
    assert values["depth"] == result.depth[5, 7]
    assert values["sigma"] == result.sigma[5, 7]
    assert {"--outliers=single", "--sigma"} <= set(summary["recipe"]["command"].split())
    assert "uncertainty=True, options=" in summary["recipe"]["python"]


@pytest.mark.parametrize("example", ["hole", "lidar", "glass"])
def test_recipes_of_an_example_can_be_run(example: str, visitor: Visitor, tmp_path: Path) -> None:
    offered = visitor.result("/api/example", {"name": example})
    summary = visitor.complete({"unit": offered["files"]["sparse"]["unit"], "options": offered["options"]})
    for role, name in summary["inputs"].items():
        (tmp_path / name).write_bytes(visitor.get(f"/api/input/{role}"))
    depth = downloaded_depth(visitor, summary)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = summary["recipe"]["python"] + "\nimport numpy\nnumpy.save('program.npy', result.depth)\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True)
    np.testing.assert_array_max_ulp(np.load(tmp_path / "program.npy"), depth, 2)
    command = summary["recipe"]["command"].split()
    assert command[0] == "leadline"
    arguments = [sys.executable, "-m", *command, "--format", "npy"]
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, capture_output=True)
    np.testing.assert_array_max_ulp(np.load(tmp_path / "out" / f"{example}_depth.npy"), depth, 2)


def test_point_cloud_with_camera(server: Studio, visitor: Visitor) -> None:
    files = visitor.result("/api/example", {"name": "lidar"})["files"]
    assert files["sparse"]["points"] > 0
    summary = visitor.complete({})
    assert summary["camera"] == "file"
    assert summary["measurements"] > 0.9 * files["sparse"]["points"]
    assert summary["scores"]["absrel"] < 0.02  # what a rendered street with 32 scan lines allows
    session = server.sessions.get(visitor.key)
    assert session is not None
    paths = {role.value: upload.path for role, upload in session.files.items()}
    frame = read_frame(
        FrameFiles(image=paths["image"], points=paths["sparse"], prior=paths["prior"], camera=paths["camera"])
    )
    measured = np.load(io.BytesIO(visitor.download(summary, "sparse.npy")))
    assert measured.tobytes() == frame.sparse.tobytes()
    visitor.post("/api/remove", {"role": "camera"})
    assert "“Camera”" in visitor.run("/api/complete", {})["error"]


def test_without_a_prior(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse")
    assert "a prior missing" in visitor.run("/api/complete", {"unit": "mm"})["error"]
    summary = visitor.complete({"unit": "mm", "prior": "none"})
    assert not summary["converged"]
    assert not any(note["warning"] for note in summary["notes"])  # a constant prior was the user's choice
    assert "--prior none" in summary["recipe"]["command"]


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_exponent_by_hand_and_back(preset: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse", "prior", "reference")
    summary = visitor.complete({**KIND, "options": {"preset": preset}})
    fitted = downloaded_depth(visitor, summary)
    held = visitor.result("/api/exponent", {"exponent": 3.0})
    assert held["exponent"] == 3.0
    assert held["rmse"] > summary["rmse"]
    change = visitor.get(f"/api/view/{summary['revision']}/change")
    assert change != visitor.get(f"/api/view/{summary['revision']}/depth")
    same = visitor.result("/api/exponent", {"exponent": summary["exponent"]})
    assert same["rmse"] == pytest.approx(summary["rmse"], rel=1e-4)  # two minimisers of one objective, float32 maps
    assert same["largest_change"] < 1e-3
    visitor.result("/api/exponent", {"exponent": None})
    assert downloaded_depth(visitor, summary).tobytes() == fitted.tobytes()
    status, _, content = visitor.request("GET", f"/api/view/{summary['revision']}/change")
    assert status == 422
    assert "no view" in json.loads(content)["error"]
    assert "between -20 and 20" in visitor.run("/api/exponent", {"exponent": 1e9})["error"]


def test_downloads_follow_an_exponent_set_by_hand(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    visitor.give(scene)
    summary = visitor.complete(KIND)
    fitted = downloaded_depth(visitor, summary)
    held = visitor.result("/api/exponent", {"exponent": -0.5})
    assert held["downloads"]["depth.npy"].endswith("at λ = -0.50")
    assert held["downloads"]["prior.npy"] == summary["downloads"]["prior.npy"]
    target = f"/api/download/{summary['revision']}/depth.npy"
    _, headers, content = visitor.request("GET", target)
    assert 'filename="photo_lambda-0.50_depth.npy"' in headers["Content-Disposition"]
    depth = np.load(io.BytesIO(content))
    change = np.median(np.abs(depth / fitted - 1))
    assert change == pytest.approx(held["median_change"], rel=1e-3)
    assert change > 0
    (tmp_path / "cloud.ply").write_bytes(visitor.download(summary, "cloud.ply"))
    assert np.isin(read_ply(tmp_path / "cloud.ply")[0][:, 2], depth.ravel()).mean() > 0.99
    report = json.loads(visitor.download(summary, "report.json"))
    assert report["exponent_set_by_hand"]["exponent"] == -0.5


def test_mask_removes_measurements(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    from PIL import Image

    visitor.give(scene)
    first = visitor.complete(KIND)
    painted = np.zeros((120, 160), np.uint8)
    painted[:, 80:] = 255
    Image.fromarray(painted).save(tmp_path / "mask.png")
    visitor.put("mask", tmp_path / "mask.png")
    summary = visitor.complete(KIND)
    assert summary["measurements"] + summary["measurements_removed"] == first["measurements"]
    sparse = read_depth(scene["sparse"], "mm").values
    sparse[:, 80:] = np.nan
    prior = leadline.Prior(read_values(scene["prior"]), kind="disparity")
    assert downloaded_depth(visitor, summary).tobytes() == leadline.complete(prior, sparse).depth.tobytes()
    assert "photo_sparse.npy" in summary["recipe"]["command"]
    Image.fromarray(np.full((120, 160), 255, np.uint8)).save(tmp_path / "mask.png")
    visitor.put("mask", tmp_path / "mask.png")
    assert "removes every measurement" in visitor.run("/api/complete", KIND)["error"]


@pytest.mark.parametrize(("preset", "name"), [("best", "best"), ("paper", "ours")])
def test_methods_and_curves(preset: str, name: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse", "prior", "reference")
    summary = visitor.complete({**KIND, "options": {"preset": preset}})
    assert summary["compare_as"] == name
    assert visitor.result("/api/method", {"name": name})["scores"] == summary["scores"]
    assert visitor.run("/api/method", {"name": "os:system"})["state"] == "failed"
    curves = visitor.result("/api/diagnose")
    profile = curves["profile"]
    chosen = np.argmin(np.abs(np.array(profile["exponents"]) - profile["chosen"]))
    assert profile["rmse"][chosen] == pytest.approx(summary["rmse"], rel=1e-3)
    if preset == "paper":  # best shrinks the exponent away from the least error
        assert min(value for value in profile["rmse"] if value is not None) == profile["rmse"][chosen]
    assert set(curves["gains"]) == {"disparity", "log depth", "depth", "adaptive"}


def test_presets_in_the_comparison(visitor: Visitor, scene: dict[str, Path]) -> None:
    titles = {entry["name"]: entry["title"] for entry in json.loads(visitor.get("/api/start"))["methods"]}
    assert titles["best"] == "leadline (best)"
    assert titles["ours"] == "the paper's method"
    visitor.give(scene, "image", "sparse", "prior", "reference")
    summary = visitor.complete({**KIND, "options": {"fit_loss": "cauchy"}})
    assert summary["compare_as"] == "result"
    expected = {"best": complete_files(scene), "ours": complete_files(scene, CompletionOptions.paper())}
    reference = read_depth(scene["reference"], "m").values
    scored = (reference > 0) & ~(read_depth(scene["sparse"], "mm").values > 0)
    for name, completion in expected.items():
        error = np.mean(np.abs(completion.depth / reference - 1)[scored])
        assert visitor.result("/api/method", {"name": name})["scores"]["absrel"] == pytest.approx(error, rel=1e-4)
    assert visitor.result("/api/method", {"name": "result"})["scores"] == summary["scores"]


def test_units_as_metres_per_count(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    facts = visitor.result("/api/inspect", {"role": "sparse", "unit": "0.001"})
    assert not facts["unit_guessed"]
    assert facts["near"] == pytest.approx(visitor.result("/api/inspect", {"role": "sparse", "unit": "mm"})["near"])
    summary = visitor.complete({**KIND, "unit": "0.001"})
    assert np.allclose(downloaded_depth(visitor, summary), complete_files(scene).depth)


def test_maps_of_other_sizes(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    sparse = read_depth(scene["sparse"], "mm").values
    larger = np.full((240, 320), np.nan, np.float32)
    larger[::2, ::2] = sparse
    write_depth(tmp_path / "large.png", larger, "mm")
    np.save(tmp_path / "small.npy", read_values(scene["prior"])[::2, ::2])
    (tmp_path / "photo.png").write_bytes(scene["image"].read_bytes())
    visitor.give(scene, "image")
    visitor.put("sparse", tmp_path / "large.png")
    visitor.put("prior", tmp_path / "small.npy")
    summary = visitor.complete(KIND)
    assert "--resize-prior" in summary["recipe"]["command"]
    assert "--scatter-sparse" in summary["recipe"]["command"]
    assert any("another size" in note["text"] for note in summary["notes"])
    names: dict[str, leadline.Completion] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(summary["recipe"]["python"].replace("print(result)", ""), names)  # what a reader would run
    assert names["result"].depth.tobytes() == downloaded_depth(visitor, summary).tobytes()


def test_the_kind_of_a_prior_left_to_the_measurements(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    found = visitor.complete({**KIND, "prior_kind": "auto"})
    assert any("the prior was taken as disparity" in note["text"] for note in found["notes"])
    stated = visitor.complete(KIND)
    assert found["exponent"] == stated["exponent"]
