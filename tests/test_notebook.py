"""The notebook of the tour: it runs from top to bottom, and its outputs are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.paths import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs the extra 'dev'")
nbclient = pytest.importorskip("nbclient", reason="needs the extra 'dev'")
pytest.importorskip("ipykernel", reason="needs the extra 'dev'")

TOUR = ROOT / "examples" / "tour.ipynb"
PATIENCE = 600  # seconds a cell may take before it counts as hung; the first one may compile
# What a reader must have seen at the end.
SHOWN = ("measurements", "within one sigma", "of the", "points, AbsRel", "system reused", "best ")


@pytest.mark.slow
# The packages of Jupyter warn about each other.
@pytest.mark.filterwarnings("default::DeprecationWarning", "default::RuntimeWarning", "default::ResourceWarning")
@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert [words for words in SHOWN if words not in text] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4


def test_its_outputs_are_stripped() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []


def test_its_lines_fit_the_column_of_the_docs() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    lines = [line for cell in notebook.cells if cell.cell_type == "code" for line in cell.source.splitlines()]
    assert [line for line in lines if len(line) > 100] == []
