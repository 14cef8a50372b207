"""The error of the best map for each exponent: how well the measurements tell the exponent at all.

At a fixed exponent the gain and the offset are fitted to residuals in metres, the paper's objective (eq:estimator), by
Gauss-Newton steps with damping in (log gain, offset). The result is the profile of that objective over the exponent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.core.fit.response import Response, forward, slope

Vector = NDArray[np.float64]

MEMBERS = {"disparity": -1.0, "log depth": 0.0, "depth": 1.0}
"""The fixed coordinates and their exponents."""
REACH, POINTS = 4.0, 65  # exponents from -4 to 4, or as far as 2 beyond the one that was chosen
MOST_PAIRS = 20_000  # more are thinned evenly: each exponent fits all of them anew
_STEPS, _TOLERANCE = 60, 1e-10


@dataclass(frozen=True, eq=False)
class ExponentProfile:
    """Errors along the exponent, gain and offset refitted at each.

    Attributes
    ----------
    exponents : (n,) float64
        Increasing; `chosen` and those of `MEMBERS` are among them.
    rmse : (n,) float64
        Metres, at the measurements: what the fit minimises.
    held_out : (n,) float64
        Mean absolute error in metres at the held-out pixels, which the fit does not see; NaN without any.
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
        return {
            "chosen": self.chosen,
            "exponents": self.exponents.tolist(),
            "rmse": self.rmse.tolist(),
            "held_out_mae": self.held_out.tolist(),
            "members": {
                name: dict(zip(("exponent", "rmse", "held_out_mae"), (exponent, *self.at(exponent)), strict=True))
                for name, exponent in MEMBERS.items()
            },
        }


def fit_at(
    exponent: float, prior: FloatArray, measured: FloatArray, prior_range: tuple[float, float] | None = None
) -> Response:
    """The response of this exponent whose depth is nearest to the measurements, in metres.

    It maps all of `prior_range`. Where least squares in the coordinate itself does not, the descent begins at the
    prior times a constant, which every exponent can express.

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
        There is no pair.

    Examples
    --------
    >>> h = np.linspace(1.0, 3.0, 50)
    >>> found = fit_at(-1.0, h, 1 / (0.2 + 0.1 / h))
    >>> bool(np.allclose(found(h), 1 / (0.2 + 0.1 / h)))
    True
    """
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if not h.size:
        raise InputError("`prior` and `measured` must hold at least one pair, got none.")
    low, high = prior_range or (float(h.min()), float(h.max()))
    centre, scale = (math.exp(float(np.log(values).mean())) for values in (h, s))
    u = forward(h, exponent, centre)
    theta = _start(exponent, u, forward(s, exponent, scale))

    def evaluate(theta: Vector) -> tuple[float, Vector, Vector] | None:
        """Cost, J^T r and J^T J, or None where the map is not defined."""
        if not (np.isfinite(theta).all() and abs(theta[0]) < 700):
            return None
        response = Response.about(centre, exponent, math.exp(theta[0]), float(theta[1]), scale)
        if not response.feasible(low, high):
            return None
        t = np.asarray(response(h), np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # of extreme trials, which are refused
            rows = np.stack((math.exp(theta[0]) * u, np.ones_like(u))) / slope(t, exponent, scale)
            residual = t - s
            cost, gradient = float((residual * residual).sum()), (rows * residual).sum(axis=1)
            matrix = (rows[:, np.newaxis] * rows).sum(axis=2)
        return (cost, gradient, matrix) if np.isfinite(matrix).all() and math.isfinite(cost) else None

    state = evaluate(theta)
    if state is None:
        # gain 1 and the offset of the best constant factor: t = k h, defined for every exponent and prior.
        factor = math.log(float((s * h).sum() / (h * h).sum()) * centre / scale)
        theta = np.array([exponent * factor, float(forward(math.exp(factor), exponent, 1.0))])
        state = evaluate(theta)
    if state is None:
        raise InputError(f"the prior spans too wide a range for the exponent {exponent:g}.")
    theta = _descend(theta, state, evaluate)
    return Response.about(centre, exponent, math.exp(theta[0]), float(theta[1]), scale)


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
        As for `fit_at`.
    chosen : float
        The exponent that was estimated; the profile reaches at least 2 beyond it.
    held_out : (prior, reference), optional
        At pixels that are scored.
    exponents : sequence of float, optional
        Default: 65 from -4 to 4, or as far as is needed.
    """
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    low, high = prior_range or (float(h.min()), float(h.max())) if h.size else (1.0, 1.0)
    if h.size > MOST_PAIRS:
        kept = np.linspace(0, h.size - 1, MOST_PAIRS).astype(np.intp)
        h, s = h[kept], s[kept]
    if exponents is None:
        exponents = np.linspace(min(-REACH, chosen - 2), max(REACH, chosen + 2), POINTS).tolist()
    grid = np.unique([*exponents, chosen, *MEMBERS.values()])
    rmse, error = np.full(grid.size, np.nan), np.full(grid.size, np.nan)
    for place, exponent in enumerate(grid):
        try:
            response = fit_at(float(exponent), h, s, (low, high))
        except InputError:
            if not h.size:
                raise
            continue  # out of range for this exponent: a gap
        rmse[place] = math.sqrt(float(np.mean((response(h) - s) ** 2)))
        if held_out is not None and held_out[0].size:
            error[place] = float(np.nanmean(np.abs(response(held_out[0]) - held_out[1])))
    return ExponentProfile(grid, rmse, error, chosen)


def _start(exponent: float, u: Vector, v: Vector) -> Vector:
    """Least squares in the coordinate itself; NaN where its gain is not positive."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        centred = u - u.mean()
        gain = float((centred * v).sum()) / float((centred * centred).sum() or math.nan)
        return np.array([math.log(gain) if gain > 0 else math.nan, float(v.mean() - gain * u.mean())])


def _descend(theta: Vector, state: tuple[float, Vector, Vector], evaluate: Any) -> Vector:
    cost, gradient, matrix = state
    damping = 1e-6 * float(matrix.diagonal().max())
    for _ in range(_STEPS):
        try:
            step = -np.linalg.solve(matrix + damping * np.eye(2), gradient)
        except np.linalg.LinAlgError:
            return theta
        trial = evaluate(theta + step)
        if trial is not None and trial[0] < cost:
            theta, gain = theta + step, (cost - trial[0]) / cost
            cost, gradient, matrix = trial
            damping /= 10
            if gain < _TOLERANCE:
                return theta
        else:
            damping *= 10
            if damping > 1e12 * float(matrix.diagonal().max()):
                return theta
    return theta
