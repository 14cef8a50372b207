"""The release: sdist and wheel, installed into an empty environment outside of the checkout and used from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline import __version__
from support.paths import DATA, ROOT

pytestmark = pytest.mark.slow
SCENE = DATA / "eth3d_prior_pair" / "madpose_view0"


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"XDG_CACHE_HOME": str(cwd / "cache"), "NO_COLOR": "1"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from the sdist."""
    pytest.importorskip("build", reason="needs the extra 'dev'")
    pytest.importorskip("hatchling", reason="needs the extra 'dev'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return {path.suffix: path for path in folder.iterdir() if path.suffix in (".gz", ".whl")}


@pytest.fixture(scope="module")
def installed(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and its dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run([*pip, str(archives[".whl"])], cwd=folder, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr and not os.environ.get("CI"):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return programs


def test_the_archives_are_complete(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("leadline/")}
    tracked = subprocess.run(["git", "ls-files", "src/leadline"], cwd=ROOT, capture_output=True, text=True).stdout
    if tracked:  # not so in an unpacked sdist
        assert {name.removeprefix("src/") for name in tracked.split()} <= packed
    assert not [name for name in packed if "__pycache__" in name or name.endswith((".nbi", ".nbc"))]
    with tarfile.open(archives[".gz"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"} <= names
    assert {"tests/conftest.py", "docs/index.md", "examples/tour.ipynb", "mkdocs.yml"} <= names


def test_the_wheel_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    leadline = installed / "leadline"
    assert run(leadline, "--version", cwd=tmp_path) == f"leadline {__version__}\n"
    where = run(installed / "python", "-c", "import leadline; print(leadline.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)

    # The first run compiles the kernels, which takes most of the time of this test.
    shown = run(leadline, "demo", "--width", "160", "--height", "120", cwd=tmp_path)
    assert "AbsRel" in shown
    assert list((tmp_path / "leadline-demo").glob("*.png"))

    if not SCENE.is_dir():
        pytest.skip("the demo ran; the real scenes are not here")
    files = (SCENE / "rgb0.png", "--sparse", SCENE / "sparse_sfm_u16.png", "--unit", "0.0001")
    run(leadline, "complete", *files, "--prior", SCENE / "prior0_da_metric.npy", "--format", "npy", cwd=tmp_path)
    depth = np.load(tmp_path / "leadline-out" / "rgb0_depth.npy")
    with Image.open(SCENE / "sparse_sfm_u16.png") as opened:
        measured = np.asarray(opened).astype(np.float32) * 1e-4
    np.testing.assert_allclose(depth[measured > 0], measured[measured > 0], rtol=1e-6)
