"""The list of figures, and the source that they are drawn from: a run, or published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.base.errors import InputError
from leadline.base.registry import Registry, suggestion
from leadline.bench.records import Record, RecordStatus, RecordStore
from leadline.bench.results import PAPER_PRIOR, Results, pool, published_results
from leadline.report.figures.plotting import Drawing
from leadline.report.image_results import ImageCase

_SCORES, _IMAGES, _COST = (f"leadline.report.figures.{part}" for part in ("scores", "single_images", "cost"))
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
    """The records of a run, or published numbers.

    Attributes
    ----------
    results : Results
        Distributions of scores.
    prior : str
        Label of the prior that figures show.
    records : tuple of Record
        Empty for published numbers.
    folder : path or None
        The run; None for published numbers.
    image, case : str or None
        What figures of single images show; None leaves the choice to the rule of each figure.
    """

    results: Results
    prior: str
    records: tuple[Record, ...] = ()
    folder: Path | None = None
    image: str | None = None
    case: str | None = None

    def image_cases(self) -> list[ImageCase]:
        """Images and cases of the run with this prior, restricted to `image` and `case`, in the run's order.

        Raises
        ------
        InputError
            There is none.
        """
        if self.folder is None:
            raise InputError("the figure needs the images of a run; published numbers have none.")
        ran = [record for record in self.records if record.prior == self.prior]
        images = dict.fromkeys(record.image for record in ran)
        if self.image is not None and self.image not in images:
            first = f"its first images are {', '.join(list(images)[:5])}."
            raise InputError(f"the run has no image {self.image!r}; {suggestion(self.image, images, first)}")
        found = dict.fromkeys(
            ImageCase(record.dataset, record.image, record.case, record.prior)
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
            if (record.dataset, record.image, record.case, record.prior) == image_case
            and record.status == RecordStatus.OK
        }


def run_source(
    folder: Path,
    *,
    prior: str | None = None,
    cases: Sequence[str] = (),
    image: str | None = None,
) -> Source:
    """The records of a run.

    Parameters
    ----------
    folder : path
    prior : label, optional
        Default: the first.
    cases : labels, optional
        Pool only these; the figures of one image show the first of them. Default: all.
    image : name, optional
        For the figures of one image.

    Raises
    ------
    FileError
        The folder holds no run.
    InputError
        It has no such prior or case, or no records yet.
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
    kept = [record for record in records if not cases or record.case in cases]
    results = pool(kept, subsets=labels["dataset"], priors=labels["prior"], methods=labels["method"])
    case = cases[0] if cases else None
    return Source(results, prior or labels["prior"][0], tuple(kept), Path(folder), image, case)


def published_source() -> Source:
    """The paper's published numbers."""
    return Source(published_results(), PAPER_PRIOR)


def draw(name: str, source: Source) -> Drawing:
    """One figure.

    Raises
    ------
    InputError
        There is no such figure, or the source lacks what it is drawn from; the message says what is missing.
    LeadlineError
        matplotlib is not installed, or the data of the run cannot be read.
    """
    drawing: Drawing = FIGURES.load(name)(source)
    return drawing


def describe(name: str) -> str:
    """What a figure shows, in a line."""
    return str(FIGURES.load(name).__doc__).partition("\n")[0]
