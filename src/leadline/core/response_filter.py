"""The response over the frames of a stream: what of its movement is noise, and when the scene is another one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.core.fit.descent import spread_out
from leadline.core.fit.estimator import Fit
from leadline.core.fit.normal_equations import log_rows, robust_residuals
from leadline.core.fit.response import Response, in_domain, remainder
from leadline.core.fit.robust import effective_count
from leadline.core.options import FitOptions
from leadline.core.pipeline import Pairs

Values = NDArray[np.float64]  # (3,): log depth at the knots
Matrix = NDArray[np.float64]  # (3, 3)

KNOTS = (0.1, 0.5, 0.9)  # quantiles of the prior at the measured pixels
MEMORY = 30  # frames over which the movement of the response is averaged
LEARNT = 4  # changes before the filter acts: from fewer, noise and movement cannot be told apart
# A prediction is another scene's if it is farther from the frame's own fit than FAR standard deviations, and leaves
# residuals larger than that by the factor CUT. Both: with few measurements a fit leaves next to none, and at extreme
# exponents, where the map is far from linear in its parameters, a covariance can be too small by orders of magnitude.
FAR, CUT = 5.0, 1.2
JUMP = 3.0  # standard deviations of the fit; a jump beyond counts as one of this size, however far it goes
SMALLEST_NOISE = 1e-6  # share of the fit's covariance: a camera on a tripod shows the same frame again and again
ROUNDING = 1e-6  # of the covariance's trace: knots that lie close together say nearly the same
STEPS, EXACT, SHORTEST = 20, 1e-7, 1e-3  # of Newton's way to the response through given values; EXACT in log depth
REACHED = 1e-3  # log depth: values that no response comes this near to are of none


class ResponseFilter:
    """A Kalman filter on the response: a random walk, seen through each frame's fit.

    (exponent, gain, offset) mean something only beside the means that they are written about, and trade off along
    curved valleys: the mean of -3 and -30 need not be near either. What is filtered is therefore what they say, the log
    depth at three knots, the deciles 1, 5 and 9 of the prior where it is measured; the response is then the one through
    the filtered values. There are two predictions, and the one that has been nearer to the fits so far is taken:

    - the map stays: the last response, at this frame's knots. So it is with a prior of a steady gauge, wherever the
      camera turns.
    - the picture stays: the last values, at the same quantiles. So it is with a prior whose scale, shift or other
      monotone gauge changes from frame to frame, while what it shows does not.

    The fit's covariance C, for as many independent pairs as the residuals' agreement within tiles of the image leaves,
    bounds its noise from above, since a network's errors stay from frame to frame. The noise is s C and the walk's step
    q C, with s and q from the fits' changes d between frames: a walk seen through white noise has E|d|^2 = q + 2 s and
    E d d' = -s for neighbouring changes, in units of C (Mehra, 1970, estimates them from innovations likewise). What
    moves to and fro is thus smoothed, and what moves on is followed.

    If neither prediction suits the frame nearly as well as its own fit, there was a cut: the fit is taken, and the walk
    begins anew.
    """

    def __init__(self) -> None:
        self._state: _State | None = None
        self._fitted: _State | None = None  # of the last frame alone
        self._frame: _Frame | None = None
        self._movement = _Movement()

    def __call__(self, pairs: Pairs, fit: Fit, options: FitOptions) -> tuple[Fit, bool, float]:
        """The fit with the filtered response, whether there was a cut, and the share of the fit in it."""
        state, last = self._state, self._fitted
        fitted = self.begin(pairs, fit, options)
        frame = self._frame
        if fitted is None or state is None or last is None or frame is None:
            # What cannot be weighed is not filtered, and nothing after it is predicted from it.
            self._movement = _Movement()
            return fit, False, 1.0
        movement, predictions = self._movement, state.predictions(fitted.knots)
        others = (state.response, None)  # the map's, and the picture's, which takes longer and is seldom needed
        likely = (k for k in movement.nearest() if fitted.is_near(predictions[k], others[k], frame, fit.rmse))
        chosen = next(likely, None)
        if chosen is None:
            movement.interrupt()
            return fit, True, 1.0
        predicted = predictions[chosen]
        movement.add(fitted.log_depth - last.predictions(fitted.knots), fitted.covariance)
        if movement.count < LEARNT:
            return fit, False, 1.0
        noise, step = movement.noise_and_step(chosen)
        before = state.covariance + step * movement.unit
        gain = np.linalg.solve(before + noise * fitted.covariance, before).T
        response = _through(predicted + gain @ (fitted.log_depth - predicted), fitted, frame.ends)
        log_depth, _ = _at(response, fitted.knots)
        self._state = replace(fitted, response=response, log_depth=log_depth, covariance=before - gain @ before)
        return replace(fit, response=response, rmse=frame.rmse(response)), False, float(np.trace(gain)) / 3.0

    def begin(self, pairs: Pairs, fit: Fit, options: FitOptions) -> _State | None:
        """Go on from a frame's own fit."""
        self._state = self._fitted = None
        if fit.information is not None:
            self._frame = _Frame.of(pairs, self._frame)
            self._state = self._fitted = _State.of(self._frame, fit, options)
        return self._state


@dataclass(frozen=True, eq=False)
class _Frame:
    """The pairs of a frame as the filter reads them."""

    where: NDArray[np.intp]
    shape: tuple[int, ...]
    some: NDArray[np.intp] | slice  # pairs all over the image, enough to see how far they err alike
    tiles: NDArray[np.intp]  # that these lie in
    prior: NDArray[np.float64]
    log_prior: NDArray[np.float64]
    measured: NDArray[np.float64]
    ends: tuple[float, float]  # of the prior, in the whole image

    @classmethod
    def of(cls, pairs: Pairs, last: _Frame | None) -> _Frame:
        where, shape = pairs.where, pairs.prior.shape
        h, s = pairs.prior.ravel()[where].astype(np.float64), pairs.measured.astype(np.float64)
        if last is not None and last.shape == shape and np.array_equal(last.where, where):
            return replace(last, prior=h, log_prior=np.log(h), measured=s, ends=pairs.ends)
        chosen = spread_out(where.size)
        some = slice(None) if chosen is None else chosen
        return cls(where, shape, some, pairs.tiles()[some], h, np.log(h), s, pairs.ends)

    def effective(self, response: Response) -> float:
        """How many independent pairs would know as much as these; at most as many as are looked at.

        Where errors are alike within a tile, more pairs know no more.
        """
        return effective_count(self._residuals(response, self.some), self.tiles)

    def rmse(self, response: Response) -> float:
        """In metres; NaN if the response cannot map the whole prior."""
        if not response.feasible(*self.ends):
            return math.nan
        residuals = self._residuals(response, slice(None))
        return math.sqrt(float((residuals * residuals).sum()) / residuals.size)

    def _residuals(self, response: Response, which: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        x = self.log_prior[which] - math.log(response.centred[0])  # type: ignore[index]
        q = np.empty(x.size)
        robust_residuals(x, np.zeros(x.size), *_numbers(response), True, q)  # -log(t / scale)
        residuals: NDArray[np.float64] = self.measured[which] - response.scale * np.exp(-q)
        return residuals


@dataclass(frozen=True, eq=False)
class _State:
    """A response, what it says at the knots of its frame, and how certain that is."""

    response: Response
    knots: Values  # prior depths
    log_depth: Values
    covariance: Matrix  # of `log_depth`

    @classmethod
    def of(cls, frame: _Frame, fit: Fit, options: FitOptions) -> _State | None:
        """Of a frame's own fit; None if its covariance is of no use."""
        if fit.information is None:
            return None
        ranks = [int(quantile * frame.prior.size) for quantile in KNOTS]
        knots = np.partition(frame.prior, ranks)[ranks]
        log_depth, slopes = _at(fit.response, knots)
        try:
            covariance = slopes @ np.linalg.solve(fit.information, slopes.T)
            if options.least_squares:  # other fits have looked at the tiles themselves
                covariance *= fit.count / frame.effective(fit.response)
            covariance = 0.5 * (covariance + covariance.T) + ROUNDING * covariance.trace() * np.eye(3)
            usable = np.isfinite(np.linalg.cholesky(covariance)).all()
        except np.linalg.LinAlgError:
            return None
        return cls(fit.response, knots, log_depth, covariance) if usable else None

    def is_near(self, log_depth: Values, response: Response | None, frame: _Frame, rmse: float) -> bool:
        """Whether a prediction may be of this frame's scene, its own fit being this and leaving residuals of `rmse`.

        `response` is the one through `log_depth`, if it is known.
        """
        gap = log_depth - self.log_depth
        if not np.isfinite(gap).all():  # outside of its response's domain
            return False
        if float(gap @ np.linalg.solve(self.covariance, gap)) <= FAR**2:
            return True
        response = response or _through(log_depth, self, frame.ends)
        reached = np.abs(_at(response, self.knots)[0] - log_depth).max() <= REACHED
        return bool(reached) and frame.rmse(response) <= CUT * rmse

    def predictions(self, knots: Values) -> NDArray[np.float64]:
        """What the next frame's fit will say at its knots, (2, 3): if the map stays, and if the picture stays."""
        return np.stack((_at(self.response, knots)[0], self.log_depth))


class _Movement:
    """How the fits move between frames, for both predictions: running means in units of the fits' covariance."""

    def __init__(self) -> None:
        self.count = 0
        self.unit = np.zeros((3, 3))  # the covariance, averaged
        self._last = np.zeros((2, 3))
        self._square, self._product = np.zeros(2), np.zeros(2)

    def add(self, change: NDArray[np.float64], covariance: Matrix) -> None:
        """One more change, (2, 3) in log depth, of a fit of that covariance."""
        self.count += 1
        weight = max(1.0 / self.count, 1.0 / MEMORY)
        self.unit = self.unit + weight * (covariance - self.unit)
        d = np.linalg.solve(np.linalg.cholesky(self.unit), change.T).T
        for k in range(2):
            size = math.sqrt(float(d[k] @ d[k]) / 3.0)
            d[k] = d[k] / max(size / JUMP, 1.0) if math.isfinite(size) else JUMP
        self._square += weight * ((d * d).sum(axis=1) / 3.0 - self._square)
        self._product += weight * ((d * self._last).sum(axis=1) / 3.0 - self._product)
        self._last = d

    def interrupt(self) -> None:
        """The next change has nothing to do with the last."""
        self._last = np.zeros((2, 3))

    def nearest(self) -> list[int]:
        """The predictions, the one that has been nearer to the fits first."""
        return [int(prediction) for prediction in np.argsort(self._square, kind="stable")]

    def noise_and_step(self, prediction: int) -> tuple[float, float]:
        """s and q, see `ResponseFilter`."""
        noise = min(max(-float(self._product[prediction]), SMALLEST_NOISE), 1.0)
        return noise, max(float(self._square[prediction]) - 2.0 * noise, 0.0)


def _numbers(response: Response) -> tuple[float, float, float, float]:
    """Exponent, gain, offset and remainder about the response's centre, as the kernels take them."""
    _, gain, offset = response.centred  # type: ignore[misc]
    return response.exponent, gain, offset, remainder(response.exponent, gain, offset)


def _at(response: Response, h: Values) -> tuple[Values, Matrix]:
    """log t and its derivatives in (exponent, log a, b) of `response.centred`, a row for each h; NaN out of domain."""
    if not response.feasible(float(h.min()), float(h.max())):
        return np.full(3, np.nan), np.full((3, 3), np.nan)
    rows = np.empty((4, h.size))
    log_rows(np.log(h / response.centred[0]), np.zeros(h.size), *_numbers(response), rows)  # type: ignore[index]
    return math.log(response.scale) - rows[0], -rows[1:].T


def _through(log_depth: Values, fitted: _State, ends: tuple[float, float]) -> Response:
    """The response through these log depths at the knots, found from the fitted one and defined between the ends.

    By Newton's method, its steps halved until they lead nearer; as near as that comes if there is no such response.
    """
    near = fitted.response
    centre, gain, offset = near.centred  # type: ignore[misc]
    x, target = np.log(fitted.knots / centre), log_depth - math.log(near.scale)
    domain = math.log(ends[0] / centre), math.log(ends[1] / centre)
    theta, rows, trial = np.array([near.exponent, math.log(gain), offset]), np.empty((4, 3)), np.empty((4, 3))
    log_rows(x, target, *_numbers(near), rows)
    for _ in range(STEPS):
        off = float(np.abs(rows[0]).max())
        if not off > EXACT:
            break
        try:
            step = np.linalg.solve(rows[1:].T, -rows[0])
        except np.linalg.LinAlgError:
            break
        share = 1.0
        while share > SHORTEST:
            exponent, log_gain, offset = (theta + share * step).tolist()
            if abs(log_gain) < 700 and in_domain(exponent, math.exp(log_gain), offset, *domain):
                gain = math.exp(log_gain)
                log_rows(x, target, exponent, gain, offset, remainder(exponent, gain, offset), trial)
                if float(np.abs(trial[0]).max()) < off:
                    break
            share *= 0.5
        else:
            break
        theta = theta + share * step
        rows, trial = trial, rows
    exponent, log_gain, offset = theta.tolist()
    return Response.about(centre, exponent, math.exp(log_gain), offset, near.scale)
