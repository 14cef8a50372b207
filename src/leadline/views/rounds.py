"""Statistics of the rounds in which views are completed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.base.arrays import Float64Array


@dataclass(frozen=True)
class Round:
    """Statistics of a round, means over the views.

    Attributes
    ----------
    number : int
        0 for the completion of each view alone.
    moved : float
        Median change of log depth since the round before; NaN in round 0.
    disagreement : float
        Median of |log D - log C|, where C is the depth of the neighbours carried into the view, from the round before;
        NaN if no view has a neighbour, and for round 0 before round 1 has been computed.
    """

    number: int
    moved: float
    disagreement: float


def with_round(rounds: Sequence[Round], number: int, statistics: Sequence[Float64Array]) -> list[Round]:
    """The rounds with one more, from the numbers of its views.

    They are the change in the round, and the disagreement with the neighbours after and before it.
    """
    table = np.array(statistics, np.float64).reshape(-1, 3)
    known = [column[~np.isnan(column)] for column in table.T]
    moved, after, before = (float(column.mean()) if column.size else math.nan for column in known)
    result = [*rounds[:number], Round(number, moved, after)] if number else list(rounds)
    if number == 1:
        result[0] = Round(0, math.nan, before)
    return result
