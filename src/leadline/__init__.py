"""Dense metric depth from a relative prior and a few measurements.

>>> import leadline
>>> result = leadline.complete(prior, sparse)  # doctest: +SKIP
>>> result.depth  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leadline.base.registry import import_on_first_use

if TYPE_CHECKING:
    from leadline.base.errors import InputError, InputWarning, LeadlineError
    from leadline.core.compilation import warm_up
    from leadline.core.fit.estimator import Fit
    from leadline.core.fit.response import Response
    from leadline.core.noise import Noise
    from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
    from leadline.core.pipeline import Alignment, Completion, align, complete
    from leadline.core.prior import Prior
    from leadline.core.solve.reconstruction import Reconstruction
    from leadline.core.stream import Stream, StreamResult
    from leadline.datasets import Scene
    from leadline.geometry.cameras import Camera
    from leadline.views.views import Views

__version__ = "1.0.0rc1"

# Resolved on first use: importing numba takes longer than importing everything else together.
_HOME = {
    "Alignment": "core.pipeline",
    "Camera": "geometry.cameras",
    "Completion": "core.pipeline",
    "CompletionOptions": "core.options",
    "Fit": "core.fit.estimator",
    "FitOptions": "core.options",
    "InputError": "base.errors",
    "InputWarning": "base.errors",
    "LeadlineError": "base.errors",
    "Noise": "core.noise",
    "Prior": "core.prior",
    "Reconstruction": "core.solve.reconstruction",
    "ReconstructionOptions": "core.options",
    "Response": "core.fit.response",
    "Scene": "datasets",
    "Stream": "core.stream",
    "StreamResult": "core.stream",
    "Views": "views.views",
    "align": "core.pipeline",
    "complete": "core.pipeline",
    "warm_up": "core.compilation",
}

__all__ = [
    "Alignment",
    "Camera",
    "Completion",
    "CompletionOptions",
    "Fit",
    "FitOptions",
    "InputError",
    "InputWarning",
    "LeadlineError",
    "Noise",
    "Prior",
    "Reconstruction",
    "ReconstructionOptions",
    "Response",
    "Scene",
    "Stream",
    "StreamResult",
    "Views",
    "__version__",
    "align",
    "complete",
    "warm_up",
]

__getattr__, __dir__ = import_on_first_use(__name__, {name: f"leadline.{home}" for name, home in _HOME.items()})
