"""`leadline doctor`: versions, threads, extras, caches and a self-test, ready for a bug report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from leadline.apps.terminal.commands import announce_compiling, grouped_command, run_option

# Extras that only repeat others, or that only developers need.
_NOT_SHOWN = frozenset({"all", "dev", "docs", "bench"})


@grouped_command(
    epilog="""\b
Examples:
  leadline doctor
  leadline doctor --no-self-test

\b
Exit code: 0 all is well; 1 a part of the self-test failed.
"""
)
@run_option("--self-test/--no-self-test", default=True, help="Complete a rendered scene and check the result.")
def command(self_test: bool) -> int:
    """Print what a bug report needs: versions, threads, installed extras, caches, and a self-test of some seconds."""
    for name, value in (*_versions(), *_extras().items(), *_caches()):
        click.echo(f"{name:<22} {value}")
    if not self_test:
        return 0
    from leadline.batch.frame import ensure_compiled
    from leadline.batch.self_test import run_self_test
    from leadline.core.options import CompletionOptions

    ensure_compiled(CompletionOptions.best(), announce_compiling)
    passed = True
    for check in run_self_test():
        passed &= check.passed
        click.echo(f"{f'test {check.name}':<22} {'ok' if check.passed else 'FAILED'}: {check.text}")
    return 0 if passed else 1


def _versions() -> Iterator[tuple[str, str]]:
    import platform

    import llvmlite  # type: ignore[import-untyped]
    import numba
    import numpy
    import scipy

    from leadline.base.executors import available_cores
    from leadline.batch.outcome import package_version

    yield "leadline", package_version()
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    yield "processor", f"{llvmlite.binding.get_host_cpu_name()}, {available_cores()} cores available"
    yield "numpy, scipy", f"{numpy.__version__}, {scipy.__version__}"
    yield "numba, llvmlite", f"{numba.__version__}, {llvmlite.__version__}"
    yield "threads", str(numba.get_num_threads())
    yield "threading layer", numba.threading_layer()  # known only after the call above has started the threads


def _extras() -> dict[str, str]:
    """The packages of each extra with their installed versions, from the metadata of the installed package."""
    from importlib import metadata

    found: dict[str, list[tuple[str, str | None, bool]]] = {}  # name, version, whether it is for one system only
    try:
        requirements = metadata.requires("leadline") or []
    except metadata.PackageNotFoundError:
        return {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if extra is None or extra[1] in _NOT_SHOWN or name is None or name[0] == "leadline":
            continue
        try:
            version = metadata.version(name[0])
        except metadata.PackageNotFoundError:
            version = None
        found.setdefault(f"extra {extra[1]}", []).append((name[0], version, "sys_platform" in requirement))
    return {extra: _describe_packages(packages) for extra, packages in found.items()}


def _describe_packages(packages: list[tuple[str, str | None, bool]]) -> str:
    """Names and versions; of packages that are each for another system, one is enough."""
    enough = any(version is not None and one_system for _, version, one_system in packages)
    return ", ".join(
        f"{name} {version or 'missing'}"
        for name, version, one_system in packages
        if version is not None or not (one_system and enough)
    )


def _caches() -> Iterator[tuple[str, str]]:
    from leadline.core.compilation import is_compiled
    from leadline.priors.predictor import default_cache_folder

    states = (f"{name} {'compiled' if is_compiled(name) else 'not compiled yet'}" for name in ("best", "paper"))
    yield "kernels", ", ".join(states)
    yield "cached predictions", _describe(default_cache_folder())


def _describe(folder: Path) -> str:
    """A folder with the number and size of its files, without the name of the user."""
    shown = folder
    if folder.is_relative_to(Path.home()):
        shown = "~" / folder.relative_to(Path.home())
    if not folder.is_dir():
        return f"none in {shown}"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 2**20:.1f} MB in {shown}"
