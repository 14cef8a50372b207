"""The depth of the previous frame as evidence for the next one, carried along by camera poses or by optical flow.

Let t be the calibrated prior of this frame, c the depth of the previous frame at the surface points of this frame, and
r = log(c / t) the residual that c predicts.

**Prediction.** The residual system of this frame is solved about t exp(w m) in place of t, with m = r where c is known,
and a smooth extension of r elsewhere. Its weights, and which measurements count as outliers, follow from how
well this prediction explains the measurements, which stay exact.

**Weight.** The measurements decide how far c is used. At each of them the error of c, a = log(s / c), is compared with
the error b that this frame alone would make there: the difference of log(s / t) from the median of the neighbouring
measurements. w is the product of MAX_WEIGHT < 1, which lets errors decay that no measurement reveals, and two factors:

- for the whole image, 1 / (1 + (A / (MAX_ERROR_RATIO B))^2), with the medians A of a^2 and B of b^2. After a wrong pose
  or a cut, A is much larger than B.
- at each pixel, the same with MAX_LOCAL_RATIO and the means over neighbouring measurements, extended over the image.
  Where something moved, a is much larger than b. Smaller differences are left to the solve: weights that vary with
  every measurement would cause flicker themselves.

**Where the prior contradicts.** Carried along like c, the calibrated prior of the previous frame should equal t. Where
the two differ by more than they do elsewhere, something moved or a surface was uncovered, and r is not used.

**Beside a nearer surface.** Where the earlier frame had blurred a depth edge, parallax stretches the blur over the
background, and a ray that passes just beside the edge finds the background in the place of the surface in front of it.
c is therefore not used in the pixels behind and beside a nearer surface.

**Damping.** After the solve, with the depth D, the difference log(c / D) consists of fluctuations, most of them within
the typical difference over the image, and of true changes, which are larger. A share of it is added to log D that is
DAMPING for small differences and vanishes for large ones. Measured pixels are left as they are.

**Edges.** With poses, depth edges are sharpened (geometry/depth_edges.py). The sharp depth of the previous frame has
a share in where they are. The next solve uses the depth before this step: repeated sharpening moves edges.

Each measured pixel is carried with the residual of those beside it, so that an outlier does not spread over the frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from leadline.base.arrays import Float32Array, FloatArray
from leadline.base.errors import InputError, param
from leadline.base.jit import compiled, parallel_loop
from leadline.core.fit.elementary import exp, log
from leadline.core.inputs import Pairs
from leadline.core.neighbours import MIN_NEIGHBOURS
from leadline.core.options import ReconstructionOptions
from leadline.core.pipeline import known_of_measurements, reconstruct_depth
from leadline.core.solve.reconstruction import Reconstruction, SolverCache, reconstruct
from leadline.geometry.cameras import CameraModel, require_camera
from leadline.geometry.depth_edges import sharpen_edges
from leadline.geometry.poses import Transform, as_transform, invert_transform
from leadline.geometry.reprojection import carry_depth, sample_map

MAX_WEIGHT = 0.65
"""Largest weight of the carried residual. On a dense grid 0.8 and 0.5 gave no better pairs of error and flicker."""
MAX_ERROR_RATIO, MAX_LOCAL_RATIO = 3.0, 25.0
"""Square errors of the carried depth, in units of those of this frame alone, at which its weight is halved."""
DAMPING = 0.75
"""Share of a small difference from the carried depth that is removed. With 0.85 the flicker on dense grids is 0.56 in
place of 0.59 of that of frames alone, and the error 0.94 in place of 0.91; with 80 points it is 0.84 and not 0.81."""
TYPICAL_DIFFERENCES = 4.0
"""Differences from the carried depth are damped by half as much at this multiple of the typical one."""
MAX_PRIOR_CHANGE = 6.0
"""Change of the calibrated prior, in units of its typical change over the image, at which the weight of the carried
residual has decreased to a quarter."""
INSIGNIFICANT = 0.005
"""Log depth. Changes of the calibrated prior, and errors, of this size are no evidence against the carried depth."""
INSIGNIFICANT_LOCALLY = 0.02
"""The same for errors of a few measurements."""
MARGIN, MAX_STEP = 2, 1.2
"""The carried depth is not used within so many pixels of a surface that is nearer by more than this factor. On a dense
grid the error without damping and sharp edges is 0.95 of that of frames alone, 0.97 with 1 pixel and the factor 1.05,
0.96 with 3 pixels, and 1.03 without this rule."""
SAMPLE = 8
"""Typical values over the image are medians over every eighth pixel of every eighth row."""
NORMAL_MEDIAN = 1.4826  # standard deviation of a normal distribution in units of its median magnitude


@dataclass(frozen=True, eq=False)
class Motion:
    """How the surface points of a frame moved since the previous one: the camera and its pose, or optical flow."""

    camera: CameraModel | None = None
    camera_to_world: Transform | None = None
    flow: FloatArray | None = None

    @classmethod
    def check(
        cls, camera: CameraModel | None, camera_to_world: object, flow: object, shape: tuple[int, ...]
    ) -> Motion | None:
        """The motion of a frame of this shape from the arguments of a user; None without any."""
        if camera is None and camera_to_world is None and flow is None:
            return None
        if flow is not None:
            if camera is not None or camera_to_world is not None:
                raise InputError(f"{param('flow')} and {param('camera_to_world')} exclude each other; leave out one.")
            array = np.asarray(flow)
            if array.shape != (*shape, 2) or array.dtype.kind != "f":
                raise InputError(
                    f"{param('flow')} must be an array of floats of shape {(*shape, 2)}, the displacement in x and y "
                    f"of each pixel to the previous frame, got {array.dtype} {array.shape} instead."
                )
            return cls(flow=array.astype(np.float32))
        if camera is None or camera_to_world is None:
            missing = "camera" if camera is None else "camera_to_world"
            raise InputError(
                f"a pose needs both the camera and {param('camera_to_world')}; {param(missing)} is missing."
            )
        require_camera(camera, shape)
        return cls(camera, as_transform(camera_to_world, "camera_to_world"))


@dataclass(frozen=True, eq=False)
class EarlierFrame:
    """A completed frame: its depth without outliers, before and after the edges were sharpened, the ratio of the first
    to the calibrated prior, and its motion."""

    depth: Float32Array
    sharp: Float32Array
    ratio: Float32Array
    motion: Motion
    adjacent: bool = True  # whether the next frame follows this one directly, as flow requires

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        calibrated: Float32Array,
        depth: FloatArray,
        motion: Motion,
        sharp: Float32Array | None = None,
    ) -> EarlierFrame:
        """The frame with this depth before its edges were sharpened, and the `sharp` one, if they were."""
        ratio = ratio_without_measured(pairs, calibrated, depth)
        depth = ratio * calibrated
        return cls(depth, depth if sharp is None else sharp, ratio, motion)

    def carry(self, motion: Motion) -> Carried | None:
        """Depth and ratios at the surface points of a later frame; None if no motion is known.

        Flow says where a point was, but not how its depth changed. The calibrated prior of the later frame says that,
        and only the ratio is carried.
        """
        if motion.flow is not None:
            if not self.adjacent:
                return None
            height, width = self.depth.shape
            rows = np.arange(height)[:, None] + motion.flow[..., 1]
            columns = np.arange(width) + motion.flow[..., 0]
            return Carried(None, sample_map(self.ratio, rows, columns), None)
        then, now = self.motion, motion
        if then.camera is None or then.camera_to_world is None or now.camera is None or now.camera_to_world is None:
            return None
        transform = invert_transform(now.camera_to_world) @ then.camera_to_world
        carried = carry_depth(self.sharp, then.camera, now.camera, transform)
        depth = carried.depth * carried.sample(self.depth / self.sharp)
        return Carried(depth, carried.sample(self.ratio), carried.depth)


@dataclass(frozen=True, eq=False)
class Carried:
    """What an earlier frame says about a later one; NaN where unknown."""

    depth: Float32Array | None  # None with flow
    ratio: Float32Array
    sharp: Float32Array | None  # depth with sharp edges; None with flow


@dataclass(frozen=True, eq=False)
class CarriedResult:
    """Depth and statistics as of `reconstruct_depth`, and what the next frame needs."""

    depth: FloatArray
    reconstruction: Reconstruction
    weight: float = 0.0  # mean weight of the carried depth
    blurred: FloatArray | None = None  # before the edges were sharpened
    sharp: Float32Array | None = None  # without measured pixels, as `ratio_without_measured`


def ratio_without_measured(pairs: Pairs, calibrated: Float32Array, depth: FloatArray) -> Float32Array:
    """Depth relative to the calibrated prior; each measured pixel has that of its neighbours that are not measured."""
    ratio = (depth / calibrated).astype(np.float32)
    measured = np.zeros(depth.shape, np.bool_)
    measured.flat[pairs.where] = True
    _replace_measured(ratio, measured, pairs.where)
    return ratio


def reconstruct_with(
    carried: Carried,
    pairs: Pairs,
    calibrated: Float32Array,
    options: ReconstructionOptions,
    cache: SolverCache,
) -> CarriedResult:
    """The depth of a frame with the evidence of an earlier one."""
    ratio = carried.ratio
    earlier = ratio * calibrated if carried.depth is None else carried.depth
    residual, trust, beside = (np.empty_like(calibrated) for _ in range(3))
    _least_beside[len(earlier)](earlier, beside)
    _compare[len(calibrated)](calibrated, earlier, ratio, beside, residual, trust)
    sample = trust[::SAMPLE, ::SAMPLE]
    sample = sample[np.isfinite(sample)]
    if not sample.size:
        return CarriedResult(*reconstruct_depth(pairs, calibrated, options, cache))  # no pixel is known
    centre = np.median(sample)
    typical = max(NORMAL_MEDIAN * float(np.median(np.abs(sample - centre))), INSIGNIFICANT)
    _trust[len(trust)](trust, centre, np.float32(1.0 / (MAX_PRIOR_CHANGE * typical)))
    weights = _weights(pairs, calibrated, residual)
    predicted = np.empty_like(calibrated)
    _predict[len(predicted)](calibrated, _extend(residual, trust), weights, predicted)
    if pairs.count == 0:
        return CarriedResult(
            *reconstruct_depth(pairs, predicted, options, cache), float(np.vdot(trust, weights)) / trust.size
        )
    known = known_of_measurements(pairs, predicted, options)
    depth, reconstruction = reconstruct(predicted, pairs.where, pairs.measured, options, cache=cache, **known)
    measured = depth.flat[pairs.where]
    difference = np.abs(np.log(earlier[::SAMPLE, ::SAMPLE] / depth[::SAMPLE, ::SAMPLE]))
    difference = difference[np.isfinite(difference)]
    typical = max(NORMAL_MEDIAN * float(np.median(difference)), 1e-6) if difference.size else 1.0
    _damp[len(depth)](depth, earlier, trust, weights, 1.0 / (TYPICAL_DIFFERENCES * typical))
    depth.flat[pairs.where] = measured
    result = CarriedResult(depth, reconstruction, float(np.vdot(trust, weights)) / trust.size)
    if carried.sharp is None:
        return result
    blurred = ratio_without_measured(pairs, calibrated, depth) * calibrated
    sharp = sharpen_edges(blurred, carried.sharp, weights * np.float32(1.0 / MAX_WEIGHT))
    returned = np.where(sharp == blurred, depth, sharp).astype(depth.dtype, copy=False)
    returned.flat[pairs.where] = measured
    return replace(result, depth=returned, blurred=depth, sharp=sharp)


def _weights(pairs: Pairs, calibrated: Float32Array, residual: Float32Array) -> Float32Array:
    """Weight of the carried residual of each pixel, (H, W)."""
    weights, known = np.full_like(calibrated, MAX_WEIGHT), np.zeros_like(calibrated)
    if not pairs.count:
        return weights
    g = np.log(pairs.measured.astype(np.float64) / calibrated.flat[pairs.where])
    by_carried = g - residual.flat[pairs.where].astype(np.float64)  # NaN where nothing was carried
    found = np.isfinite(by_carried)
    if not found.any():
        return weights
    if pairs.count > MIN_NEIGHBOURS:
        nearest, counts = pairs.neighbours.nearest, pairs.neighbours.counts
        alone = pairs.neighbours.compare(g)[0]
    else:  # too few for neighbours: the error of this frame alone is that of the response
        nearest, counts = np.empty((pairs.count, 0), np.int32), np.zeros(pairs.count, np.int32)
        alone = np.abs(g)
    local = np.empty(pairs.count, np.float32)
    _local_weights(by_carried, alone, nearest, counts, local)
    squares = np.median(by_carried[found] ** 2), np.median(alone[found] ** 2) + INSIGNIFICANT**2
    whole = MAX_WEIGHT / (1.0 + float(squares[0] / (MAX_ERROR_RATIO * squares[1])) ** 2)
    weights.flat[pairs.where] = whole * local
    known.flat[pairs.where] = np.isfinite(local)
    return _extend(weights, known)


def _extend(residual: Float32Array, trust: Float32Array) -> Float32Array:
    """The residual where it is trusted, and a smooth extension elsewhere, by a pyramid of weighted means.

    On the way down each pixel is the mean of four, weighted by their trust. On the way up each is combined with the
    interpolated coarser level by its own trust (push-pull; Gortler et al., 1996).
    """
    levels = [(residual, trust)]
    while min(levels[-1][0].shape) > 2:
        fine = levels[-1]
        coarse = tuple(np.empty([-(-side // 2) for side in fine[0].shape], np.float32) for _ in range(2))
        _push[len(coarse[0])](*fine, *coarse)
        levels.append((coarse[0], coarse[1]))
    values, weights = levels.pop()
    total = float(weights.sum())
    extended = np.full_like(values, float((values * weights).sum()) / total if total > 0 else 0.0)
    for values, weights in reversed(levels):
        finer = np.empty_like(values)
        _pull[len(finer)](values, weights, extended, finer)
        extended = finer
    return extended


@parallel_loop()
def _least_beside(i, depth, least):  # type: ignore[no-untyped-def]
    """The least depth within MARGIN pixels to the left and to the right; infinite where none is known."""
    width = depth.shape[1]
    for j in range(width):
        least[i, j] = np.inf
        for k in range(max(j - MARGIN, 0), min(j + MARGIN + 1, width)):
            if depth[i, k] < least[i, j]:
                least[i, j] = depth[i, k]


@parallel_loop()
def _compare(i, calibrated, depth, ratio, beside, residual, change):  # type: ignore[no-untyped-def]
    """The carried residual log(c / t), and the change of the prior log(c / (ratio t)).

    Both are NaN where unknown, and behind a nearer surface that is at most MARGIN pixels away.
    """
    height, width = calibrated.shape
    for j in range(width):
        quotient = np.float64(depth[i, j]) / np.float64(calibrated[i, j])
        other = quotient / np.float64(ratio[i, j])
        known = quotient > 0 and other > 0  # False for NaN
        for k in range(max(i - MARGIN, 0), min(i + MARGIN + 1, height)):
            known = known and depth[i, j] <= MAX_STEP * beside[k, j]
        residual[i, j] = log(quotient if known else 1.0) if known else np.nan
        change[i, j] = log(other if known else 1.0) if known else np.nan


@parallel_loop()
def _trust(i, change, centre, inverse):  # type: ignore[no-untyped-def]
    """Replace the change of the prior by the trust in the carried residual, between 0 and 1; 0 where unknown."""
    one = np.float32(1.0)
    for j in range(change.shape[1]):
        x = (change[i, j] - centre) * inverse
        value = one / (one + x * x)
        change[i, j] = value * value if value == value else np.float32(0.0)


@parallel_loop()
def _push(i, values, weights, coarse, coarse_weights):  # type: ignore[no-untyped-def]
    """Weighted means of 2 x 2 pixels, and the sums of their weights, at most 1."""
    height, width = values.shape
    zero = np.float32(0.0)
    for j in range(coarse.shape[1]):
        total, weight = zero, zero
        for a in range(2 * i, min(2 * i + 2, height)):
            for b in range(2 * j, min(2 * j + 2, width)):
                if weights[a, b] > zero:
                    total += weights[a, b] * values[a, b]
                    weight += weights[a, b]
        coarse[i, j] = total / weight if weight > zero else zero
        coarse_weights[i, j] = min(weight, np.float32(1.0))


@parallel_loop()
def _pull(i, values, weights, coarse, finer):  # type: ignore[no-untyped-def]
    """`values` by their weights, and bilinear interpolation of the coarser level by the rest."""
    near, far = np.float32(0.75), np.float32(0.25)
    last_row, last_column = coarse.shape[0] - 1, coarse.shape[1] - 1
    here, other = i // 2, min(max(i // 2 + (1 if i % 2 else -1), 0), last_row)
    for j in range(values.shape[1]):
        k = j // 2
        m = min(max(k + (1 if j % 2 else -1), 0), last_column)
        mean = near * (near * coarse[here, k] + far * coarse[here, m])
        mean += far * (near * coarse[other, k] + far * coarse[other, m])
        w = weights[i, j]
        finer[i, j] = mean + w * (values[i, j] - mean) if w > 0 else mean


@parallel_loop()
def _predict(i, calibrated, extended, weights, predicted):  # type: ignore[no-untyped-def]
    """The depth t exp(w m), about which the residual is solved."""
    width = calibrated.shape[1]
    for j in range(width):
        predicted[i, j] = calibrated[i, j] * exp(np.float64(weights[i, j] * extended[i, j]))


@parallel_loop()
def _damp(i, depth, carried, trust, weights, inverse):  # type: ignore[no-untyped-def]
    """Move the depth towards the carried depth, by a share that decreases with their difference."""
    width = depth.shape[1]
    for j in range(width):
        quotient = np.float64(carried[i, j]) / np.float64(depth[i, j])
        if trust[i, j] > 0 and quotient > 0:
            difference = log(quotient)
            share = DAMPING / MAX_WEIGHT * weights[i, j] * trust[i, j] / (1.0 + (difference * inverse) ** 2)
            depth[i, j] *= exp(share * difference)


@compiled()
def _local_weights(by_carried, alone, nearest, counts, weights):  # type: ignore[no-untyped-def]
    """The local factor of the weight at each measurement; NaN if nothing was carried to it and to its neighbours."""
    for k in range(weights.size):
        a, b, count = 0.0, 0.0, 0
        for n in range(-1, counts[k]):
            other = k if n < 0 else nearest[k, n]
            if by_carried[other] == by_carried[other]:
                a += by_carried[other] ** 2
                b += alone[other] ** 2 + INSIGNIFICANT_LOCALLY**2
                count += 1
        weights[k] = 1.0 / (1.0 + (a / (MAX_LOCAL_RATIO * b)) ** 2) if count else np.nan


@compiled()
def _replace_measured(ratio, measured, where):  # type: ignore[no-untyped-def]
    """Replace the ratio of each measured pixel by the mean over its neighbours that are not measured, if it has any."""
    height, width = ratio.shape
    for k in range(where.size):
        i, j = where[k] // width, where[k] % width
        total, count = 0.0, 0
        for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if 0 <= a < height and 0 <= b < width and not measured[a, b] and ratio[a, b] > 0:
                total += ratio[a, b]
                count += 1
        if count:
            ratio[i, j] = total / count
