"""What goes in: priors, cameras, scenes and options; and the errors that say what was wrong with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

PriorKind = Literal["depth", "disparity", "log_depth"]
SolverName = Literal["multigrid", "jacobi"]
SystemName = Literal["fixed", "adaptive"]
ResidualName = Literal["metric", "log"]
LossName = Literal["squared", "huber", "cauchy", "gnc"]


class LeadlineError(Exception):
    """Anything a user can mend: says which input, what was expected, what came, what to do."""


class InputError(LeadlineError, ValueError):
    """An argument or option has the wrong shape, type, unit or value."""


class FileError(LeadlineError, OSError):
    """A file is missing, truncated, foreign, or does not hold what it should."""


class MissingExtra(LeadlineError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'leadline[{extra}]'")


class NotConverged(LeadlineError, RuntimeError):
    """Raised only under ``strict=True``: a stage fell back or stopped before its tolerance."""


class Status(Enum):
    """Base of the stages' statuses: each value is a sentence that tells a person what happened."""

    def __str__(self) -> str:
        return f"{self.name.lower()}: {self.value}"


def _require_choice(name: str, value: str, kind: Any) -> None:
    if value not in get_args(kind):
        raise InputError(f"`{name}` must be one of {', '.join(get_args(kind))}, got {value!r} instead.")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, (int, float)) and value > 0 and math.isfinite(value)):
            raise InputError(f"`{name}` must be a positive number, got {value!r} instead.")


@dataclass(frozen=True)
class Prior:
    """A dense monocular prediction, and what its numbers mean.

    Parameters
    ----------
    values : (H, W) array, float32 or float64
        Prediction of the network, on any scale.
    kind : {"depth", "disparity", "log_depth"}
        Whether larger values are farther (depth, log depth) or nearer (disparity, i.e. inverse depth).
    valid : (H, W) bool array, optional
        False where the prediction is not to be used, e.g. sky. NaN, inf and non-positive depth are
        left out in any case.
    floor : float
        For disparity only. Networks with an unknown shift return zero or less for far pixels, whose
        depth 1/d would be infinite. With ``floor=f > 0`` disparities below ``f`` times the largest one
        are raised to it; with 0, the default, such pixels (d <= 0) are left out.
    camera : Camera, optional
        The camera that the network believes in, if it predicts one. The method does not use it.

    Examples
    --------
    >>> Prior(np.array([[2.0, 4.0]]), kind="disparity").depth()
    array([[0.5 , 0.25]])
    """

    values: FloatArray
    kind: PriorKind = "depth"
    valid: BoolArray | None = None
    floor: float = 0.0
    camera: Camera | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_map(self.values, "prior"))
        if self.kind not in get_args(PriorKind):
            raise InputError(f"`kind` must be one of {', '.join(get_args(PriorKind))}, got {self.kind!r} instead.")
        if self.valid is not None:
            object.__setattr__(self, "valid", as_mask(self.valid, "valid", self.values.shape))
        if not 0.0 <= self.floor < 1.0:
            raise InputError(
                f"`floor` must be at least 0 and below 1, a share of the largest disparity, got {self.floor!r}."
            )
        if self.floor and self.kind != "disparity":
            raise InputError(f"`floor` is for kind='disparity' only, got kind={self.kind!r}.")
        if self.camera is not None and (self.camera.height, self.camera.width) != self.values.shape:
            raise InputError(f"`camera` must be of the prior's size {self.values.shape[::-1]}, got {self.camera}.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape  # type: ignore[return-value]

    def depth(self) -> FloatArray:
        """Relative depth h, (H, W), with NaN wherever the prior is not to be used."""
        values = self.values
        if self.kind == "depth" and self.valid is None:
            return values  # validity of each pixel is decided where the values are read
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.kind == "disparity":
                usable = np.isfinite(values)
                floor = self.floor * float(values[usable].max(initial=0.0))
                depth: FloatArray = 1.0 / np.where(usable & (values < floor), values.dtype.type(floor), values)
            else:
                depth = np.exp(values) if self.kind == "log_depth" else values
        return depth if self.valid is None else np.where(self.valid, depth, values.dtype.type(np.nan))


@dataclass(frozen=True)
class Camera:
    """Pinhole intrinsics in pixels; pixel (0, 0) has its centre at (0, 0), so x = (u - cx) / fx * z."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        if not (self.fx > 0 and self.fy > 0 and all(map(math.isfinite, (self.fx, self.fy, self.cx, self.cy)))):
            raise InputError(f"Camera: fx and fy must be positive and all four finite, got {self}.")

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points, (H, W, 3) in metres: x right, y down, z forward."""
        rows, columns = np.indices(depth.shape)
        return np.stack(((columns - self.cx) / self.fx * depth, (rows - self.cy) / self.fy * depth, depth), axis=-1)

    def scaled(self, width: int, height: int) -> Camera:
        """The camera of the same picture resized to `width` x `height`.

        The border of the picture, half a pixel outside the first centre, stays where it is: that is what is scaled,
        so cx + 1/2 is multiplied and not cx.

        Examples
        --------
        >>> Camera(4, 2, 8.0, 8.0, 1.5, 0.5).scaled(2, 1)
        Camera(width=2, height=1, fx=4.0, fy=4.0, cx=0.5, cy=0.0)
        """
        _require_positive(width=width, height=height)
        x, y = width / self.width, height / self.height
        return Camera(width, height, self.fx * x, self.fy * y, (self.cx + 0.5) * x - 0.5, (self.cy + 0.5) * y - 0.5)


@dataclass(frozen=True, eq=False)
class RayCamera:
    """A camera of any kind, as the ray of each pixel: for lenses whose distortion a pinhole would get wrong.

    Parameters
    ----------
    rays : (H, W, 2) array
        x/z and y/z of the ray through each pixel's centre; kept as float32. NaN where a pixel sees nothing.

    Examples
    --------
    >>> RayCamera(np.full((1, 1, 2), 0.5)).points(np.array([[4.0]]))
    array([[[2., 2., 4.]]])
    """

    rays: NDArray[np.float32]

    def __post_init__(self) -> None:
        rays = np.asarray(self.rays)
        if rays.ndim != 3 or rays.shape[2] != 2 or rays.size == 0 or rays.dtype.kind != "f":
            raise InputError(
                f"`rays` must be a non-empty (H, W, 2) array of floats, got {rays.dtype} {rays.shape} instead."
            )
        object.__setattr__(self, "rays", rays.astype(np.float32, copy=False))

    @property
    def width(self) -> int:
        return int(self.rays.shape[1])

    @property
    def height(self) -> int:
        return int(self.rays.shape[0])

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points, (H, W, 3) in metres: x right, y down, z forward."""
        if depth.shape != self.rays.shape[:2]:
            raise InputError(f"`depth` must have the camera's shape {self.rays.shape[:2]}, got {depth.shape} instead.")
        z = depth.astype(np.float64)
        return np.stack((self.rays[..., 0] * z, self.rays[..., 1] * z, z), axis=-1)


@dataclass(frozen=True)
class Scene:
    """One image with what is known about it; anything unknown is None."""

    name: str
    image: NDArray[np.uint8]  # (H, W, 3) RGB
    reference: NDArray[np.float32] | None = None  # (H, W) metres, NaN where unknown
    camera: Camera | RayCamera | None = None


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
        _require_positive(max_iterations=self.max_iterations, tolerance=self.tolerance)
        for name, kind in (("residual", ResidualName), ("loss", LossName)):
            _require_choice(name, getattr(self, name), kind)
        if self.exponent_spread is not None:
            _require_positive(exponent_spread=self.exponent_spread)

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
            _require_choice(name, getattr(self, name), kind)
        weights = ("weight_gradient", "weight_data", "weight_laplacian")
        changed = any(getattr(self, name) != getattr(type(self), name) for name in weights)
        if self.system == "adaptive" and changed:
            raise InputError("`system` adaptive chooses the weights for each image; leave them alone, or choose fixed.")
        # The data weight makes the system positive definite even without a measurement in a component.
        _require_positive(weight_gradient=self.weight_gradient, weight_data=self.weight_data, tolerance=self.tolerance)
        if not (self.weight_laplacian >= 0 and math.isfinite(self.weight_laplacian)):
            raise InputError(f"`weight_laplacian` must be at least 0, got {self.weight_laplacian!r}.")
        if self.max_iterations is not None:
            _require_positive(max_iterations=self.max_iterations)


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


def as_map(values: ArrayLike, name: str) -> FloatArray:
    """`values` as a 2-D float32 or float64 array, not copied where it is one already."""
    if isinstance(values, np.ma.MaskedArray):  # what is masked out is unknown, as NaN is
        values = np.ma.filled(values.astype(np.promote_types(values.dtype, np.float32)), np.nan)
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        hint = " A colour picture? Pass one channel of depth." if array.ndim == 3 else ""
        raise InputError(f"`{name}` must be a non-empty (H, W) array, got shape {array.shape} instead.{hint}")
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "iuf":
        raise InputError(f"`{name}` must hold real numbers, got dtype {array.dtype} instead.")
    return array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)


def as_mask(values: ArrayLike, name: str, shape: tuple[int, ...]) -> BoolArray:
    """`values` as a boolean array of the given shape."""
    array = np.asarray(values)
    if array.shape != shape:
        raise InputError(f"`{name}` must have the prior's shape {shape}, got {array.shape} instead.")
    if array.dtype != np.bool_:
        raise InputError(f"`{name}` must be boolean, got dtype {array.dtype} instead. Compare it first, e.g. mask > 0.")
    return array


def json_ready(value: Any) -> Any:
    """The same with None for what is not finite, since JSON has no NaN, and lists for tuples."""
    if isinstance(value, dict):
        return {key: json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
