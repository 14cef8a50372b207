"""Colourisation: depth spreads over neighbouring pixels of similar luminance, as in the toolbox of NYU Depth v2.

Levin, Lischinski and Weiss 2004, *Colorization using Optimization*, applied to depth by Silberman et al. 2012,
*Indoor Segmentation and Support Inference from RGBD Images*. With Y the luminance in [0, 1], each pixel p should have
the mean of its eight neighbours q, weighted by w_pq proportional to exp(-(Y_p - Y_q)^2 / c_p), where c_p follows from
the variance of Y in the 3 x 3 window; and each measured pixel its depth:

    x_p - sum over q of w_pq x_q  +  [p measured] (x_p - s_p)  =  0 .

The toolbox solves these equations directly, not their least squares, and so does this. Compared with a port of the
toolbox to Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import require_positive
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.classical.fields import Interpolated, Quantity, grey_image, interpolate

VARIANCE_SHARE = 0.6  # c_p relative to the variance of the window
LEAST_WEIGHT = 0.01  # of the most similar neighbour, before normalisation
LEAST_SPREAD = 2e-6  # lower bound of c_p
_NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
_Floats = NDArray[np.float64]


def colourisation(
    prior: Prior,
    sparse: FloatArray,
    *,
    image: NDArray[np.uint8],
    quantity: Quantity = "depth",
    weight: float = 1.0,
) -> MethodResult:
    """Depth that follows the luminance of the image. Measured depths are restored, as in the toolbox.

    A sparse direct solve: some 3 s at 640 x 480, and more than proportionally longer for larger images.

    Parameters
    ----------
    quantity : {"depth", "residual"}
        What is spread: the depth, without the prior, or its log ratio to the aligned prior.
    weight : float
        Weight of a measurement against the mean of its neighbours.
    """
    require_positive(weight=weight)
    grey = grey_image(image, prior.shape)

    def fill(values: _Floats, known: BoolArray) -> Interpolated:
        from scipy.sparse import csc_matrix
        from scipy.sparse.linalg import splu

        pixels = np.arange(grey.size).reshape(grey.shape)
        held = weight * known.ravel()
        rows, columns, entries = [pixels.ravel()], [pixels.ravel()], [1.0 + held]
        for (i, j), shares in zip(_NEIGHBOURS, neighbour_shares(grey), strict=True):
            inside = np.s_[max(0, -i) : grey.shape[0] - max(0, i), max(0, -j) : grey.shape[1] - max(0, j)]
            rows.append(pixels[inside].ravel())
            columns.append(rows[-1] + i * grey.shape[1] + j)
            entries.append(-shares[inside].ravel())
        parts = (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns)))
        solution = splu(csc_matrix(parts, shape=(grey.size, grey.size))).solve(held * values.ravel())
        return Interpolated(solution.reshape(grey.shape))

    return interpolate(prior, sparse, quantity, fill, restore=True)


def neighbour_shares(grey: _Floats) -> _Floats:
    """The weights w_pq of the eight neighbours, (8, H, W), 0 outside the image; at every pixel their sum is 1."""
    height, width = grey.shape
    padded = np.pad(grey, 1, constant_values=np.nan)
    around = np.stack([padded[1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in _NEIGHBOURS])
    variance = np.nanvar(np.concatenate((around, grey[None])), axis=0)
    squares = (around - grey) ** 2
    spread = np.maximum(VARIANCE_SHARE * variance, -np.nanmin(squares, axis=0) / np.log(LEAST_WEIGHT))
    shares = np.nan_to_num(np.exp(-squares / np.maximum(spread, LEAST_SPREAD)), nan=0.0)
    return np.asarray(shares / shares.sum(axis=0))
