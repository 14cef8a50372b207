"""The error of the best response at each exponent, which shows how well the measurements determine the exponent.

At a fixed exponent the gain and the offset are fitted to residuals in metres, the paper's objective (eq:estimator). The
result is the profile of that objective over the exponent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.bench.metrics import DepthScores, depth_scores
from leadline.core.fit.descent import Problem, Sums, Theta, fixed_coordinate, levenberg_marquardt
from leadline.core.fit.response import Response, forward

Vector = NDArray[np.float64]

FIXED_EXPONENTS = {"disparity": -1.0, "log depth": 0.0, "depth": 1.0}
"""The fixed coordinates and their exponents."""
REACH = 4.0  # exponents from -4 to 4, or to 2 beyond the estimated one
POINTS = 65
MOST_PAIRS = 20_000  # of more pairs an evenly spaced subset is used, since each exponent is a fit of its own
_STEPS, _TOLERANCE = 60, 1e-10


@dataclass(frozen=True, eq=False)
class ExponentProfile:
    """Errors along the exponent, with gain and offset fitted at each.

    Attributes
    ----------
    exponents : (n,) float64
        Increasing; `chosen` and those of `FIXED_EXPONENTS` are among them.
    rmse : (n,) float64
        RMSE in metres at the measurements, which the fit minimises; NaN where no response exists.
    held_out : (n,) float64
        Mean absolute error in metres at the held-out pixels, which the fit does not use; NaN without any.
    chosen : float
        The exponent that was estimated.
    """

    exponents: Vector
    rmse: Vector
    held_out: Vector
    chosen: float

    def at(self, exponent: float) -> tuple[float, float]:
        """RMSE and held-out error at one of the exponents."""
        place = int(np.argmin(np.abs(self.exponents - exponent)))
        return float(self.rmse[place]), float(self.held_out[place])

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        fixed = {}
        for name, exponent in FIXED_EXPONENTS.items():
            rmse, held_out = self.at(exponent)
            fixed[name] = {"exponent": exponent, "rmse": rmse, "held_out_mae": held_out}
        return {
            "chosen": self.chosen,
            "exponents": self.exponents.tolist(),
            "rmse": self.rmse.tolist(),
            "held_out_mae": self.held_out.tolist(),
            "fixed_coordinates": fixed,
        }


class _FixedExponent:
    """The objective of the fit with the exponent held: its gradient is zero, so no step changes it."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.floor = problem, problem.floor

    def __call__(self, theta: Theta) -> Sums:
        cost, gradient, matrix = self.problem(theta)
        gradient, matrix = gradient.copy(), matrix.copy()
        gradient[0] = matrix[0, 1:] = matrix[1:, 0] = 0.0
        matrix[0, 0] = matrix[1, 1]  # any positive number; this one does not change the scale of the damping
        return cost, gradient, matrix


def fit_at_exponent(
    exponent: float, prior: FloatArray, measured: FloatArray, prior_range: tuple[float, float] | None = None
) -> Response:
    """The response of this exponent with the least squared error in metres at the pairs.

    The response is defined over all of `prior_range`. If least squares in the coordinate itself is not, the descent
    starts from the prior times a constant, which a response of every exponent can express.

    Parameters
    ----------
    exponent : float
    prior, measured : (n,) arrays
        Relative prior depth and metric depth (m) of the pairs, positive and finite.
    prior_range : (lowest, highest), optional
        Default: that of the pairs.

    Raises
    ------
    InputError
        There is no pair, or the prior spans too wide a range for the exponent.

    Examples
    --------
    >>> h = np.linspace(1.0, 3.0, 50)
    >>> response = fit_at_exponent(-1.0, h, 1 / (0.2 + 0.1 / h))
    >>> bool(np.allclose(response(h), 1 / (0.2 + 0.1 / h)))
    True
    """
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if not h.size:
        raise InputError(f"{param('prior')} and {param('measured')} must have at least one pair, got none.")
    low, high = prior_range or (float(h.min()), float(h.max()))
    x, y = np.log(h), np.log(s)
    centre, scale = math.exp(float(x.mean())), math.exp(float(y.mean()))
    x, y = x - math.log(centre), y - math.log(scale)
    domain = (math.log(low) - math.log(centre), math.log(high) - math.log(centre))
    objective = _FixedExponent(Problem(x, s / scale, domain))
    theta = fixed_coordinate(x, y, exponent, domain)
    if theta is None:
        # Gain 1 and the offset of the best constant factor: t = k h, which every exponent and prior admits.
        factor = math.log(float((s * h).sum() / (h * h).sum()) * centre / scale)
        theta = np.array([exponent, exponent * factor, float(forward(math.exp(factor), exponent, 1.0))])
    if not math.isfinite(objective(theta)[0]):
        raise InputError(f"the prior spans too wide a range for the exponent {exponent:g}.")
    theta = levenberg_marquardt(objective, theta, _STEPS, _TOLERANCE)[0]
    return Response.from_centred(centre, exponent, math.exp(theta[1]), float(theta[2]), scale)


def exponent_profile(
    prior: FloatArray,
    measured: FloatArray,
    chosen: float,
    *,
    prior_range: tuple[float, float] | None = None,
    held_out: tuple[FloatArray, FloatArray] | None = None,
    exponents: Sequence[float] | None = None,
) -> ExponentProfile:
    """The profile of the fit over the exponent.

    Parameters
    ----------
    prior, measured, prior_range
        As for `fit_at_exponent`.
    chosen : float
        The exponent that was estimated; the profile extends to at least 2 beyond it.
    held_out : (prior, reference), optional
        Two (n,) arrays, at pixels that are scored.
    exponents : sequence of float, optional
        Default: 65 from -4 to 4, or further to include `chosen`.

    Raises
    ------
    InputError
        There is no pair.
    """
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if not h.size:
        raise InputError(f"{param('prior')} and {param('measured')} must have at least one pair, got none.")
    prior_range = prior_range or (float(h.min()), float(h.max()))
    if h.size > MOST_PAIRS:
        subset = np.linspace(0, h.size - 1, MOST_PAIRS).astype(np.intp)
        h, s = h[subset], s[subset]
    if exponents is None:
        exponents = np.linspace(min(-REACH, chosen - 2), max(REACH, chosen + 2), POINTS).tolist()
    grid = np.unique([*exponents, chosen, *FIXED_EXPONENTS.values()])
    rmse, mae = np.full(grid.size, np.nan), np.full(grid.size, np.nan)
    for place, exponent in enumerate(grid):
        try:
            response = fit_at_exponent(float(exponent), h, s, prior_range)
        except InputError:  # the prior's range is too wide for this exponent, which leaves a gap in the profile
            continue
        rmse[place] = _scores(response, h, s).rmse
        if held_out is not None and held_out[0].size:
            mae[place] = _scores(response, *held_out).mae
    return ExponentProfile(grid, rmse, mae, chosen)


def _scores(response: Response, prior: FloatArray, depth: FloatArray) -> DepthScores:
    """The benchmark's depth scores of a response at n pairs, taken as an image of one row."""
    predicted = np.atleast_2d(np.asarray(response(prior), np.float64))
    return depth_scores(predicted, np.atleast_2d(np.asarray(depth, np.float64)), np.ones(predicted.shape, dtype=bool))
