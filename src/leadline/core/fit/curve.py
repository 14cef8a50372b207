"""Coordinates for the fit: the exponent and the log depths of the curve at the two ends of the measured range.

In (exponent, log gain, offset) the minimum often lies at the bottom of a narrow, strongly bent valley: if the exponent
changes by one, gain and offset must change by orders of magnitude for the curve to stay near the measurements. Damped
steps along such a valley are short. Let x = log(h / centre) and q = log(t / scale), let [x_1, x_2] be the range of the
measured pairs, and q_1 < q_2 the values of the curve there. Every curve of the family is determined by

    theta = (exponent, q_1, q_2),    phi(q - q_1) / phi(q_2 - q_1) = phi(x - x_1) / phi(x_2 - x_1),

with phi(z) = (e^(exponent z) - 1) / exponent. The exponent alone then bends the curve between two fixed points, and the
valley is nearly straight. A gain > 0 is q_1 < q_2.

**Evaluation.** Let m be the end at which e^(exponent x) is larger and o the other one. Relative to the curve's point at
m, and with u = exponent (x - x_m) <= 0 for all pairs,

    q = q_m + log(g) / exponent,    g = 1 + G (e^u - 1) = G e^u + (1 - G),
    G = phi(q_o - q_m) / phi(x_o - x_m).

Both terms of the second form are positive if the local gain nowhere exceeds one, so no digits cancel for any exponent.

**Limits.** As the exponent goes to +inf or -inf, the curve tends to max(A h, B) or min(A h, B): two straight pieces. It
differs from its limit by at most log(2) / |exponent| in log depth, at the corner.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from leadline.base.arrays import Float64Array
from leadline.core.fit.response import Response, remainder

Theta = Float64Array  # (exponent, q_1, q_2)
Centred = Float64Array  # (exponent, log gain, offset) about the prior's geometric mean, the paper's parameters
Range = tuple[float, float]  # of x

SMALL = 0.5
"""Below this |exponent| times the range, derivatives in the exponent come from a series, which does not cancel."""
LEAST_EXPONENT = 1e-14
"""Exponents closer to zero are replaced by it: the curve differs from that in log depth by less than rounding."""
GAIN_ONE = 1e-6
"""If 1 - gain + exponent offset is smaller, relative to the gain and 1, the centre moves to where the gain is 1."""


class CurveNumbers(NamedTuple):
    """What the kernels need to evaluate a curve and its derivatives, see `leadline.core.fit.normal_equations`."""

    exponent: float
    x_m: float
    q_m: float
    ratio: float  # G
    rest: float  # 1 - G, without cancellation
    ratio_slope: float  # dG / d exponent at fixed q_1 and q_2
    other: float  # e^(exponent (q_o - q_m)) / (e^(exponent (x_o - x_m)) - 1)
    small: bool

    @classmethod
    def of(cls, theta: Theta, ends: Range) -> CurveNumbers | None:
        """The numbers of a curve; None if q_1 >= q_2 or if they leave the range of float64."""
        lam, q_1, q_2 = map(float, theta)
        if not (q_1 < q_2 and math.isfinite(lam + q_1 + q_2)):
            return None
        if abs(lam) < LEAST_EXPONENT:
            lam = LEAST_EXPONENT
        x_m, q_m, length, rise = (
            (ends[1], q_2, ends[0] - ends[1], q_1 - q_2) if lam > 0 else (ends[0], q_1, ends[1] - ends[0], q_2 - q_1)
        )
        if max(abs(lam * length), abs(lam * rise)) > 700:
            return None
        span = math.expm1(lam * length)
        power = math.exp(lam * rise)
        ratio = math.expm1(lam * rise) / span
        rest = power * math.expm1(lam * (length - rise)) / span if lam * (length - rise) < 700 else math.nan
        small = abs(lam) * max(abs(length), abs(rise)) < SMALL
        if small:
            slope = (bend(rise, lam) - ratio * bend(length, lam)) / phi(length, lam)
        else:
            slope = (rise * power - ratio * length * math.exp(lam * length)) / span
        numbers = cls(lam, x_m, q_m, ratio, rest, slope, power / span, small)
        return numbers if all(map(math.isfinite, numbers)) else None

    def distance(self, domain: Range) -> float:
        """Distance from the edge of the domain: g at the end of the prior's range, in units of 1 - G if that is < 0.

        With 1 - G >= 0 the curve has no pole, and the distance is infinite.
        """
        u = self.exponent * (domain[0 if self.exponent > 0 else 1] - self.x_m)
        return math.inf if self.rest >= 0 else -(self.ratio * math.exp(u) + self.rest) / self.rest


def phi(z: float, exponent: float) -> float:
    u = exponent * z
    return z if u == 0.0 else z * (math.expm1(u) / u)


def bend(z: float, exponent: float) -> float:
    """d phi / d exponent = z^2 k(exponent z), k(u) = (u e^u - (e^u - 1)) / u^2."""
    u = exponent * z
    if abs(u) < 0.03:
        return z * z * (0.5 + u * (1 / 3 + u * (1 / 8 + u * (1 / 30 + u * (1 / 144 + u / 840)))))
    return z * z * (u * math.exp(u) - math.expm1(u)) / (u * u)


def from_centred(centred: Centred, ends: Range) -> Theta:
    """The coordinates of the curve with these parameters about the centre, which must be defined at both ends."""
    lam, log_gain, offset = map(float, centred)
    gain = math.exp(log_gain)
    values = [lam]
    for x in ends:
        w = lam * (gain * phi(x, lam) + offset)
        if lam == 0.0:
            values.append(gain * x + offset)
        elif w > -0.5:
            values.append(math.log1p(w) / lam)
        else:
            values.append(math.log(gain * math.exp(lam * x) + remainder(lam, gain, offset)) / lam)
    return np.array(values)


def to_centred(theta: Theta, ends: Range) -> tuple[Centred, Float64Array]:
    """(exponent, log gain, offset) about the centre, and their derivatives in theta, (3, 3).

    gain = (phi(q_2) - phi(q_1)) / (phi(x_2) - phi(x_1)) and offset = phi(q_1) - gain phi(x_1).
    """
    lam, q_1, q_2 = map(float, theta)
    (x_1, x_2), run = ends, phi(ends[1], lam) - phi(ends[0], lam)
    rise = phi(q_2, lam) - phi(q_1, lam)
    gain = rise / run
    by_exponent = ((bend(q_2, lam) - bend(q_1, lam)) - gain * (bend(x_2, lam) - bend(x_1, lam))) / run
    e_1, e_2 = math.exp(lam * q_1), math.exp(lam * q_2)
    slopes = np.array(
        [
            [1.0, 0.0, 0.0],
            [by_exponent / gain, -e_1 / rise, e_2 / rise],
            [
                bend(q_1, lam) - by_exponent * phi(x_1, lam) - gain * bend(x_1, lam),
                e_1 * phi(x_2, lam) / run,
                -e_2 * phi(x_1, lam) / run,
            ],
        ]
    )
    return np.array([lam, math.log(gain), phi(q_1, lam) - gain * phi(x_1, lam)]), slopes


def response_of(theta: Theta, ends: Range, centre: float, scale: float) -> Response:
    """The response of a curve, about a centre at which its parameters have all their digits.

    This is the given centre, unless c = 1 - gain + exponent offset would be a small difference of large numbers. Then
    it is the centre at which the gain is 1, where c = exponent offset.
    """
    numbers = CurveNumbers.of(theta, ends)
    assert numbers is not None  # theta is the end of a descent
    lam = numbers.exponent
    log_gain = math.log(numbers.ratio) + lam * (numbers.q_m - numbers.x_m)
    c = numbers.rest * math.exp(lam * numbers.q_m)
    if not numbers.small and abs(c) < GAIN_ONE * max(1.0, math.exp(min(log_gain, 700.0))):
        return Response.from_centred(centre * math.exp(-log_gain / lam), lam, 1.0, c / lam, scale)
    gain = math.exp(log_gain)
    offset = phi(numbers.q_m, lam) - gain * phi(numbers.x_m, lam) if numbers.small else (c - 1.0 + gain) / lam
    return Response.from_centred(centre, lam, gain, offset, scale)


def edge_coordinates(theta: Theta, ends: Range, domain: Range) -> Float64Array:
    """(exponent, q_m, d) of a curve with a pole, where d is its distance from the edge of the domain."""
    numbers = CurveNumbers.of(theta, ends)
    assert numbers is not None
    return np.array([theta[0], numbers.q_m, numbers.distance(domain)])


def from_edge(at: Float64Array, ends: Range, domain: Range) -> tuple[Theta, Float64Array] | None:
    """Theta from the coordinates of `edge_coordinates`, and its derivatives in them, (3, 3).

    In them the edge of the domain is d = 0. With p = e^(exponent (end - x_m)) at the end of the prior's range,
    G = (1 + d) / (1 + d - p), which gives q_o - q_m.
    """
    lam, q_m, d = map(float, at)
    if lam == 0.0 or not math.isfinite(d):  # with the exponent 0 a curve has no pole
        return None
    m = int(lam > 0)
    _x_m, length, reach = ends[m], ends[1 - m] - ends[m], domain[1 - m] - ends[m]
    p, span = math.exp(lam * reach), math.expm1(lam * length)
    ratio = (1.0 + d) / (1.0 + d - p)
    power = 1.0 + ratio * span
    if not power > 0:
        return None
    ratio_by_exponent, ratio_by_d = ratio * reach * p / (1.0 + d - p), -p / (1.0 + d - p) ** 2
    theta, slopes = np.empty(3), np.zeros((3, 3))
    theta[[0, 1 + m, 2 - m]] = lam, q_m, q_m + math.log(power) / lam
    slopes[0, 0] = slopes[1 + m, 1] = slopes[2 - m, 1] = 1.0
    by_exponent = ratio_by_exponent * span + ratio * length * (span + 1.0)
    slopes[2 - m, 0] = (by_exponent / power - math.log(power) / lam) / lam
    slopes[2 - m, 2] = ratio_by_d * span / (power * lam)
    return theta, slopes
