"""The method on PyTorch tensors: alignment and completion on any device, in batches, with gradients.

>>> import leadline.torch as lt  # doctest: +SKIP
>>> lt.complete(prior, sparse).depth  # doctest: +SKIP
"""

from __future__ import annotations

from leadline.base.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtra("torch", "torch", "leadline.torch") from error

from leadline.torch.completion import Completion, align, complete
from leadline.torch.results import FIT_STATUSES, GRADIENT_STATUSES, SOLVE_STATUSES, Alignment, Completed, GradientStatus

__all__ = [
    "FIT_STATUSES",
    "GRADIENT_STATUSES",
    "SOLVE_STATUSES",
    "Alignment",
    "Completed",
    "Completion",
    "GradientStatus",
    "align",
    "complete",
]
