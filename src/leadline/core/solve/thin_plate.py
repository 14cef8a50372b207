"""Set-up of the thin-plate hierarchy, for the general system: edge weights, soft measurements and any bending weight.

The membrane's preconditioner ignores the bending term, which is acceptable only while that term is small. This one is
made for the whole operator, which has the same structure on every level:

    Q = A + N + A K A,        A a weighted graph Laplacian, N and K diagonal.

N holds the masses (the data weight and the weights of soft measurements), and K the bending weight divided by the area
of a pixel. Three choices make it work.

*The coarse operator is composed, not projected.* The Galerkin product carries only A to the next level, and Q is
composed from it again. The Galerkin product of A K A itself would double with every level, because linear interpolation
produces kinks, and kinks have bending energy.

*The interpolation of a thin plate can ignore the measurements.* A point constraint makes a cusp in a membrane but not
in a thin plate. In a thin plate it is a mass like any other, restricted to the coarse pixels around it. On scales where
bending does not dominate (K is small) the field behaves like a membrane, and the masses enter the interpolation as they
do in membrane.py.

*A fixed pixel is a large mass.* With ten times the stiffness of its surroundings, the constraint is met to a tenth of
their energy, which is enough for a preconditioner. Hard and soft measurements are then treated alike.

A limitation: a line of pixels with strong edges along itself and weak edges to both sides moves independently, but no
coarse pixel represents it. Edge weights should therefore depend on the position of an edge and not on its direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array
from leadline.base.jit import STENCIL, called_by_kernels, parallel_loop
from leadline.core.solve import multigrid
from leadline.core.solve.galerkin import coarsen, restrict_row
from leadline.core.solve.kernels import EAST, FREE, ROWS_PER_BLOCK, SOUTH, SOUTH_EAST, SOUTH_WEST, block_count
from leadline.core.solve.multigrid import NO_CODE, NO_MAP, NO_PLANES, SMALLEST_DIAGONAL, Planes, edge_planes, padded

_CUSP_BENDING = 1.5  # If K is smaller, a measurement makes a cusp, so its mass has to shape the interpolation.
_FIXED_MASS = np.float32(10)  # mass of a fixed pixel, in units of the row sum of |A| + |A| K |A|
_KINK_FACTOR = 1.3  # Measured: each level bends more than the composed operator says, because of interpolation's kinks.
_MASS_DAMPING = np.float32(32)  # factor of a mass in the smoother's step size; with 16 the smoother almost diverged
_ROW_SUMS, _STEPS, _RESTRICT_MASS, _CLIP_MASS = range(4)  # phases of `_set_up_block`


@dataclass(frozen=True)
class ThinPlateLevel(multigrid.Level):
    """A level of Q = A + N + A K A."""

    mass: Float32Array  # (h + 2, w + 2): N
    bending: Float32Array  # (h + 2, w + 2): K; (1, w + 2) for the image, where it is constant
    step: Float32Array  # (h + 2, w + 2): 1 / d of the smoother, see thin_plate_cycle.py


@dataclass(frozen=True)
class ThinPlateHierarchy(multigrid.Hierarchy):
    levels: tuple[ThinPlateLevel, ...]


def build_thin_plate(
    code: NDArray[np.uint8], edges: Planes, mass: Float32Array, laplacian: float
) -> ThinPlateHierarchy:
    """Build the hierarchy for A + mass + laplacian A^2 on the free pixels; see kernels.py for the arrays.

    `mass` is the data weight plus the measurement weight of a free pixel. Its values at fixed pixels are overwritten.
    """
    bending = np.full((1, code.shape[1]), laplacian, np.float32)
    area = (code > 0).astype(np.float32)  # number of image pixels that a pixel represents
    image = ThinPlateLevel(edges, NO_PLANES, NO_PLANES, mass, bending, np.zeros_like(mass))
    _set_up_smoother(code, image, area, np.zeros_like(mass), laplacian)
    levels = [image]
    for depth, size in enumerate(multigrid.coarse_sizes(code.shape[0] - 2, code.shape[1] - 2)):
        fine, fine_area, area = levels[-1], area, padded(1, size)[0]
        level = ThinPlateLevel(edge_planes(4, size), padded(8, size), padded(2, size), *padded(3, size))
        cusps = laplacian < _CUSP_BENDING * 4**depth
        seen = fine.mass if cusps else np.zeros_like(fine.mass)
        coarsen(fine.edges, seen, level.prolongation, level.edges, level.mass)
        del seen
        _run(_CLIP_MASS if cusps else _RESTRICT_MASS, NO_CODE, level, area, NO_MAP, 0.0, fine.mass, fine_area)
        laplacian *= _KINK_FACTOR
        _set_up_smoother(NO_CODE, level, area, level.vectors[0], laplacian)  # the vectors are not in use yet
        levels.append(level)
    return ThinPlateHierarchy(code, tuple(levels), _invert(levels[-1]))


def _set_up_smoother(
    code: NDArray[np.uint8], level: ThinPlateLevel, area: Float32Array, row_sums: Float32Array, laplacian: float
) -> None:
    """Compute K and the step size of the smoother on a level, and the masses of fixed pixels.

    `row_sums` is work space that is zero in the padding.
    """
    for phase in (_ROW_SUMS, _STEPS):
        _run(phase, code, level, area, row_sums, laplacian, NO_MAP, NO_MAP)


def _run(
    phase: int,
    code: NDArray[np.uint8],
    level: ThinPlateLevel,
    area: Float32Array,
    row_sums: Float32Array,
    laplacian: float,
    fine_mass: Float32Array,
    fine_area: Float32Array,
) -> None:
    _set_up_block[block_count(level.mass.shape[0] - 2)](
        phase, code, level.edges, level.mass, level.bending, level.step, area, row_sums, fine_mass, fine_area,
        level.prolongation, np.float32(laplacian),
    )  # fmt: skip


@called_by_kernels(fastmath=STENCIL)
def _row_sums_row(edges, bending, area, row_sums, laplacian, i):
    """Compute K and the row sums of K |A| on row i.

    Edges that the Galerkin product has made negative are set to zero: they are few and small, and without them all
    interpolation weights are positive and the row sum of |A| is twice the diagonal.
    """
    zero, two = np.float32(0), np.float32(2)
    nine_point = edges.shape[0] > 2
    k = i if nine_point else 0
    for j in range(1, area.shape[1] - 1):
        # Four of the eight edges belong to this pixel. The others are set to zero where they belong.
        east, south = max(edges[EAST, i, j], zero), max(edges[SOUTH, i, j], zero)
        total = (east + max(edges[EAST, i, j - 1], zero)) + (south + max(edges[SOUTH, i - 1, j], zero))
        edges[EAST, i, j] = east
        edges[SOUTH, i, j] = south
        if nine_point:
            falling, rising = max(edges[SOUTH_EAST, i, j], zero), max(edges[SOUTH_WEST, i, j], zero)
            total += falling + max(edges[SOUTH_EAST, i - 1, j - 1], zero)
            total += rising + max(edges[SOUTH_WEST, i - 1, j + 1], zero)
            edges[SOUTH_EAST, i, j] = falling
            edges[SOUTH_WEST, i, j] = rising
            bending[i, j] = laplacian / area[i, j] if area[i, j] > SMALLEST_DIAGONAL else zero
        row_sums[i, j] = two * total * bending[k, j]


@called_by_kernels(fastmath=STENCIL)
def _step_row(code, edges, mass, bending, step, sums, i):
    """Compute the step 1 / d of the smoother on row i.

    With D the row sum of |A| + |A| K |A| plus the damped mass, d solves K d^2 + d = D. A fixed pixel of the image gets
    its mass here.
    """
    zero, one, two, four = np.float32(0), np.float32(1), np.float32(2), np.float32(4)
    nine_point = edges.shape[0] > 2
    k = i if nine_point else 0
    for j in range(1, mass.shape[1] - 1):
        east, west, south, north = edges[EAST, i, j], edges[EAST, i, j - 1], edges[SOUTH, i, j], edges[SOUTH, i - 1, j]
        bound = (east * sums[i, j + 1] + west * sums[i, j - 1]) + (south * sums[i + 1, j] + north * sums[i - 1, j])
        total = (east + west) + (south + north)
        if nine_point:
            east, west = edges[SOUTH_EAST, i, j], edges[SOUTH_EAST, i - 1, j - 1]
            south, north = edges[SOUTH_WEST, i, j], edges[SOUTH_WEST, i - 1, j + 1]
            bound += east * sums[i + 1, j + 1] + west * sums[i - 1, j - 1]
            bound += south * sums[i + 1, j - 1] + north * sums[i - 1, j + 1]
            total += (east + west) + (south + north)
        bound += total * sums[i, j] + two * total
        if not nine_point and 0 < code[i, j] < FREE:
            mass[i, j] = _FIXED_MASS * bound
        bound += _MASS_DAMPING * mass[i, j]
        root = np.sqrt(one + four * bending[k, j] * bound)
        step[i, j] = (one + root) / (two * bound) if bound > SMALLEST_DIAGONAL else zero


@parallel_loop(fastmath=STENCIL)
def _set_up_block(
    block, phase, code, edges, mass, bending, step, area, row_sums, fine_mass, fine_area, weights, laplacian
):
    first = 1 + block * ROWS_PER_BLOCK
    for i in range(first, min(first + ROWS_PER_BLOCK, mass.shape[0] - 1)):
        if phase == _ROW_SUMS:
            _row_sums_row(edges, bending, area, row_sums, laplacian, i)
        elif phase == _STEPS:
            _step_row(code, edges, mass, bending, step, row_sums, i)
        else:
            k = 2 * i - 1
            restrict_row(fine_area, k - 1, k, k + 1, weights, i, area)
            if phase == _RESTRICT_MASS:
                restrict_row(fine_mass, k - 1, k, k + 1, weights, i, mass)
            else:
                for j in range(1, mass.shape[1] - 1):
                    mass[i, j] = max(mass[i, j], np.float32(0))


def _invert(level: ThinPlateLevel) -> Float32Array:
    """Return the dense inverse of a level's operator; a pixel without an equation has the row of the identity."""
    height, width = level.mass.shape
    weights = multigrid.adjacency(level.edges, (height, width))
    # The diagonal is summed from the edges in float64, so that a constant field costs the energy of its masses only.
    laplacian = np.diag(weights.sum(axis=1)) - weights
    matrix = laplacian + np.diag(level.mass.ravel().astype(float))
    matrix += laplacian @ (level.bending.ravel()[:, None].astype(float) * laplacian)
    matrix += np.diag((matrix.diagonal() <= SMALLEST_DIAGONAL).astype(float))
    return np.linalg.inv(matrix).astype(np.float32)
