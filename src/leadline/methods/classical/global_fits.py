"""One scale, or one line, for the whole image, fitted robustly: what people do by hand.

- A scale, by medians (Zhou et al. 2017, *Unsupervised Learning of Depth and Ego-Motion from Video*) or least squares.
- A line in depth or in disparity by RANSAC (Fischler and Bolles 1981, *Random Sample Consensus*).
- The same line by least absolute deviations, which is exact here and needs no threshold.

Least squares are `gmetric` and `gdisp`, and the option `undefined` is theirs: by default a line whose gain is not
positive, or that has no positive depth somewhere on the prior, is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import require_choice, require_count, require_positive
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, relative_depth
from leadline.methods.classical.fields import NO_MEASUREMENT
from leadline.methods.lines import DEPTH, DISPARITY, Coordinate, Line, Undefined, fit_line, least_squares_line

Estimator = Literal["median_ratio", "ratio_of_medians", "least_squares"]
_Floats = NDArray[np.float64]

MOST_SCORED = 5000  # measurements with which RANSAC compares its lines; more of them would not change the choice
BISECTIONS = 200  # halvings of the bracket of the gain; the bracket is then at the last digit


def scale(prior: Prior, sparse: FloatArray, *, estimator: Estimator = "median_ratio") -> MethodResult:
    """The prior times one number.

    Parameters
    ----------
    estimator : {"median_ratio", "ratio_of_medians", "least_squares"}
        The median of s / h; the median of s over the median of h, as is usual for self-supervised networks; or
        sum s h / sum h^2.
    """
    require_choice("estimator", estimator, Estimator)
    relative = relative_depth(prior)
    paired = measured_pixels(prior, sparse) & np.isfinite(relative)
    if not paired.any():
        return failure(prior.shape, NO_MEASUREMENT)
    h, s = relative[paired], np.asarray(sparse)[paired].astype(np.float64)
    if estimator == "median_ratio":
        factor = float(np.median(s / h))
    elif estimator == "ratio_of_medians":
        factor = float(np.median(s) / np.median(h))
    else:
        factor = float((s * h).sum() / (h * h).sum())
    return MethodResult((factor * relative).astype(np.float32), parameters={"gain": factor})


def ransac(
    prior: Prior,
    sparse: FloatArray,
    *,
    coordinate: Coordinate,
    tolerance: float = 0.1,
    trials: int = 1000,
    seed: int = 0,
    undefined: Undefined = "fail",
) -> MethodResult:
    """A line in a coordinate of depth by RANSAC: the line through two measurements that most others agree with.

    The line is then fitted to its inliers by least squares. The `parameters` of the result contain the share of
    `inliers`.

    Parameters
    ----------
    coordinate : Coordinate
        Depth, s = gain h + offset, in `ransac_metric`; disparity, 1/s = gain / h + offset, in `ransac_disp`.
    tolerance : float
        Largest relative error of an inlier.
    trials : int
        Number of random pairs; all pairs if there are no more of them.
    seed : int
        Of the random generator; the result is deterministic.
    undefined : {"fail", "drop"}
        Whether pixels without a positive depth fail the image or are left out, as for `gdisp`.
    """
    return fit_line(prior, sparse, coordinate, _ransac(tolerance, trials, seed), undefined)


ransac_metric = partial(ransac, coordinate=DEPTH)
ransac_disp = partial(ransac, coordinate=DISPARITY)


def lad_metric(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """A line in depth with the least sum of absolute errors."""
    return fit_line(prior, sparse, DEPTH, _least_absolute, undefined)


def lad_disp(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """A line in disparity with the least sum of absolute errors."""
    return fit_line(prior, sparse, DISPARITY, _least_absolute, undefined)


def _ransac(tolerance: float, trials: int, seed: int) -> Callable[[_Floats, _Floats], Line | str]:
    require_positive(tolerance=tolerance)
    require_count(trials=trials)

    def fit(x: _Floats, y: _Floats) -> Line | str:
        first, second = _pairs(x.size, trials, seed)
        run = x[second] - x[first]
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = (y[second] - y[first]) / run
        offsets = y[first] - gains * x[first]
        usable = np.isfinite(gains) & (gains > 0)
        if not usable.any():
            return "no pair of measurements gives a line with a positive gain"
        gains, offsets = gains[usable], offsets[usable]
        step = -(-x.size // MOST_SCORED)
        xs, ys = x[::step], y[::step]
        lines = zip(gains, offsets, strict=True)
        counts = [int(np.count_nonzero(np.abs(a * xs + b - ys) <= tolerance * ys)) for a, b in lines]
        best = int(np.argmax(counts))  # the first of several with the same count
        inliers = np.abs(gains[best] * x + offsets[best] - y) <= tolerance * y
        line = least_squares_line(x[inliers], y[inliers])
        if line is None or not line.gain > 0:
            line = Line(float(gains[best]), y_mean=float(offsets[best]))
        return replace(line, parameters={"inliers": float(np.mean(inliers))})

    return fit


def _pairs(count: int, trials: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of the pairs to try: all of them if there are at most `trials`, or else random ones."""
    if count * (count - 1) // 2 <= trials:
        first, second = np.triu_indices(count, 1)
        return first, second
    rng = np.random.default_rng(seed)
    first = rng.integers(0, count, trials)
    return first, (first + rng.integers(1, count, trials)) % count


def _least_absolute(x: _Floats, y: _Floats) -> Line:
    """The line with the least sum of |a x + b - y|.

    For a given gain the best offset is the median of y - a x. What is left is convex in the gain; its derivative
    changes sign where sum sign(y - a x - b) (x - c) does, for any c, and bisection finds that place.
    """
    line = least_squares_line(x, y)
    assert line is not None  # x is not constant
    # Centring makes the bisection as accurate as the slope itself.
    x, y = x - line.x_mean, y - line.y_mean

    def rises(a: float) -> bool:
        rest = y - a * x
        middle = np.argpartition(rest, rest.size // 2)[rest.size // 2]
        return float((np.sign(rest - np.median(rest)) * (x - x[middle])).sum()) <= 0

    step = max(abs(line.gain), float(np.ptp(y) / np.ptp(x)), np.finfo(float).tiny)
    low, high = line.gain - step, line.gain + step
    while rises(low):
        low -= (step := 2 * step)
    while not rises(high):
        high += (step := 2 * step)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if rises(middle) else (middle, high)
    return Line(high, line.x_mean, line.y_mean + float(np.median(y - high * x)))
