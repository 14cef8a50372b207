"""How linear the relation between predicted and true depth is: the paper's diagnostics (Appendix A), as numbers.

1. At most 6,000 held-out pixels are sampled with seed 0.
2. Those inside a depth window, the same for all compared predictions, fall into bins of 0.05 m of *predicted* depth.
3. A bin with 30 or more pixels gives a point of the local-median path. Its median and MAD decide which of its pixels
   are displayed. A bin with fewer pixels leaves a gap in the path.
4. Pearson's r is computed over the displayed pixels; the trend error is the mean distance of the path from identity,
   with equal weight for each bin; MAE is computed over all held-out pixels. The three numbers have different supports.

The paper does not state how far from a bin's median a displayed pixel may lie, what the window is, and where in its bin
a point of the path lies. Here these are 3 robust standard deviations, percentiles 1 to 99 of the held-out ground truth,
and the bin's median of predicted depth. With the last choice a perfect prediction has a trend error of exactly zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError, require_positive
from leadline.bench.metrics import depth_scores

Vector = NDArray[np.float64]
Window = tuple[float, float]  # lowest and highest depth, m

SAMPLES, SEED = 6000, 0
BIN_WIDTH = 0.05  # m of predicted depth
SMALLEST_BIN = 30  # pixels that a bin needs
DISPLAYED_SPREAD = 3.0  # robust standard deviations that a displayed pixel may lie from its bin's median
MAD_TO_SIGMA = 1.4826  # standard deviation over MAD of a normal distribution
WINDOW_PERCENTILES = (1.0, 99.0)  # of the held-out ground truth


@dataclass(frozen=True, eq=False)
class Linearity:
    """Predicted against true depth at the held-out pixels of one image."""

    predicted: Vector  # metres, of the displayed pixels
    reference: Vector  # metres, of the displayed pixels
    path_predicted: Vector  # metres: the local-median path from the nearest bin to the farthest; NaN in its gaps
    path_reference: Vector
    window: Window
    pearson: float  # r of the displayed pixels; NaN if there are fewer than two or either variable is constant
    trend_cm: float  # mean distance of the path from identity; NaN if no bin has enough pixels
    mae: float  # metres, over all held-out pixels
    sampled: int  # sampled pixels that have a prediction
    bins: int  # bins with enough pixels

    @property
    def few_displayed(self) -> bool:
        """Whether less than half of the sampled pixels are displayed, so that trend and r describe few of them."""
        return 2 * self.predicted.size < self.sampled

    def to_dict(self) -> dict[str, Any]:
        """The numbers, without the displayed pixels."""
        return {
            "pearson": self.pearson,
            "trend_cm": self.trend_cm,
            "mae": self.mae,
            "sampled": self.sampled,
            "displayed": int(self.predicted.size),
            "bins": self.bins,
            "window": list(self.window),
            "path": {"predicted": self.path_predicted.tolist(), "reference": self.path_reference.tolist()},
        }


def sample_held_out(reference: FloatArray, scored: BoolArray, *, size: int = SAMPLES) -> NDArray[np.intp]:
    """At most `size` flat indices, increasing, of the pixels of `scored` that have a ground truth; sampled with seed 0.

    The sample does not depend on a prediction, so all predictions are compared at the same pixels.
    """
    reference = as_map(reference, "reference")
    places = np.flatnonzero(as_mask(scored, "scored", reference.shape) & np.isfinite(reference) & (reference > 0))
    if places.size > size:
        places = np.sort(np.random.default_rng(SEED).choice(places, size, replace=False))
    return places


def depth_window(reference: FloatArray, scored: BoolArray) -> Window:
    """The depth window to display: percentiles 1 to 99 of the held-out ground truth, in metres."""
    places = sample_held_out(reference, scored, size=reference.size)
    if not places.size:
        raise InputError("there is no held-out pixel: every pixel with a ground truth was measured, or there is none.")
    low, high = np.percentile(reference.flat[places], WINDOW_PERCENTILES)
    return float(low), float(high)


def measure_linearity(
    prediction: FloatArray,
    reference: FloatArray,
    scored: BoolArray,
    *,
    window: Window | None = None,
    bin_width: float = BIN_WIDTH,
) -> Linearity:
    """How linear the relation between a prediction and the ground truth is at held-out pixels, as the module describes.

    Parameters
    ----------
    prediction, reference : (H, W) arrays
        Metres; NaN, inf and values <= 0 are unknown.
    scored : (H, W) bool array
        The held-out pixels.
    window : (lowest, highest), optional
        Metres. Default: `depth_window` of the reference, which is the same for all predictions of an image.
    bin_width : float
        Metres. The paper's 0.05 suits rooms. Where depth spans 50 m hardly any such bin holds 30 of 6,000 pixels.
    """
    require_positive(bin_width=bin_width)
    scores = depth_scores(prediction, reference, scored)
    low, high = window or depth_window(reference, scored)
    places = sample_held_out(reference, scored)
    p, r = (np.asarray(values).flat[places].astype(np.float64) for values in (prediction, reference))
    known = np.isfinite(p) & (p > 0)
    p, r = p[known], r[known]
    inside = (p >= low) & (p <= high) & (r >= low) & (r <= high)
    p, r = p[inside], r[inside]

    bins = np.floor(p / bin_width).astype(np.int64)
    first = int(bins.min()) if bins.size else 0
    count = int(bins.max()) - first + 1 if bins.size else 0
    path_p, path_r = np.full(count, np.nan), np.full(count, np.nan)
    displayed = np.zeros(p.size, dtype=bool)
    for place in range(count):
        members = np.flatnonzero(bins == first + place)
        if members.size < SMALLEST_BIN:
            continue
        path_p[place], path_r[place] = np.median(p[members]), np.median(r[members])
        deviation = np.abs(r[members] - path_r[place])
        displayed[members[deviation <= DISPLAYED_SPREAD * MAD_TO_SIGMA * np.median(deviation)]] = True
    supported = np.flatnonzero(np.isfinite(path_p))
    ends = slice(supported[0], supported[-1] + 1) if supported.size else slice(0)
    path_p, path_r = path_p[ends], path_r[ends]
    trend_cm = float(np.nanmean(np.abs(path_r - path_p))) * 100 if supported.size else math.nan
    p, r = p[displayed], r[displayed]
    pearson = float(np.corrcoef(p, r)[0, 1]) if p.size > 1 and np.ptp(p) > 0 and np.ptp(r) > 0 else math.nan
    sampled = int(np.count_nonzero(known))
    return Linearity(p, r, path_p, path_r, (low, high), pearson, trend_cm, scores.mae, sampled, supported.size)
