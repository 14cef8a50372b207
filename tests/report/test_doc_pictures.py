"""The pictures of the docs: each is made by a script, and each that a script makes is there."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess

import numpy as np
import pytest
from PIL import Image

from support.paths import ROOT

SCRIPTS = tuple(sorted((ROOT / "docs").glob("make_*.py")))
MEASURED = {  # by benchmarks, from real scenes or on an idle machine
    *("speed", "which-density", "which-noise", "which-quality", "lost-desk"),
}


def texts(script):
    """All strings of a script, with those between the parts of f-strings."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.fixture
def load(monkeypatch):
    """Run a script but for its main part, as if it were started: its folder comes first in the search for modules."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return lambda script: runpy.run_path(str(script), run_name="loaded")


def test_every_picture_is_made_by_a_script():
    made = {text.removesuffix(".png") for text in set().union(*map(texts, SCRIPTS))}
    # The names of the figures are made from those of the command.
    made |= {f"figure-{name}" for name in made if re.fullmatch(r"[a-z-]+", name)} if "figure-" in made else set()
    pictures = {path.stem for path in (ROOT / "docs" / "images").iterdir()}
    assert pictures >= MEASURED
    assert pictures - MEASURED <= made


def test_every_picture_is_shown_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = set().union(*(re.findall(r"images/([\w-]+\.\w+)", page.read_text(encoding="utf-8")) for page in pages))
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} <= shown


def test_one_command_runs_all_scripts():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\npictures:")[2].partition("\n\n")[0]
    assert re.findall(r"docs/(make_\w+\.py)", recipe) == [path.name for path in SCRIPTS]


def test_one_command_measures_the_tables_again(tmp_path):
    """The benchmarks that `make tables` runs are there, and so are those that a page names."""

    def programs() -> list[str]:
        given = (f"TABLES={tmp_path}", "DATA=scenes", "NETWORK=net.onnx", "FRAMES=frames")
        done = subprocess.run(["make", "--dry-run", "tables", *given], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return re.findall(r"benchmarks/(\w+)\.py", done.stdout)

    run = programs()
    assert len(run) >= 12
    (tmp_path / "sensors.txt").touch()
    assert programs() == [name for name in run if name != "sensors"]  # a finished step is not run again
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = set().union(*(re.findall(r"benchmarks/(\w+)\.py", page.read_text(encoding="utf-8")) for page in pages))
    assert {*run, *named} <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_the_scripts_import_is_there(script, load):
    """Loading a script makes no picture, but fails if a name that it imports has moved; mypy checks the rest."""
    if "playwright" in script.read_text(encoding="utf-8"):
        pytest.importorskip("starlette")
    assert callable(load(script)["output_folder"])


def test_pictures_are_limited_in_size(tmp_path, load):
    save = load(ROOT / "docs" / "picture_files.py")["save"]
    noise = np.random.default_rng(0).integers(0, 256, (60, 3000, 3), np.uint8)
    save(Image.fromarray(noise), tmp_path / "wide.jpg")
    with Image.open(tmp_path / "wide.jpg") as written:
        assert written.size == (1400, 28)
    with pytest.raises(ValueError, match=r"large.jpg has \d+ bytes"):
        save(Image.fromarray(np.tile(noise[:, :1000], (15, 1, 1))), tmp_path / "large.jpg")


def guides():
    """The pages under "Guides" in the navigation of the docs."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"[\w/-]+\.md", text.partition("- Guides:")[2].partition("- Method and evidence:")[0])


def test_there_are_guides():
    assert len(guides()) > 15


@pytest.mark.parametrize("name", guides())
def test_every_guide_starts_with_a_command_and_its_picture(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    start = page.partition("\n## ")[0]
    command, picture = start.find("```"), start.find("](images/")
    assert command >= 0
    if not name.startswith("priors/"):  # networks, of which no picture can be made without their weights
        assert command < picture


def test_the_scripts_lidar_stands_beside_the_camera(tmp_path, monkeypatch, load):
    monkeypatch.chdir(tmp_path)
    script = load(ROOT / "docs" / "make_pictures.py")
    points = script["sweep"]()
    assert points.shape == (script["BEAMS"] * script["STEPS"], 3)
    assert np.isfinite(points).any()
    assert json.loads((tmp_path / "T.json").read_text(encoding="utf-8"))[0][3] == script["BESIDE"]
