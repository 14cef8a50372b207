"""Noise of the measurements: standard deviations in metres, and the weights in the residual system that follow from
them.

The energy of the residual system, divided by the gradient weight, is that of a Gaussian random field r with variance
kappa^2 in these units. With a noise term c (r - g)^2 for a measurement of log residual g and standard deviation sigma,
the maximum of the posterior has c = kappa^2 / sigma^2. kappa^2 is estimated from the measurements in two ways:

- from differences of neighbours: two pixels at distance d differ by kappa^2 (log d + 1.617) / pi in the mean square,
  the effective resistance between two nodes of a square lattice. The estimate is the median over pairs of neighbours,
  minus the noise of both;
- from magnitudes: a pixel's mean square is kappa^2 log(32 / screening) / (4 pi). The estimate is the mean over the
  measurements, minus their noise.

The larger one is used, because a field that is smoother than the model must still be followed.

Noise that the caller does not know is estimated (`estimated_noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import Float64Array, FloatArray, IndexArray, as_map
from leadline.base.errors import InputError, param
from leadline.core.neighbours import MIN_NEIGHBOURS, Neighbours, nearest_others

_LARGEST = 1e6  # of a coefficient: no sensor is meant, and squares of larger ones would overflow

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""Bounds of the weights in units of the gradient weight. Beyond them a measurement has no effect, or is exact."""
PARTNERS = 4  # nearest others that a measurement is compared with
MIN_MEASUREMENTS = 5  # with fewer, kappa^2 cannot be estimated
MEDIAN_SQUARE = 0.4549  # median of the square of a standard normal variable
MIN_VARIANCE_RATIO = 0.01  # smallest kappa^2 relative to the noise
MIN_DISTANCE_RATIO = 1.5  # of the fourth neighbour's distance to the nearest one's, for an extrapolation to zero
MAX_COMPARED = 20_000  # measurements that are enough for a median over pairs of neighbours
MEDIAN_ERROR = 2.34
"""Relative standard error of a median of squares of normal variables, times the root of their number."""
CONFIDENCE = 1.645  # standard errors of a one-sided bound of 95 %


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviation of a measurement of depth z: sqrt(constant^2 + (proportional z)^2 + (quadratic z^2)^2).

    The three terms are independent errors: of the time measurement of a LiDAR or time-of-flight sensor (constant), of a
    scale factor (proportional), and of the disparity of a stereo or structured-light sensor (quadratic).

    Parameters
    ----------
    constant : float
        In metres.
    proportional : float
        Relative to the depth.
    quadratic : float
        Per metre. A disparity error of d pixels gives d / (focal length in pixels x baseline in metres).

    Raises
    ------
    InputError
        If a coefficient is negative, not finite or beyond any sensor.

    Examples
    --------
    >>> Noise(constant=0.02)([1.0, 10.0])
    array([0.02, 0.02])
    >>> Noise(proportional=0.01, quadratic=0.0015)([1.0, 10.0]).round(4)
    array([0.0101, 0.1803])
    """

    constant: float = 0.0
    proportional: float = 0.0
    quadratic: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isinstance(value, (int, float)) and 0 <= value <= _LARGEST):
                raise InputError(
                    f"the {name} part of {param('noise')} must be a number from 0 to {_LARGEST:g}, got {value!r}."
                )

    def __call__(self, depth: ArrayLike) -> Float64Array:
        z = np.asarray(depth, np.float64)
        terms = self.constant**2 + (self.proportional * z) ** 2 + (self.quadratic * z * z) ** 2
        return np.asarray(np.sqrt(terms))


def sigma_at(noise: Noise | ArrayLike, measured: FloatArray, where: IndexArray, shape: tuple[int, int]) -> Float64Array:
    """Standard deviation in metres of the depths `measured` at the flat indices `where` of an (H, W) image, (n,)."""
    if isinstance(noise, Noise):
        return noise(measured)
    if np.ndim(noise) == 0:
        return Noise(constant=np.asarray(noise).item())(measured)
    values = as_map(noise, "noise")
    if values.shape != shape:
        raise InputError(
            f"{param('noise')} must be a number, a Noise or a map of shape {shape}, got {values.shape} instead."
        )
    sigma = values.flat[where].astype(np.float64)
    bad = int(np.count_nonzero(~((sigma >= 0) & (sigma < np.inf))))
    if bad:
        raise InputError(
            f"{param('noise')} must be at least 0 and finite, in metres, at every measurement; it is not at {bad} of "
            f"{sigma.size}. Leave these measurements out (NaN in {param('sparse')}), or give them a large value."
        )
    return sigma


def measurement_weights(
    residuals: FloatArray, sigma: Float64Array, where: IndexArray, shape: tuple[int, int], screening: float
) -> Float64Array:
    """Weight c = kappa^2 / sigma^2 of each measurement in the residual system, (n,); see the module's description.

    It is infinite where sigma is 0, and for all measurements if there are fewer than five: these are kept exactly.

    `residuals` are log(s / t), `sigma` their standard deviations, `where` their pixels, and `screening` the weight of
    the residual itself in units of the gradient weight.
    """
    noisy = sigma > 0
    result = np.full(where.size, np.inf)
    if where.size < MIN_MEASUREMENTS or not noisy.any():
        return result
    g = np.asarray(residuals, np.float64)
    nearest = nearest_others(where, shape, PARTNERS)
    rows, columns = np.divmod(where, shape[1])
    distance = np.hypot(rows[:, None] - rows[nearest], columns[:, None] - columns[nearest])
    resistance = (np.log(distance) + 1.617) / math.pi
    noise = sigma[:, None] ** 2 + sigma[nearest] ** 2
    from_pairs = ((g[:, None] - g[nearest]) ** 2 / MEDIAN_SQUARE - noise) / resistance
    per_variance = 4.0 * math.pi / max(math.log(32.0 / screening), 1.0)
    from_magnitudes = per_variance * float(np.mean(g**2 - sigma**2))
    variance = max(
        float(np.median(from_pairs)), from_magnitudes, MIN_VARIANCE_RATIO * float(np.median(noise / resistance))
    )
    with np.errstate(divide="ignore", over="ignore"):
        result[noisy] = np.clip(variance / sigma[noisy] ** 2, MIN_WEIGHT, MAX_WEIGHT)
    return result


def estimated_noise(
    residuals: Float64Array, where: IndexArray, shape: tuple[int, int], neighbours: Neighbours
) -> float:
    """Standard deviation of the noise of log depths, from how they differ between neighbours; 0 if none is found.

    It is the nugget of the variogram (Matheron 1963): half of the squared difference of two residuals, extrapolated to
    a distance of zero from those to the nearest and to the fourth neighbour. Medians are used, since differences across
    edges are no noise. Residuals of exact measurements differ less the closer they are, so that the extrapolation
    reaches zero. The square is at most twice its lower confidence bound: with few measurements it is zero. On a grid
    all neighbours are equally far, and nothing can be extrapolated.
    """
    some = slice(None, None, -(-where.size // MAX_COMPARED))
    rows, columns = np.divmod(where, shape[1])
    others = [neighbours.nearest[some, rank] for rank in (0, MIN_NEIGHBOURS - 1)]
    distances = [
        float(np.median(np.hypot(rows[some] - rows[other], columns[some] - columns[other]))) for other in others
    ]
    if distances[1] < MIN_DISTANCE_RATIO * distances[0]:
        return 0.0
    halves = [float(np.median((residuals[some] - residuals[other]) ** 2)) / (2.0 * MEDIAN_SQUARE) for other in others]
    slope = distances[0] / (distances[1] - distances[0])
    error = CONFIDENCE * MEDIAN_ERROR / math.sqrt(others[0].size)
    nugget = (1.0 + slope) * halves[0] - slope * halves[1]
    lower = (1.0 + slope) * (1.0 - error) * halves[0] - slope * (1.0 + error) * halves[1]
    return math.sqrt(max(0.0, min(nugget, 2.0 * lower)))
