"""A strong prior for experiments, made from a weak one by blending it with the reference depth.

Public samples that contain both a reference and the prediction of a strong network are rare. The blend replaces one:
its errors have the structure of a network's errors but are smaller, and its final distortion is outside the response
family, so that the fit alone cannot remove it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.core.prior import Prior, PriorKind
from leadline.priors import PriorSource

POWER, OFFSET = 0.8, 0.1  # of the final distortion (p / mean)^0.8 + 0.1


class OracleBlend(PriorSource):
    """The predictions of another source, blended with the reference depth of their image.

    Parameters
    ----------
    source : PriorSource
    share : float
        Share of the reference in log depth, in (0, 1].
    """

    quantity: PriorKind = "depth"
    gauge = "unknown"

    def __init__(self, source: PriorSource, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"{param('share')} of the reference must be above 0 and at most 1, got {share!r}.")
        self.source, self.share = source, share
        self.name = f"{source.name}, blended with {share:g} of the reference"

    def fingerprint(self) -> str:
        return f"oracle {self.share!r} {self.source.fingerprint()}"

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The blended prior of image `name` of `dataset`.

        Raises
        ------
        InputError
            The image has no reference.
        """
        reference = None if dataset is None or name is None else dataset.load(name).reference
        if reference is None:
            raise InputError(f"{name}: an oracle prior needs a reference depth, and the image has none.")
        return Prior(blend_with_reference(self.source(image, dataset=dataset, name=name), reference, self.share))


def blend_with_reference(prior: Prior, reference: FloatArray, share: float) -> NDArray[np.float32]:
    """log p = (1 - share) (a log h + b) + share log f, then (p / mean)^0.8 + 0.1 with the geometric mean of p.

    h is the prior; a and b are its least-squares fit to the reference in log depth. f is the reference with its holes
    filled by completing h, in the paper's configuration, with every valid reference pixel as a measurement.

    Parameters
    ----------
    prior : Prior
    reference : (H, W) array
        Metres; values that are not finite and positive are unknown.
    share : float
        Share of the reference, from 0 to 1.

    Returns
    -------
    (H, W) float32 array
        Relative depth.

    Raises
    ------
    InputError
        Prior and reference have fewer than two valid pixels in common.
    """
    from leadline.core.pipeline import complete

    h = np.asarray(prior.depth(), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(h), np.log(np.asarray(reference, np.float64))
    known = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(known) < 2:
        raise InputError(f"{param('reference')} and the prior must have at least two valid pixels in common.")
    centred = x[known] - x[known].mean()
    squares = float((centred**2).sum())
    slope = float((centred * y[known]).sum()) / squares if squares > 0 else 0.0
    aligned = y[known].mean() + slope * (x - x[known].mean())
    completed = complete(prior, reference, options="paper")
    blend = (1 - share) * aligned + share * np.log(np.asarray(completed.depth, np.float64))
    distorted: NDArray[np.float64] = np.exp(POWER * (blend - np.nanmean(blend))) + OFFSET
    return distorted.astype(np.float32)
