"""The figures of the paper, and the source that they are drawn from: a run, CSV files, or published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.base.errors import InputError
from leadline.base.registry import Registry, suggestion
from leadline.bench.published.numbers import PAPER_PRIOR, published_results
from leadline.bench.records import Record, RecordStatus, RecordStore
from leadline.bench.results import Results, pool
from leadline.report.figures.exported import read_exported
from leadline.report.image_results import ImageCase

if TYPE_CHECKING:
    from leadline.report.figures.plotting import Drawing

_SCORES, _IMAGES, _COST = (f"{__name__}.{part}" for part in ("scores", "single_images", "cost"))
FIGURES = Registry(
    "figure",
    {
        "regions": f"{_IMAGES}:regions",
        "motivation": f"{_IMAGES}:motivation",
        "near-linear": f"{_IMAGES}:near_linear",
        "macro": f"{_SCORES}:macro",
        "subsets": f"{_SCORES}:subsets",
        "qualitative": f"{_IMAGES}:qualitative",
        "percentiles": f"{_SCORES}:percentiles",
        "stages": f"{_SCORES}:stages",
        "stage-normals": f"{_SCORES}:stage_normals",
        "weights": f"{_SCORES}:weights",
        "coverage": f"{_COST}:coverage",
        "speed": f"{_COST}:speed",
    },
    "names",
)
"""The functions that draw the figures; the first line of each docstring says what its figure shows."""


@dataclass(frozen=True)
class Source:
    """The records of a run, the CSV files that were exported from one, or published numbers."""

    results: Results  # distributions of scores
    prior: str  # label of the prior that figures show
    records: tuple[Record, ...] = ()  # of a run only
    folder: Path | None = None  # the run; None if there is none
    image: str | None = None  # what figures of single images show; None leaves the choice to the rule of each figure
    case: str | None = None  # as `image`
    largest_error: float | None = None  # metres at which error maps end; None leaves it to each figure

    def image_cases(self) -> list[ImageCase]:
        """Images and cases of the run with this prior, restricted to `image` and `case`, in the run's order."""
        if self.folder is None:
            raise InputError("the figure needs the images of a run; CSV files and published numbers have none.")
        ran = [record for record in self.records if record.prior == self.prior]
        images = dict.fromkeys(record.image for record in ran)
        if self.image is not None and self.image not in images:
            first = f"its first images are {', '.join(list(images)[:5])}."
            raise InputError(f"the run has no image {self.image!r}; {suggestion(self.image, images, first)}")
        found = dict.fromkeys(
            ImageCase.of(record)
            for record in ran
            if self.image in (None, record.image) and self.case in (None, record.case)
        )
        if not found:
            raise InputError(f"the run has no record of the prior {self.prior!r} for that image and case.")
        return list(found)

    def records_of(self, image_case: ImageCase) -> dict[str, Record]:
        """The records with a score of an image and case, by method."""
        return {
            record.method: record
            for record in self.records
            if ImageCase.of(record) == image_case and record.status == RecordStatus.OK
        }


def run_source(
    folder: Path,
    *,
    prior: str | None = None,
    cases: Sequence[str] = (),
    image: str | None = None,
    largest_error: float | None = None,
) -> Source:
    """The records of a run with a prior, by default the first that has scores.

    Only the records of `cases` are used, by default all; the figures of one image show the first case, and `image`.
    Their error maps end at `largest_error` metres, by default where each figure chooses.
    """
    with RecordStore(folder) as store:
        labels = {column: store.labels(column) for column in ("dataset", "prior", "method", "case")}
        records = store.records()
    if not records:
        raise InputError(f"{folder}: the run has no records yet; 'leadline bench run' continues it.")
    for what, wanted in (("prior", [] if prior is None else [prior]), ("case", cases)):
        for label in wanted:
            if label not in labels[what]:
                raise InputError(f"{folder}: the run has no {what} {label!r}; it has {', '.join(labels[what])}.")
    kept = tuple(record for record in records if not cases or record.case in cases)
    results = pool(kept, subsets=labels["dataset"], priors=labels["prior"], methods=labels["method"])
    case = cases[0] if cases else None
    return Source(results, prior or results.first_prior, kept, Path(folder), image, case, largest_error)


def exported_source(folder: Path, *, prior: str | None = None) -> tuple[Source, tuple[str, ...]]:
    """The numbers in the CSV files of a folder, and the names of missing files.

    The prior is by default the first that has scores.
    """
    results, missing = read_exported(folder)
    return Source(results, _known_prior(results, prior, f"{folder}: the files have")), missing


def published_source(*, prior: str | None = None) -> Source:
    """The paper's published numbers with a prior, by default the one of its figures."""
    results = published_results()
    return Source(results, _known_prior(results, prior or PAPER_PRIOR, "the paper has"))


def _known_prior(results: Results, prior: str | None, has: str) -> str:
    if prior is not None and prior not in results.priors:
        raise InputError(f"{has} no prior {prior!r}; {suggestion(prior, results.priors)}")
    if not results.priors:
        raise InputError(f"{has} no row with a score.")
    return prior or results.first_prior


def draw(name: str, source: Source) -> Drawing:
    """One figure; an `InputError` says what the source lacks for it."""
    drawing: Drawing = FIGURES.load(name)(source)
    return drawing


def describe(name: str) -> str:
    """One line about what a figure shows."""
    return str(FIGURES.load(name).__doc__).partition("\n")[0]
