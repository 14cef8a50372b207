"""The public surface: names, versions, import time, and that everything the README and the pages show can be run."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What `import leadline` must not load. numba alone takes longer than everything else together.
NOT_LOADED = ("torch", "ray", "matplotlib", "h5py", "tifffile", "OpenEXR", "scipy", "PIL", "numba")

PUBLIC = [
    "Alignment",
    "Camera",
    "Completion",
    "CompletionOptions",
    "Fit",
    "FitOptions",
    "InputError",
    "InputWarning",
    "LeadlineError",
    "Noise",
    "Prior",
    "Reconstruction",
    "ReconstructionOptions",
    "Response",
    "Scene",
    "Stream",
    "StreamResult",
    "Views",
    "__version__",
    "align",
    "complete",
    "warm_up",
]

PAGES_WITH_PYTHON = {  # and the height and width of the maps that they use
    **dict.fromkeys(("README.md", "docs/index.md", "docs/options.md", "docs/pytorch.md", "docs/views.md"), (48, 64)),
    **dict.fromkeys(("docs/beyond.md", "docs/fitting.md", "docs/from-sensor.md", "docs/regions.md"), (48, 64)),
    **dict.fromkeys(("docs/sensors.md", "docs/streams.md"), (480, 640)),
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str, program: str) -> list[str]:
    """Lines of the bash blocks that call `program`, continuation lines joined."""
    lines = "\n".join(fenced(text, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]


def run_python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg", "COLUMNS": "200"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("module", ["leadline", "leadline.apps.cli"])
def test_import_stays_light(module: str) -> None:
    probe = f"import sys, {module}; sys.stdout.write(' '.join(sorted(set({NOT_LOADED!r}) & set(sys.modules))))"
    done = run_python("-c", probe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_public_names() -> None:
    import leadline

    assert sorted(leadline.__all__) == PUBLIC
    assert [name for name in leadline.__all__ if not hasattr(leadline, name)] == []
    assert set(leadline.__all__) <= set(dir(leadline))


def test_the_page_of_the_api_has_the_public_names() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = text.partition("## How it is computed")[0]
    documented = {found.rpartition(".")[2] for found in re.findall(r"^::: (\S+)$", public, flags=re.MULTILINE)}
    assert documented == {name for name in PUBLIC if not name.startswith("_")}


def test_one_version_everywhere() -> None:
    import leadline

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None
    assert leadline.__version__ == declared[1]
    assert f"version: {declared[1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## [{declared[1]}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", commands((ROOT / "README.md").read_text(encoding="utf-8"), "leadline"))
def test_readme_commands_exist(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    done = run_python("-m", "leadline", words[0], "--help")
    assert done.returncode == 0, done.stderr
    offered = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))
    assert {word.split("=")[0] for word in words[1:] if word.startswith("-")} <= offered


@pytest.mark.parametrize("line", commands((ROOT / "README.md").read_text(encoding="utf-8"), "make"))
def test_readme_make_targets_exist(line: str) -> None:
    targets = set(re.findall(r"^([a-z]\w*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
    assert set(named) <= targets


def test_readme_shows_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands(text, "leadline")
    assert commands(text, "make")
    assert fenced(text, "python")


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
def test_python_on_the_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import leadline

    height, width = PAGES_WITH_PYTHON[page]
    rows, columns = np.mgrid[0:height, 0:width]
    prior = (1.0 + 0.02 * rows + 0.3 * np.sin(columns / 9.0)).astype(np.float32)
    sparse = np.zeros_like(prior)
    sparse[::6, ::6] = 2.5 * prior[::6, ::6] ** 1.2
    np.save(tmp_path / "prior.npy", prior)
    np.save(tmp_path / "sparse.npy", sparse)
    monkeypatch.chdir(tmp_path)
    # One namespace for the whole page, as for a reader who types the blocks in order.
    namespace: dict[str, object] = {"__name__": "page"}
    if "import leadline" not in (ROOT / page).read_text(encoding="utf-8"):  # a short example, which uses what it has
        camera, pose = leadline.Camera.from_view_angle(width, height, 60.0), np.eye(4)
        flow = np.zeros((height, width, 2), np.float32)
        frames = {"frames": [(prior, sparse)] * 2, "posed_frames": [(prior, sparse, pose)] * 2}
        namespace |= {"leadline": leadline, "prior": prior, "sparse": sparse, "camera": camera, "pose": pose}
        namespace |= {"flow": flow, **frames}
    for block in fenced((ROOT / page).read_text(encoding="utf-8"), "python"):
        exec(compile(block, page, "exec"), namespace)


def test_sessions_on_the_page_of_files_are_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testfile(str(ROOT / "docs" / "files.md"), module_relative=False) == (0, 11)


@pytest.mark.parametrize("path", EXAMPLES, ids=relative)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    quick = ("--steps", "2") if path.stem == "train_through_completion" else ()
    done = run_python(str(path), *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


CODE_COLUMN = 100  # characters of code that fit the column of the docs on a desktop


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=relative)
def test_code_fits_the_column(page: Path) -> None:
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    # The output of a doctest is as it is.
    assert [line for line in lines if len(line) > CODE_COLUMN and not line.startswith(("leadline.base", "unit "))] == []


def test_extras_are_those_of_the_install_page() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(
        re.findall(r"^([\w-]+) = \[", text.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M)
    )
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == extras - {"dev", "docs", "bench"}
    # Extras that errors name must exist.
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r'MissingExtra\("[^"]+", "([\w-]+)"', sources)) <= extras
