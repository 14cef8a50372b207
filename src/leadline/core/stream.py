"""Completion frame by frame, with what one frame knows of the next: the system, the residual and the response.

The residual system depends on the valid and the measured pixels alone, so while these stay (a time-of-flight grid, a
fixed pattern) the hierarchy is built once. Where they change it is built again, and the solve still starts from the
residual of the frame before. Neither changes the result beyond the solver's tolerance. The filter does: it takes the
response of a frame as a noisy measurement of one that moves slowly.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike

from leadline.core.fit.estimator import Fit, FitStatus
from leadline.core.noise import Noise
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import Completion, Pairs, gather
from leadline.core.prior import Prior
from leadline.core.response_filter import ResponseFilter
from leadline.core.solve.reconstruction import Kept

WORSE = 1.05  # residuals of a warm fit, in units of the last frame's: beyond, all starts are tried
LATENCIES = 1000  # frames that `Stream.latency` looks back


@dataclass(frozen=True)
class Latency:
    """Seconds from a frame's arrival to its depth, over the last frames."""

    count: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"{1e3 * self.p50:.1f} ms p50, {1e3 * self.p99:.1f} ms p99 over {self.count} frames"


@dataclass(frozen=True)
class StreamResult(Completion):
    """A `Completion`, and what the frames before had to do with it.

    Attributes
    ----------
    reused : bool
        Whether the residual system was that of the frame before.
    cut : bool
        Whether the filtered response did not fit this frame, so that the filter began anew.
    gain : float
        Share that this frame's own fit has in the response: 1 where it was taken as it is. ``fit.response`` and
        ``fit.rmse`` are those of the filtered response; all else in ``fit`` is of the frame's own.
    seconds : float
        That the frame took.
    """

    reused: bool = False
    cut: bool = False
    gain: float = 1.0
    seconds: float = 0.0

    def __str__(self) -> str:
        system = "kept" if self.reused else "new"
        response = "begun anew after a cut" if self.cut else f"{100 * self.gain:.0f} % of this frame"
        return f"{super().__str__()}\nstream system {system}, response {response}, {1e3 * self.seconds:.1f} ms"


class Stream:
    """`complete` for the frames of a video, one by one.

    The first frame's result is that of `complete`, bit for bit. In every frame measurements are kept as exactly as
    `complete` keeps them. A frame of another size begins anew. Not to be shared between threads.

    Parameters
    ----------
    options : CompletionOptions, optional
        Default: the paper's. The adaptive system is each frame's own, and so is any with `noise`: then only the starts
        are reused.
    filter : bool
        Smooth the response over time, as far as its movement is noise, and start each fit from the last. Without it,
        each frame's depth is that of `complete` to within the solver's tolerance.

    Examples
    --------
    >>> stream = Stream()
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> for depth in (3.0, 3.1):
    ...     sparse = np.zeros((48, 64))
    ...     sparse[::8, ::8] = depth * prior[::8, ::8] ** 1.2
    ...     result = stream(prior, sparse)
    >>> result.reused, stream.latency.count
    (True, 2)
    """

    def __init__(self, options: CompletionOptions | None = None, *, filter: bool = True) -> None:
        self.options = options or CompletionOptions()
        self._filtering = filter
        self._seconds: deque[float] = deque(maxlen=LATENCIES)
        self.reset()

    def reset(self) -> None:
        """Forget the frames so far, but not how long they took."""
        self._kept = Kept()
        self._filter = ResponseFilter()
        self._last: Fit | None = None
        self._shape: tuple[int, ...] | None = None

    @property
    def latency(self) -> Latency:
        """Of the last thousand frames; NaN before the first."""
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
        uncertainty: bool = False,
    ) -> StreamResult:
        """The next frame; the arguments and errors are those of `complete`."""
        begun = perf_counter()
        given = gather(prior, sparse, valid, noise, self.options)
        pairs = given.pairs
        if pairs.prior.shape != self._shape:
            self.reset()
            self._shape = pairs.prior.shape
        fit, cut, gain = self._fit(pairs)
        stages = pairs.spread(fit, self.options, self._kept)
        reused = self._kept.reused and fit.status is not FitStatus.NO_MEASUREMENTS
        completion = given.completion(self.options, uncertainty, *stages)
        seconds = perf_counter() - begun
        self._seconds.append(seconds)
        values = {field.name: getattr(completion, field.name) for field in fields(completion)}
        return StreamResult(**values, reused=reused, cut=cut, gain=gain, seconds=seconds)

    def _fit(self, pairs: Pairs) -> tuple[Fit, bool, float]:
        """The fit with its response filtered, whether there was a cut, and the share of this frame in the response."""
        options, last = self.options.fit, self._last
        if not self._filtering:  # from all starts: there may be a better minimum than the last frame's
            return pairs.fit(options), False, 1.0
        fit = None
        if last is not None and last.status is FitStatus.CONVERGED:
            fit = pairs.fit(options, near=last.response)
            if fit.rmse * last.response.scale > WORSE * last.rmse * fit.response.scale:
                fit = None
        self._last = fit = fit or pairs.fit(options)
        filtered, cut, gain = self._filter(pairs, fit, options)
        if cut:
            self._last = filtered = pairs.fit(options)
            self._filter.begin(pairs, filtered, options)
        return filtered, cut, gain
