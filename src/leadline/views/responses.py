"""What views of one camera and one network share where a view alone cannot tell: the response of a neighbouring view.

Once the measurements of the neighbours are carried into a view, they determine its response. Only the very first depth
of a view without measurements, by which its neighbours are found, needs the response of another view. To shrink the
exponents of all views to a common value, or to that of neighbouring frames, changed the error on real frames by less
than 2 % even with 12 measurements a view, and is not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import Float32Array, Float64Array
from leadline.core.fit.estimator import Fit, FitStatus
from leadline.core.fit.response import Response
from leadline.core.inputs import check_inputs
from leadline.core.options import FitOptions
from leadline.core.pipeline import calibrate_prior, fit_pairs
from leadline.core.prior import Prior
from leadline.views.inputs import View


def response_numbers(fit: Fit) -> Float64Array:
    """Exponent, gain, offset and scale of a converged fit, (4,); else NaN."""
    response = fit.response
    if fit.status is not FitStatus.CONVERGED:
        return np.full(4, np.nan)
    return np.array([response.exponent, response.gain, response.offset, response.scale])


def nearest_responses(
    views: Mapping[str, View], responses: Mapping[str, Float64Array], name: str
) -> list[Float64Array]:
    """The responses of the views that have one, that of the camera nearest to `name` first."""
    place = views[name].camera_to_world[:3, 3]
    known = [other for other, numbers in responses.items() if np.isfinite(numbers).all()]
    known.sort(key=lambda other: float(np.linalg.norm(views[other].camera_to_world[:3, 3] - place)))
    return [responses[other] for other in known]


def depth_by_response(
    prior: ArrayLike | Prior, sparse: ArrayLike, valid: ArrayLike | None, candidates: Iterable[Float64Array]
) -> Float32Array:
    """The prior in metres by the first of the candidates that can map all of it; NaN everywhere if none can."""
    pairs = check_inputs(prior, np.zeros_like(np.asarray(sparse)), valid).pairs
    fit = fit_pairs(pairs, FitOptions())
    low, high = pairs.prior_range
    for numbers in candidates:
        response = Response(*numbers.tolist())
        if low <= high and response.feasible(low, high):
            return calibrate_prior(pairs, fit, response)
    return np.full(pairs.shape, np.nan, np.float32)
