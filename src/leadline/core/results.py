"""What `complete` and `align` return."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import Wording
from leadline.base.strict_json import json_ready
from leadline.core.fit.estimator import Fit, FitStatus
from leadline.core.options import CompletionOptions
from leadline.core.outliers import Outliers
from leadline.core.solve.reconstruction import Reconstruction


@dataclass(frozen=True)
class Alignment:
    """The prior brought to metres by a fitted response, without the reconstruction of the residual.

    Attributes
    ----------
    fit : Fit
    calibrated : (H, W) float32
        Metres: t of eq:dense. NaN where the prior is invalid, and everywhere if there is no measurement.
    """

    fit: Fit
    calibrated: NDArray[np.float32]


@dataclass(frozen=True)
class Completion:
    """Dense metric depth, with the results of each stage.

    Attributes
    ----------
    depth : (H, W), dtype of the measurements
        Metres. Equal to the measurement, bit for bit, wherever one was taken as exact and not left out as an outlier;
        positive and finite wherever the prior is valid; NaN elsewhere.
    calibrated : (H, W) float32
        Metres: the response stage alone, t of eq:dense.
    fit : Fit
    reconstruction : Reconstruction
    options : CompletionOptions
    unpaired : int
        Measurements at pixels without a valid prior. They are in `depth`, but are used neither in the fit nor in the
        solve.
    invalid : int
        Pixels without a valid prior.
    outliers : Outliers or None
        The measurements that were left out; None with ``options.outliers="keep"``.
    sigma : (H, W) float32 or None
        One standard deviation of `depth` in metres, if it was requested; see `uncertainty.py`. NaN where the
        prior is invalid, and everywhere with fewer than eight measurements.
    """

    depth: FloatArray
    calibrated: NDArray[np.float32]
    fit: Fit
    reconstruction: Reconstruction
    options: CompletionOptions
    unpaired: int
    invalid: int
    outliers: Outliers | None = None
    sigma: NDArray[np.float32] | None = None

    @property
    def converged(self) -> bool:
        """Whether the fit estimated all parameters and the solve reached its tolerance."""
        return self.fit.status is FitStatus.CONVERGED and self.reconstruction.converged

    def __str__(self) -> str:
        return self.summary()

    def summary(self, wording: Wording | None = None) -> str:
        """A few lines for a person, with parameter names in the words of a front end."""
        height, width = self.depth.shape
        response = self.fit.response
        solve = self.reconstruction
        lines = [
            f"{width} x {height} pixels, {self.fit.count} measurements"
            + (f", {self.outliers.where.size} more left out as outliers" if self.outliers is not None else "")
            + (f", {self.unpaired} more where the prior is invalid" if self.unpaired else "")
            + (f", {self.invalid} pixels without a prior" if self.invalid else ""),
            f"fit    {self.fit.status.describe(wording)}",
            f"       exponent {response.exponent:.4g}, gain {response.gain:.4g}, offset {response.offset:.4g}, "
            f"scale {response.scale:.4g} m, rmse {self.fit.rmse:.4g} m",
            f"solve  {solve.status.describe(wording)} ({solve.iterations} iterations, residual {solve.residual:.1e})",
        ]
        if self.sigma is not None and np.isfinite(self.sigma).any():
            lines.append(f"sigma  {np.nanmedian(self.sigma):.4g} m, median over the image")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything except the maps, ready for JSON: numbers that are not finite are None."""
        values = {
            "fit": self.fit.to_dict(),
            "reconstruction": self.reconstruction.to_dict(),
            "unpaired": self.unpaired,
            "invalid": self.invalid,
            "outliers": None if self.outliers is None else self.outliers.to_dict(),
            "options": asdict(self.options),
        }
        return json_ready(values)  # type: ignore[no-any-return]
