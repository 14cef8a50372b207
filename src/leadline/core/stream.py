"""Completion of the frames of a video, reusing the linear system, the solution and the response of earlier frames.

The residual system depends only on the valid and the measured pixels. While these stay the same (a time-of-flight
grid, a fixed sampling pattern) the multigrid hierarchy is built once. Where they change it is rebuilt, and the solve
still starts from the residual of the previous frame. Neither changes the result beyond the solver's tolerance. The
response filter does: it treats each frame's fit as a noisy observation of a response that changes slowly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import Float32Array, FloatArray
from leadline.base.errors import LeadlineError
from leadline.core.carried import CarriedResult, EarlierFrame, Motion, reconstruct_with
from leadline.core.fit.estimator import Fit, FitStatus
from leadline.core.fit.response import Response
from leadline.core.inputs import Inputs, Pairs, check_inputs
from leadline.core.noise import Noise
from leadline.core.options import CompletionOptions, ReconstructionOptions, as_options
from leadline.core.pipeline import Completion, finish, fit_pairs, reconstruct_depth, remove_outliers, warn_about_prior
from leadline.core.prior import Prior
from leadline.core.response_filter import ResponseFilter
from leadline.core.solve.reconstruction import Reconstruction, SolverCache
from leadline.geometry.cameras import CameraModel

MAX_RMSE_GROWTH = 1.05
"""A warm-started fit whose relative RMSE exceeds the last frame's by this factor is repeated from all starts."""
LATENCY_WINDOW = 1000
"""Frames that `Stream.latency` covers."""


@dataclass(frozen=True)
class Latency:
    """Statistics of the time in seconds from the arrival of a frame to its depth."""

    count: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"{1e3 * self.p50:.1f} ms p50, {1e3 * self.p99:.1f} ms p99 over {self.count} frames"


@dataclass(frozen=True)
class StreamResult(Completion):
    """A `Completion`, and how the earlier frames contributed to it.

    Attributes
    ----------
    system_reused : bool
        Whether the linear system of the previous frame was used again.
    restarted : bool
        Whether the filter was restarted, because its prediction did not fit this frame (a cut).
    filter_weight : float
        Weight of this frame's own fit in the filtered response, 1 where it was used without filtering.
        ``fit.response`` and ``fit.rmse`` belong to the filtered response; all other fields of ``fit`` to this
        frame's own fit.
    response_carried : bool
        Whether this frame has no measurement that could be used and has the response of the last frame that had one.
    carried_weight : float
        Mean weight over the image of the depth of the previous frame, which a pose or flow carried along; 0 without
        one, and near 0 where it contradicts the measurements.
    seconds : float
        Processing time of the frame.
    """

    system_reused: bool = False
    restarted: bool = False
    filter_weight: float = 1.0
    response_carried: bool = False
    carried_weight: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        system = "reused" if self.system_reused else "new"
        response = "restarted" if self.restarted else f"{100 * self.filter_weight:.0f} % of this frame's fit"
        if self.response_carried:
            response = "of the last frame with measurements"
        return f"{super().__str__()}\nstream system {system}, response {response}, {1e3 * self.seconds:.1f} ms"


class Stream:
    """`complete` for the frames of a video, called once per frame.

    The first result equals that of `complete`, bit for bit. Every frame reproduces its measurements exactly where
    `complete` does. A frame without measurements is completed with the response of the last frame that had some. A
    frame of another size resets the stream. Frames must arrive one after the other: a call while another thread is
    inside the stream raises `LeadlineError`.

    Parameters
    ----------
    options : "best", "paper" or CompletionOptions
        The linear system is reused only with the fixed system and without `noise`; the adaptive system, and any with
        `noise`, depends on the measured values. In that case only the starting values are reused.
    filter : bool
        Smooth the response over time and start each fit from the previous one. Without it, the depth of each frame is
        that of `complete` to within the solver's tolerance.

    Examples
    --------
    >>> stream = Stream("paper")
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> for depth in (3.0, 3.1):
    ...     sparse = np.zeros((48, 64))
    ...     sparse[::8, ::8] = depth * prior[::8, ::8] ** 1.2
    ...     result = stream(prior, sparse)
    >>> result.system_reused, stream.latency.count
    (True, 2)
    """

    def __init__(self, options: CompletionOptions | str = "best", *, filter: bool = True) -> None:
        self.options = as_options(options)
        self._filtering = filter
        self._seconds: deque[float] = deque(maxlen=LATENCY_WINDOW)
        self._in_use = Lock()
        self._forget()

    def reset(self) -> None:
        """Forget the earlier frames, but not their times."""
        with self._only_user():
            self._forget()

    def _forget(self) -> None:
        self._cache = SolverCache()
        self._filter = ResponseFilter()
        self._last_fit: Fit | None = None
        self._last_response: Response | None = None  # as it was used, after the filter
        self._earlier_frame: EarlierFrame | None = None
        self._shape: tuple[int, ...] | None = None

    @contextmanager
    def _only_user(self) -> Iterator[None]:
        """Raise an error if another thread is inside: it would read a half-written linear system."""
        if not self._in_use.acquire(blocking=False):
            raise LeadlineError(
                "this Stream is completing a frame in another thread, and each frame depends on the one before. Use a "
                "Stream for each camera, and call it from one thread at a time."
            )
        try:
            yield
        finally:
            self._in_use.release()

    @property
    def latency(self) -> Latency:
        """Statistics of the last thousand frames; NaN before the first."""
        if not self._seconds:
            return Latency(0, math.nan, math.nan, math.nan)
        p50, p99, longest = np.percentile(self._seconds, (50, 99, 100))
        return Latency(len(self._seconds), float(p50), float(p99), float(longest))

    def __call__(
        self,
        prior: ArrayLike | Prior,
        sparse: ArrayLike,
        *,
        valid: ArrayLike | None = None,
        noise: Noise | float | ArrayLike | None = None,
        unit: str | float | None = None,
        uncertainty: bool = False,
        camera: CameraModel | None = None,
        camera_to_world: ArrayLike | None = None,
        flow: ArrayLike | None = None,
    ) -> StreamResult:
        """Complete the next frame; the arguments and errors are those of `complete`, and three more.

        Parameters
        ----------
        camera : CameraModel, optional
            Camera of this frame, of the size of the prior, such as `leadline.Camera`.
        camera_to_world : (4, 4) array, optional
            Pose of the camera in metres, in a frame that does not move. With the pose of this frame and of the previous
            one, the depth of the previous frame is carried along.
        flow : (H, W, 2) array, optional
            In place of a pose: the displacement in x and y, in pixels, from each pixel of this frame to the position
            of the same surface point in the previous frame. NaN where it is unknown. After a frame that raised an
            error nothing is carried by flow; with poses the last completed frame is carried.
        """
        with self._only_user():
            begun = perf_counter()
            try:
                inputs = check_inputs(prior, sparse, valid, noise, unit)
                motion = Motion.check(camera, camera_to_world, flow, inputs.pairs.shape)
                return self._complete(inputs, uncertainty, motion, begun)
            except Exception:
                if self._earlier_frame is not None:  # the flow of the next frame begins at the one that failed
                    self._earlier_frame = replace(self._earlier_frame, adjacent=False)
                raise

    def _complete(self, inputs: Inputs, uncertainty: bool, motion: Motion | None, begun: float) -> StreamResult:
        options = self.options
        pairs, outliers = remove_outliers(inputs.pairs, options.outliers)
        if pairs.shape != self._shape:
            self._forget()
            self._shape = pairs.shape
        earlier = self._last_response if pairs.count == 0 else None
        if pairs.count:
            fit, restarted, filter_weight = self._fit(pairs)
            self._last_response = fit.response
            warn_about_prior(fit)
        else:
            fit, restarted, filter_weight = fit_pairs(pairs, options.fit), False, 0.0 if earlier else 1.0
            fit = fit if earlier is None else replace(fit, response=earlier)
        carried = None
        if motion is not None and self._earlier_frame is not None and not restarted:
            carried = self._earlier_frame.carry(motion)
        with_carried: CarriedResult | None = None

        def reconstruct(
            pairs: Pairs, calibrated: Float32Array, options: ReconstructionOptions
        ) -> tuple[FloatArray, Reconstruction]:
            nonlocal with_carried
            if carried is None:
                return reconstruct_depth(pairs, calibrated, options, self._cache)
            with_carried = reconstruct_with(carried, pairs, calibrated, options, self._cache)
            return with_carried.depth, with_carried.reconstruction

        completion = finish(inputs, pairs, outliers, fit, options, uncertainty, earlier, reconstruct)
        self._earlier_frame = None
        if motion is not None:
            depth, sharp = completion.depth, None
            if with_carried is not None and with_carried.blurred is not None:
                depth, sharp = with_carried.blurred, with_carried.sharp
            self._earlier_frame = EarlierFrame.of(pairs, completion.calibrated, depth, motion, sharp)
        system_reused = self._cache.system_reused and pairs.count > 0
        seconds = perf_counter() - begun
        self._seconds.append(seconds)
        return StreamResult(
            **vars(completion),
            system_reused=system_reused,
            restarted=restarted,
            filter_weight=filter_weight,
            response_carried=earlier is not None,
            carried_weight=with_carried.weight if with_carried else 0.0,
            seconds=seconds,
        )

    def _fit(self, pairs: Pairs) -> tuple[Fit, bool, float]:
        """The fit with its filtered response, whether the filter restarted, and the weight of this frame's fit."""
        options, last = self.options.fit, self._last_fit
        if not self._filtering:  # from all starts, because there may be a better minimum than the last frame's
            return fit_pairs(pairs, options), False, 1.0
        fit = None
        if last is not None and last.status is FitStatus.CONVERGED:
            fit = fit_pairs(pairs, options, start=last.response)
            if fit.rmse * last.response.scale > MAX_RMSE_GROWTH * last.rmse * fit.response.scale:
                fit = None
        self._last_fit = fit = fit or fit_pairs(pairs, options)
        filtered, restarted, filter_weight = self._filter(pairs, fit, options)
        if restarted:
            self._last_fit = filtered = fit_pairs(pairs, options)
            self._filter.begin(pairs, filtered, options)
        return filtered, restarted, filter_weight
