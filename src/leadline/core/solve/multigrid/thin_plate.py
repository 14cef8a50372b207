"""The levels of the general system: weighted edges, soft measurements, and bending of any weight.

The preconditioner of multigrid.py leaves the bending term out, which is fair while that term is small. This one is made
for the whole operator, on every level of the same form

    Q = A + N + A K A,        A a weighted graph Laplacian, N and K diagonal,

with N the masses (data weight, precision of soft measurements) and K the bending weight over the area of a pixel. Three
choices carry it.

*The coarse operator is composed, not projected.* A is carried down by the Galerkin product of multigrid.py, and Q is
made of it anew. The Galerkin product of A K A itself would double with every level, because what interpolates linearly
has kinks, and kinks bend.

*A measurement need not be seen by the interpolation of a plate.* A point pulls a cusp into a membrane but not into
a plate: there it is a mass like any other, shared out to the coarse pixels around it. Below the scale at which bending
rules (K small) the field is a membrane again, and the masses enter the interpolation as they do in multigrid.py.

*A fixed pixel is a stiff mass.* With ten times what its surroundings can pull, the constraint is met to a tenth of
their energy, which is all that a preconditioner needs; hard and soft measurements then take the same path.

What it cannot do: a line of pixels that is tied well along itself and hardly to either side moves on its own, but
no coarse pixel stands for it. Edge weights should therefore depend on where an edge is and not on its direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, compiled
from leadline.core.solve.kernels import EAST, FREE, MASS, ROOT, ROWS, SOUTH, SOUTH_EAST, SOUTH_WEST, blocks
from leadline.core.solve.multigrid.membrane import COARSEST, SERIAL, VANISHED, Planes, coarsen, halved, planes
from leadline.core.solve.multigrid.membrane_cycle import restrict_row

CUSP = 1.5  # bending weight over area below which a measurement pulls a cusp, so that it shapes the interpolation
FIXED = np.float32(10)  # mass of a fixed pixel, in units of all that pulls at it
KINKS = 1.3  # by which each level bends more than composed, for the kinks of what comes from it: measured
HOLD = np.float32(32)  # how far a mass slows the smoother down at its pixel: with 16 it came near to diverging
_SUMS, _STEPS, _SHARE, _PROJECT = range(4)  # phases of `_weigh_block`
_INTERPOLATE_AND_PROJECT = range(1, 4)  # phases of multigrid.coarsen
NO_CODE = np.zeros((1, 1), np.uint8)
_NO_PLANES = np.zeros((1, 1, 1), np.float32)


@dataclass(frozen=True)
class PlateLevel:
    """One level, padded by a pixel of zeros; the finest one is the image."""

    edges: Planes  # (3, h, w + 1): A; (6, h, w + 1) below the image, with the diagonal in the plane ROOT
    mass: NDArray[np.float32]  # (h, w): N
    bend: NDArray[np.float32]  # (h, w): K; (1, w) for the image, where it is the same everywhere
    step: NDArray[np.float32]  # (h, w): 1 / d, see platecycle.py
    area: NDArray[np.float32]  # (h, w): pixels of the image that one of this level stands for
    vectors: Planes  # (3, h, w): right-hand side, before and after smoothing; empty for the image


@dataclass(frozen=True)
class Plate:
    """All that a cycle needs."""

    code: NDArray[np.uint8]
    levels: tuple[PlateLevel, ...]  # the image first
    transfers: tuple[Planes, ...]  # (9, h, w): weights from each level but the first to the one before it
    inverse: NDArray[np.float32]  # of the last level


def build_plate(code: NDArray[np.uint8], edges: Planes, mass: NDArray[np.float32], laplacian: float) -> Plate:
    """The levels for A + mass + laplacian A^2 on the free pixels.

    Parameters
    ----------
    code : (H + 2, W + 2) uint8
        Roles of the pixels, see kernels.py.
    edges : (3, H + 2, W + 3) float32
        Weights in the planes EAST and SOUTH. The plane MASS is overwritten.
    mass : (H + 2, W + 2) float32
        Data weight and precision of each free pixel. Those of fixed pixels are overwritten.
    """
    image = PlateLevel(
        edges,
        mass,
        np.full((1, code.shape[1]), laplacian, np.float32),
        np.zeros_like(mass),
        (code > 0).astype(np.float32),
        _NO_PLANES,
    )
    levels, transfers = [image], list[Planes]()
    _weigh(code, image, laplacian)
    size = (code.shape[0] - 2, code.shape[1] - 2)
    while not transfers or size[0] * size[1] > COARSEST:
        size = halved(size)
        fine = levels[-1]
        seen = laplacian < CUSP * 4 ** len(transfers)  # by the interpolation: the masses
        np.copyto(fine.edges[MASS, :, :-1], fine.mass if seen else np.float32(0))
        transfer = np.zeros((9, size[0] + 2, size[1] + 2), np.float32)
        coarse = _level(size)
        coarsen(_INTERPOLATE_AND_PROJECT, NO_CODE, 0.0, fine.edges, transfer, coarse.edges, _NO_PLANES)
        _run(_PROJECT if seen else _SHARE, NO_CODE, coarse, fine, transfer, 0.0)
        laplacian *= KINKS
        _weigh(NO_CODE, coarse, laplacian)
        levels.append(coarse)
        transfers.append(transfer)
    return Plate(code, tuple(levels), tuple(transfers), _inverse(levels[-1]))


def _level(size: tuple[int, int]) -> PlateLevel:
    arrays = np.zeros((7, size[0] + 2, size[1] + 2), np.float32)
    return PlateLevel(planes(6, size), arrays[0], arrays[1], arrays[2], arrays[3], arrays[4:])


def _weigh(code: NDArray[np.uint8], level: PlateLevel, laplacian: float) -> None:
    """Fill in K and the steps of the smoother."""
    for phase in (_SUMS, _STEPS):
        _run(phase, code, level, level, _NO_PLANES, laplacian)


def _run(
    phase: int, code: NDArray[np.uint8], level: PlateLevel, fine: PlateLevel, transfer: Planes, laplacian: float
) -> None:
    run = _weigh_parallel if level.mass.size >= SERIAL else _weigh_serial
    run(
        phase, code, level.edges, level.mass, level.bend, level.step, level.area,
        fine.mass, fine.area, transfer, np.float32(laplacian),
    )  # fmt: skip


@compiled(fastmath=STENCIL)
def _sum_row(edges, bend, area, laplacian, i):
    """K, and in the plane MASS the sum s of |A| over each row of the matrix, times K.

    Edges that the Galerkin product has made negative are cut off: they are few and small, and without them all
    interpolation weights are positive and s is twice the diagonal.
    """
    zero, two = np.float32(0), np.float32(2)
    nine = edges.shape[0] > 3
    k = i if nine else 0
    for j in range(1, area.shape[1] - 1):
        # Of the eight edges the first four are this pixel's own; the others are cut where they belong.
        east, south = max(edges[EAST, i, j], zero), max(edges[SOUTH, i, j], zero)
        total = (east + max(edges[EAST, i, j - 1], zero)) + (south + max(edges[SOUTH, i - 1, j], zero))
        edges[EAST, i, j] = east
        edges[SOUTH, i, j] = south
        if nine:
            falling, rising = max(edges[SOUTH_EAST, i, j], zero), max(edges[SOUTH_WEST, i, j], zero)
            total += falling + max(edges[SOUTH_EAST, i - 1, j - 1], zero)
            total += rising + max(edges[SOUTH_WEST, i - 1, j + 1], zero)
            edges[SOUTH_EAST, i, j] = falling
            edges[SOUTH_WEST, i, j] = rising
            edges[ROOT, i, j] = total
            bend[i, j] = laplacian / area[i, j] if area[i, j] > VANISHED else zero
        edges[MASS, i, j] = two * total * bend[k, j]


@compiled(fastmath=STENCIL)
def _step_row(code, edges, mass, bend, step, i):
    """The step 1 / d of the smoother, from the sums over the rows of |A| + |A| K |A| + HOLD N.

    With D that sum, d solves K d^2 + d = D. A fixed pixel of the image gets its mass here.
    """
    zero, one, two, four = np.float32(0), np.float32(1), np.float32(2), np.float32(4)
    nine = edges.shape[0] > 3
    k = i if nine else 0
    sums = edges[MASS]
    for j in range(1, mass.shape[1] - 1):
        east, west, south, north = edges[EAST, i, j], edges[EAST, i, j - 1], edges[SOUTH, i, j], edges[SOUTH, i - 1, j]
        pull = (east * sums[i, j + 1] + west * sums[i, j - 1]) + (south * sums[i + 1, j] + north * sums[i - 1, j])
        total = (east + west) + (south + north)
        if nine:
            east, west = edges[SOUTH_EAST, i, j], edges[SOUTH_EAST, i - 1, j - 1]
            south, north = edges[SOUTH_WEST, i, j], edges[SOUTH_WEST, i - 1, j + 1]
            pull += east * sums[i + 1, j + 1] + west * sums[i - 1, j - 1]
            pull += south * sums[i + 1, j - 1] + north * sums[i - 1, j + 1]
            total += (east + west) + (south + north)
        pull += total * sums[i, j] + two * total
        if not nine and 0 < code[i, j] < FREE:
            mass[i, j] = FIXED * pull
        pull += HOLD * mass[i, j]
        root = np.sqrt(one + four * bend[k, j] * pull)
        step[i, j] = (one + root) / (two * pull) if pull > VANISHED else zero


@compiled()
def _weigh_block(phase, block, code, edges, mass, bend, step, area, fine_mass, fine_area, transfer, laplacian):
    first = 1 + block * ROWS
    last = min(first + ROWS, mass.shape[0] - 1)
    for i in range(first, last):
        if phase == _SUMS:
            _sum_row(edges, bend, area, laplacian, i)
        elif phase == _STEPS:
            _step_row(code, edges, mass, bend, step, i)
        else:
            k = 2 * i - 1
            restrict_row(fine_area[k - 1], fine_area[k], fine_area[k + 1], transfer, i, area[i])
            if phase == _SHARE:
                restrict_row(fine_mass[k - 1], fine_mass[k], fine_mass[k + 1], transfer, i, mass[i])
            else:
                for j in range(1, mass.shape[1] - 1):
                    mass[i, j] = max(edges[MASS, i, j], np.float32(0))


@compiled(parallel=True)
def _weigh_parallel(phase, code, edges, mass, bend, step, area, fine_mass, fine_area, transfer, laplacian):
    for block in prange(blocks(mass.shape[0] - 2)):
        _weigh_block(
            phase, np.int64(block), code, edges, mass, bend, step, area, fine_mass, fine_area, transfer, laplacian
        )


@compiled()
def _weigh_serial(phase, code, edges, mass, bend, step, area, fine_mass, fine_area, transfer, laplacian):
    for block in range(blocks(mass.shape[0] - 2)):
        _weigh_block(phase, block, code, edges, mass, bend, step, area, fine_mass, fine_area, transfer, laplacian)


def _inverse(level: PlateLevel) -> NDArray[np.float32]:
    """Dense inverse of a level on its padded grid; rows without an equation are the identity."""
    height, width = level.mass.shape
    index = np.arange(height * width).reshape(height, width)
    here = index[1:-1, 1:-1]
    laplacian = np.zeros((height * width, height * width))
    for plane, offset in ((EAST, 1), (SOUTH, width), (SOUTH_EAST, width + 1), (SOUTH_WEST, width - 1)):
        weight = level.edges[plane, 1:-1, 1:-2]
        laplacian[here, here + offset] -= weight
        laplacian[here + offset, here] -= weight
    # The diagonal from the edges, in double precision: a constant then costs its masses and nothing else.
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    matrix = laplacian + np.diag(level.mass.ravel().astype(float))
    matrix += laplacian @ (level.bend.ravel()[:, None].astype(float) * laplacian)
    matrix += np.diag((matrix.diagonal() <= VANISHED).astype(float))
    return np.linalg.inv(matrix).astype(np.float32)
