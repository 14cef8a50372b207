"""Slow, explicit definitions of what the compiled solver computes, and the images to test them on.

Everything here is written from the definitions (Appendix A of the paper, Dendy's interpolation, a textbook V-cycle)
with sparse matrices over all H * W pixels in row order; a pixel without an equation has an empty row. Only the layout
of the arrays that are compared is taken from the kernels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from leadline.core.solve import kernels
from leadline.core.solve.membrane import MembraneHierarchy

INVALID, FREE, MEASURED = 0, 1, 2
Role = NDArray[np.uint8]
Matrix = sp.csr_array
Edges = tuple[NDArray[np.floating], NDArray[np.floating]]

# One pixel; lines; odd and even sizes; heights just below, at and above a block of 32 fine or 16 coarse rows; and
# heights at which the second level crosses the border of a block too.
SHAPES = [(1, 1), (1, 37), (2, 2), (33, 7), (37, 22), (131, 3)]
MORE_SHAPES = [
    (1, 2), (2, 1), (41, 1), (3, 3), (5, 8), (16, 17), (31, 9), (32, 6), (34, 5), (63, 4), (64, 3), (65, 5), (66, 2),
    (67, 4),
]  # fmt: skip


def generator(*key: object) -> np.random.Generator:
    """Return a generator whose seed depends on the test's parameters and not on the order of the tests."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def _stripes(shape: tuple[int, int], rng: np.random.Generator) -> Role:
    role = np.where(rng.random(shape) < 0.1, MEASURED, FREE).astype(np.uint8)
    role[2::5] = INVALID
    role[:, 3::7] = FREE
    return role


PATTERNS: dict[str, Callable[[tuple[int, int], np.random.Generator], Role]] = {
    "open": lambda shape, rng: np.full(shape, FREE, np.uint8),
    "one anchor": lambda shape, rng: (np.arange(shape[0] * shape[1]) == shape[1] // 2).reshape(shape) + np.uint8(1),
    "anchors": lambda shape, rng: rng.choice([FREE, MEASURED], shape, p=[0.9, 0.1]).astype(np.uint8),
    "holes": lambda shape, rng: rng.choice([INVALID, FREE, MEASURED], shape, p=[0.3, 0.6, 0.1]).astype(np.uint8),
    "stripes": _stripes,
    "full": lambda shape, rng: np.full(shape, MEASURED, np.uint8),
    "empty": lambda shape, rng: np.zeros(shape, np.uint8),
}


COMMON_PATTERNS = ("open", "anchors", "holes", "stripes")


def shape_id(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _image_case(shape: tuple[int, int], name: str) -> object:
    common = shape in SHAPES and name in COMMON_PATTERNS
    return pytest.param(shape, name, marks=() if common else pytest.mark.full, id=f"{shape_id(shape)}-{name}")


every_shape = pytest.mark.parametrize(
    "shape",
    [*SHAPES, *(pytest.param(shape, marks=pytest.mark.full) for shape in MORE_SHAPES)],
    ids=shape_id,
)
every_image = pytest.mark.parametrize(
    ("shape", "name"), [_image_case(*case) for case in product(SHAPES + MORE_SHAPES, PATTERNS)]
)


def pattern(name: str, shape: tuple[int, int]) -> Role:
    return PATTERNS[name](shape, generator(name, shape))


def bent_scene(
    shape: tuple[int, int], share: float = 0.06, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
    """Return a relative prior, sparse measurements (m, zero elsewhere) and the true depth."""
    rng = generator(shape, seed)
    y, x = np.indices(shape) / max(shape)
    depth = 1.5 + x + 2 * y + 0.2 * np.sin(9 * x) + 0.4 * (x > 0.5)
    prior = depth**1.4 * np.exp(0.03 * np.cos(7 * x + 5 * y)) / 3
    sparse = np.where(rng.random(shape) < share, depth, 0.0)
    return prior.astype(np.float32), sparse.astype(np.float32), depth


EDGES: dict[str, Callable[[tuple[int, ...], np.random.Generator], NDArray[np.float64]]] = {
    "even": lambda shape, rng: np.ones(shape),
    "mild": lambda shape, rng: rng.uniform(0.05, 1.0, shape),
    "broken": lambda shape, rng: np.where(rng.random(shape) < 0.15, 1e-6, 1.0),
    "wild": lambda shape, rng: 10.0 ** rng.uniform(-6, 0, shape),
}


def edge_weights(name: str, shape: tuple[int, int]) -> Edges:
    """Return edge weights (H, W - 1) and (H - 1, W) in float32."""
    rng = generator("edges", name, shape)
    across, down = (shape[0], shape[1] - 1), (shape[0] - 1, shape[1])
    return EDGES[name](across, rng).astype(np.float32), EDGES[name](down, rng).astype(np.float32)


def code_of(role: Role) -> NDArray[np.uint8]:
    """Return the padded pixel codes, written by the kernel `encode`."""
    padded = np.pad(role, 1)
    code = np.zeros_like(padded)
    kernels.encode(padded, code)
    return code


def edge_planes(role: Role, edges: Edges) -> NDArray[np.float32]:
    """Return the edge weights in the layout of the kernels."""
    valid = role != INVALID
    result = np.zeros((2, role.shape[0] + 2, role.shape[1] + 3), np.float32)
    result[kernels.EAST, 1:-1, 1:-3] = edges[0] * (valid[:, :-1] & valid[:, 1:])
    result[kernels.SOUTH, 1:-2, 1:-2] = edges[1] * (valid[:-1] & valid[1:])
    return result


def pad(values: NDArray[np.floating], shape: tuple[int, int], dtype: type = np.float32) -> NDArray[np.floating]:
    return np.pad(np.reshape(values, shape), 1).astype(dtype)


# --- the system of Appendix A --------------------------------------------------------------------------------------


def laplacian(role: Role, edges: Edges | None = None) -> Matrix:
    """Return A = G^T W G, the graph Laplacian of the valid pixels, with the edge weights on the diagonal of W."""
    index = np.arange(role.size).reshape(role.shape)
    valid = role != INVALID
    across, down = valid[:, :-1] & valid[:, 1:], valid[:-1] & valid[1:]
    here = np.concatenate([index[:, :-1][across], index[:-1][down]])
    there = np.concatenate([index[:, 1:][across], index[1:][down]])
    weights = np.ones(here.size) if edges is None else np.concatenate([edges[0][across], edges[1][down]]).astype(float)
    number = np.arange(here.size)
    G = sp.csr_array((np.ones(here.size), (number, here)), (here.size, role.size)) - sp.csr_array(
        (np.ones(here.size), (number, there)), (here.size, role.size)
    )
    return sp.csr_array(G.T @ sp.diags_array(weights) @ G)


def free_pixels(role: Role) -> NDArray[np.bool_]:
    """Return U: valid, not measured, and with a neighbour. (Without one the equation is data r = 0.)"""
    return (role.ravel() == FREE) & (laplacian(role).diagonal() > 0)


def system(
    role: Role, data: float, bending: float, edges: Edges | None = None, weights: NDArray[np.float64] | None = None
) -> Matrix:
    """Return Q = A + C + data I + bending A^2 on all valid pixels, with the (H * W,) `weights` on the diagonal of C."""
    A = laplacian(role, edges)
    mass = data * (role.ravel() != INVALID).astype(float)
    mass += 0.0 if weights is None else weights
    return sp.csr_array(A + sp.diags_array(mass) + bending * (A @ A))


def restrict_to(matrix: Matrix, pixels: NDArray[np.bool_]) -> Matrix:
    """Return the matrix with every row and column outside `pixels` set to zero."""
    keep = sp.diags_array(pixels.astype(float))
    return sp.csr_array(keep @ matrix @ keep)


def membrane_system(role: Role, data: float) -> Matrix:
    """Return S = A + data I on the free pixels, the part of Q that the membrane preconditioner approximates."""
    return restrict_to(system(role, data, 0.0), free_pixels(role))


# --- multigrid, from its definitions -------------------------------------------------------------------------------


def _stencil(S: NDArray[np.float64], shape: tuple[int, int], i: int, j: int) -> NDArray[np.float64]:
    """Return the 3 x 3 nine-point stencil of pixel (i, j)."""
    stencil = np.zeros((3, 3))
    for di in range(max(-1, -i), min(2, shape[0] - i)):
        for dj in range(max(-1, -j), min(2, shape[1] - j)):
            stencil[di + 1, dj + 1] = S[i * shape[1] + j, (i + di) * shape[1] + j + dj]
    return stencil


def interpolation(matrix: Matrix, shape: tuple[int, int]) -> Matrix:
    """Return P by Dendy's rule: each fine pixel takes the value that its own equation S p = 0 gives it.

    A pixel that is also a coarse one copies its value. For a pixel between two coarse ones the stencil is summed across
    the line that joins them. For a pixel between four, the values on these lines are substituted.
    """
    S = matrix.toarray()
    coarse = ((shape[0] + 1) // 2, (shape[1] + 1) // 2)
    P = np.zeros((shape[0] + 2, shape[1] + 2, coarse[0] * coarse[1]))  # padded: zero outside the image
    number = np.arange(coarse[0] * coarse[1]).reshape(coarse)

    def ratio(rows: NDArray[np.float64], total: float) -> NDArray[np.float64]:
        return -rows / total if total > 0 else 0.0 * rows

    P[1:-1:2, 1:-1:2] = np.eye(number.size).reshape(*coarse, -1)
    for i in range(0, shape[0], 2):
        for j in range(1, shape[1], 2):
            west, own, east = _stencil(S, shape, i, j).sum(axis=0)
            P[i + 1, j + 1] = ratio(west * P[i + 1, j] + east * P[i + 1, j + 2], own)
    for i in range(1, shape[0], 2):
        for j in range(0, shape[1], 2):
            north, own, south = _stencil(S, shape, i, j).sum(axis=1)
            P[i + 1, j + 1] = ratio(north * P[i, j + 1] + south * P[i + 2, j + 1], own)
    for i in range(1, shape[0], 2):
        for j in range(1, shape[1], 2):
            stencil = _stencil(S, shape, i, j)
            own, stencil[1, 1] = stencil[1, 1], 0.0
            P[i + 1, j + 1] = ratio(np.einsum("ij,ijk->k", stencil, P[i : i + 3, j : j + 3]), own)
    return sp.csr_array(P[1:-1, 1:-1].reshape(shape[0] * shape[1], number.size))


@dataclass(frozen=True)
class Level:
    """A level of the hierarchy; all levels but the finest are scaled to a unit diagonal."""

    shape: tuple[int, int]
    operator: Matrix
    prolongation: Matrix | None  # to the next finer level
    # Per pixel, the sum of the absolute terms of its row over its diagonal, before scaling. It is about ten, but more
    # for a pixel in a hole, which has only the weight that its surroundings contribute, or far from measurements.
    cancellation: NDArray[np.float64] | None = None


def explicit_levels(role: Role, data: float, sizes: NDArray[np.int64]) -> list[Level]:
    """Return the whole hierarchy: on each level P from S, then P^T S P, then both scaled."""
    S, root = membrane_system(role, data), np.ones(role.size)
    result = [Level((role.shape[0], role.shape[1]), S, None)]
    for rows, columns in sizes[1:]:
        P = interpolation(S, result[-1].shape)
        terms = abs(P).T @ (abs(S) @ abs(P).sum(axis=1))
        S = sp.csr_array(P.T @ S @ P)
        diagonal = S.diagonal()
        fine, root = root, np.sqrt(diagonal)
        inverse = sp.diags_array(np.divide(1.0, root, out=np.zeros_like(root), where=root > 0))
        cancellation = np.divide(terms, diagonal, out=np.ones_like(root), where=root > 0).clip(1.0)
        shape = int(rows), int(columns)
        result.append(Level(shape, inverse @ S @ inverse, sp.diags_array(fine) @ P @ inverse, cancellation))
    return result


def level_sizes(hierarchy: MembraneHierarchy) -> NDArray[np.int64]:
    """Return the sizes of all levels without padding, (levels, 2), the image first."""
    shapes = [hierarchy.code.shape] + [level.edges.shape[1:] for level in hierarchy.levels[1:]]
    return np.array(shapes) - 2


def stored_levels(hierarchy: MembraneHierarchy) -> list[Level]:
    """Return the coarse levels of a hierarchy as matrices; the image's own matrix is not stored."""
    result = []
    shape = hierarchy.code.shape[0] - 2, hierarchy.code.shape[1] - 2
    for level in hierarchy.levels[1:]:
        weights = level.prolongation.astype(float)
        if len(weights) == 1:
            weights = _image_weights(hierarchy.code.astype(int), hierarchy.data, weights[0])
        prolongation = _stored_prolongation(weights, shape)
        shape = level.edges.shape[1] - 2, level.edges.shape[2] - 2
        result.append(Level(shape, _stored_operator(level.edges.astype(float)), prolongation))
    return result


def _stored_operator(planes: NDArray[np.float64]) -> Matrix:
    """Return the matrix of a level from its unit diagonal and its edges (east, south, south-east, south-west)."""
    _, height, width = planes.shape
    index = np.arange(height * width).reshape(height, width)
    matrix = np.zeros((height * width, height * width))
    for plane, offset in zip(planes, (1, width, width + 1, width - 1), strict=True):
        here = index[1:-1, 1:-1]
        matrix[here, here + offset] -= plane[1:-1, 1:-1]
        matrix[here + offset, here] -= plane[1:-1, 1:-1]
    inside = index[1:-1, 1:-1].ravel()
    outside = np.setdiff1d(index, inside)
    assert not matrix[outside].any(), "an edge leaves the grid"
    return sp.csr_array(matrix[np.ix_(inside, inside)] + np.eye(inside.size))


def _image_weights(code: NDArray[np.int_], data: float, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights to the image, in the layout of a stored prolongation, from its codes and the scales."""
    code = np.pad(code, ((0, 1), (0, 1)))  # odd sizes have no last fine row or column
    free, fixed = code >= kernels.FREE, code >> kernels.FIXED_BITS & 3
    with np.errstate(divide="ignore"):
        beside, above = (
            np.where(free, 1 / (1 + (code >> bit & 1) + fixed + data), 0.0)
            for bit in (kernels.BESIDE_BIT, kernels.ABOVE_BIT)
        )
        middle = np.where(free, 1 / ((code & kernels.DEGREE) + data), 0.0)
    rows, columns = scale.shape[0] - 2, scale.shape[1] - 2
    i, j = slice(1, 2 * rows, 2), slice(1, 2 * columns, 2)  # the fine pixels at coarse ones
    after_i, after_j = slice(2, 2 * rows + 1, 2), slice(2, 2 * columns + 1, 2)
    top, left, total = beside[i, after_j], above[after_i, j], middle[after_i, after_j]
    bottom, right = np.zeros_like(top), np.zeros_like(left)
    bottom[:-1], right[:, :-1] = top[1:], left[:, 1:]
    s0, s1, s2, s3 = scale[1:-1, 1:-1], scale[1:-1, 2:], scale[2:, 1:-1], scale[2:, 2:]
    weights = [
        top * s0, top * s1, left * s0, left * s2,
        (top + left) * total * s0, (top + right) * total * s1, (bottom + left) * total * s2,
        (bottom + right) * total * s3, s0,
    ]  # fmt: skip
    return np.pad(weights, ((0, 0), (1, 1), (1, 1)))


def _stored_prolongation(weights: NDArray[np.float64], shape: tuple[int, int]) -> Matrix:
    rows, columns = weights.shape[1] - 2, weights.shape[2] - 2
    # For each plane: the fine pixel relative to (2I, 2J), and the coarse one relative to (I, J).
    layout = [
        ((0, 1), (0, 0)), ((0, 1), (0, 1)), ((1, 0), (0, 0)), ((1, 0), (1, 0)),
        ((1, 1), (0, 0)), ((1, 1), (0, 1)), ((1, 1), (1, 0)), ((1, 1), (1, 1)), ((0, 0), (0, 0)),
    ]  # fmt: skip
    P = np.zeros((shape[0] * shape[1], rows * columns))
    for plane, ((di, dj), (ei, ej)) in zip(weights, layout, strict=True):
        for i, j in np.argwhere(plane):
            fine, coarse = (2 * (i - 1) + di, 2 * (j - 1) + dj), (i - 1 + ei, j - 1 + ej)
            inside = fine[0] < shape[0] and fine[1] < shape[1] and coarse[0] < rows and coarse[1] < columns
            assert inside, f"a weight between {fine} and {coarse}, one of which does not exist"
            P[fine[0] * shape[1] + fine[1], coarse[0] * columns + coarse[1]] = plane[i, j]
    return sp.csr_array(P)


def v_cycle(chain: list[Level], data: float) -> NDArray[np.float64]:
    """Return B, dense: one V-cycle from zero that smooths with Chebyshev's polynomial of degree two over [1/2, 2].

    Its residual polynomial is T_2((theta - x) / delta) / T_2(theta / delta), theta = 5/4, delta = 3/4, so the
    smoother is M = (1 - that) / x, a polynomial of degree one, at x = S / (4 + data) on the finest level.
    """
    level = chain[0]
    n = level.shape[0] * level.shape[1]
    if len(chain) == 1:
        matrix = level.operator.toarray()
        return np.asarray(np.linalg.inv(matrix + np.diag(matrix.diagonal() == 0)))
    S = level.operator.toarray()
    scale = 1.0 / (4.0 + data) if level.prolongation is None else 1.0
    end = 2 * (1.25 / 0.75) ** 2 - 1
    M = scale * (4 * 1.25 / 0.75**2 / end * np.eye(n) - 2 / 0.75**2 / end * scale * S)
    P = chain[1].prolongation.toarray()
    x = M
    y = x + P @ (v_cycle(chain[1:], data) @ (P.T @ (np.eye(n) - S @ x)))
    return np.asarray(y + M @ (np.eye(n) - S @ y))
