"""The scores of `metrics`, compiled, for many predictions of one scene.

`metrics` defines the scores in NumPy, and the tests compare both. Here everything that depends on the reference only is
computed once per image, each prediction is read in one pass, and normals are not normalised, because the angle
atan2(|a x b|, a . b) does not depend on their lengths.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param
from leadline.base.jit import EXACT, SUM, compiled, inlined, parallel_loop
from leadline.bench.metrics import DELTA_BASE, PER_KM, TIGHT_DELTAS, DepthScores, Missing, NormalScores
from leadline.geometry.cameras import Camera, CameraModel, require_camera

_DEGREES = 180 / math.pi
_TAN_EIGHTH = math.tan(math.pi / 8)
_BINS = 4096  # bins of the histogram for the median: a bin of a 640 x 480 image contains about 75 angles
_BLOCKS = 8  # blocks of rows with a histogram each: enough for the threads, few enough to be summed quickly


class Scorer:
    """Scores the predictions of one scene.

    `reference` is depth in metres, (H, W); NaN, inf and values <= 0 are unknown. Without a camera, the scores of
    normals are NaN.
    """

    def __init__(self, reference: FloatArray, camera: CameraModel | None) -> None:
        self.reference = np.ascontiguousarray(reference, dtype=np.float32)
        self._rays: tuple[FloatArray, FloatArray] | None = None
        if camera is not None and min(self.reference.shape) >= 3:
            self._rays = _rays(camera, self.reference.shape)
            self._normals = np.empty((3, *self.reference.shape))
            self._angles = np.empty((self.reference.shape[0] - 2, self.reference.shape[1] - 2))
            _reference_normals[len(self._angles)](self.reference, *self._rays, self._normals)

    def depth(self, prediction: FloatArray, mask: BoolArray, *, missing: Missing = "exclude") -> DepthScores:
        """The same scores as `metrics.depth_scores`."""
        prediction = self._check_shape(prediction)
        sums = np.empty((prediction.shape[0], 8))
        _depth_sums[len(sums)](prediction, self.reference, mask, DELTA_BASE, sums)
        inverse_sums = np.empty((prediction.shape[0], 2 + len(TIGHT_DELTAS)))
        _inverse_sums[len(sums)](prediction, self.reference, mask, *TIGHT_DELTAS, inverse_sums)
        *totals, support, inside = sums.sum(axis=0)
        totals += (inverse_sums * (PER_KM, PER_KM**2, 1, 1, 1)).sum(axis=0).tolist()
        absent = int(inside - support)
        if absent and missing == "penalise":
            totals = [total + more for total, more in zip(totals, self._penalties(prediction, mask), strict=True)]
            support = inside
        if not support or (absent and missing == "fail"):
            return DepthScores(missing=absent)
        error, square, relative, one, two, three, inverse, inverse_square, tight, middle, wide = (
            float(total / support) for total in totals
        )
        return DepthScores(
            absrel=relative,
            mae=error,
            rmse=math.sqrt(square),
            delta1=one,
            delta2=two,
            delta3=three,
            irmse=math.sqrt(inverse_square),
            imae=inverse,
            delta102=tight,
            delta105=middle,
            delta110=wide,
            support=int(support),
            missing=absent,
        )

    def _penalties(self, prediction: NDArray[np.float32], mask: BoolArray) -> list[float]:
        """What the pixels of the mask without a prediction add to the sums, as depth 0 and inverse depth 0."""
        absent = mask & (self.reference > 0) & np.isfinite(self.reference) & ~((prediction > 0) & (prediction < np.inf))
        depth = self.reference[absent].astype(np.float64)
        inverse = PER_KM / depth
        none = [0.0] * len(TIGHT_DELTAS)
        return [depth.sum(), (depth**2).sum(), float(depth.size), 0, 0, 0, inverse.sum(), (inverse**2).sum(), *none]

    def normals(self, prediction: FloatArray, mask: BoolArray) -> NormalScores:
        """The same scores as `metrics.normal_scores`; NaN without a camera."""
        prediction = self._check_shape(prediction)
        if self._rays is None:
            return NormalScores()
        # Only rows with scored pixels: half of them in the case `central`. The columns are not limited as well,
        # because an inner loop with a variable start does not vectorise.
        rows = np.flatnonzero(mask[1:-1].any(axis=1)) + 1
        if not rows.size:
            return NormalScores()
        angles = self._angles[: rows[-1] - rows[0] + 1]
        sums = np.empty((angles.shape[0], 2))
        _angles[len(angles)](prediction, *self._rays, self._normals, mask, rows[0], angles, sums)
        total, support = sums.sum(axis=0)
        if not support:
            return NormalScores()
        return NormalScores(float(total / support), _median(angles, int(support)), int(support))

    def _check_shape(self, prediction: FloatArray) -> NDArray[np.float32]:
        if np.shape(prediction) != self.reference.shape:
            raise InputError(
                f"{param('prediction')} must have the shape {self.reference.shape}, got {np.shape(prediction)}."
            )
        return np.ascontiguousarray(prediction, dtype=np.float32)


@lru_cache(maxsize=1)  # most data sets have one camera for all images
def _rays(camera: CameraModel, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """x/z and y/z of every pixel, two (H, W) arrays."""
    height, width = shape
    require_camera(camera, shape)
    if isinstance(camera, Camera):
        across = (np.arange(width) - camera.cx) / camera.fx
        down = (np.arange(height) - camera.cy) / camera.fy
        return np.tile(across, (height, 1)), np.repeat(down[:, None], width, axis=1)
    points = camera.points(np.ones(shape, dtype=np.float32))
    return np.ascontiguousarray(points[..., 0], np.float64), np.ascontiguousarray(points[..., 1], np.float64)


def _median(angles: NDArray[np.float64], support: int) -> float:
    """Median of the finite entries: a histogram finds the one or two bins that contain it, which are then sorted."""
    counts = np.zeros((_BLOCKS, _BINS), np.int64)
    _histogram[_BLOCKS](angles, counts)
    below = np.cumsum(counts.sum(axis=0))
    low, high = (int(np.searchsorted(below, rank, side="right")) for rank in ((support - 1) // 2, support // 2))
    found = np.empty(int(below[high] - (below[low - 1] if low else 0)))
    _collect(angles, low, high, found)
    found.sort()
    first = int(below[low - 1]) if low else 0
    return float((found[(support - 1) // 2 - first] + found[support // 2 - first]) / 2)


@parallel_loop(fastmath=SUM)
def _depth_sums(i, prediction, reference, mask, base, sums):  # type: ignore[no-untyped-def]
    """Sums per row: |e|, e^2, |e|/r, the three delta counts, scored pixels, and pixels of the mask with a reference."""
    width = reference.shape[1]
    two, three = base * base, base * base * base
    error = square = relative = one_count = two_count = three_count = support = mask_count = 0.0
    for j in range(width):
        inside = mask[i, j] & (reference[i, j] > 0.0) & (reference[i, j] < np.inf)
        scored = inside & (prediction[i, j] > 0.0) & (prediction[i, j] < np.inf)
        mask_count += 1.0 if inside else 0.0
        p = np.float64(prediction[i, j]) if scored else 1.0
        r = np.float64(reference[i, j]) if scored else 1.0
        weight = 1.0 if scored else 0.0
        deviation = abs(p - r)
        ratio = max(p / r, r / p)
        error += deviation
        square += deviation * deviation
        relative += deviation / r
        one_count += weight if ratio < base else 0.0
        two_count += weight if ratio < two else 0.0
        three_count += weight if ratio < three else 0.0
        support += weight
    sums[i, 0], sums[i, 1], sums[i, 2] = error, square, relative
    sums[i, 3], sums[i, 4], sums[i, 5] = one_count, two_count, three_count
    sums[i, 6], sums[i, 7] = support, mask_count


@parallel_loop(fastmath=SUM)
def _inverse_sums(i, prediction, reference, mask, tight, middle, wide, sums):  # type: ignore[no-untyped-def]
    """Sums per row over the scored pixels: |e| and e^2 of inverse depth in 1/m, and the counts of three ratios."""
    width = reference.shape[1]
    error = square = tight_count = middle_count = wide_count = 0.0
    for j in range(width):
        known = mask[i, j] & (reference[i, j] > 0.0) & (reference[i, j] < np.inf)
        scored = known & (prediction[i, j] > 0.0) & (prediction[i, j] < np.inf)
        p = np.float64(prediction[i, j]) if scored else 1.0
        r = np.float64(reference[i, j]) if scored else 1.0
        weight = 1.0 if scored else 0.0
        deviation = abs(1.0 / p - 1.0 / r)
        ratio = max(p / r, r / p)
        error += deviation
        square += deviation * deviation
        tight_count += weight if ratio < tight else 0.0
        middle_count += weight if ratio < middle else 0.0
        wide_count += weight if ratio < wide else 0.0
    sums[i, 0], sums[i, 1] = error, square
    sums[i, 2], sums[i, 3], sums[i, 4] = tight_count, middle_count, wide_count


@inlined
def _positive(value):  # type: ignore[no-untyped-def]
    value = np.float64(value)
    return value if (value > 0.0) & (value < np.inf) else np.nan


@inlined
def _normal(depth, rays_x, rays_y, i, j):  # type: ignore[no-untyped-def]
    """Cross product of the central differences at an inner pixel, oriented towards the camera; NaN if unknown."""
    left, right = _positive(depth[i, j - 1]), _positive(depth[i, j + 1])
    top, bottom = _positive(depth[i - 1, j]), _positive(depth[i + 1, j])
    ax = rays_x[i, j + 1] * right - rays_x[i, j - 1] * left
    ay = rays_y[i, j + 1] * right - rays_y[i, j - 1] * left
    az = right - left
    bx = rays_x[i + 1, j] * bottom - rays_x[i - 1, j] * top
    by = rays_y[i + 1, j] * bottom - rays_y[i - 1, j] * top
    bz = bottom - top
    nx, ny, nz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    away = nx * rays_x[i, j] + ny * rays_y[i, j] + nz > 0.0
    sign = -1.0 if away else 1.0
    return sign * nx, sign * ny, sign * nz


@inlined
def _angle(sine, cosine):  # type: ignore[no-untyped-def]
    """atan2(sine, cosine) in radians for sine >= 0, without branches so that a row vectorises; NaN for 0/0."""
    size = abs(cosine)
    quotient = min(sine, size) / max(sine, size)
    outer = quotient > _TAN_EIGHTH
    z = (quotient - 1.0) / (quotient + 1.0) if outer else quotient
    # Taylor series of atan up to the 31st power: |z| <= tan(pi/8), so that the next term is at most 7e-15.
    w = z * z
    series = 1.0 / 31.0
    series = 1.0 / 29.0 - w * series
    series = 1.0 / 27.0 - w * series
    series = 1.0 / 25.0 - w * series
    series = 1.0 / 23.0 - w * series
    series = 1.0 / 21.0 - w * series
    series = 1.0 / 19.0 - w * series
    series = 1.0 / 17.0 - w * series
    series = 1.0 / 15.0 - w * series
    series = 1.0 / 13.0 - w * series
    series = 1.0 / 11.0 - w * series
    series = 1.0 / 9.0 - w * series
    series = 1.0 / 7.0 - w * series
    series = 1.0 / 5.0 - w * series
    series = 1.0 / 3.0 - w * series
    angle = z - z * w * series
    angle = angle + np.pi / 4 if outer else angle
    angle = np.pi / 2 - angle if sine > size else angle
    return np.pi - angle if cosine < 0.0 else angle


@parallel_loop(fastmath=EXACT)
def _reference_normals(row, depth, rays_x, rays_y, out):  # type: ignore[no-untyped-def]
    i = row + 1
    for j in range(1, depth.shape[1] - 1):
        out[0, i, j], out[1, i, j], out[2, i, j] = _normal(depth, rays_x, rays_y, i, j)


@parallel_loop(fastmath=EXACT)
def _angles(row, depth, rays_x, rays_y, normals, mask, top, out, sums):  # type: ignore[no-untyped-def]
    """Angle in degrees at each inner pixel from row `top` on, NaN if not scored; sum and number of angles per row."""
    width = depth.shape[1]
    i = top + row
    for j in range(1, width - 1):
        ax, ay, az = _normal(depth, rays_x, rays_y, i, j)
        bx, by, bz = normals[0, i, j], normals[1, i, j], normals[2, i, j]
        cx, cy, cz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        angle = _angle(math.sqrt(cx * cx + cy * cy + cz * cz), ax * bx + ay * by + az * bz)
        out[row, j - 1] = angle * _DEGREES if mask[i, j] else np.nan
    total, count = 0.0, 0.0
    for j in range(width - 2):
        angle = out[row, j]
        known = angle == angle
        total += angle if known else 0.0
        count += 1.0 if known else 0.0
    sums[row, 0], sums[row, 1] = total, count


@inlined
def _bin(angle):  # type: ignore[no-untyped-def]
    return min(int(angle * (_BINS / 180.0)), _BINS - 1)


@parallel_loop()
def _histogram(block, angles, counts):  # type: ignore[no-untyped-def]
    height, width = angles.shape
    for i in range(block * height // _BLOCKS, (block + 1) * height // _BLOCKS):
        for j in range(width):
            angle = angles[i, j]
            if angle == angle:
                counts[block, _bin(angle)] += 1


@compiled()
def _collect(angles, low, high, found):  # type: ignore[no-untyped-def]
    """The angles of bins `low` to `high` in any order. The bins between the two are empty."""
    count = 0
    for i in range(angles.shape[0]):
        for j in range(angles.shape[1]):
            angle = angles[i, j]
            if angle == angle:
                place = _bin(angle)
                if low <= place <= high:
                    found[count] = angle
                    count += 1
