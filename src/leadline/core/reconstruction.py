"""Spread what the calibrated prior gets wrong at the measurements over the rest of the image (eq:completion).

With x = log D and l = log t the unknown is the residual r = x - l. It minimises

    grad |G r|^2 + data |r|^2 + lap |L r|^2    subject to    r = log s - log t where measured,

G and L living on the four-neighbour graph of the valid pixels. The unit of depth cancels from r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core import kernels
from leadline.core.solver import SolveStatus, solve
from leadline.core.types import FloatArray, ReconstructionOptions


@dataclass(frozen=True)
class Reconstruction:
    """How the residual solve went.

    `residual` is the true relative residual |b - Q r| / |b|, computed in float64 after the last step, and
    `history` the recursive one before each step.
    """

    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]

    @property
    def converged(self) -> bool:
        return self.status in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.name.lower(),
            "advice": self.status.value,
            "converged": self.converged,
            "iterations": self.iterations,
            "residual": self.residual,
        }


def reconstruct(
    calibrated: NDArray[np.float32],
    where: NDArray[np.intp],
    measured: FloatArray,
    options: ReconstructionOptions,
) -> tuple[FloatArray, Reconstruction]:
    """Depth that equals `measured` at the pixels `where` and follows the gradients of log t elsewhere.

    A connected component of valid pixels without a measurement keeps t.

    Parameters
    ----------
    calibrated : (H, W) float32, C-contiguous
        t in metres, NaN at invalid pixels.
    where : (n,) int
        Flat indices of the measured pixels; t must be valid there.
    measured : (n,) float32 or float64
        Their depth in metres, > 0. The result has this dtype and these very values.
    """
    height, width = calibrated.shape
    row, column = np.divmod(where, width)
    role = np.zeros((height + 2, width + 2), np.uint8)
    # Not isfinite(..., out=...): NumPy gets that wrong for a strided output, as the padding makes that of one column.
    role[1:-1, 1:-1] = valid = np.isfinite(calibrated)
    role[row + 1, column + 1] = 2
    if not valid.all():  # otherwise there is one component
        kernels.fix_unobserved(role)
    del valid
    code = np.zeros_like(role)
    kernels.encode(role, code)
    del role

    field = np.zeros(code.shape)
    field[row + 1, column + 1] = np.log(measured.astype(np.float64) / calibrated[row, column].astype(np.float64))
    solution = solve(code, field, options)
    depth = np.empty((height, width), measured.dtype)
    kernels.restore(calibrated, solution.field, depth)
    depth[row, column] = measured
    return depth, Reconstruction(solution.status, solution.iterations, solution.residual, solution.history)
