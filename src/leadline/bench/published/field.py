"""Published numbers of other projects, beside those of a run that was scored by the same convention.

``bench/field/scores.csv`` has the numbers, in metres and 1/km, by the labels and cases of the packaged protocols.
``bench/field/sources.toml`` says where each was read and how its project scores. A number whose source could not be
read is not in these files. Numbers of a project that has not published its evaluation have a table of their own.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import NamedTuple

from leadline.base.errors import InputError, param
from leadline.bench.results import Results
from leadline.bench.scoring import Scoring
from leadline.bench.tables import DEPTH_METRICS, HEADS, Block, Column, Row, Table

NAME = "field"
UNKNOWN = "Scored: not published, so that no run can be compared with these numbers."


@dataclass(frozen=True)
class FieldSource:
    """Where numbers were read, and their convention."""

    citation: str
    place: str  # the file and the table in it
    date: str  # of the table, or of the version that was read
    code: str  # the files that compute such numbers
    scoring: Scoring | None  # None: not published

    def __str__(self) -> str:
        return f"{self.citation}; {self.place}, {self.date}."


class FieldScore(NamedTuple):
    """One published number."""

    dataset: str  # label and case of a packaged protocol
    case: str
    method: str
    images: int | None  # how many it is about, if that is stated
    metric: str
    printed: str  # the number in metres, 1/km, or as a share, with its published decimals
    source: str  # key of the source

    @property
    def subset(self) -> str:
        """The label of the row in the results of a run."""
        return f"{self.dataset}, {self.case}"


def field_sources() -> dict[str, FieldSource]:
    """The sources by their keys."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found = {}
    for key, entry in tomllib.loads(_text("sources.toml")).items():
        text = {name: entry.pop(name) for name in ("citation", "place", "date", "code")}
        # All of these methods predict every pixel, so that any rule but leaving pixels out gives their numbers.
        scoring = Scoring(**entry, missing="penalise", cases="separate") if entry else None
        found[key] = FieldSource(**text, scoring=scoring)
    return found


def field_scores() -> list[FieldScore]:
    """All published numbers.

    Examples
    --------
    >>> sorted({score.method for score in field_scores() if score.dataset == "ETH3D-SfM indoor"})
    ['OMNI-DC v1.0', 'OMNI-DC v1.1']
    """
    rows = csv.DictReader(_text("scores.csv").splitlines())
    return [
        FieldScore(
            row["dataset"],
            row["case"],
            row["method"],
            int(row["images"]) if row["images"] else None,
            row["metric"],
            row["value"],
            row["source"],
        )
        for row in rows
    ]


def field_tables() -> list[Table]:
    """All published numbers, one table per convention."""
    sources, scores = field_sources(), field_scores()
    tables = []
    for scoring in dict.fromkeys(source.scoring for source in sources.values()):
        own = [score for score in scores if sources[score.source].scoring == scoring]
        tables.append(_table("Published numbers", own, sources, None, scoring))
    return tables


def beside_field(run: Results) -> Table:
    """The run's numbers below the published ones of the same data, measurements and convention."""
    scoring, sources = run.scoring, field_sources()
    if scoring.missing == "exclude":
        raise InputError(
            "The run leaves pixels without a prediction out of its scores, which no published number does; run the "
            f"protocol with {param('missing')} = 'penalise' or 'fail' to compare it with the field."
        )
    wanted = replace(scoring, missing="penalise", cases="separate")
    scores = [score for score in field_scores() if sources[score.source].scoring == wanted]
    own = [score for score in scores if score.subset in run.subsets]
    if not own:
        labels = dict.fromkeys(score.subset for score in scores)
        known = f"there are numbers for {'; '.join(labels)}" if labels else "there are no numbers of this convention"
        raise InputError(
            f"No published number belongs to this run ({'; '.join(run.subsets)}). {scoring.describe()} By it, {known}."
        )
    return _table("This run beside published numbers", own, sources, run, scoring)


def _table(
    title: str,
    scores: Sequence[FieldScore],
    sources: dict[str, FieldSource],
    run: Results | None,
    scoring: Scoring | None,
) -> Table:
    cited = list(dict.fromkeys(score.source for score in scores))
    metrics = [metric for metric in DEPTH_METRICS if any(score.metric == metric for score in scores)]
    blocks, partial = [], []
    for subset in dict.fromkeys(score.subset for score in scores):
        own = [score for score in scores if score.subset == subset]
        rows = [_published_row(method, own, metrics, cited) for method in dict.fromkeys(s.method for s in own)]
        if run is not None:
            found = list(_run_rows(run, subset, metrics))
            counts = {row.values[-1] for row in found}
            published = {float(score.images) for score in own if score.images is not None}
            if published and counts - published:
                partial.append(subset)
            rows += found
        blocks.append(Block(subset, tuple(rows)))
    notes = [f"[{number}] {sources[key]}" for number, key in enumerate(cited, start=1)]
    if partial:
        notes.append(f"The run has scores of other numbers of images than were published for {'; '.join(partial)}.")
    columns = (*(Column("", HEADS[metric], metric) for metric in metrics), Column("", "images"))
    convention = UNKNOWN if scoring is None else scoring.describe()
    return Table(NAME, title, "method", columns, tuple(blocks), "", tuple(notes), convention)


def _published_row(method: str, scores: Iterable[FieldScore], metrics: Sequence[str], cited: Sequence[str]) -> Row:
    own = {score.metric: score for score in scores if score.method == method}
    values = [own[metric].printed if metric in own else math.nan for metric in metrics]
    first = next(iter(own.values()))
    images = math.nan if first.images is None else float(first.images)
    return Row(f"{method} [{cited.index(first.source) + 1}]", (*values, images))


def _run_rows(run: Results, subset: str, metrics: Sequence[str]) -> Iterable[Row]:
    for prior in run.priors:
        for method in run.methods:
            values = [run.value(prior, method, subset, metric) for metric in metrics]
            if not all(map(math.isnan, values)):
                yield Row(f"{method} with {prior}", (*values, float(run.count(prior, method, subset, metrics[0]))))


def _text(name: str) -> str:
    return (files("leadline.bench") / "field" / name).read_text(encoding="utf-8")
