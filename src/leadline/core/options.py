"""Every choice of a completion, as frozen dataclasses that check themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from leadline.base.errors import InputError, require_choice, require_positive

SolverName = Literal["multigrid", "jacobi"]


SystemName = Literal["fixed", "adaptive"]


ResidualName = Literal["metric", "log"]


LossName = Literal["squared", "huber", "cauchy", "gnc"]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How the response is estimated (eq:estimator to eq:lm)."""

    starts: tuple[float, ...] = field(
        default=(-1.0, 0.0, 1.0), metadata={"help": "exponents whose fixed-coordinate fit starts a descent"}
    )
    max_iterations: int = field(default=100, metadata={"help": "Levenberg-Marquardt steps per start"})
    tolerance: float = field(default=1e-12, metadata={"help": "stop when a step lowers the cost by a smaller share"})
    residual: ResidualName = field(
        default="metric", metadata={"help": "error that is made small: metric, in metres, or log, relative"}
    )
    loss: LossName = field(
        default="squared",
        metadata={"help": "pull of a large error: squared grows, huber stays, cauchy and gnc fade"},
    )
    exponent_spread: float | None = field(
        default=None,
        metadata={"help": "shrink a poorly known exponent to 0, as if drawn around it so widely"},
    )

    vetted: bool = field(
        default=False, metadata={"help": "fit only measurements that their neighbours in the image do not contradict"}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(float(start) for start in self.starts))
        if not self.starts or not all(map(math.isfinite, self.starts)):
            raise InputError(f"`starts` must be one or more finite exponents, got {self.starts!r}.")
        require_positive(max_iterations=self.max_iterations, tolerance=self.tolerance)
        for name, kind in (("residual", ResidualName), ("loss", LossName)):
            require_choice(name, getattr(self, name), kind)
        if self.exponent_spread is not None:
            require_positive(exponent_spread=self.exponent_spread)

    @property
    def least_squares(self) -> bool:
        """Whether this asks for the paper's objective, the sum of squares in metres, and nothing else."""
        return (self.residual, self.loss, self.exponent_spread) == ("metric", "squared", None)


@dataclass(frozen=True, kw_only=True)
class ReconstructionOptions:
    """How the log residual is spread over the image (eq:completion)."""

    weight_gradient: float = field(default=1.0, metadata={"help": "weight of the residual's gradient"})
    weight_data: float = field(
        default=1e-3, metadata={"help": "weight of the residual's size: it fades over 1/sqrt(weight) pixels"}
    )
    weight_laplacian: float = field(default=1e-3, metadata={"help": "weight of the residual's curvature"})
    system: SystemName = field(
        default="fixed",
        metadata={"help": "fixed: these weights for every image; adaptive: weights that the measurements choose"},
    )
    solver: SolverName = field(default="multigrid", metadata={"help": "multigrid, or jacobi as in the paper"})
    tolerance: float = field(default=1e-6, metadata={"help": "relative residual at which the solve stops"})
    max_iterations: int | None = field(
        default=None, metadata={"help": "default: 200 for multigrid, the paper's 500 for jacobi"}
    )

    def __post_init__(self) -> None:
        for name, kind in (("solver", SolverName), ("system", SystemName)):
            require_choice(name, getattr(self, name), kind)
        weights = ("weight_gradient", "weight_data", "weight_laplacian")
        changed = any(getattr(self, name) != getattr(type(self), name) for name in weights)
        if self.system == "adaptive" and changed:
            raise InputError("`system` adaptive chooses the weights for each image; leave them alone, or choose fixed.")
        # The data weight makes the system positive definite even without a measurement in a component.
        require_positive(weight_gradient=self.weight_gradient, weight_data=self.weight_data, tolerance=self.tolerance)
        if not (self.weight_laplacian >= 0 and math.isfinite(self.weight_laplacian)):
            raise InputError(f"`weight_laplacian` must be at least 0, got {self.weight_laplacian!r}.")
        if self.max_iterations is not None:
            require_positive(max_iterations=self.max_iterations)


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Every choice of a completion. The default is the paper's configuration."""

    fit: FitOptions = FitOptions()
    reconstruction: ReconstructionOptions = ReconstructionOptions()
    reject: bool = field(
        default=False, metadata={"help": "leave out measurements that contradict all their neighbours, and list them"}
    )
    strict: bool = field(default=False, metadata={"help": "raise instead of falling back or stopping early"})

    @classmethod
    def paper(cls) -> CompletionOptions:
        """The paper's weights, starts and tolerances. Its minimiser is reached by the multigrid solver."""
        return cls()

    @classmethod
    def best(cls) -> CompletionOptions:
        """The most accurate setting on real scenes: a careful fit, and a residual system that each image chooses."""
        # Tighter tolerances change no score in its third digit.
        return cls(
            fit=FitOptions(exponent_spread=2.0, vetted=True, tolerance=1e-8),
            reconstruction=ReconstructionOptions(system="adaptive", tolerance=3e-4),
        )
