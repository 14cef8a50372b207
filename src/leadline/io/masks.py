"""Masks that a user paints over measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param


def exclude_painted(sparse: FloatArray, path: Path) -> tuple[FloatArray, int]:
    """The measurements outside a painted mask, and the number of those inside.

    Parameters
    ----------
    sparse : (H, W) array
        Metres; NaN, inf and values <= 0 mean "not measured".
    path : Path
        An image of the same size, > 0 where measurements are to be removed.

    Raises
    ------
    InputError
        The mask has another size, or covers every measurement.
    """
    from leadline.io.depth.files import read_image

    painted = read_image(path).max(axis=2) > 0
    if painted.shape != sparse.shape:
        raise InputError(f"{param('mask')} belongs to an image of another size; clear it and draw it again.")
    kept = np.where(painted, sparse.dtype.type(np.nan), sparse)
    if not (kept > 0).any():
        raise InputError(f"{param('mask')} removes every measurement; erase a part of it.")
    return kept, int(np.count_nonzero(painted & (sparse > 0)))
