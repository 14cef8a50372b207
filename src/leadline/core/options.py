"""The options of a completion: frozen dataclasses that check their values when they are made.

The field defaults are those of the preset ``best``, so that ``CompletionOptions(outliers="single")`` is the default
preset with one change. The `paper` constructors take the paper's values instead and accept changes in the same way:
``CompletionOptions.paper(outliers="single")``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from leadline.base.errors import InputError, param, require_choice, require_positive

T = TypeVar("T")
PresetName = Literal["best", "paper"]
SolverName = Literal["multigrid", "jacobi"]
SystemName = Literal["fixed", "adaptive"]
ResidualName = Literal["metric", "log"]
LossName = Literal["squared", "huber", "cauchy", "gnc"]
OutlierPolicy = Literal["keep", "single", "regions"]


def _option(default: T, help: str) -> T:
    """A field of the options, with the text that front ends show for it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How the response is estimated (eq:estimator to eq:lm). The defaults are those of the preset ``best``.

    Examples
    --------
    >>> FitOptions(loss="cauchy").exponent_spread, FitOptions.paper(loss="cauchy").exponent_spread
    (2.0, None)
    """

    starts: tuple[float, ...] = _option(
        (-1.0, 0.0, 1.0), "exponents of the fixed-coordinate fits that the iteration starts from"
    )
    max_iterations: int = _option(100, "Levenberg-Marquardt iterations per start")
    tolerance: float = _option(1e-8, "relative decrease of the cost at which the iteration stops")
    residual: ResidualName = _option("metric", "residual that is minimised: metric (in metres) or log (relative)")
    loss: LossName = _option(
        "squared", "loss function of the residuals; all but squared limit the influence of outliers"
    )
    exponent_spread: float | None = _option(
        2.0,
        "standard deviation of a Gaussian penalty that shrinks an uncertain exponent to 0, and with it an uncertain "
        "gain to 1; none: no penalty",
    )
    screen_outliers: bool = _option(
        True, "exclude measurements from the fit that disagree with their neighbours in the image"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(float(start) for start in self.starts))
        if not self.starts or not all(map(math.isfinite, self.starts)):
            raise InputError(f"{param('fit.starts')} must be one or more finite exponents, got {self.starts!r}.")
        require_positive(**{"fit.max_iterations": self.max_iterations, "fit.tolerance": self.tolerance})
        for name, kind in (("residual", ResidualName), ("loss", LossName)):
            require_choice(f"fit.{name}", getattr(self, name), kind)
        if self.exponent_spread is not None:
            require_positive(**{"fit.exponent_spread": self.exponent_spread})

    @classmethod
    def paper(cls, **changes: Any) -> FitOptions:
        """The paper's estimator, least squares in metres over all pairs, except for `changes` of single fields."""
        values = {"tolerance": 1e-12, "exponent_spread": None, "screen_outliers": False}
        return cls(**{**values, **changes})

    @property
    def least_squares(self) -> bool:
        """Whether the objective is the paper's, the sum of squared residuals in metres without a penalty."""
        return (self.residual, self.loss, self.exponent_spread) == ("metric", "squared", None)


@dataclass(frozen=True, kw_only=True)
class ReconstructionOptions:
    """How the log residual is interpolated over the image (eq:completion). The defaults are those of ``best``.

    Examples
    --------
    >>> ReconstructionOptions(system="fixed", weight_data=1e-4).tolerance
    0.0003
    """

    weight_gradient: float = _option(1.0, "weight of the residual's gradient")
    weight_data: float = _option(1e-3, "weight of the residual itself, which decays over 1/sqrt(weight) pixels")
    weight_laplacian: float = _option(1e-3, "weight of the residual's Laplacian")
    system: SystemName = _option(
        "adaptive", "fixed: these weights for every image; adaptive: weights estimated from each image"
    )
    solver: SolverName = _option("multigrid", "preconditioner of conjugate gradients")
    tolerance: float = _option(3e-4, "relative residual at which the solve stops")
    max_iterations: int | None = _option(
        None, "conjugate gradient iterations; default: 200 for multigrid, 500 for jacobi"
    )

    def __post_init__(self) -> None:
        for name, kind in (("solver", SolverName), ("system", SystemName)):
            require_choice(f"reconstruction.{name}", getattr(self, name), kind)
        for name in ("weight_gradient", "weight_data", "weight_laplacian"):
            if self.system == "adaptive" and getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    f"{param(f'reconstruction.{name}')} needs {param('reconstruction.system', 'fixed')}: the adaptive "
                    "system, which is the default, chooses the weights for each image."
                )
        # The data weight makes the system positive definite even in a component without a measurement.
        for name in ("weight_gradient", "weight_data", "tolerance"):
            require_positive(**{f"reconstruction.{name}": getattr(self, name)})
        if not (self.weight_laplacian >= 0 and math.isfinite(self.weight_laplacian)):
            raise InputError(
                f"{param('reconstruction.weight_laplacian')} must be at least 0, got {self.weight_laplacian!r}."
            )
        if self.max_iterations is not None:
            require_positive(**{"reconstruction.max_iterations": self.max_iterations})

    @classmethod
    def paper(cls, **changes: Any) -> ReconstructionOptions:
        """The paper's system with its weights, solved to 1e-6, except for `changes` of single fields."""
        return cls(**{"system": "fixed", "tolerance": 1e-6, **changes})


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """All options of a completion. The defaults are those of the preset ``best``."""

    fit: FitOptions = FitOptions()
    reconstruction: ReconstructionOptions = ReconstructionOptions()
    outliers: OutlierPolicy = _option(
        "keep",
        "keep all measurements, leave out single ones that contradict all their neighbours, or leave out regions that "
        "are too far away together, as behind glass",
    )
    strict: bool = _option(False, "raise an error instead of returning a fallback or an unconverged result")

    def __post_init__(self) -> None:
        require_choice("outliers", self.outliers, OutlierPolicy)

    @classmethod
    def best(cls, **changes: Any) -> CompletionOptions:
        """The most accurate settings on real scenes, which are the defaults, except for `changes` of single fields.

        A fit to screened measurements with a shrunk exponent, and a residual system that is chosen for each image.
        Tighter tolerances than these do not change any score in its third digit.
        """
        return cls(**changes)

    @classmethod
    def paper(cls, **changes: Any) -> CompletionOptions:
        """The paper's objective, weights, starts and tolerances, except for `changes` of single fields.

        The linear system is solved with a multigrid preconditioner in place of Jacobi; the solution is the same.
        """
        return cls(**{"fit": FitOptions.paper(), "reconstruction": ReconstructionOptions.paper(), **changes})


def as_options(options: CompletionOptions | str) -> CompletionOptions:
    """`options` itself, or the preset of that name."""
    if isinstance(options, CompletionOptions):
        return options
    if isinstance(options, str) and options in get_args(PresetName):
        return CompletionOptions.paper() if options == "paper" else CompletionOptions()
    raise InputError(f"{param('options')} must be 'best', 'paper' or a CompletionOptions, got {options!r} instead.")
