"""One multigrid V-cycle for A + N + A K A as tensor operations: the preconditioner of `solve`.

The method is that of the compiled core (`leadline.core.solve.multigrid`, thin plate), level by level: interpolation
from each pixel's own equation, a coarse operator composed from the Galerkin product of A, a smoother that is a
polynomial in A. Here every level is a handful of whole tensors with the batch first, no value is ever read back by the
host, and no shape depends on the data, so that a cycle can be compiled to one graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from leadline.torch.stencils import Graph, eight_neighbours, laplacian_of_eight

# The constants are those of the compiled cycle, where their origin is explained.
COARSEST = 16  # pixels of the level that is inverted directly
_CUSP = 1.5
_FIXED = 10.0
_KINKS = 1.3
_HOLD = 32.0
_VANISHED = 1e-30
_CENTRE, _GAIN, _TURN = 0.89, 6.2, 4.5
_FLOOR, _RISE, _TIP = 0.03, 0.024, 0.096


@dataclass(frozen=True)
class Transfer:
    """Interpolation weights from a coarse level, (B, h, w) each.

    A fine pixel (2I, 2J) copies the coarse pixel (I, J). `top` is (2I, 2J + 1), between 0 = (I, J) and 1 = (I, J + 1);
    `left` is (2I + 1, 2J), between 0 and 2 = (I + 1, J); `middle` is (2I + 1, 2J + 1), between all four.
    """

    size: tuple[int, int]  # (H, W) of the fine level
    top_0: Tensor
    top_1: Tensor
    left_0: Tensor
    left_2: Tensor
    middle_0: Tensor
    middle_1: Tensor
    middle_2: Tensor
    middle_3: Tensor

    def prolong(self, coarse: Tensor) -> Tensor:
        """P e on the fine level."""
        east, south = _from(coarse, 0, 1), _from(coarse, 1, 0)
        top = self.top_0 * coarse + self.top_1 * east
        left = self.left_0 * coarse + self.left_2 * south
        middle = (self.middle_0 * coarse + self.middle_1 * east) + (
            self.middle_2 * south + self.middle_3 * _from(coarse, 1, 1)
        )
        return _interleave(coarse, top, left, middle, self.size)

    def restrict(self, fine: Tensor) -> Tensor:
        """P^T r on the coarse level."""
        centre, top, left, middle = _split(fine)
        result = centre + (self.top_0 * top + _from(self.top_1 * top, 0, -1))
        result = result + (self.left_0 * left + _from(self.left_2 * left, -1, 0))
        result = result + (self.middle_0 * middle + _from(self.middle_1 * middle, 0, -1))
        return result + (_from(self.middle_2 * middle, -1, 0) + _from(self.middle_3 * middle, -1, -1))


@dataclass(frozen=True)
class Level:
    """One level: the graph of A, the masses N, the bending K, and the coefficients of the smoother.

    `stencil` holds the edge weights of a coarse level once more, by neighbour; see `eight_neighbours`.
    """

    graph: Graph
    stencil: Tensor | None
    mass: Tensor
    bend: Tensor
    step: Tensor
    area: Tensor
    inner: Tensor  # c / d
    floor: Tensor  # c e / d

    def apply(self, x: Tensor) -> Tensor:
        """(A + N + A K A) x."""
        tension = self.laplacian(x)
        return tension + self.mass * x + self.laplacian(self.bend * tension)

    def laplacian(self, x: Tensor) -> Tensor:
        """A x for (..., B, h, w)."""
        return self.graph.laplacian(x) if self.stencil is None else laplacian_of_eight(self.stencil, x)

    def smooth(self, b: Tensor, damping: Tensor | float) -> Tensor:
        """M b with M = (m - A/d)^T c/d (m - A/d) + c e/d."""
        v = damping * self.inner * (_CENTRE * b - self.laplacian(self.step * b))
        return (_CENTRE * v - self.step * self.laplacian(v)) + damping * self.floor * b


@dataclass(frozen=True)
class Hierarchy:
    """All levels of a batch of systems, the image first."""

    free: Tensor  # (B, H, W) bool
    levels: tuple[Level, ...]
    transfers: tuple[Transfer, ...]
    inverse: Tensor  # (B, n, n) of the last level

    def cycle(self, r: Tensor, damping: Tensor | float = 1.0) -> Tensor:
        """z = B r, with B a symmetric positive approximation of the inverse on the free pixels.

        `damping`, a number or (B, 1, 1), scales the smoother; it is lowered where B turned out to be indefinite.
        """
        z = self._level(0, r, damping)
        return torch.where(self.free, z, torch.zeros_like(z))

    def _level(self, depth: int, b: Tensor, damping: Tensor | float) -> Tensor:
        if depth == len(self.transfers):
            return (self.inverse @ b.flatten(-2).unsqueeze(-1)).squeeze(-1).view_as(b)
        level, transfer = self.levels[depth], self.transfers[depth]
        x = level.smooth(b, damping)
        coarse = self._level(depth + 1, transfer.restrict(b - level.apply(x)), damping)
        y = x + transfer.prolong(coarse)
        return y + level.smooth(b - level.apply(y), damping)


def build_hierarchy(free: Tensor, valid: Tensor, graph: Graph, mass: Tensor, bending: Tensor) -> Hierarchy:
    """The levels for A + mass + bending A^2 on the free pixels.

    Parameters
    ----------
    free, valid : (B, H, W) bool
        Pixels to solve for; valid pixels that are not free are fixed.
    graph : Graph
        Edge weights of the image.
    mass : (B, H, W)
        Data weight plus the weights of soft measurements.
    bending : (B, 1, 1)
        Weight of the bending term.
    """
    levels = [_image_level(free, valid, graph, mass, bending)]
    transfers: list[Transfer] = []
    height, width = free.shape[-2:]
    while not transfers or height * width > COARSEST:
        fine = levels[-1]
        # Above this bending weight a measurement does not shape the interpolation: the field has no cusp there.
        seen = bending < _CUSP * 4.0 ** len(transfers)
        transfer = _interpolation(fine.graph, torch.where(seen, fine.mass, torch.zeros_like(fine.mass)))
        bending = bending * _KINKS
        levels.append(_coarse_level(fine, transfer, seen, bending))
        transfers.append(transfer)
        height, width = levels[-1].mass.shape[-2:]
    return Hierarchy(free, tuple(levels), tuple(transfers), _dense_inverse(levels[-1]))


def _image_level(free: Tensor, valid: Tensor, graph: Graph, mass: Tensor, bending: Tensor) -> Level:
    bend = bending.expand(mass.shape)
    total = graph.degree()
    bound = _row_bound(graph, total, 2.0 * total * bend)
    # A stiff mass keeps a fixed pixel near zero, which is all that a preconditioner needs.
    mass = torch.where(valid & ~free, _FIXED * bound, mass)
    return _with_smoother(graph, mass, bend, bound, valid.to(mass.dtype))


def _coarse_level(fine: Level, transfer: Transfer, seen: Tensor, bending: Tensor) -> Level:
    masses = torch.where(seen, fine.mass, torch.zeros_like(fine.mass))
    graph, galerkin_mass = _galerkin(fine, masses, transfer)
    graph = graph.clipped()
    mass = torch.where(seen, galerkin_mass.clamp(min=0), transfer.restrict(fine.mass))
    area = transfer.restrict(fine.area)
    bend = torch.where(area > _VANISHED, bending / area.clamp(min=_VANISHED), torch.zeros_like(area))
    total = graph.degree()
    return _with_smoother(graph, mass, bend, _row_bound(graph, total, 2.0 * total * bend), area)


def _row_bound(graph: Graph, total: Tensor, sums: Tensor) -> Tensor:
    """Row sums of |A| + |A| K |A|, where `sums` are those of K |A|."""
    return graph.neighbour_sum(sums) + total * sums + 2.0 * total


def _with_smoother(graph: Graph, mass: Tensor, bend: Tensor, bound: Tensor, area: Tensor) -> Level:
    bound = bound + _HOLD * mass
    empty = bound <= _VANISHED
    step = (1.0 + torch.sqrt(1.0 + 4.0 * bend * bound)) / (2.0 * bound.clamp(min=_VANISHED))
    step = torch.where(empty, torch.zeros_like(step), step)
    u = _TURN * step / (_TURN * step + (bend + _VANISHED))
    inner = _GAIN * u * step
    stencil = None if graph.falling is None else eight_neighbours(graph)
    return Level(graph, stencil, mass, bend, step, area, inner, inner * (_FLOOR + u * (_RISE + _TIP * u**4)))


def _interpolation(graph: Graph, mass: Tensor) -> Transfer:
    """Weights of the fine pixels between coarse ones, each from its own equation."""
    around = graph.around()
    west = around.west + around.south_west + around.north_west
    east = around.east + around.south_east + around.north_east
    north = around.north + around.north_west + around.north_east
    south = around.south + around.south_east + around.south_west
    across, along = west + east + mass, north + south + mass
    top_0, top_1 = (_split(_quotient(side, across))[1] for side in (west, east))
    left_0, left_2 = (_split(_quotient(side, along))[2] for side in (north, south))
    total = graph.degree() + mass
    n, s, w, e = (_split(side)[3] for side in (around.north, around.south, around.west, around.east))
    corners = (around.north_west, around.north_east, around.south_west, around.south_east)
    c0, c1, c2, c3 = (_split(corner)[3] for corner in corners)
    c0 = c0 + (n * top_0 + w * left_0)
    c1 = c1 + (n * top_1 + e * _from(left_0, 0, 1))
    c2 = c2 + (s * _from(top_0, 1, 0) + w * left_2)
    c3 = c3 + (s * _from(top_1, 1, 0) + e * _from(left_2, 0, 1))
    middle = (_quotient(corner, _split(total)[3]) for corner in (c0, c1, c2, c3))
    size = (mass.shape[-2], mass.shape[-1])
    return Transfer(size, top_0, top_1, left_0, left_2, *middle)


def _galerkin(level: Level, mass: Tensor, transfer: Transfer) -> tuple[Graph, Tensor]:
    """Edges and masses of P^T (A + diag(mass)) P.

    A coarse pixel is coupled to its eight neighbours only, so nine probing vectors, each one at every third pixel in
    both directions, give all entries. The masses, which are row sums and would cancel, come from a constant vector.
    """

    def project(coarse: Tensor) -> Tensor:
        fine = transfer.prolong(coarse)
        return transfer.restrict(level.laplacian(fine) + mass * fine)

    height, width = transfer.top_0.shape[-2:]
    rows = torch.arange(height, device=mass.device)[:, None] % 3
    columns = torch.arange(width, device=mass.device)[None, :] % 3
    colour = 3 * rows + columns
    numbers = torch.arange(9, device=mass.device)[:, None, None, None]
    shape = transfer.top_0.shape
    probes = torch.cat(((colour == numbers).to(mass.dtype).expand(9, *shape), torch.ones_like(transfer.top_0)[None]))
    projected = project(probes)  # (10, B, h, w)
    entries = projected[:9].movedim(0, -3)

    def edge(down: int, right: int) -> Tensor:
        """Minus the coupling of each pixel with the one `down` rows and `right` columns further."""
        at = 3 * ((rows + down) % 3) + (columns + right) % 3
        index = at.expand(entries.shape[:-3] + at.shape).unsqueeze(-3)
        return -entries.gather(-3, index).squeeze(-3)

    falling, rising = edge(1, 1)[..., :-1, :-1], edge(1, -1)[..., :-1, 1:]
    coarse = Graph(edge(0, 1)[..., :, :-1], edge(1, 0)[..., :-1, :], falling, rising)
    return coarse, projected[9]


def _dense_inverse(level: Level) -> Tensor:
    """Inverse of the last level; pixels without an equation get the identity."""
    shape = level.mass.shape
    n = shape[-2] * shape[-1]
    graph = level.graph.to(torch.float64)
    stencil = None if level.stencil is None else level.stencil.to(torch.float64)
    wide = Level(graph, stencil, level.mass.to(torch.float64), level.bend.to(torch.float64), *([level.mass] * 4))
    unit = torch.eye(n, dtype=torch.float64, device=level.mass.device).view(n, 1, *shape[-2:])
    columns = wide.apply(unit.expand(n, *shape))
    matrix = columns.flatten(-2).movedim(0, -1)
    empty = torch.diagonal(matrix, dim1=-2, dim2=-1) <= _VANISHED
    matrix = matrix + torch.diag_embed(empty.to(matrix.dtype))
    return _invert(matrix).to(level.mass.dtype)


def _invert(matrix: Tensor) -> Tensor:
    """Inverse of a small positive definite matrix by Gauss-Jordan elimination, which needs no pivoting then.

    Plain tensor operations: unlike torch.linalg.inv they do not wait for the device.
    """
    for k in range(matrix.shape[-1]):
        row, column, pivot = matrix[..., k : k + 1, :], matrix[..., :, k : k + 1], matrix[..., k : k + 1, k : k + 1]
        reduced = matrix - column * row / pivot
        unit = torch.zeros(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
        unit[k] = True
        reduced = torch.where(unit[:, None], row / pivot, reduced)
        reduced = torch.where(unit, -column / pivot, reduced)
        matrix = torch.where(unit[:, None] & unit, 1.0 / pivot, reduced)
    return matrix


def _quotient(part: Tensor, total: Tensor) -> Tensor:
    """part / total, zero where the total is."""
    return torch.where(total > 0, part / torch.where(total > 0, total, torch.ones_like(total)), torch.zeros_like(part))


def _from(x: Tensor, down: int, right: int) -> Tensor:
    """x at (i + down, j + right), zero beyond the border; both in {-1, 0, 1}."""
    height, width = x.shape[-2:]
    padded = pad(x, (max(-right, 0), max(right, 0), max(-down, 0), max(down, 0)))
    top, left = max(down, 0), max(right, 0)
    return padded[..., top : top + height, left : left + width]


def _split(fine: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The pixels (2I, 2J), (2I, 2J + 1), (2I + 1, 2J) and (2I + 1, 2J + 1), with zeros beyond an odd border."""
    height, width = fine.shape[-2:]
    even = pad(fine, (0, width % 2, 0, height % 2))
    return even[..., 0::2, 0::2], even[..., 0::2, 1::2], even[..., 1::2, 0::2], even[..., 1::2, 1::2]


def _interleave(centre: Tensor, top: Tensor, left: Tensor, middle: Tensor, size: tuple[int, int]) -> Tensor:
    """The inverse of `_split`."""
    upper = torch.stack((centre, top), dim=-1).flatten(-2)
    lower = torch.stack((left, middle), dim=-1).flatten(-2)
    return torch.stack((upper, lower), dim=-2).flatten(-3, -2)[..., : size[0], : size[1]]
