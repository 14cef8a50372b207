"""An image at half its resolution: its map t, edge weights and measurements, and fields on the way back.

A pixel of the half grid contains two by two pixels of the image, fewer at an odd border. Fields are interpolated by
joint bilateral weights (Kopf, Cohen, Lischinski and Uyttendaele 2007): those of bilinear interpolation between the
centres of the four nearest pixels, times the similarity of t at the fine pixel and at the coarse ones. A field that is
discontinuous where t is stays discontinuous.
"""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float32Array, Float64Array, IndexArray
from leadline.base.jit import STENCIL, compiled, inlined, parallel_loop
from leadline.core.adaptive import MAX_WEIGHT

MAX_STRENGTHENING = 10.0
"""Largest weight of two edges side by side in units of the weaker one, if it is less than their mean. An edge of t on
the border between two pixels of the half grid makes one of the two columns of an image pixel weak and the other strong.
By their mean alone, a column of the half grid with strong edges along itself would have weak ones to both sides, which
multigrid does not represent (thin_plate.py): up to six times the iterations. On 23 scenes errors change by 0.1 %."""
MIN_SHARE = 1e-6  # weight of pixels where t is not similar at all: if all four are not, they share equally


def half_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of the grid of half the resolution."""
    height, width = shape
    return (height + 1) // 2, (width + 1) // 2


def half_indices(where: IndexArray, shape: tuple[int, ...]) -> IndexArray:
    """Flat indices of the pixels of the half grid that contain those at `where` on a grid of this shape."""
    row = where // shape[1]
    place: IndexArray = row // 2 * half_shape(shape)[1] + (where - shape[1] * row) // 2
    return place


def average(
    place: IndexArray, targets: Float64Array, weights: Float64Array, size: int
) -> tuple[IndexArray, Float64Array, Float64Array]:
    """Flat indices, mean target and summed weight, at most MAX_WEIGHT, of the measured ones of `size` pixels."""
    total = np.bincount(place, weights, size)
    moments = np.bincount(place, weights * targets, size)
    where = np.flatnonzero(total)
    return where, moments[where] / total[where], np.minimum(total[where], MAX_WEIGHT)


@parallel_loop(fastmath=STENCIL)
def halve(i, fine, coarse):  # type: ignore[no-untyped-def]
    """Mean of the valid depths of each two by two pixels; NaN if none is valid."""
    height, width = fine.shape
    for j in range(coarse.shape[1]):
        total, count = np.float32(0.0), np.float32(0.0)
        for k in range(2 * i, min(2 * i + 2, height)):
            for m in range(2 * j, min(2 * j + 2, width)):
                if fine[k, m] == fine[k, m]:
                    total += fine[k, m]
                    count += np.float32(1.0)
        coarse[i, j] = total / count


@inlined
def _in_series(a, b, c):  # type: ignore[no-untyped-def]
    """The edge from centre to centre of two pixels of the half grid: half of an edge, a whole one, and half of one."""
    four, two = np.float32(4.0), np.float32(2.0)
    return min(four * a * b * c / (b * c + two * a * c + a * b), np.float32(1.0))


@inlined
def _side_by_side(a, b):  # type: ignore[no-untyped-def]
    """The weight of two edges side by side."""
    return min(np.float32(0.5) * (a + b), np.float32(MAX_STRENGTHENING) * min(a, b))


@parallel_loop(fastmath=STENCIL)
def halve_edges(i, across, down, coarse_across, coarse_down):  # type: ignore[no-untyped-def]
    """Compute row i of the edge weights of the half grid. An edge beyond the border has the weight 1."""
    one = np.float32(1.0)
    height, width = across.shape[0], down.shape[1]
    k, below = 2 * i, min(2 * i + 1, height - 1)
    for j in range(coarse_across.shape[1]):
        m = 2 * j
        last = m + 2 < across.shape[1]
        upper = _in_series(across[k, m], across[k, m + 1], across[k, m + 2] if last else one)
        lower = _in_series(across[below, m], across[below, m + 1], across[below, m + 2] if last else one)
        coarse_across[i, j] = _side_by_side(upper, lower)
    if i < coarse_down.shape[0]:
        last = k + 2 < down.shape[0]
        for j in range(coarse_down.shape[1]):
            m, beside = 2 * j, min(2 * j + 1, width - 1)
            left = _in_series(down[k, m], down[k + 1, m], down[k + 2, m] if last else one)
            right = _in_series(down[k, beside], down[k + 1, beside], down[k + 2, beside] if last else one)
            coarse_down[i, j] = _side_by_side(left, right)


@inlined
def _share(guide, t, similarity):  # type: ignore[no-untyped-def]
    """Weight of a coarse value by the similarity of t; 0 if its pixel is invalid."""
    ratio = (t - guide) / (t + guide)
    share = np.float32(1.0) / (np.float32(1.0) + similarity * ratio * ratio)
    return np.float32(MIN_SHARE) + share * share if guide == guide else np.float32(0.0)


@inlined
def _mean_of_four(coarse, guide, t, similarity, k, m, beside_k, beside_m):  # type: ignore[no-untyped-def]
    """Interpolate at a fine pixel in the coarse pixel (k, m) from it and its neighbours on the side of (beside_k,
    beside_m)."""
    zero = np.float32(0.0)
    a, b, c, d = coarse[k, m], coarse[k, beside_m], coarse[beside_k, m], coarse[beside_k, beside_m]
    share_a = np.float32(9.0) * _share(guide[k, m], t, similarity)
    share_b = np.float32(3.0) * _share(guide[k, beside_m], t, similarity)
    share_c = np.float32(3.0) * _share(guide[beside_k, m], t, similarity)
    share_d = _share(guide[beside_k, beside_m], t, similarity)
    # The field may be NaN at invalid pixels, whose share is zero.
    total = (share_a * a if share_a > zero else zero) + (share_b * b if share_b > zero else zero)
    total += (share_c * c if share_c > zero else zero) + (share_d * d if share_d > zero else zero)
    return total / ((share_a + share_b) + (share_c + share_d))


@inlined
def _beside(j, size):  # type: ignore[no-untyped-def]
    """The coarse row or column next to that of the fine one j, on the side where j is; itself at the border."""
    return min(max(j // 2 + (1 if j % 2 else -1), 0), size - 1)


def interpolate(
    coarse: Float32Array, guide: Float32Array, t: Float32Array, similarity: np.float32, fine: Float32Array
) -> None:
    """Fill `fine`, at twice the resolution, with a field from the valid ones of the four nearest pixels of the grid.

    `guide` is the coarse map of t. Where t is NaN, so is the result.
    """
    _interpolate_row[len(fine)](coarse, guide, t, similarity, fine)
    height, width = fine.shape
    columns = [j for j in {0, 1, 2 * coarse.shape[1] - 2, 2 * coarse.shape[1] - 1} if j < width]
    border = np.add.outer(np.arange(0, height * width, width), columns).ravel()
    values = np.empty(border.size)
    interpolate_at(border, coarse, guide, t, similarity, values)
    fine.put(border, values)


@parallel_loop(fastmath=STENCIL)
def _interpolate_row(i, coarse, guide, t, similarity, fine):  # type: ignore[no-untyped-def]
    """Row i without the columns that belong to the first and the last one of the coarse grid."""
    height, width = coarse.shape
    k, beside = i // 2, _beside(i, height)
    for m in range(1, width - 1):  # both in one loop, whose accesses are then contiguous
        fine[i, 2 * m] = _mean_of_four(coarse, guide, t[i, 2 * m], similarity, k, m, beside, m - 1)
        fine[i, 2 * m + 1] = _mean_of_four(coarse, guide, t[i, 2 * m + 1], similarity, k, m, beside, m + 1)


@compiled(fastmath=STENCIL)
def interpolate_at(where, coarse, guide, t, similarity, out):  # type: ignore[no-untyped-def]
    """The same at single pixels, given as flat indices."""
    height, width = coarse.shape
    for n in range(where.size):
        i, j = where[n] // t.shape[1], where[n] % t.shape[1]
        beside, next_to = _beside(i, height), _beside(j, width)
        out[n] = _mean_of_four(coarse, guide, t[i, j], similarity, i // 2, j // 2, beside, next_to)
