"""Graph Laplacians of images, as differences of shifted tensors, and the transfer from and to half the resolution.

A graph is a set of edge weights between neighbouring pixels. The batch comes first: fields are (B, H, W). The Laplacian
is formed from differences of neighbours, so that its rounding error is relative to the gradient and not to the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from leadline.core.solve.resolution import MAX_STRENGTHENING


@dataclass(frozen=True)
class Graph:
    """Edge weights of a pixel grid: four neighbours on the image, eight on the coarse levels.

    Attributes
    ----------
    right : (B, H, W - 1)
        Weight between (i, j) and (i, j + 1).
    down : (B, H - 1, W)
        Weight between (i, j) and (i + 1, j).
    falling, rising : (B, H - 1, W - 1), optional
        Weights of the diagonals: (i, j) to (i + 1, j + 1), and (i, j + 1) to (i + 1, j).
    """

    right: Tensor
    down: Tensor
    falling: Tensor | None = None
    rising: Tensor | None = None

    def laplacian(self, x: Tensor) -> Tensor:
        """A x: the sum over the edges of each pixel of weight times difference."""
        flow = self.right * (x[..., :, 1:] - x[..., :, :-1])
        result = pad(flow, (1, 0)) - pad(flow, (0, 1))
        flow = self.down * (x[..., 1:, :] - x[..., :-1, :])
        result = result + (pad(flow, (0, 0, 1, 0)) - pad(flow, (0, 0, 0, 1)))
        if self.falling is not None and self.rising is not None:
            flow = self.falling * (x[..., 1:, 1:] - x[..., :-1, :-1])
            result = result + (pad(flow, (1, 0, 1, 0)) - pad(flow, (0, 1, 0, 1)))
            flow = self.rising * (x[..., 1:, :-1] - x[..., :-1, 1:])
            result = result + (pad(flow, (0, 1, 1, 0)) - pad(flow, (1, 0, 0, 1)))
        return result

    def neighbour_sum(self, x: Tensor) -> Tensor:
        """The sum over the edges of each pixel of weight times the neighbour's value."""
        result = pad(self.right * x[..., :, 1:], (0, 1)) + pad(self.right * x[..., :, :-1], (1, 0))
        result = result + pad(self.down * x[..., 1:, :], (0, 0, 0, 1)) + pad(self.down * x[..., :-1, :], (0, 0, 1, 0))
        if self.falling is not None and self.rising is not None:
            result = result + pad(self.falling * x[..., 1:, 1:], (0, 1, 0, 1))
            result = result + pad(self.falling * x[..., :-1, :-1], (1, 0, 1, 0))
            result = result + pad(self.rising * x[..., 1:, :-1], (1, 0, 0, 1))
            result = result + pad(self.rising * x[..., :-1, 1:], (0, 1, 1, 0))
        return result

    def around(self) -> Around:
        """The weights seen from each pixel, (B, H, W) each; zero beyond the border."""
        zero = torch.zeros_like(pad(self.right, (0, 1)))
        falling, rising = self.falling, self.rising
        return Around(
            east=pad(self.right, (0, 1)),
            west=pad(self.right, (1, 0)),
            south=pad(self.down, (0, 0, 0, 1)),
            north=pad(self.down, (0, 0, 1, 0)),
            south_east=zero if falling is None else pad(falling, (0, 1, 0, 1)),
            north_west=zero if falling is None else pad(falling, (1, 0, 1, 0)),
            south_west=zero if rising is None else pad(rising, (1, 0, 0, 1)),
            north_east=zero if rising is None else pad(rising, (0, 1, 1, 0)),
        )

    def degree(self) -> Tensor:
        """Sum of the weights of each pixel's edges, (B, H, W)."""
        around = self.around()
        straight = (around.east + around.west) + (around.south + around.north)
        return straight + (around.south_east + around.north_west) + (around.south_west + around.north_east)

    def clipped(self) -> Graph:
        """The same graph without negative weights."""
        diagonals = (None if edges is None else edges.clamp(min=0) for edges in (self.falling, self.rising))
        return Graph(self.right.clamp(min=0), self.down.clamp(min=0), *diagonals)

    def to(self, dtype: torch.dtype) -> Graph:
        diagonals = (None if edges is None else edges.to(dtype) for edges in (self.falling, self.rising))
        return Graph(self.right.to(dtype), self.down.to(dtype), *diagonals)


def eight_neighbours(graph: Graph) -> Tensor:
    """Edge weights from each pixel to the 3 x 3 pixels around it, (B, 3, 3, h, w), zero to itself."""
    around = graph.around()
    rows = (
        (around.north_west, around.north, around.north_east),
        (around.west, torch.zeros_like(around.west), around.east),
        (around.south_west, around.south, around.south_east),
    )
    return torch.stack([torch.stack(row, dim=-3) for row in rows], dim=-4)


def laplacian_of_eight(weights: Tensor, x: Tensor) -> Tensor:
    """A x as in `Graph.laplacian`, in few operations: coarse levels are small, and the number of kernels counts.

    Parameters
    ----------
    weights : (B, 3, 3, h, w)
        From `eight_neighbours`.
    x : (..., B, h, w)
    """
    windows = pad(x, (1, 1, 1, 1)).unfold(-2, 3, 1).unfold(-2, 3, 1).movedim((-2, -1), (-4, -3))
    return (weights * (x.unsqueeze(-3).unsqueeze(-3) - windows)).sum(dim=(-4, -3))


@dataclass(frozen=True)
class Around:
    """Edge weights by direction, as seen from each pixel."""

    east: Tensor
    west: Tensor
    south: Tensor
    north: Tensor
    south_east: Tensor
    north_west: Tensor
    south_west: Tensor
    north_east: Tensor


def unit_graph(valid: Tensor, dtype: torch.dtype = torch.float32) -> Graph:
    """Weight one between valid neighbours, zero elsewhere."""
    right = valid[..., :, 1:] & valid[..., :, :-1]
    down = valid[..., 1:, :] & valid[..., :-1, :]
    return Graph(right.to(dtype), down.to(dtype))


def halve_map(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid ones of each two by two pixels, (H, W) to half the size; 1 where none is valid."""
    height, width = values.shape
    margin = (0, width % 2, 0, height % 2)
    total, count = (
        pad(part, margin).unfold(0, 2, 2).unfold(1, 2, 2).sum(dim=(-2, -1))
        for part in (torch.where(valid, values, torch.zeros_like(values)), valid.to(values))
    )
    return torch.where(count > 0, total / count.clamp(min=1), torch.ones_like(total))


def halve_edges(right: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Edge weights at half the resolution, as `leadline.core.solve.resolution` forms them."""
    return _halve_rows(right), _halve_rows(down.mT).mT


def _halve_rows(right: Tensor) -> Tensor:
    inner, across = pad(right[:, 0::2], (0, 1), value=1.0), right[:, 1::2]
    a, b, c = inner[:, : across.shape[1]], across, inner[:, 1 : across.shape[1] + 1]
    series = (4.0 * a * b * c / (b * c + 2.0 * a * c + a * b)).clamp(max=1.0)
    if len(series) % 2:
        series = torch.cat((series, series[-1:]))
    one, other = series[0::2], series[1::2]
    return torch.minimum(0.5 * (one + other), MAX_STRENGTHENING * torch.minimum(one, other))


def interpolate(field: Tensor, guide: Tensor, known: Tensor, t: Tensor, similarity: float, least: float) -> Tensor:
    """A field at twice the resolution, as `leadline.core.solve.resolution` does.

    Parameters
    ----------
    field, guide, known : (h, w)
        The coarse field, the coarse map of t, and where it is valid.
    t : (H, W)
        Positive, also where it is not valid.
    similarity, least : float
        The factor of a pixel is least + 1 / (1 + similarity d^2)^2, d = (t - u) / (t + u) with u of the guide.
    """
    total, weight = torch.zeros_like(t), torch.zeros_like(t)
    for rows, row_share in _coarse_indices(t.shape[0], field.shape[0], t.device):
        for columns, column_share in _coarse_indices(t.shape[1], field.shape[1], t.device):
            corner = rows[:, None], columns
            ratio = (t - guide[corner]) / (t + guide[corner])
            factor = row_share * column_share * (least + 1.0 / (1.0 + similarity * ratio**2) ** 2)
            factor = torch.where(known[corner], factor, torch.zeros_like(factor))
            total = total + factor * field[corner]
            weight = weight + factor
    return total / torch.where(weight > 0, weight, torch.ones_like(weight))


def _coarse_indices(size: int, coarse: int, device: torch.device) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    """For each fine row or column the coarse one that contains it, and the next one on its side, with their shares."""
    fine = torch.arange(size, device=device)
    near = fine // 2
    return (near, 3.0), ((near + 2 * (fine % 2) - 1).clamp(0, coarse - 1), 1.0)
