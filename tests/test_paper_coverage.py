"""docs/paper.md: it names every equation, table and figure of the paper, and only functions that exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from support.paths import SHARED

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
ITEM = re.compile(r"\\label\{((?:eq|tab|fig):[^}]+)\}")


def test_every_equation_table_and_figure_is_listed() -> None:
    paper = SHARED / "paper" / "paper.tex"
    if not paper.is_file():
        pytest.skip(f"the paper's source is not at {paper}")
    labels = set(ITEM.findall(paper.read_text(encoding="utf-8")))
    listed = set(re.findall(r"`((?:eq|tab|fig):[^`]+)`", PAGE.read_text(encoding="utf-8")))
    assert labels
    assert labels == listed


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(leadline(?:\.\w+)+)`", PAGE.read_text(encoding="utf-8")))))
def test_named_function_exists(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} is not importable")
