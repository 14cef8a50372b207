"""The prior and the measurements as the baselines and the trained systems use them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import InputError, param
from leadline.core.prior import Prior


def relative_depth(prior: Prior) -> NDArray[np.float64]:
    """The prior's depth, (H, W), NaN where it is not finite and positive or not valid."""
    depth = prior.depth()
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)


def measured_pixels(prior: Prior, sparse: FloatArray) -> BoolArray:
    """The mask of the pixels with a finite positive measurement, (H, W).

    Raises
    ------
    InputError
        `sparse` is not a map of the prior's shape.
    """
    sparse = as_map(sparse, "sparse")
    if sparse.shape != prior.shape:
        raise InputError(f"{param('sparse')} must have the prior's shape {prior.shape}, got {sparse.shape} instead.")
    return np.isfinite(sparse) & (sparse > 0)
