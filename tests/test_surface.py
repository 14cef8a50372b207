"""The project's outer shape: layers, imports, public names, and that what the texts show can be run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.paths import ROOT

PACKAGE = ROOT / "src" / "leadline"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Each layer may import itself and what stands before it. "" is leadline/__init__.py, which only re-exports the core.
LAYERS = ("core", "", "sensors", "priors", "methods", "datasets", "bench", "report", "apps")
ENTRY_POINTS = {"__main__": "apps"}

# Slow to import, or optional: only ever inside the function that needs them ...
LAZY = {
    *("torch", "transformers", "huggingface_hub", "onnxruntime", "ray", "matplotlib", "scipy", "PIL"),
    *("h5py", "tifffile", "OpenEXR", "laspy", "pycolmap", "rosbags"),
}
# ... and these only in the layers whose business they are.
AT_HOME = {
    "torch": {"priors", "methods"},
    "ray": {"bench"},
    "matplotlib": {"report", "apps"},
}
# What `import leadline` must not load. numba alone takes longer than everything else together.
NOT_LOADED = ("torch", "ray", "matplotlib", "h5py", "tifffile", "OpenEXR", "scipy", "PIL", "numba")

PUBLIC = [
    "Camera",
    "Completion",
    "CompletionOptions",
    "Fit",
    "FitOptions",
    "InputError",
    "LeadlineError",
    "Noise",
    "Prior",
    "Reconstruction",
    "ReconstructionOptions",
    "Response",
    "Scene",
    "Stream",
    "StreamResult",
    "__version__",
    "complete",
]

MAX_LINES = 400
PAGES_WITH_PYTHON = ("README.md", "docs/index.md", "docs/options.md")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) > 1:
        return parts[0]
    return "" if parts[0] == "__init__" else ENTRY_POINTS.get(parts[0], parts[0])


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import; `from a import b` gives a.b, because b may be a module."""
    package = ("leadline", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def upward_imports(source: str, path: Path) -> list[str]:
    """Imports in `source` that go against the order of LAYERS."""
    own = LAYERS.index(layer_of(path))
    found = []
    for line, name in imports(ast.parse(source), path):
        parts = name.split(".")
        if parts[0] == "leadline":
            target = parts[1] if len(parts) > 1 and parts[1] in LAYERS else ""
            if LAYERS.index(target) > own:
                found.append(f"line {line}: {name}")
    return found


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: no function bodies, nothing under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (part for branch in child.orelse for part in [branch, *run_at_import(branch)])
            continue
        yield child
        yield from run_at_import(child)


def eager_imports(source: str, path: Path) -> list[str]:
    """Imports of LAZY packages that run with the module itself."""
    found = []
    for node in run_at_import(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [f"line {line}: {name}" for line, name in imports(node, path) if name.split(".")[0] in LAZY]
    return found


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


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    assert layer_of(path) in LAYERS, f"{relative(path)} belongs to no layer"
    assert upward_imports(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("where", "source", "upward"),
    [
        ("core/a.py", "import leadline.bench", 1),
        ("core/a.py", "from leadline import apps", 1),
        ("core/a.py", "import leadline", 1),
        ("core/a.py", "from ..sensors import depth", 1),
        ("core/a.py", "if TYPE_CHECKING:\n    from leadline.report import x", 1),
        ("core/a.py", "def f():\n    from leadline.methods.x import y", 1),
        ("core/a.py", "from . import b\nfrom .b import c\nimport numpy", 0),
        ("apps/a.py", "from leadline.core import b\nimport leadline", 0),
        ("__init__.py", "from .core.types import Prior", 0),
        ("__init__.py", "from .apps import cli", 1),
    ],
)
def test_the_check_sees_upward_imports(where: str, source: str, upward: int) -> None:
    assert len(upward_imports(source, PACKAGE / where)) == upward


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_heavy_packages_are_imported_lazily(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert eager_imports(source, path) == []
    used = {name.split(".")[0] for _, name in imports(ast.parse(source), path)}
    astray = {package for package in used & AT_HOME.keys() if layer_of(path) not in AT_HOME[package]}
    assert astray == set()


@pytest.mark.parametrize(
    ("source", "eager"),
    [
        ("import scipy.sparse", 1),
        ("try:\n    from PIL import Image\nexcept ImportError:\n    pass", 1),
        ("class A:\n    import h5py", 1),
        ("if TYPE_CHECKING:\n    import h5py\nelse:\n    import torch", 1),
        ("def f():\n    import torch", 0),
        ("if TYPE_CHECKING:\n    from PIL import Image", 0),
    ],
)
def test_the_check_sees_eager_imports(source: str, eager: int) -> None:
    assert len(eager_imports(source, PACKAGE / "core" / "a.py")) == eager


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


def test_one_version_everywhere() -> None:
    import leadline

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None
    assert leadline.__version__ == declared[1]
    assert f"version: {declared[1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## [{declared[1]}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_house_rules(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    prints = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []
    assert path.stem not in {"util", "utils", "helper", "helpers", "misc", "common"}
    assert len(source.splitlines()) <= MAX_LINES


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
    rows, columns = np.mgrid[0:48, 0:64]
    prior = (1.0 + 0.02 * rows + 0.3 * np.sin(columns / 9.0)).astype(np.float32)
    sparse = np.zeros_like(prior)
    sparse[::6, ::6] = 2.5 * prior[::6, ::6] ** 1.2
    np.save(tmp_path / "prior.npy", prior)
    np.save(tmp_path / "sparse.npy", sparse)
    monkeypatch.chdir(tmp_path)
    # One namespace for the whole page, as for a reader who types the blocks in order.
    namespace: dict[str, object] = {"__name__": "page"}
    for block in fenced((ROOT / page).read_text(encoding="utf-8"), "python"):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("path", EXAMPLES, ids=relative)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    done = run_python(str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
