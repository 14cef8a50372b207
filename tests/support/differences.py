"""Derivatives by central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def central_jacobian(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """Derivatives of a vector function, (outputs, inputs), by fourth-order central differences.

    With the default step the truncation, step^4 times a fifth derivative, meets the rounding, 1e-16 / step,
    near 1e-12 for functions of order one.
    """
    columns = []
    for i in range(at.size):
        shift = np.zeros(at.size)
        shift[i] = step * max(1.0, abs(at[i]))
        near = function(at + shift) - function(at - shift)
        far = function(at + 2 * shift) - function(at - 2 * shift)
        columns.append((8 * near - far) / (12 * shift[i]))
    return np.stack(columns, axis=-1)
