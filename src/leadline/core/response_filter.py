"""A Kalman filter of the response over the frames of a stream, with detection of scene cuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from leadline.base.arrays import Float64Array, IndexArray
from leadline.core.fit.descent import strided_subset
from leadline.core.fit.estimator import Fit
from leadline.core.fit.normal_equations import log_rows, robust_residuals
from leadline.core.fit.response import Response, in_domain, remainder
from leadline.core.fit.robust import effective_count
from leadline.core.inputs import Pairs
from leadline.core.options import FitOptions

Values = Float64Array  # (3,): log depth at the knots
Matrix = Float64Array  # (3, 3)

KNOT_QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles of the prior at the measured pixels at which the state is defined."""
MEMORY = 30
"""Frames over which the statistics of the changes are averaged."""
MIN_CHANGES = 4
"""Changes before the filter acts; from fewer, noise and movement cannot be distinguished."""
MAX_DISTANCE, MAX_RMSE_RATIO = 5.0, 1.2
"""A prediction is rejected, which means a cut, if its Mahalanobis distance from the frame's own fit and its RMSE
relative to that fit both exceed these bounds. Both are needed: with few measurements a fit leaves almost no residuals,
and at extreme exponents, where the map is far from linear in its parameters, the covariance can be too small by orders
of magnitude."""
MAX_CHANGE = 3.0
"""Standard deviations of the fit to which a change is clipped before it enters the statistics."""
MIN_NOISE = 1e-6
"""Smallest noise relative to the fit's covariance; a camera on a tripod repeats the same frame."""
REGULARISATION = 1e-6
"""Multiple of the covariance's trace that is added to its diagonal, because knots that lie close together are almost
linearly dependent."""
NEWTON_ITERATIONS = 20
NEWTON_TOLERANCE = 1e-7  # log depth
MIN_STEP = 1e-3  # shortest fraction of a Newton step that is tried
MAX_MISS = 1e-3  # log depth; values that no response meets to this accuracy do not belong to a response


class ResponseFilter:
    """Filters the response of a stream: a random walk that is observed through each frame's fit.

    **State.** (exponent, gain, offset) depend on the geometric means they are defined about and are correlated along
    curved valleys, so that the mean of two good parameter sets need not be good. The state is therefore the log depth
    at three knots, the 10, 50 and 90 % quantiles of the prior at the measured pixels. The filtered response
    passes through the filtered values.

    **Prediction.** There are two candidates; the one that has been closer to the fits so far is used.

    - *Same map*: the last response evaluated at this frame's knots. This is right for a prior with a stable scale,
      however the camera moves.
    - *Same image*: the last values at the same quantiles. This is right for a prior whose scale, shift or other
      monotone gauge changes from frame to frame while the scene does not.

    **Covariances.** Let C be the covariance of the frame's fit, for the effective number of independent pairs. The
    observation noise is modelled as s C, with s <= 1 because part of a network's error repeats from frame to frame, and
    the process noise as q C. s and q follow from the changes d of the fits between frames, measured in units of C: for
    a random walk observed with white noise, E|d|^2 = q + 2 s, and E d d' = -s for consecutive changes (Mehra, 1970,
    estimates them from innovations in the same way). Fluctuations are thus smoothed and trends are followed.

    **Cut.** If neither prediction fits the frame nearly as well as its own fit, the filter restarts from that fit.
    """

    def __init__(self) -> None:
        self._state: _State | None = None  # after the last update
        self._observed: _State | None = None  # from the last frame's own fit
        self._frame: _Frame | None = None
        self._changes = _ChangeStatistics()

    def __call__(self, pairs: Pairs, fit: Fit, options: FitOptions) -> tuple[Fit, bool, float]:
        """The fit with the filtered response, whether there was a cut, and the mean weight of the fit in the update."""
        state, last = self._state, self._observed
        observed = self.begin(pairs, fit, options)
        frame = self._frame
        if observed is None or state is None or last is None or frame is None:
            # A fit without a covariance is not filtered, and nothing is predicted from it.
            self._changes = _ChangeStatistics()
            return fit, False, 1.0
        changes, predictions = self._changes, state.predictions(observed.knots)
        responses = (state.response, None)  # the second prediction's response is expensive and seldom needed
        plausible = (
            k for k in changes.by_accuracy() if observed.is_plausible(predictions[k], responses[k], frame, fit.rmse)
        )
        chosen = next(plausible, None)
        if chosen is None:
            changes.interrupt()
            return fit, True, 1.0
        predicted = predictions[chosen]
        changes.add(observed.log_depth - last.predictions(observed.knots), observed.covariance)
        if changes.count < MIN_CHANGES:
            return fit, False, 1.0
        noise, process_noise = changes.noise_parameters(chosen)
        covariance = state.covariance + process_noise * changes.unit
        update_weight = np.linalg.solve(covariance + noise * observed.covariance, covariance).T  # the Kalman gain
        values = predicted + update_weight @ (observed.log_depth - predicted)
        response = _interpolate(values, observed, frame.prior_range)
        log_depth, _ = _log_depth_at(response, observed.knots)
        updated = covariance - update_weight @ covariance
        self._state = replace(observed, response=response, log_depth=log_depth, covariance=updated)
        filtered = replace(fit, response=response, rmse=frame.rmse(response))
        return filtered, False, float(np.trace(update_weight)) / 3.0

    def begin(self, pairs: Pairs, fit: Fit, options: FitOptions) -> _State | None:
        """Start from the fit of a frame alone."""
        self._state = self._observed = None
        if fit.information is not None:
            self._frame = _Frame(pairs)
            self._state = self._observed = _State.of(self._frame, fit, options)
        return self._state


class _Frame:
    """The pairs of a frame in float64."""

    def __init__(self, pairs: Pairs) -> None:
        self.prior = pairs.paired_prior.astype(np.float64)
        self.log_prior = np.log(self.prior)
        self.measured = pairs.measured.astype(np.float64)
        self.prior_range = pairs.prior_range
        subset = strided_subset(pairs.count)  # the pairs from which the effective number is estimated
        self._sample = slice(None) if subset is None else subset
        self._sample_tiles = pairs.tiles[self._sample]

    def effective_count(self, response: Response) -> float:
        """Effective number of independent pairs; at most the size of the sample.

        Where errors are correlated within a tile, additional pairs add no information.
        """
        return effective_count(self._residuals(response, self._sample), self._sample_tiles)

    def rmse(self, response: Response) -> float:
        """Root mean square residual in metres; NaN if the response cannot map the whole prior."""
        if not response.feasible(*self.prior_range):
            return math.nan
        residuals = self._residuals(response, slice(None))
        return math.sqrt(float((residuals * residuals).sum()) / residuals.size)

    def _residuals(self, response: Response, which: IndexArray | slice) -> Float64Array:
        x = self.log_prior[which] - math.log(response.centred.centre)
        q = np.empty(x.size)
        robust_residuals(x, np.zeros(x.size), *_kernel_parameters(response), True, q)  # -log(t / scale)
        residuals: Float64Array = self.measured[which] - response.scale * np.exp(-q)
        return residuals


@dataclass(frozen=True, eq=False)
class _State:
    """A response, its log depth at the knots of its frame, and the covariance of these values."""

    response: Response
    knots: Values  # prior depths
    log_depth: Values
    covariance: Matrix

    @classmethod
    def of(cls, frame: _Frame, fit: Fit, options: FitOptions) -> _State | None:
        """The state from a frame's own fit; None if its covariance is singular or not finite."""
        if fit.information is None:
            return None
        ranks = [int(quantile * frame.prior.size) for quantile in KNOT_QUANTILES]
        knots = np.partition(frame.prior, ranks)[ranks]
        log_depth, slopes = _log_depth_at(fit.response, knots)
        try:
            covariance = slopes @ np.linalg.solve(fit.information, slopes.T)
            if options.least_squares:  # other fits account for correlated errors themselves
                covariance *= fit.count / frame.effective_count(fit.response)
            covariance = 0.5 * (covariance + covariance.T) + REGULARISATION * covariance.trace() * np.eye(3)
            usable = np.isfinite(np.linalg.cholesky(covariance)).all()
        except np.linalg.LinAlgError:
            return None
        return cls(fit.response, knots, log_depth, covariance) if usable else None

    def is_plausible(self, log_depth: Values, response: Response | None, frame: _Frame, rmse: float) -> bool:
        """Whether a prediction may belong to this frame's scene; this state is the frame's own fit with this `rmse`.

        `response` is the one through `log_depth`, if it is known.
        """
        difference = log_depth - self.log_depth
        if not np.isfinite(difference).all():  # a knot lies outside the response's domain
            return False
        if float(difference @ np.linalg.solve(self.covariance, difference)) <= MAX_DISTANCE**2:
            return True
        response = response or _interpolate(log_depth, self, frame.prior_range)
        met = np.abs(_log_depth_at(response, self.knots)[0] - log_depth).max() <= MAX_MISS
        return bool(met) and frame.rmse(response) <= MAX_RMSE_RATIO * rmse

    def predictions(self, knots: Values) -> Float64Array:
        """Predicted log depth at the knots of the next frame, (2, 3): for the same map, and for the same image."""
        return np.stack((_log_depth_at(self.response, knots)[0], self.log_depth))


class _ChangeStatistics:
    """Running means of the changes of the fits between frames, for both predictions, in units of the covariance."""

    def __init__(self) -> None:
        self.count = 0
        self.unit = np.zeros((3, 3))  # running mean of the covariance
        self._last = np.zeros((2, 3))
        self._square, self._product = np.zeros(2), np.zeros(2)

    def add(self, change: Float64Array, covariance: Matrix) -> None:
        """Add a change, (2, 3) in log depth, of a fit with this covariance."""
        self.count += 1
        weight = max(1.0 / self.count, 1.0 / MEMORY)
        self.unit = self.unit + weight * (covariance - self.unit)
        d = np.linalg.solve(np.linalg.cholesky(self.unit), change.T).T
        for k in range(2):
            size = math.sqrt(float(d[k] @ d[k]) / 3.0)
            d[k] = d[k] / max(size / MAX_CHANGE, 1.0) if math.isfinite(size) else MAX_CHANGE
        self._square += weight * ((d * d).sum(axis=1) / 3.0 - self._square)
        self._product += weight * ((d * self._last).sum(axis=1) / 3.0 - self._product)
        self._last = d

    def interrupt(self) -> None:
        """Treat the next change as uncorrelated with the last one."""
        self._last = np.zeros((2, 3))

    def by_accuracy(self) -> list[int]:
        """The two predictions, the one with the smaller mean square change first."""
        return [int(prediction) for prediction in np.argsort(self._square, kind="stable")]

    def noise_parameters(self, prediction: int) -> tuple[float, float]:
        """s and q, the factors of the observation and the process noise; see `ResponseFilter`."""
        noise = min(max(-float(self._product[prediction]), MIN_NOISE), 1.0)
        return noise, max(float(self._square[prediction]) - 2.0 * noise, 0.0)


def _kernel_parameters(response: Response) -> tuple[float, float, float, float]:
    """Exponent, gain, offset and remainder about the response's centre, as the kernels take them."""
    _, gain, offset = response.centred
    return response.exponent, gain, offset, remainder(response.exponent, gain, offset)


def _log_depth_at(response: Response, h: Values) -> tuple[Values, Matrix]:
    """log t at each h, and a row of derivatives in (exponent, log a, b) of the centred parameters.

    All values are NaN if one of the h is outside the response's domain.
    """
    if not response.feasible(float(h.min()), float(h.max())):
        return np.full(3, np.nan), np.full((3, 3), np.nan)
    rows = np.empty((4, h.size))
    log_rows(np.log(h / response.centred.centre), np.zeros(h.size), *_kernel_parameters(response), rows)
    return math.log(response.scale) - rows[0], -rows[1:].T


def _interpolate(log_depth: Values, observed: _State, prior_range: tuple[float, float]) -> Response:
    """The response through these log depths at the knots, defined over the prior's range.

    It is found by Newton's method with step halving, starting from the observed response. If there is no such response,
    the last iterate is returned.
    """
    start = observed.response
    centre, gain, offset = start.centred
    x, target = np.log(observed.knots / centre), log_depth - math.log(start.scale)
    domain = math.log(prior_range[0] / centre), math.log(prior_range[1] / centre)
    theta, rows, trial = np.array([start.exponent, math.log(gain), offset]), np.empty((4, 3)), np.empty((4, 3))
    log_rows(x, target, *_kernel_parameters(start), rows)
    for _ in range(NEWTON_ITERATIONS):
        miss = float(np.abs(rows[0]).max())
        if not miss > NEWTON_TOLERANCE:
            break
        try:
            step = np.linalg.solve(rows[1:].T, -rows[0])
        except np.linalg.LinAlgError:
            break
        fraction = 1.0
        while fraction > MIN_STEP:
            exponent, log_gain, offset = (theta + fraction * step).tolist()
            if abs(log_gain) < 700 and in_domain(exponent, math.exp(log_gain), offset, *domain):
                gain = math.exp(log_gain)
                log_rows(x, target, exponent, gain, offset, remainder(exponent, gain, offset), trial)
                if float(np.abs(trial[0]).max()) < miss:
                    break
            fraction *= 0.5
        else:
            break
        theta = theta + fraction * step
        rows, trial = trial, rows
    exponent, log_gain, offset = theta.tolist()
    return Response.from_centred(centre, exponent, math.exp(log_gain), offset, start.scale)
