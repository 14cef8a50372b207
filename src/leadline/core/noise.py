"""How far a sensor's measurements can be trusted, as a standard deviation in metres for each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError
from leadline.core.outliers import nearest_others

SOFTEST, HARDEST = 1e-6, 1e6
"""Precisions are kept between these, in units of the gradient weight: beyond them a measurement is as good as absent,
or as exact."""
_PARTNERS = 4  # neighbours that a measurement is compared with
_FEWEST = 5  # measurements from which on their differences say something
_MEDIAN = 0.4549  # of the square of a standard normal variable
_LEAST_SHARE = 0.01  # of the noise: what the field is taken to vary by at least


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviation of a measurement of depth z: sqrt(constant^2 + (proportional z)^2 + (quadratic z^2)^2).

    Three kinds of error that do not know of each other: a clock's (LiDAR, time of flight: constant), a scale's
    (proportional), and that of a disparity seen from a baseline (stereo, structured light: quadratic).

    Parameters
    ----------
    constant : float
        Metres.
    proportional : float
        A share of the depth.
    quadratic : float
        Per metre. A camera that finds disparities to d pixels has d / (focal length in pixels x baseline in metres).

    Raises
    ------
    InputError
        If one of them is negative or not finite.

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
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise InputError(f"`{name}` of the noise must be a number of at least 0, got {value!r} instead.")

    def __call__(self, depth: ArrayLike) -> NDArray[np.float64]:
        z = np.asarray(depth, np.float64)
        terms = self.constant**2 + (self.proportional * z) ** 2 + (self.quadratic * z * z) ** 2
        return np.asarray(np.sqrt(terms))


def sigma_at(
    noise: Noise | ArrayLike, measured: FloatArray, where: NDArray[np.intp], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Standard deviation in metres of the depths `measured` at the flat indices `where` of an (H, W) image.

    Raises
    ------
    InputError
        If a map of another shape is given, or one without a number at a measured pixel.
    """
    if isinstance(noise, Noise):
        return noise(measured)
    if np.ndim(noise) == 0:
        return Noise(constant=np.asarray(noise).item())(measured)
    values = as_map(noise, "noise")
    if values.shape != shape:
        raise InputError(
            f"`noise` must be a number, a Noise, or have the prior's shape {shape}, got {values.shape} instead."
        )
    sigma = values.flat[where].astype(np.float64)
    bad = int(np.count_nonzero(~((sigma >= 0) & (sigma < np.inf))))
    if bad:
        raise InputError(
            f"`noise` must be at least 0 and finite, in metres, where there is a measurement; it is not at {bad} of "
            f"{sigma.size}. Leave these measurements out (NaN in `sparse`), or give them a large value."
        )
    return sigma


def precision(
    residuals: FloatArray,
    sigma: NDArray[np.float64],
    where: NDArray[np.intp],
    shape: tuple[int, int],
    screening: float,
) -> NDArray[np.float64]:
    """Weight c of each measurement in the residual system; infinite, so that it is kept exactly, where sigma is 0.

    The system's energy is that of a random field, c (r - g)^2 the noise's: c = kappa^2 / sigma^2, kappa^2 being the
    field's variance for unit weights. Two pixels at distance d then differ by kappa^2 (log d + 1.617) / pi in the
    square, the resistance between two nodes of a square lattice, and one pixel is off by kappa^2 log(32 / screening) /
    (4 pi). Both give a kappa^2, from the median square of the differences between neighbouring measurements and from
    the mean square of the residuals, less the noise in either. The larger one is taken: a field that is smoother than
    random must be followed all the same. With fewer than five measurements nothing can be told, and they are kept
    exactly.

    Parameters
    ----------
    residuals, sigma : (n,) float
        log(s / t) of each measurement, and its standard deviation in log depth, at least 0.
    where : (n,) int
        Flat indices of their pixels, each once.
    shape : (H, W)
    screening : float
        Weight of the residual's size, that of its gradient being 1.

    Examples
    --------
    >>> where = np.arange(0, 6400, 64)
    >>> c = precision(0.1 * np.sin(0.1 * where), np.where(where < 3200, 0.0, 0.1), where, (80, 80), 1e-3)
    >>> bool(np.isinf(c[0])), bool(np.isfinite(c[-1]))
    (True, True)
    """
    noisy = sigma > 0
    result = np.full(where.size, np.inf)
    if where.size < _FEWEST or not noisy.any():
        return result
    g = np.asarray(residuals, np.float64)
    nearest = nearest_others(where, shape, _PARTNERS)
    rows, columns = np.divmod(where, shape[1])
    distance = np.hypot(rows[:, None] - rows[nearest], columns[:, None] - columns[nearest])
    resistance = (np.log(distance) + 1.617) / math.pi
    noise = sigma[:, None] ** 2 + sigma[nearest] ** 2
    left = ((g[:, None] - g[nearest]) ** 2 / _MEDIAN - noise) / resistance
    unscreened = 4.0 * math.pi / max(math.log(32.0 / screening), 1.0)
    large = unscreened * float(np.mean(g**2 - sigma**2))
    variance = max(float(np.median(left)), large, _LEAST_SHARE * float(np.median(noise / resistance)))
    with np.errstate(divide="ignore", over="ignore"):
        result[noisy] = np.clip(variance / sigma[noisy] ** 2, SOFTEST, HARDEST)
    return result
