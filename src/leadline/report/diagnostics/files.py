"""The files of a diagnosis: its numbers as JSON, its plots as PNG, SVG and PDF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.base.errors import InputError
from leadline.report.diagnostics import plots
from leadline.report.diagnostics.diagnosis import Diagnosis
from leadline.report.figures.plotting import save_figure, save_numbers
from leadline.report.image_results import ImageResults


@dataclass(frozen=True)
class DiagnosisFiles:
    """The JSON file and one PNG file per plot, and the reason if there is no plot of point groups."""

    paths: tuple[Path, ...]
    no_groups: str = ""


def write_diagnosis(diagnosis: Diagnosis, results: ImageResults, folder: Path) -> DiagnosisFiles:
    """Write ``diagnosis.json`` and the plots ``linearity``, ``response``, ``errors`` and ``groups``.

    Raises
    ------
    FileError
        The folder cannot be created or written.
    MissingExtra
        matplotlib is not installed.
    """
    numbers = diagnosis.to_dict()
    figures = {
        "linearity": plots.plot_linearity(results, diagnosis.linearity),
        "response": plots.plot_response(diagnosis),
        "errors": plots.plot_errors(diagnosis),
    }
    no_groups = ""
    try:
        groups = plots.plot_point_groups(results)
        figures["groups"], numbers["groups"] = groups.figure, groups.numbers
    except InputError as error:
        no_groups = str(error)
    paths = [save_numbers(numbers, folder, "diagnosis")]
    paths += [save_figure(figure, folder, name)[0] for name, figure in figures.items()]
    return DiagnosisFiles(tuple(paths), no_groups)
