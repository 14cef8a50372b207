"""What `align` and `complete` return: frozen dataclasses of tensors, one entry per item of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leadline.base.errors import Status
from leadline.core.fit.estimator import FitStatus
from leadline.core.solve.cg import SolveStatus


class GradientStatus(Status):
    """Whether the gradients of an item can be used. A backward pass may change it."""

    FORMED = "gradients follow by implicit differentiation"
    NOT_DETERMINED = (
        "the measurements do not determine the parameters of the response, or there are none, so the gradients of this "
        "item are zero: add measurements"
    )
    FAILED = (
        "a number was not finite, or a solve did not converge, so the gradients of this item are zero: look at the "
        "other statuses, and at the loss at pixels without depth"
    )


FIT_STATUSES = tuple(FitStatus)
SOLVE_STATUSES = tuple(SolveStatus)
GRADIENT_STATUSES = tuple(GradientStatus)
FORMED, NOT_DETERMINED, FAILED = range(len(GRADIENT_STATUSES))


@dataclass(frozen=True)
class FittedResponses:
    """The responses of a batch. All tensors are (B,), or () for a single map.

    Attributes
    ----------
    exponent, gain, offset, scale : tensors, float64
        The paper's lambda, alpha, beta and s_0.
    rmse : tensor, float64
        Root mean square residual of the fit in metres.
    status : tensor, uint8
        Index into `FIT_STATUSES`; `messages` gives the sentences.
    gradient_status : tensor, uint8
        Index into `GRADIENT_STATUSES`. The gradients of an item are zero unless it is `FORMED`. The backward pass
        changes it, in place, where it fails.
    """

    exponent: Tensor
    gain: Tensor
    offset: Tensor
    scale: Tensor
    rmse: Tensor
    status: Tensor
    gradient_status: Tensor

    @property
    def messages(self) -> list[str]:
        """The status of each item as a sentence."""
        return [str(FIT_STATUSES[code]) for code in self.status.reshape(-1).tolist()]


@dataclass(frozen=True)
class Alignment(FittedResponses):
    """The prior in metres, and the response that maps it there.

    Attributes
    ----------
    calibrated : tensor of the prior's shape
        t in metres, NaN where the prior is invalid, and everywhere without a measurement.
    """

    calibrated: Tensor


@dataclass(frozen=True)
class Completed(Alignment):
    """Dense metric depth, and how it was obtained.

    Attributes
    ----------
    depth : tensor of the prior's shape
        Metres; equal to the measurement, bit for bit, where there is one that is taken as exact.
    solve_status : tensor, uint8
        Index into `SOLVE_STATUSES`.
    iterations : tensor, int64
        Conjugate gradient steps.
    residual : tensor, float64
        True relative residual at the end.
    """

    depth: Tensor
    solve_status: Tensor
    iterations: Tensor
    residual: Tensor

    @property
    def messages(self) -> list[str]:
        """The statuses of fit and solve of each item as sentences."""
        solves = [str(SOLVE_STATUSES[code]) for code in self.solve_status.reshape(-1).tolist()]
        return [f"fit {fit}; solve {solve}" for fit, solve in zip(super().messages, solves, strict=True)]
