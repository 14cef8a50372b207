"""The studio's server: what it computes, and what it leaves behind."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import leadline
from leadline.apps.studio.choices import Choice, choice_of, form
from leadline.apps.studio.server import Studio
from leadline.core.options import CompletionOptions
from leadline.io.clouds.files import read_ply
from leadline.io.depth.files import read_depth, read_values, write_depth
from support.paths import ROOT
from support.studio_client import KIND, Process, Visitor, studio, write_scene

# Between run 5 and run 20 an allocator's pools may still settle: 2 MB as measured. A run's maps are 0.8 MB, so that
# fifteen runs that each kept theirs show as 10 MB and more.
GROWTH = 6 * 2**20
BEST = CompletionOptions.best()


@pytest.fixture(scope="module")
def server() -> Iterator[Studio]:
    with studio() as running:
        yield running


@pytest.fixture
def visitor(server: Studio) -> Visitor:
    return Visitor(server.port)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"))


def expected(scene: dict[str, Path], options: CompletionOptions = BEST) -> leadline.Completion:
    prior = leadline.Prior(read_values(scene["prior"]), kind="disparity")
    return leadline.complete(prior, read_depth(scene["sparse"], "mm").values, options=options)


# --- what comes out --------------------------------------------------------------------------------------


def test_downloads_are_what_complete_gives(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    visitor.give(scene)
    state = visitor.run("/api/complete", KIND)
    assert state["state"] == "done", state
    told, result = state["outcome"], expected(scene)
    base = f"/api/download/{told['revision']}"
    depth = np.load(io.BytesIO(visitor.get(f"{base}/depth.npy")))
    assert depth.tobytes() == result.depth.tobytes()
    assert told["exponent"] == result.fit.response.exponent
    write_depth(tmp_path / "own.png", result.depth, "mm")
    assert visitor.get(f"{base}/depth.png") == (tmp_path / "own.png").read_bytes()
    (tmp_path / "cloud.ply").write_bytes(visitor.get(f"{base}/cloud.ply"))
    assert len(read_ply(tmp_path / "cloud.ply")[0]) == np.isfinite(result.depth).sum()
    report = json.loads(visitor.get(f"{base}/report.json"))
    assert report["result"] == json.loads(json.dumps(result.to_dict()))
    assert report["inputs"]["sparse"]["name"] == "tof.png"
    assert str(Path(os.sep, "tmp")) not in json.dumps(report["notes"])


def test_options_of_the_form_reach_the_method(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    state = visitor.run("/api/complete", {**KIND, "options": {"fit_loss": "cauchy", "fit_residual": "log"}})
    told = state["outcome"]
    chosen = replace(BEST, fit=replace(BEST.fit, loss="cauchy", residual="log"))
    depth = np.load(io.BytesIO(visitor.get(f"/api/download/{told['revision']}/depth.npy")))
    assert depth.tobytes() == expected(scene, chosen).depth.tobytes()
    assert "--fit-loss=cauchy" in told["recipe"]["command"]
    assert options_of(told["recipe"]["python"]) == chosen


def options_of(program: str) -> CompletionOptions:
    """What the page's program gives `complete` as options."""
    (call,) = (node for node in ast.walk(ast.parse(program)) if ast.unparse(node).startswith("leadline.complete("))
    assert isinstance(call, ast.Call)
    given = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "options"]
    return eval(given[0], {"leadline": leadline}) if given else CompletionOptions()


OPTIONS = {
    "nothing": ({}, BEST, "options=leadline.CompletionOptions.best())"),
    "the paper's": ({"preset": "paper"}, CompletionOptions(), "leadline.complete(prior, sparse)"),
    "a switch off": ({"fit_vetted": "no"}, replace(BEST, fit=replace(BEST.fit, vetted=False)), "exponent_spread=2.0"),
    "a switch on": ({"preset": "paper", "reject": "yes"}, CompletionOptions(reject=True), "Options(reject=True))"),
    "the paper's in one": (
        {"tolerance": "1e-6"},
        replace(BEST, reconstruction=replace(BEST.reconstruction, tolerance=1e-6)),
        "ReconstructionOptions(system='adaptive')",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_the_program_has_the_options_that_were_chosen(case: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    wish, chosen, text = OPTIONS[case]
    assert choice_of({"options": wish}).options == chosen
    visitor.give(scene)
    told = visitor.run("/api/complete", {**KIND, "options": wish})["outcome"]
    assert options_of(told["recipe"]["python"]) == chosen
    assert text in told["recipe"]["python"]


def test_uncertainty_and_rejection(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    told = visitor.run("/api/complete", {**KIND, "uncertainty": True, "options": {"reject": "yes"}})["outcome"]
    prior, sparse = (
        leadline.Prior(read_values(scene["prior"]), kind="disparity"),
        read_depth(scene["sparse"], "mm").values,
    )
    chosen = replace(BEST, reject=True)
    result = leadline.complete(prior, sparse, uncertainty=True, options=chosen)
    assert result.sigma is not None
    assert result.rejected is not None
    sigma = np.load(io.BytesIO(visitor.get(f"/api/download/{told['revision']}/sigma.npy")))
    assert sigma.tobytes() == result.sigma.tobytes()
    assert told["rejected"] == result.rejected.where.size
    assert "uncertainty" in told["views"]
    counts = np.frombuffer(visitor.get(f"/api/points/{told['revision']}")[:8], "<u4")
    assert counts.tolist() == [np.isfinite(result.depth).sum(), 3]  # picture, depth, uncertainty
    assert {"--reject", "--sigma"} <= set(told["recipe"]["command"].split())
    assert "uncertainty=True, options=" in told["recipe"]["python"]
    assert options_of(told["recipe"]["python"]) == chosen


def test_recipes_of_an_example_can_be_run(visitor: Visitor, tmp_path: Path) -> None:
    assert visitor.run("/api/example", {"name": "grid"})["state"] == "done"
    told = visitor.run("/api/complete", {"unit": "mm"})["outcome"]
    for role, name in told["inputs"].items():
        (tmp_path / name).write_bytes(visitor.get(f"/api/input/{role}"))
    depth = np.load(io.BytesIO(visitor.get(f"/api/download/{told['revision']}/depth.npy")))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = told["recipe"]["python"] + "\nimport numpy\nnumpy.save('program.npy', result.depth)\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True)
    np.testing.assert_array_max_ulp(np.load(tmp_path / "program.npy"), depth, 2)
    command = told["recipe"]["command"].split()
    assert command[0] == "leadline"
    arguments = [sys.executable, "-m", *command, "--form", "npy"]
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, capture_output=True)
    np.testing.assert_array_max_ulp(np.load(tmp_path / "out" / "grid_depth.npy"), depth, 2)


def test_point_cloud_with_camera(visitor: Visitor) -> None:
    files = visitor.run("/api/example", {"name": "lidar"})["outcome"]
    assert files["sparse"]["cloud"]
    told = visitor.run("/api/complete")["outcome"]
    assert told["camera"] == "file"
    assert told["measurements"] > 0.9 * files["sparse"]["points"]
    assert told["scores"]["absrel"] < 0.02  # what a rendered room with sixteen scan lines allows
    assert told["recipe"]["command"].startswith("leadline project lidar_points.ply --camera lidar_camera.json")
    visitor.post("/api/drop", {"role": "camera"})
    assert "camera" in visitor.run("/api/complete")["error"]


def test_no_prior_at_all_still_completes(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse")
    assert "a prior missing" in visitor.run("/api/complete", {"unit": "mm"})["error"]
    told = visitor.run("/api/complete", {"unit": "mm", "prior": "none"})["outcome"]
    assert not told["fit_ok"]
    assert "--prior none" in told["recipe"]["command"]


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_exponent_by_hand_and_back(preset: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse", "prior", "reference")
    told = visitor.run("/api/complete", {**KIND, "options": {"preset": preset}})["outcome"]
    moved = visitor.run("/api/exponent", {"exponent": 3.0})["outcome"]
    assert moved["exponent"] == 3.0
    assert moved["rmse"] > told["rmse"]
    change = visitor.get(f"/api/view/{told['revision']}/change")
    assert change != visitor.get(f"/api/view/{told['revision']}/depth")
    same = visitor.run("/api/exponent", {"exponent": told["exponent"]})["outcome"]
    assert same["rmse"] == pytest.approx(told["rmse"], rel=1e-4)  # two minimisers of one objective, float32 maps
    assert same["largest_change"] < 1e-3
    assert visitor.run("/api/exponent", {"exponent": None})["outcome"] == {}
    status, _, content = visitor.request("GET", f"/api/view/{told['revision']}/change")
    assert status == 422
    assert "no view" in json.loads(content)["error"]


def test_mask_removes_measurements(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    from PIL import Image

    visitor.give(scene)
    first = visitor.run("/api/complete", KIND)["outcome"]
    painted = np.zeros((120, 160), np.uint8)
    painted[:, 80:] = 255
    Image.fromarray(painted).save(tmp_path / "mask.png")
    visitor.put("mask", tmp_path / "mask.png")
    told = visitor.run("/api/complete", KIND)["outcome"]
    assert told["measurements"] + told["removed"] == first["measurements"]
    sparse = read_depth(scene["sparse"], "mm").values
    sparse[:, 80:] = np.nan
    prior = leadline.Prior(read_values(scene["prior"]), kind="disparity")
    depth = np.load(io.BytesIO(visitor.get(f"/api/download/{told['revision']}/depth.npy")))
    assert depth.tobytes() == leadline.complete(prior, sparse, options=BEST).depth.tobytes()
    assert "photo_sparse.npy --unit m" in told["recipe"]["command"]
    Image.fromarray(np.full((120, 160), 255, np.uint8)).save(tmp_path / "mask.png")
    visitor.put("mask", tmp_path / "mask.png")
    assert "every measurement" in visitor.run("/api/complete", KIND)["error"]


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_every_ready_method_and_the_curves(preset: str, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "sparse", "prior", "reference")
    told = visitor.run("/api/complete", {**KIND, "options": {"preset": preset}})["outcome"]
    ours = visitor.run("/api/method", {"name": "ours"})["outcome"]
    assert ours["scores"] == told["scores"]
    assert visitor.run("/api/method", {"name": "os:system"})["state"] == "failed"
    curves = visitor.run("/api/diagnose")["outcome"]
    profile = curves["profile"]
    chosen = np.argmin(np.abs(np.array(profile["exponents"]) - profile["chosen"]))
    assert profile["rmse"][chosen] == pytest.approx(told["rmse"], rel=1e-3)
    if preset == "paper":  # best shrinks the exponent away from the least error
        assert min(value for value in profile["rmse"] if value is not None) == profile["rmse"][chosen]
    assert set(curves["gains"]) == {"disparity", "log depth", "depth", "adaptive"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_twenty_runs_leave_nothing(tmp_path: Path, scene: dict[str, Path]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NUMBA_NUM_THREADS": "1"}
    process = Process(tmp_path / "tmp", environment)
    try:
        visitor = Visitor(process.port)
        visitor.give(scene, "image", "sparse", "prior", "reference")
        kept = sorted(path.name for path in process.files())
        memory = {}
        for number in range(1, 21):
            told = visitor.run("/api/complete", {**KIND, "options": {"tolerance": f"1e-{4 + number % 3}"}})["outcome"]
            for work, wish in (("exponent", {"exponent": 0.5}), ("method", {"name": "knn"}), ("diagnose", {})):
                assert visitor.run(f"/api/{work}", wish)["state"] == "done"
            for name in (f"view/{told['revision']}/depth", f"points/{told['revision']}"):
                visitor.get(f"/api/{name}")
            for kind in ("depth.npy", "depth.png", "cloud.ply", "report.json"):
                visitor.get(f"/api/download/{told['revision']}/{kind}")
            memory[number] = process.memory()
        assert sorted(path.name for path in process.files()) == kept
        assert memory[20] - memory[5] < GROWTH, memory
    finally:
        code = process.end(signal.SIGTERM)
    assert code == 0
    assert not list(process.folder.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal for a process of its own")
def test_ctrl_c_removes_everything(tmp_path: Path, scene: dict[str, Path]) -> None:
    process = Process(tmp_path / "tmp", {**os.environ, "PYTHONPATH": str(ROOT / "src")})
    Visitor(process.port).give(scene)
    assert len(process.files()) == 3
    assert process.end(signal.SIGINT) == 0
    assert not list(process.folder.iterdir())


def test_form_is_made_from_the_options() -> None:
    rows = {row["name"]: row for row in form()}
    assert rows["fit_loss"]["choices"][:2] == ["", "squared"]  # empty: the preset's
    assert rows["preset"]["choices"] == ["best", "paper"]
    untouched = choice_of({"options": {name: row["default"] for name, row in rows.items()}})
    assert untouched == Choice()
    assert untouched.options == BEST


def test_other_sizes_and_the_program_for_them(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    sparse = read_depth(scene["sparse"], "mm").values
    larger = np.full((240, 320), np.nan, np.float32)
    larger[::2, ::2] = sparse
    write_depth(tmp_path / "large.png", larger, "mm")
    np.save(tmp_path / "small.npy", read_values(scene["prior"])[::2, ::2])
    visitor.give(scene, "image")
    visitor.put("sparse", tmp_path / "large.png")
    visitor.put("prior", tmp_path / "small.npy")
    told = visitor.run("/api/complete", KIND)["outcome"]
    assert "--resize-prior" in told["recipe"]["command"]
    assert "--scatter-sparse" in told["recipe"]["command"]
    assert any("another size" in note for note in told["notes"])
    base = f"/api/download/{told['revision']}"
    for kind in ("sparse.npy", "prior.npy"):
        (tmp_path / f"photo_{kind}").write_bytes(visitor.get(f"{base}/{kind}"))
    program = told["recipe"]["python"]
    assert program.startswith("# photo_sparse.npy and photo_prior.npy: downloaded")
    names: dict[str, leadline.Completion] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(program.replace("print(result)", ""), names)  # what a reader would run
    assert names["result"].depth.tobytes() == np.load(io.BytesIO(visitor.get(f"{base}/depth.npy"))).tobytes()
