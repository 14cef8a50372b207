"""The response family: a scaled Box-Cox coordinate, its inverse, its derivatives, and the map from prior to depth.

    phi(z) = log(z / scale)                          exponent = 0
             ((z / scale)^exponent - 1) / exponent   otherwise            (eq:family)

The exponents 1, 0, -1 are metric depth, log depth and disparity. With q = log(z / scale), phi = q exprel(exponent q)
is smooth in the exponent, and no case distinction around zero is needed. (The paper uses the logarithm for
|exponent| < 1e-5, which neglects a term of 5e-6 q^2.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import Float64Array, FloatArray
from leadline.base.errors import InputError
from leadline.core.fit import calibration
from leadline.core.fit.calibration import MAX_CANCELLATION, SMALLEST, TINY, calibrate, contiguous

# Bound of the rounding error of log(gain) + exponent (log h - log centre): |log h| < 710, whose ulp is 1.1e-13.
MARGIN = 1e-12


def forward(depth: ArrayLike, exponent: float, scale: float) -> Float64Array:
    """phi(depth), eq:family.

    >>> forward([1.0, 2.0, 4.0], exponent=1.0, scale=2.0)
    array([-0.5,  0. ,  1. ])
    """
    q = _log_ratio(depth, scale)
    return q * _exprel(exponent * q)


def exponent_slope(depth: ArrayLike, exponent: float, scale: float) -> Float64Array:
    """d phi / d exponent, eq:lambda-derivative: q^2 k(exponent q), k(u) = (u e^u - (e^u - 1)) / u^2."""
    q = _log_ratio(depth, scale)
    u = exponent * q
    small = np.abs(u) < 1.0
    series = np.zeros_like(u)
    near = np.where(small, u, 0.0)
    for j in range(20, -1, -1):  # k(u) = sum u^j (j + 1) / (j + 2)!: below 1e-19 after 20 terms for |u| < 1
        series = series * near + (j + 1) / math.factorial(j + 2)
    far = np.where(small, 1.0, u)
    return q * q * np.where(small, series, (far * np.exp(far) - np.expm1(far)) / (far * far))


def _log_ratio(depth: ArrayLike, scale: float) -> Float64Array:
    """log(depth / scale) to full relative accuracy, also where the two are nearly equal."""
    z = np.asarray(depth, np.float64)
    difference = (z - scale) / scale  # exact numerator within a factor of two (Sterbenz)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.abs(difference) < 0.5, np.log1p(difference), np.log(z / scale))


def _exprel(u: Float64Array) -> Float64Array:
    """(e^u - 1) / u, one at zero."""
    safe = np.where(u == 0.0, 1.0, u)
    return np.where(u == 0.0, 1.0, np.expm1(safe) / safe)


def one_plus_product(a: float, b: float) -> tuple[float, float]:
    """1 + a b as an unevaluated sum high + low, without rounding error (Dekker's product, Knuth's sum).

    |low| is at most half a unit in the last place of high, so that high alone has the sum's sign.
    """
    split = 134217729.0  # 2^27 + 1
    a_high = split * a - (split * a - a)
    b_high = split * b - (split * b - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    high = 1.0 + product
    back = high - 1.0
    low = ((1.0 - (high - back)) + (product - back)) + error
    total = high + low
    return total, low - (total - high)


def remainder(exponent: float, gain: float, offset: float) -> float:
    """c = 1 - gain + exponent * offset, the constant part of g in `Response.kernel_args`, without cancellation."""
    high, low = one_plus_product(exponent, offset)
    return (high - gain) + low


class CentredParameters(NamedTuple):
    """Gain a and offset b of the relation phi(t / scale) = a phi(h / centre) + b."""

    centre: float
    gain: float
    offset: float


@dataclass(frozen=True)
class Response:
    """The map from a relative prior to metric depth: phi(t) = gain phi(h) + offset (eq:affine).

    Calling it on an array of prior depth h gives t in metres; NaN where h is not positive and finite, or lies
    outside the map's domain.

    `exponent`, `gain`, `offset` and `scale` (m) are the paper's lambda, alpha, beta and s_0. If the prior's scale is
    far from metres, gain and offset are large and cancel. The map is therefore evaluated from the same relation about
    a centre, the prior's geometric mean: phi(t / scale) = a phi(h / centre) + b. `centred` holds (centre, a, b).

    Examples
    --------
    >>> disparity = Response(exponent=-1.0, gain=0.5, offset=0.0, scale=1.0)  # 1/t = 1/2 + 1/(2 h)
    >>> disparity(np.array([1.0, 4.0]))
    array([1. , 1.6])
    """

    exponent: float
    gain: float
    offset: float
    scale: float
    about_centre: CentredParameters | None = None

    def __post_init__(self) -> None:
        numbers = (self.exponent, self.gain, self.offset, self.scale)
        if not (self.gain > 0 and self.scale > 0 and all(map(math.isfinite, numbers))):
            raise InputError(f"Response: gain and scale must be positive and all finite, got {self}.")

    @property
    def centred(self) -> CentredParameters:
        """The parameters that the map is evaluated from; about the scale itself unless another centre was given."""
        return self.about_centre or CentredParameters(self.scale, self.gain, self.offset)

    @classmethod
    def from_centred(cls, centre: float, exponent: float, gain: float, offset: float, scale: float) -> Response:
        """The response with `gain` and `offset` given about a centre.

        With rho = centre / scale, phi(h) = rho^exponent phi(h / centre) + phi(rho) relates them to the paper's. These
        saturate where rho^exponent leaves the range of float64; the map does not use them.
        """
        log_rho = math.log(centre) - math.log(scale)
        paper_gain = math.exp(min(max(math.log(gain) - exponent * log_rho, -700.0), 700.0))
        with np.errstate(over="ignore"):  # rho^-exponent phi(rho), which is phi(rho) at the opposite exponent
            shift = log_rho * float(_exprel(np.array(-exponent * log_rho)))
        paper_offset = min(max(offset - gain * shift, -1e300), 1e300)
        return cls(exponent, paper_gain, paper_offset, scale, CentredParameters(centre, gain, offset))

    def __call__(self, prior: ArrayLike) -> FloatArray:
        h = np.asarray(prior)
        if h.dtype not in (np.float32, np.float64):
            h = h.astype(np.float64)
        flat = h.reshape(math.prod(h.shape[:-1]), *h.shape[-1:] or (1,))
        out = np.empty(flat.shape, h.dtype)
        usable = flat[(flat > 0) & (flat < np.inf)].astype(np.float64)
        usable = usable[usable >= SMALLEST]
        ends = (float(usable.min()), float(usable.max())) if usable.size else (1.0, 1.0)
        calibrate(contiguous(flat), out, *self.kernel_args(ends))
        return out.reshape(h.shape)

    def log_slope(self, prior: ArrayLike) -> Float64Array:
        """d log t / d log h = gain (h / t)^exponent, eq:gain: the local gain from prior to metric depth."""
        centre, gain, _ = self.centred
        h = np.asarray(prior, np.float64)
        t = np.asarray(self(h), np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):  # where h is not positive, t is NaN
            return gain * np.exp(self.exponent * (np.log(h / centre) - np.log(t / self.scale)))

    def feasible(self, lowest: float, highest: float) -> bool:
        """Whether 1 + exponent (gain phi(h) + offset) > 0 for every h in [lowest, highest] (Appendix A).

        If so, the map is positive and finite in that range. `in_domain` adds a margin for rounding.
        """
        centre, gain, offset = self.centred
        shift = math.log(centre)
        return in_domain(self.exponent, gain, offset, math.log(lowest) - shift, math.log(highest) - shift)

    def to_dict(self) -> dict[str, float]:
        return {"exponent": self.exponent, "gain": self.gain, "offset": self.offset, "scale": self.scale}

    def kernel_args(self, ends: tuple[float, float]) -> tuple[float, ...]:
        """Arguments of `calibrate`, with the formula that is accurate over this range of the prior.

        With x = log(h / centre) the map is t = scale g^(1/exponent), g = a e^(exponent x) + c, c = 1 - a + exponent b.
        Composing phi and its inverse computes 1 + (g - 1), which loses the digits of a small g; adding the two parts of
        g as logarithms loses those of g near 1. Therefore g - 1 is computed with expm1 where it lies in (-1/2, 1000)
        and its two terms do not cancel, and logarithms are used otherwise. Both terms are monotone, so that the ends
        of the range decide for all of it.
        """
        centre, gain, offset = self.centred
        lam = self.exponent
        x = [math.log(end) - math.log(centre) for end in ends]
        if abs(lam) < TINY:
            return (calibration.LOG, 0.0, gain, offset, 0.0, math.log(centre), math.log(self.scale))
        if all(lam * end < 700 and _log1p_is_accurate(gain * math.expm1(lam * end), lam * offset) for end in x):
            return (calibration.LOG1P, lam, gain, offset, 0.0, math.log(centre), math.log(self.scale))
        rest = remainder(lam, gain, offset)
        formula = calibration.SUM if rest >= 0 else calibration.DIFFERENCE
        size = math.log(abs(rest)) if rest else -math.inf
        return (formula, lam, math.log(gain), 0.0, size, math.log(centre), math.log(self.scale))


def _log1p_is_accurate(grown: float, shift: float) -> bool:
    """Whether log1p(grown + shift) loses at most two digits by cancellation; see `Response.kernel_args`."""
    return -0.5 < grown + shift < 1e3 and abs(grown) + abs(shift) < MAX_CANCELLATION * (1.0 + grown + shift)


def in_domain(exponent: float, gain: float, offset: float, lowest: float, highest: float) -> bool:
    """Whether g = gain e^(exponent x) + c stays positive for x = log(h / centre) in [lowest, highest].

    g is monotone, so that one end decides. Its two parts are compared as `calibrate` does, and must differ by more
    than the rounding error of their logarithms. Otherwise the sign of g is not determined, and a pixel at the end of
    the range could lie outside the domain.
    """
    if abs(exponent) < TINY:
        return True
    rest = remainder(exponent, gain, offset)
    end = lowest if exponent > 0 else highest
    return rest >= 0 or math.log(gain) + exponent * end - math.log(-rest) > MARGIN * (1.0 + abs(exponent))
