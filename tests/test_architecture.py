"""The rules of ARCHITECTURE.md, one test each, checked on the syntax trees of all modules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

PACKAGE = ROOT / "src" / "leadline"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each package may import itself and those before it. "" is leadline/__init__.py, which only re-exports public names.
LAYERS = (
    *("base", "geometry", "core", "torch", "", "io", "views", "priors", "methods"),
    *("datasets", "bench", "report", "batch", "apps"),
)
# The public names of leadline/__init__.py are loaded on first use and may come from any package up to this one.
PUBLIC_UP_TO = "datasets"

# Slow to import or optional: imported only inside the function that needs them ...
LAZY = {
    *("torch", "transformers", "huggingface_hub", "onnxruntime", "ray", "matplotlib", "PIL"),
    *("h5py", "tifffile", "OpenEXR", "laspy", "cv2", "pycolmap", "rosbags", "jinja2", "starlette", "uvicorn"),
    "open3d",
}
# ... and these only in the packages whose business they are.
HOME = {
    "torch": {"torch", "priors", "methods"},
    "ray": {"base"},
    "matplotlib": {"report"},
    "open3d": {"report"},
    "jinja2": {"report"},
    "click": {"apps"},
    "rich": {"bench", "apps"},
    "starlette": {"apps"},
    "uvicorn": {"apps"},
}
MAX_LINES = 400
MAX_MODULES = 15
# Words of an earlier, private vocabulary, each with the term of the field to use in its place.
PLAIN_WORDS = {
    "aloud": "with a warning",
    "vetted": "screened",
    "platecycle": "thin-plate cycle",
    "soundings": "measurements",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def source_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) > 1:
        return parts[0]
    return {"__init__": "", "__main__": "apps"}.get(parts[0], parts[0])


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
    own = layer_of(path)
    highest = LAYERS.index(own or PUBLIC_UP_TO)
    found = []
    for line, name in imports(ast.parse(source), path):
        parts = name.split(".")
        if parts[0] == "leadline":
            target = parts[1] if len(parts) > 1 and parts[1] in LAYERS else ""
            if LAYERS.index(target) > highest:
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


def message_texts(source: str) -> Iterator[tuple[int, str]]:
    """String constants of the code, docstrings left out."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def calls(source: str, *names: str) -> list[int]:
    """Lines that call a function of one of the names."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]


def offenders(rule: Callable[[str, Path], object], modules: Iterable[Path] = MODULES) -> dict[str, object]:
    """What `rule`, given the source and the path, finds wrong in each module; modules with nothing are left out."""
    found = {relative(path): rule(source_of(path), path) for path in modules}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(path) for path in MODULES} == set(LAYERS)


def test_imports_go_one_way() -> None:
    assert offenders(upward_imports) == {}


@pytest.mark.parametrize(
    ("where", "source", "upward"),
    [
        ("core/a.py", "import leadline.bench", 1),
        ("core/a.py", "from leadline import apps", 1),
        ("core/a.py", "import leadline", 1),
        ("core/a.py", "from ..io import depth", 1),
        ("core/a.py", "if TYPE_CHECKING:\n    from leadline.report import x", 1),
        ("core/a.py", "def f():\n    from leadline.methods.x import y", 1),
        ("core/a.py", "from . import b\nfrom .b import c\nimport numpy", 0),
        ("apps/a.py", "from leadline.core import b\nimport leadline", 0),
        ("__init__.py", "from .core.prior import Prior", 0),
        ("__init__.py", "from .apps import cli", 1),
    ],
)
def test_the_check_sees_upward_imports(where: str, source: str, upward: int) -> None:
    assert len(upward_imports(source, PACKAGE / where)) == upward


def test_heavy_packages_are_imported_lazily() -> None:
    outside_torch = [path for path in MODULES if layer_of(path) != "torch"]  # imported only by its users
    assert offenders(eager_imports, outside_torch) == {}


@pytest.mark.parametrize(
    ("source", "eager"),
    [
        ("import onnxruntime.capi", 1),
        ("try:\n    from PIL import Image\nexcept ImportError:\n    pass", 1),
        ("class A:\n    import h5py", 1),
        ("if TYPE_CHECKING:\n    import h5py\nelse:\n    import torch", 1),
        ("def f():\n    import torch", 0),
        ("if TYPE_CHECKING:\n    from PIL import Image", 0),
    ],
)
def test_the_check_sees_eager_imports(source: str, eager: int) -> None:
    assert len(eager_imports(source, PACKAGE / "core" / "a.py")) == eager


def test_optional_packages_stay_in_their_place() -> None:
    def astray(source: str, path: Path) -> set[str]:
        used = {name.split(".")[0] for _, name in imports(ast.parse(source), path)}
        return {package for package in used & HOME.keys() if layer_of(path) not in HOME[package]}

    assert offenders(astray) == {}


def test_the_library_knows_no_flags() -> None:
    """Messages mark parameters with `param`; each front end prints its own word for them."""
    programs = ("pip ", "git ", "conda ", "nerfstudio: ")  # advice to run another program names that program's flags

    def flags(source: str, path: Path) -> list[tuple[int, str]]:
        found = [(line, text) for line, text in message_texts(source) if re.search(r"(?<![\w-])--[a-z]{2}", text)]
        return [(line, text) for line, text in found if not any(program in text for program in programs)]

    assert offenders(flags, (path for path in MODULES if layer_of(path) != "apps")) == {}


def test_the_library_prints_nothing() -> None:
    assert offenders(lambda source, path: calls(source, "print")) == {}


def test_untrusted_files_are_never_unpickled_or_executed() -> None:
    def unsafe(source: str, path: Path) -> list[object]:
        used = {name.split(".")[0] for _, name in imports(ast.parse(source), path)}
        pickles = sorted(used & {"pickle", "marshal", "shelve", "dill"})
        # base/jit.py makes functions from a text of its own, with the parameters of a kernel.
        executed = [] if path == PACKAGE / "base" / "jit.py" else calls(source, "eval", "exec")
        return [*executed, *pickles, *re.findall("allow_pickle=True", source)]

    assert offenders(unsafe) == {}


def test_modules_are_short_and_named_for_what_they_hold() -> None:
    assert {path.stem for path in MODULES} & {"util", "utils", "helper", "helpers", "misc", "common"} == set()
    lengths = {relative(path): len(source_of(path).splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_package_has_too_many_modules() -> None:
    sizes = Counter(relative(path.parent) for path in MODULES if path.stem != "__init__")
    assert {package: size for package, size in sizes.items() if size > MAX_MODULES} == {}


def test_words_are_those_of_the_field() -> None:
    def private(source: str, path: Path) -> dict[str, str]:
        words = set(re.findall(r"[a-z]+", source.lower()))
        return {word: better for word, better in PLAIN_WORDS.items() if word in words}

    assert offenders(private) == {}
