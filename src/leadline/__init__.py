"""Dense metric depth from a relative prior and a few measurements.

>>> import leadline
>>> result = leadline.complete(prior, sparse)  # doctest: +SKIP
>>> result.depth  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.core.estimator import Fit
    from leadline.core.noise import Noise
    from leadline.core.pipeline import Completion, complete
    from leadline.core.reconstruction import Reconstruction
    from leadline.core.response import Response
    from leadline.core.stream import Stream, StreamResult
    from leadline.core.types import (
        Camera,
        CompletionOptions,
        FitOptions,
        InputError,
        LeadlineError,
        Prior,
        ReconstructionOptions,
        Scene,
    )

__version__ = "0.1.0"

# Resolved on first use: importing numba takes longer than importing everything else together.
_HOME = {
    "Camera": "types",
    "Completion": "pipeline",
    "CompletionOptions": "types",
    "Fit": "estimator",
    "FitOptions": "types",
    "InputError": "types",
    "LeadlineError": "types",
    "Noise": "noise",
    "Prior": "types",
    "Reconstruction": "reconstruction",
    "ReconstructionOptions": "types",
    "Response": "response",
    "Scene": "types",
    "Stream": "stream",
    "StreamResult": "stream",
    "complete": "pipeline",
}

__all__ = [
    "Camera",
    "Completion",
    "CompletionOptions",
    "Fit",
    "FitOptions",
    "InputError",
    "LeadlineError",
    "Noise",
    "Prior",
    "Reconstruction",
    "ReconstructionOptions",
    "Response",
    "Scene",
    "Stream",
    "StreamResult",
    "__version__",
    "complete",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    value = getattr(import_module(f"leadline.core.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
