"""leadline's own methods: the response alone, the paper's method, and the preset ``best``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.methods.result import MethodResult

# The pipeline is imported inside the functions: it brings in numba, for which a list of the methods should not wait.
if TYPE_CHECKING:
    from leadline.core.fit.estimator import Fit


def response(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The calibrated prior: `calibrated` of `leadline.align`."""
    from leadline.core.pipeline import align

    alignment = align(prior, sparse, options=options)
    return MethodResult(
        np.asarray(alignment.calibrated, np.float32),
        str(alignment.fit.status),
        parameters=_response_parameters(alignment.fit),
    )


def ours(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The paper's method, or another preset or options: `depth` of `leadline.complete`."""
    from leadline.core.pipeline import complete

    completion = complete(prior, sparse, options=options)
    status = f"{completion.fit.status}; {completion.reconstruction.status}"
    depth = np.asarray(completion.depth, np.float32)
    return MethodResult(depth, status, parameters=_response_parameters(completion.fit))


def best(prior: Prior, sparse: FloatArray) -> MethodResult:
    """`depth` of `leadline.complete` with its default options."""
    return ours(prior, sparse, options="best")


def _response_parameters(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit.response, name)) for name in ("exponent", "gain", "offset", "scale")}
