"""The convention of a benchmark: which pixels are scored, and how the scores of images become one number.

Two evaluations of the same predictions give different numbers if they score other pixels or average differently, so
numbers of different conventions are never shown in one column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param, require_choice
from leadline.bench.metrics import Missing
from leadline.bench.observations import Observations

Pixels = Literal["held-out", "valid"]
Aggregate = Literal["median", "mean-images", "mean-pixels"]
CaseGroups = Literal["pooled", "separate"]

_PIXELS = {
    "held-out": "pixels with a reference that were not measured",
    "valid": "all pixels with a reference, measured ones included",
}
_MISSING = {
    "exclude": "pixels without a prediction left out",
    "fail": "an image with a pixel without a prediction fails",
    "penalise": "a missing prediction counts as depth 0",
}
_STATISTICS = {"median": "p50", "mean-images": "mean over images", "mean-pixels": "mean over pixels"}


@dataclass(frozen=True)
class Scoring:
    """The convention of a run. The defaults are those of the paper.

    pixels : {"held-out", "valid"}
        Score the pixels with a reference that were not measured, or all pixels with a reference. In the cases
        ``central`` and ``outer``, both are limited to the removed region.
    aggregate : {"median", "mean-images", "mean-pixels"}
        The number of a table: the median over images, the mean over images, or the mean over all their pixels. The
        RMSE over pixels is the root of the mean over pixels.
    missing : {"exclude", "fail", "penalise"}
        What to do with scored pixels without a prediction: leave them out, let the image fail, or score them as depth 0
        and inverse depth 0. Normals are always scored where they exist.
    cases : {"pooled", "separate"}
        Pool the cases of a data set into one row, or make a row of each, labelled ``LABEL, CASE``.
    min_depth, max_depth : float, optional
        Score only pixels whose reference lies strictly between these, in metres.
    """

    pixels: Pixels = "held-out"
    aggregate: Aggregate = "median"
    missing: Missing = "exclude"
    cases: CaseGroups = "pooled"
    min_depth: float | None = None
    max_depth: float | None = None

    def __post_init__(self) -> None:
        require_choice("pixels", self.pixels, Pixels)
        require_choice("aggregate", self.aggregate, Aggregate)
        require_choice("missing", self.missing, Missing)
        require_choice("cases", self.cases, CaseGroups)
        low, high = self._range
        if not 0 <= low < high:
            raise InputError(
                f"{param('min_depth')} must be at least 0 m and below {param('max_depth')}, got {self.min_depth!r} and "
                f"{self.max_depth!r}."
            )

    @property
    def _range(self) -> tuple[float, float]:
        low, high = self.min_depth, self.max_depth
        return 0.0 if low is None else low, math.inf if high is None else high

    @property
    def per_image(self) -> tuple[Pixels, Missing, float, float]:
        """What determines the scores of an image; runs that differ in it cannot be compared."""
        return self.pixels, self.missing, *self._range

    @property
    def statistic(self) -> str:
        """The number that tables show, as their titles name it."""
        return _STATISTICS[self.aggregate]

    def mask(self, observations: Observations, reference: FloatArray) -> BoolArray:
        """The pixels to score, (H, W), before missing predictions are considered; `reference` is in metres."""
        mask = observations.scored if self.pixels == "held-out" else observations.region
        if self.min_depth is None and self.max_depth is None:
            return mask
        low, high = self._range
        with np.errstate(invalid="ignore"):
            return np.asarray(mask & (reference > low) & (reference < high))

    def describe(self) -> str:
        """The convention as a sentence for the caption of a table.

        Examples
        --------
        >>> Scoring().describe()
        'Scored: pixels with a reference that were not measured; pixels without a prediction left out; p50 over images and cases.'
        """  # noqa: E501
        low, high = self._range
        limits = f" of {low:g} to {high:g} m" if math.isfinite(high) else f" beyond {low:g} m" if low else ""
        images = {"median": " over images"}.get(self.aggregate, "")
        cases = " and cases" if self.cases == "pooled" else ", each case on its own"
        return f"Scored: {_PIXELS[self.pixels]}{limits}; {_MISSING[self.missing]}; {self.statistic}{images}{cases}."


PAPER_SCORING = Scoring()


def require_same_scoring(first: Scoring, second: Scoring) -> None:
    """Refuse to compare scores of images that were computed by different conventions."""
    if first.per_image != second.per_image:
        raise InputError(
            "The two runs cannot be compared, because they were scored by different conventions: "
            f"'{first.describe()}' and '{second.describe()}'"
        )


def require_papers_scoring(scoring: Scoring) -> None:
    """Refuse to show a run beside the paper's numbers if it was scored by another convention."""
    if scoring != PAPER_SCORING:
        raise InputError(
            f"The run is not scored as the paper's tables are, so they are not shown beside it: '{scoring.describe()}' "
            f"instead of '{PAPER_SCORING.describe()}' {param('field')} shows numbers of other projects."
        )
