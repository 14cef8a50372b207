"""Completion frame by frame, with what one frame knows of the next: the system, the residual and the response.

The residual system depends on the valid and the measured pixels alone, so while these stay (a time-of-flight grid, a
fixed pattern) the hierarchy is built once. Where they change it is built again, and the solve still starts from the
residual of the frame before. Neither changes the result beyond the solver's tolerance. The filter does: it takes the
response of a frame as a noisy measurement of one that moves slowly.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields, replace
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.core.descent import Problem, levenberg_marquardt
from leadline.core.estimator import Fit, FitStatus
from leadline.core.noise import Noise
from leadline.core.pipeline import Completion, Pairs, gather
from leadline.core.reconstruction import Kept
from leadline.core.response import Response, exponent_slope, forward
from leadline.core.robust import effective_count
from leadline.core.types import CompletionOptions, FitOptions, Prior

Values = NDArray[np.float64]  # (3,): log depth at the knots
Matrix = NDArray[np.float64]  # (3, 3)

KNOTS = (0.1, 0.5, 0.9)  # quantiles of the prior at the measured pixels
MEMORY = 30  # frames over which the movement of the response is averaged
LEARNT = 4  # changes before the filter acts: from fewer, noise and movement cannot be told apart
# A prediction is another scene's if it is farther from the frame's own fit than FAR standard deviations, and leaves
# residuals larger than that by the factor CUT.
FAR, CUT = 5.0, 1.2
WORSE = 1.05  # residuals of a warm fit, in units of the last frame's: beyond, all starts are tried
JUMP = 3.0  # standard deviations of the fit; a jump beyond counts as one of this size, however far it goes
SMALLEST_NOISE = 1e-6  # share of the fit's covariance: a camera on a tripod shows the same frame again and again
ROUNDING = 1e-6  # of the covariance's trace: knots that lie close together say nearly the same
STEPS, TOLERANCE, EXACT = 30, 1e-9, 1e-6  # of the descent to the response through given values; the last in depth
LATENCIES = 1000  # frames that `Stream.latency` looks back


@dataclass(frozen=True)
class Latency:
    """Seconds from a frame's arrival to its depth, over the last frames."""

    count: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"{1e3 * self.p50:.1f} ms p50, {1e3 * self.p99:.1f} ms p99 over {self.count} frames"


@dataclass(frozen=True)
class StreamResult(Completion):
    """A `Completion`, and what the frames before had to do with it.

    Attributes
    ----------
    reused : bool
        Whether the residual system was that of the frame before.
    cut : bool
        Whether the filtered response did not fit this frame, so that the filter began anew.
    gain : float
        Share that this frame's own fit has in the response: 1 where it was taken as it is. ``fit.response`` and
        ``fit.rmse`` are those of the filtered response; all else in ``fit`` is of the frame's own.
    seconds : float
        That the frame took.
    """

    reused: bool = False
    cut: bool = False
    gain: float = 1.0
    seconds: float = 0.0

    def __str__(self) -> str:
        system = "kept" if self.reused else "new"
        response = "begun anew after a cut" if self.cut else f"{100 * self.gain:.0f} % of this frame"
        return f"{super().__str__()}\nstream system {system}, response {response}, {1e3 * self.seconds:.1f} ms"


class Stream:
    """`complete` for the frames of a video, one by one.

    The first frame's result is that of `complete`, bit for bit. In every frame measurements are kept as exactly as
    `complete` keeps them. A frame of another size begins anew. Not to be shared between threads.

    Parameters
    ----------
    options : CompletionOptions, optional
        Default: the paper's. The adaptive system is each frame's own, and so is any with `noise`: then only the starts
        are reused.
    filter : bool
        Smooth the response over time, as far as its movement is noise, and start each fit from the last. Without it,
        each frame's depth is that of `complete` to within the solver's tolerance.

    Examples
    --------
    >>> stream = Stream()
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> for depth in (3.0, 3.1):
    ...     sparse = np.zeros((48, 64))
    ...     sparse[::8, ::8] = depth * prior[::8, ::8] ** 1.2
    ...     result = stream(prior, sparse)
    >>> result.reused, stream.latency.count
    (True, 2)
    """

    def __init__(self, options: CompletionOptions | None = None, *, filter: bool = True) -> None:
        self.options = options or CompletionOptions()
        self._filtering = filter
        self._seconds: deque[float] = deque(maxlen=LATENCIES)
        self.reset()

    def reset(self) -> None:
        """Forget the frames so far, but not how long they took."""
        self._kept = Kept()
        self._filter = ResponseFilter()
        self._last: Fit | None = None
        self._shape: tuple[int, ...] | None = None

    @property
    def latency(self) -> Latency:
        """Of the last thousand frames; NaN before the first."""
        if not self._seconds:
            return Latency(0, math.nan, math.nan, math.nan)
        p50, p99, longest = np.percentile(self._seconds, (50, 99, 100))
        return Latency(len(self._seconds), float(p50), float(p99), float(longest))

    def __call__(
        self,
        prior: ArrayLike | Prior,
        sparse: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        noise: Noise | float | ArrayLike | None = None,
        uncertainty: bool = False,
    ) -> StreamResult:
        """The next frame; the arguments and errors are those of `complete`."""
        begun = perf_counter()
        given = gather(prior, sparse, valid, noise, self.options)
        pairs = given.pairs
        if pairs.prior.shape != self._shape:
            self.reset()
            self._shape = pairs.prior.shape
        fit, cut, gain = self._fit(pairs)
        stages = pairs.spread(fit, self.options, self._kept)
        reused = self._kept.reused and fit.status is not FitStatus.NO_MEASUREMENTS
        completion = given.completion(self.options, uncertainty, *stages)
        seconds = perf_counter() - begun
        self._seconds.append(seconds)
        values = {field.name: getattr(completion, field.name) for field in fields(completion)}
        return StreamResult(**values, reused=reused, cut=cut, gain=gain, seconds=seconds)

    def _fit(self, pairs: Pairs) -> tuple[Fit, bool, float]:
        """The fit with its response filtered, whether there was a cut, and the share of this frame in the response."""
        options, last = self.options.fit, self._last
        if not self._filtering:  # from all starts: there may be a better minimum than the last frame's
            return pairs.fit(options), False, 1.0
        fit = None
        if last is not None and last.status is FitStatus.CONVERGED:
            fit = pairs.fit(options, near=last.response)
            if fit.rmse * last.response.scale > WORSE * last.rmse * fit.response.scale:
                fit = None
        self._last = fit = fit or pairs.fit(options)
        filtered, cut, gain = self._filter(pairs, fit, options)
        if cut:
            self._last = filtered = pairs.fit(options)
            self._filter.begin(pairs, filtered, options)
        return filtered, cut, gain


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

    If neither prediction is near the frame's own fit, there was a cut: the fit is taken, and the walk begins anew.
    """

    def __init__(self) -> None:
        self._state: _State | None = None
        self._fitted: _State | None = None  # of the last frame alone
        self._movement = _Movement()

    def __call__(self, pairs: Pairs, fit: Fit, options: FitOptions) -> tuple[Fit, bool, float]:
        """The fit with the filtered response, whether there was a cut, and the share of the fit in it."""
        state, last = self._state, self._fitted
        fitted = self.begin(pairs, fit, options)
        if fitted is None or state is None or last is None:
            # What cannot be weighed is not filtered, and nothing after it is predicted from it.
            self._movement = _Movement()
            return fit, False, 1.0
        movement, predictions = self._movement, state.predictions(fitted.knots)
        likely = [which for which in movement.nearest() if fitted.is_near(predictions[which])]
        if not likely:
            movement.interrupt()
            return fit, True, 1.0
        predicted = predictions[likely[0]]
        movement.add(fitted.log_depth - last.predictions(fitted.knots), fitted.covariance)
        if movement.count < LEARNT:
            return fit, False, 1.0
        noise, step = movement.noise_and_step(likely[0])
        before = state.covariance + step * movement.unit
        gain = np.linalg.solve(before + noise * fitted.covariance, before).T
        response = _through(predicted + gain @ (fitted.log_depth - predicted), fitted, pairs.ends)
        log_depth = np.log(response(fitted.knots))
        self._state = replace(fitted, response=response, log_depth=log_depth, covariance=before - gain @ before)
        t = response(pairs.prior.flat[pairs.where].astype(np.float64))
        rmse = math.sqrt(float(np.mean((pairs.measured - t) ** 2)))
        return replace(fit, response=response, rmse=rmse), False, float(np.trace(gain)) / 3.0

    def begin(self, pairs: Pairs, fit: Fit, options: FitOptions) -> _State | None:
        """Go on from a frame's own fit."""
        self._state = self._fitted = _State.of(pairs, fit, options)
        return self._state


@dataclass(frozen=True, eq=False)
class _State:
    """A response, what it says at the knots of its frame, and how certain that is."""

    response: Response
    knots: Values  # prior depths
    log_depth: Values
    covariance: Matrix  # of `log_depth`
    effective: float  # independent pairs that know as much

    @classmethod
    def of(cls, pairs: Pairs, fit: Fit, options: FitOptions) -> _State | None:
        """Of a frame's own fit; None if that has no covariance."""
        if fit.information is None:
            return None
        h = pairs.prior.flat[pairs.where].astype(np.float64)
        ranks = [int(quantile * h.size) for quantile in KNOTS]
        knots = np.partition(h, ranks)[ranks]
        t = np.asarray(fit.response(knots), np.float64)
        slopes = _slopes(fit.response, knots, t)
        try:
            covariance = slopes @ np.linalg.solve(fit.information, slopes.T)
        except np.linalg.LinAlgError:
            return None
        effective = fit.effective
        if options.least_squares:  # other fits have looked at the tiles themselves
            effective = effective_count(pairs.measured - fit.response(h), pairs.tiles())
            covariance *= fit.count / effective
        covariance = 0.5 * (covariance + covariance.T) + ROUNDING * np.trace(covariance) * np.eye(3)
        usable = np.isfinite(covariance).all() and np.linalg.eigvalsh(covariance)[0] > 0
        return cls(fit.response, knots, np.log(t), covariance, effective) if usable else None

    def is_near(self, log_depth: Values) -> bool:
        """Whether a prediction may be of the same scene; not if it is NaN, outside of its response's domain.

        The fit's sum of squares is at its least, and grows by their variance with each unit of Mahalanobis' distance.
        """
        gap = log_depth - self.log_depth
        distance = float(gap @ np.linalg.solve(self.covariance, gap))
        return distance <= max(FAR**2, (CUT**2 - 1.0) * self.effective)

    def predictions(self, knots: Values) -> NDArray[np.float64]:
        """What the next frame's fit will say at its knots, (2, 3): if the map stays, and if the picture stays."""
        return np.stack((np.log(self.response(knots)), self.log_depth))


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
        size = np.sqrt((d * d).mean(axis=1, keepdims=True))
        d = np.where(np.isfinite(size), d / np.maximum(size / JUMP, 1.0), JUMP)
        self._square += weight * ((d * d).mean(axis=1) - self._square)
        self._product += weight * ((d * self._last).mean(axis=1) - self._product)
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


def _slopes(response: Response, h: Values, t: Values) -> Matrix:
    """Derivatives of log t in (exponent, log a, b) of `response.centred`, a row for each h."""
    centre, gain, _ = response.centred  # type: ignore[misc]
    exponent = response.exponent
    by_exponent = exponent_slope(np.concatenate((h / centre, t / response.scale)), exponent, 1.0).reshape(2, -1)
    rows = (gain * by_exponent[0] - by_exponent[1], gain * forward(h / centre, exponent, 1.0), np.ones_like(t))
    return np.stack(rows, axis=1) * np.exp(-exponent * np.log(t / response.scale))[:, np.newaxis]


def _through(log_depth: Values, fitted: _State, ends: tuple[float, float]) -> Response:
    """The response nearest to these log depths at the knots, found from the fitted one and defined between the ends."""
    centre, gain, offset = fitted.response.centred  # type: ignore[misc]
    scale = fitted.response.scale
    x = np.log(fitted.knots / centre)
    problem = Problem(x, np.exp(log_depth) / scale, (math.log(ends[0] / centre), math.log(ends[1] / centre)))
    problem.floor = np.float64(x.size * EXACT**2)
    start = np.array([fitted.response.exponent, math.log(gain), offset])
    theta, _, _, _ = levenberg_marquardt(problem, start, STEPS, TOLERANCE)
    exponent, log_gain, offset = map(float, theta)
    return Response.about(centre, exponent, math.exp(log_gain), offset, scale)
