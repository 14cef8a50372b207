"""The paper's figures from a run: their list, and what they are drawn from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from leadline.base.errors import InputError
from leadline.bench.paper import PRIOR, published
from leadline.bench.records import Record, RecordStore
from leadline.bench.results import Results, pool
from leadline.report.figures.plotting import Drawing
from leadline.report.trial import Place

_SCORES, _SCENES, _COST = (f"leadline.report.figures_{part}" for part in ("scores", "scenes", "cost"))
FIGURES: dict[str, tuple[str, str]] = {
    "regions": (
        f"{_SCENES}:regions",
        "groups of points with lines of their own, and one response (fig:response-regions)",
    ),
    "motivation": (f"{_SCENES}:motivation", "what fixed coordinates leave over on one image (fig:motivation)"),
    "near-linear": (f"{_SCENES}:near_linear", "the same where they fit well already (fig:arkit)"),
    "macro": (f"{_SCORES}:macro", "depth and normal error over all subsets (fig:joint, a)"),
    "subsets": (f"{_SCORES}:subsets", "depth and normal error per subset (fig:joint, b)"),
    "qualitative": (f"{_SCENES}:qualitative", "depth errors and normals of one image (fig:qualitative)"),
    "percentiles": (f"{_SCORES}:percentiles", "seven percentiles per subset (fig:percentiles)"),
    "stages": (f"{_SCORES}:stages", "depth before and after the residual (fig:stages)"),
    "stage-normals": (f"{_SCORES}:stage_normals", "normals before and after the residual (fig:stage-normals)"),
    "weights": (f"{_SCORES}:weights", "the residual's weights (fig:sensitivity)"),
    "coverage": (f"{_COST}:coverage", "error against the number of measurements"),
    "speed": (f"{_COST}:speed", "error against the seconds per image"),
}
"""Each figure's name, the function that draws it, imported when it is used, and what it shows."""


@dataclass(frozen=True)
class Source:
    """What figures are drawn from: the records of a run, or published numbers.

    `folder` is None for the latter, which have neither records nor pixels. `image` and `case` choose what the figures
    of one image show; None leaves it to each figure's own rule.
    """

    results: Results
    prior: str
    records: tuple[Record, ...] = ()
    folder: Path | None = None
    image: str | None = None
    case: str | None = None

    def places(self) -> list[Place]:
        """Where the run has records with this prior, as far as `image` and `case` allow, in the run's order.

        Raises
        ------
        InputError
            There is none.
        """
        if self.folder is None:
            raise InputError("published numbers have no pixels; give a run.")
        ran = [record for record in self.records if record.prior == self.prior]
        images = dict.fromkeys(record.image for record in ran)
        if self.image is not None and self.image not in images:
            close = difflib.get_close_matches(self.image, images, n=2) or list(images)[:5]
            raise InputError(f"the run has no image {self.image!r}; did you mean {' or '.join(close)}?")
        found = dict.fromkeys(
            Place(record.dataset, record.image, record.case, record.prior)
            for record in ran
            if self.image in (None, record.image) and self.case in (None, record.case)
        )
        if not found:
            raise InputError(f"the run has no record of the prior {self.prior!r} for that image and case.")
        return list(found)

    def at(self, place: Place) -> dict[str, Record]:
        """The records of a place that have a score, by method."""
        return {
            record.method: record
            for record in self.records
            if (record.dataset, record.image, record.case, record.prior) == place and record.status == "ok"
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
        raise InputError(f"{folder}: the run has no records yet; 'leadline bench run' goes on with it.")
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
    return Source(published(), PRIOR)


def draw(name: str, source: Source) -> Drawing:
    """One figure.

    Raises
    ------
    InputError
        There is no such figure, or the source has nothing to draw it from: the sentence says what is missing.
    LeadlineError
        matplotlib is not installed, or the data of the run cannot be read.
    """
    check_names([name])
    module, _, attribute = FIGURES[name][0].partition(":")
    function: Callable[[Source], Drawing] = getattr(import_module(module), attribute)
    return function(source)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that are no figure.

    Raises
    ------
    InputError
        With the names that are close to it.

    Examples
    --------
    >>> check_names(["macro", "weigths"])
    Traceback (most recent call last):
    leadline.core.types.InputError: there is no figure 'weigths': did you mean weights?
    """
    for name in names:
        if name not in FIGURES:
            close = difflib.get_close_matches(name, FIGURES, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(FIGURES)}."
            raise InputError(f"there is no figure {name!r}: {hint}")
