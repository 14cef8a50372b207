"""A strong prior made from a weak one: pulled most of the way to the reference, then bent.

Public samples that come with both a reference and the prediction of a strong network are rare. This stands in for one:
its errors are a network's own, only smaller, and no member of the response's family undoes its bend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.core.prior import Prior, PriorKind
from leadline.priors import PriorSource

POWER, OFFSET = 0.8, 0.1  # of the bend


class PulledPrior(PriorSource):
    """The predictions of `source`, moved by `share` of the way to the reference of their image.

    Parameters
    ----------
    source : PriorSource
    share : float
        Between 0, the source's own shape, and 1, the filled reference.
    """

    quantity: PriorKind = "depth"
    gauge = "unknown"

    def __init__(self, source: PriorSource, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"`pulled` must be above 0 and at most 1, got {share!r}.")
        self.source, self.share = source, share
        self.name = f"{source.name}, pulled {share:g}"

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} pulled {self.share!r}"

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        """The prior of image `name` of `dataset`.

        Raises
        ------
        InputError
            The image has no reference.
        """
        reference = None if dataset is None or name is None else dataset.load(name).reference
        if reference is None:
            raise InputError(f"{name}: has no reference that a prior could be pulled to.")
        return Prior(pull(self.source(image, dataset=dataset, name=name), reference, self.share))


def pull(prior: Prior, reference: FloatArray, share: float) -> NDArray[np.float32]:
    """log p = (1 - share) (a log h + b) + share log f, then (p / mean)^0.8 + 0.1 with the geometric mean of p.

    a and b fit log h to the reference where both are known, by least squares. f is the reference, filled by completing
    h with every known pixel measured.

    Parameters
    ----------
    prior : Prior
        h.
    reference : (H, W) array
        Metres; what is not finite and positive is unknown.
    share : float
        How far, from 0 to 1.
    """
    from leadline.core.pipeline import complete

    h = np.asarray(prior.depth(), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(h), np.log(np.asarray(reference, np.float64))
    known = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(known) < 2:
        raise InputError("`reference` and prior must have two pixels in common, and have fewer.")
    off = x[known] - x[known].mean()
    squares = float((off**2).sum())
    gain = float((off * y[known]).sum()) / squares if squares > 0 else 0.0
    aligned = y[known].mean() + gain * (x - x[known].mean())
    filled = np.log(np.asarray(complete(prior, reference).depth, np.float64))
    pulled = (1 - share) * aligned + share * filled
    bent: NDArray[np.float64] = np.exp(POWER * (pulled - np.nanmean(pulled))) + OFFSET
    return bent.astype(np.float32)
