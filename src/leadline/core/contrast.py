"""How much of the calibrated prior's contrast the measurements confirm.

A weak prior is right about what is near and far in the image, and wrong about what lies between two neighbouring
measurements: a wall is flat, and its prior is nearer beside the table in front of it. The smaller the distance, the
less of the contrast of a weak prior is real; of a strong prior all of it is, at any distance. The residual follows the
prior's contrast between measurements, so contrast that is not real becomes an error there.

The share c of the contrast is estimated at the distance that the residual has to bridge. With u = log t and v = log s
at two measurements, the loss of such a pair is

    loss(c) = log(1 + ((v_i - v_j) - c (u_i - u_j))^2 / m^2) + PENALTY (1 - c),

where m is the median of |v_i - v_j|. It is the loss of Cauchy: pairs with a depth edge between them deviate by far more
than others, and say nothing about surfaces; the solution has edges of its own (solve/nested.py). The penalty is in
units of what the measurements themselves vary, so that a prior that explains them has c = 1. Few pairs may prefer a
smaller share by chance, therefore c has the least upper confidence bound of the mean of loss(c) - loss(1); that of
c = 1 is 0.

**The distance to bridge** is a = sqrt(2 integral of a V(a) da), where V(a) is the share of squares with side a that
contain no measurement. For random measurements it is their mean distance; for lines of a scanner it is the distance of
the lines, and a hole of the size of half the image makes it larger, so that the contrast inside the hole is that of
pairs as far apart. The pairs are neighbours among squares of side a, each represented by the measurement whose residual
is the median of the square's: neither noise nor a single outlier changes it much.
"""

from __future__ import annotations

import math

import numpy as np

from leadline.base.arrays import BoolArray, Float32Array, Float64Array, IndexArray

SHARES = np.linspace(0.05, 1.0, 20, dtype=np.float32)
"""The shares among which the best is chosen. With 0 the prior would be constant, and its edges would be lost."""
PENALTY = 0.05
"""Mean loss that taking away all contrast must save."""
CONFIDENCE = 1.645
"""Standard errors of the mean in the upper bound: that of one-sided 95 %. Each measurement is in several pairs, so that
their number counts, and not that of the pairs."""
MIN_PAIRS = 40  # with fewer their standard error is not known well
MAX_MEASUREMENTS = 4_096  # about as many are compared
LEAST_VARIATION = 1e-3  # log depth: below it differences of measurements are rounding errors of the sensor


def confirmed_share(calibrated: Float32Array, where: IndexArray, log_t: Float64Array, log_s: Float64Array) -> float:
    """The share c of the contrast of the calibrated prior, (H, W), that measurements at the flat indices confirm.

    `log_t` are the logarithms of the prior at the measurements, or of its mean over the cells that were measured, and
    `log_s` those of the measured depths.

    >>> t = np.exp(np.linspace(0.0, 1.0, 400, dtype=np.float32).reshape(20, 20))
    >>> where = np.arange(0, 400, 3)
    >>> log_t = np.log(t.flat[where].astype(np.float64))
    >>> confirmed_share(t, where, log_t, 2.0 + log_t), round(confirmed_share(t, where, log_t, 2.0 + 0.5 * log_t), 2)
    (1.0, 0.5)
    """
    side = max(1, round(distance_to_bridge(calibrated, where)))
    first, second = _neighbouring_squares(where, calibrated.shape, side, log_s - log_t)
    if first.size < MIN_PAIRS:
        return 1.0
    of_prior, measured = ((part[first] - part[second]).astype(np.float32) for part in (log_t, log_s))
    scale = max(float(np.median(np.abs(measured))), LEAST_VARIATION)
    losses = measured - SHARES[:, None] * of_prior
    losses /= scale
    losses *= losses
    losses += np.float32(1.0)
    np.log(losses, out=losses)
    losses -= losses[-1].copy()
    compared = np.count_nonzero(np.bincount(first, minlength=where.size) + np.bincount(second, minlength=where.size))
    means = np.mean(losses, axis=1)
    losses -= means[:, None]
    losses *= losses
    errors = np.sqrt(np.mean(losses, axis=1)) / math.sqrt(compared)
    bounds = means + CONFIDENCE * errors + PENALTY * (1.0 - SHARES)
    return float(SHARES[np.argmin(bounds)])


def distance_to_bridge(calibrated: Float32Array, where: IndexArray) -> float:
    """The distance in pixels over which the residual is interpolated."""
    valid = np.isfinite(calibrated)
    measured = np.zeros(valid.shape, np.bool_)
    measured.flat[where] = True
    side, empty, integral = 1, 1.0 - where.size / np.count_nonzero(valid), 0.5
    while valid.size > 1 and empty > 0.0:
        valid, measured = _pooled(valid), _pooled(measured)
        before, empty = empty, 1.0 - np.count_nonzero(measured) / np.count_nonzero(valid)
        integral += 0.5 * side * (side * before + 2 * side * empty)  # the trapezoidal rule from side to 2 side
        side *= 2
    return math.sqrt(2.0 * integral)


def _pooled(marked: BoolArray) -> BoolArray:
    """Whether any of two by two pixels is marked."""
    height, width = marked.shape
    pooled = np.zeros(((height + 1) // 2, (width + 1) // 2), np.bool_)
    for rows in (marked[::2], marked[1::2]):
        for part in (rows[:, ::2], rows[:, 1::2]):
            pooled[: part.shape[0], : part.shape[1]] |= part
    return pooled


def _neighbouring_squares(
    where: IndexArray, shape: tuple[int, int], side: int, residuals: Float64Array
) -> tuple[IndexArray, IndexArray]:
    """Indices of the measurements of each pair, one array each, from two partitions that are shifted by half a side."""
    pairs = []
    rows = where // shape[1]
    every = 2 * -(-where.size // MAX_MEASUREMENTS)
    for shift in {0, side // 2}:
        row = (rows + shift) // side
        some = np.flatnonzero(row % every < 2)  # two rows of squares in each `every`, which are neighbours
        column = (where[some] - shape[1] * rows[some] + shift) // side
        width = (shape[1] - 1 + shift) // side + 1
        row = row[some]
        if every > 2:  # without most of the rows between those that are used
            row = 3 * (row // every) + row % every
        square = row * width + column
        order = np.lexsort((residuals[some], square))
        place = square[order]
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        middle = starts + (np.diff(starts, append=place.size) - 1) // 2
        chosen = np.full((int(row.max(initial=0)) + 1, width), -1)
        chosen.flat[place[starts]] = some[order[middle]]
        for one, other in (
            (chosen[:, :-1], chosen[:, 1:]),
            (chosen[:-1], chosen[1:]),
            (chosen[:-1, :-1], chosen[1:, 1:]),
            (chosen[:-1, 1:], chosen[1:, :-1]),
        ):
            both = (one >= 0) & (other >= 0)
            pairs.append((one[both], other[both]))
    return np.concatenate([one for one, _ in pairs]), np.concatenate([other for _, other in pairs])
