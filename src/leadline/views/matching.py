"""Depth that the pictures themselves measure: patches of a view found again in the pictures of its neighbours.

The points of a COLMAP model lie at features that a detector found. With known poses and a depth that is roughly right,
other textured places can be measured as well. A patch with the plane of the completed depth is moved along its ray, and
at each place compared with its image in the neighbours, whose baselines share one scale of inverse depth: the
multiple-baseline stereo of Okutomi and Kanade (1993), with the patches of Furukawa and Ponce (2010). Photometric and
geometric consistency together select what is used, as in Schönberger et al. (2016). Nothing is optimised over pixels:
a few thousand places a view are matched, and the completion does the rest.

**Matching.** In each cell of the picture, the place with the strongest gradient is matched. The score of a depth is the
mean over the neighbours of the normalised cross-correlation, which does not depend on exposure. A match needs a peak
that stands out from the other peaks, that is curved along the ray, and that at least one neighbour has by itself. Where
the gradient is perpendicular to all epipolar lines the score is flat, so that nothing is found.

**Verification.** A wrong match can have a high score: repeated patterns, reflections, objects that move. Such matches
differ from view to view, because each was found from another picture and around another depth. A match is therefore
moved into the neighbours that it was found with. Where it lands close to a match or a measurement of the neighbour, the
two agree or contradict each other; the match is used if more neighbours agree than contradict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array, Float64Array, FloatArray, IndexArray, is_measured
from leadline.base.jit import SUM, parallel_loop
from leadline.core.uncertainty import distance_to
from leadline.geometry.cameras import Camera
from leadline.geometry.poses import invert_transform, transform_points
from leadline.views.evidence import Evidence
from leadline.views.inputs import View
from leadline.views.overlap import Outline
from leadline.views.pictures import UNSEEN, pinhole_camera, straighten, straighten_depth
from leadline.views.store import Store, part_of, stored_points

PICTURES = 10
"""Neighbours in whose pictures a patch is searched. With 6, and a smaller interval of depth, each view alone with
its matches had an error of 0.83 of that without, with 10 of 0.81 (every fourth of 60 frames); 14 are no better."""
MIN_ANGLE, BEST_ANGLE, MAX_ANGLE = 2.0, 6.0, 15.0
"""Angle in degrees at which two views see the same points. Small ones determine no depth, at large ones patches look
different. The neighbours closest to the second are chosen."""
HALF, SPACING = 4, 2
"""A patch has 9 x 9 pixels, of which every second one in both directions is compared. Patches of 13 x 13 pixels include
more than one surface, and the error of each view with its matches is larger by 5 %; all pixels cost 2.7 times as much
and lower it by less than 1 %."""
CELL = 6
"""Side in pixels of the cells of which one place is matched."""
STEP = 0.016
"""Step in log depth: 0.85 pixels between views that see a point at 6 degrees. Smaller ones are no better."""
STEPS = 21
"""Steps to either side of the completed depth, 0.71 to 1.40 times which is searched."""
MIN_GRADIENT = 0.75
"""Root mean square of the gradient, in grey values of 255 a pixel; less is noise of a camera."""
GREY_NOISE = 1.4
"""Standard deviation of grey values that is added to that of each patch, so that patches of noise do not correlate."""
MIN_SCORE, MIN_ALONE = 0.3, 0.6
"""Smallest score, and correlation of a neighbour that has the peak by itself."""
MIN_LEAD = 0.03
"""Difference to the next peak of the score."""
MIN_CURVATURE = 0.009
"""Second difference of the score at its peak; a score that is flatter determines no depth."""
NEAR = 0.00625
"""Distance at which matches are compared, relative to the diagonal of the image: 5 pixels at 640 x 480."""
AGREES, CONTRADICTS = 0.03, 0.06
"""Log depth up to which a match agrees with a neighbour, and from which it contradicts it."""
APART = 0.01
"""Distance of matches from the view's own measurements, relative to the diagonal: 8 pixels at 640 x 480."""
SPREAD_FACTOR, MAX_NOISE = 8.0, 0.08
"""The noise of the matches of a view is this multiple of the typical deviation from those of its neighbours, up to a
limit. Errors of matches that are close to each other are alike, at depth edges in particular, and the normals are
better if the depth follows each of them less closely."""
ENOUGH = 300
"""Verified matches of a view from which the measurements of its neighbours are not carried over. Points of a model are
shared by the views anyway, and matches are seen from the view itself: carried points raised the error by 3 %."""


class Matching:
    """The matches of all views, with their pictures in the store of the views.

    `compute` makes the arrays of one view for each of `PARTS`, in this order and for all views.
    """

    PARTS = ("pictures", "matches", "verified")

    def __init__(
        self,
        store: Store,
        views: Mapping[str, View],
        neighbours: Mapping[str, tuple[str, ...]],
        outlines: Mapping[str, Outline],
    ) -> None:
        self._store, self._views = store, views
        self._chosen = {name: self._choose(name, others, outlines) for name, others in neighbours.items()}

    def compute(self, part: str, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a view for a part."""
        view = self._views[name]
        if part == self.PARTS[0]:
            grey = view.load_grey()
            return {"grey": np.zeros((0, 0), np.uint8) if grey is None else straighten(grey, view.camera)}
        return self._match(name) if part == self.PARTS[1] else self._verify(name)

    def evidence(self, name: str, sparse: FloatArray) -> Evidence:
        """The verified matches of a view that are not close to its own measurements."""
        verified = self._store.get(self.PARTS[2], name, "verified")
        where, depth, relative = (self._array(name, array)[verified] for array in ("where", "depth", "relative"))
        measured, shape = np.flatnonzero(is_measured(sparse)), (sparse.shape[0], sparse.shape[1])
        if measured.size:
            apart = distance_to(measured, shape).flat[where] >= APART * math.hypot(*shape)
            where, depth, relative = where[apart], depth[apart], relative[apart]
        common = min(SPREAD_FACTOR * float(self._store.get(self.PARTS[2], name, "deviation")), MAX_NOISE)
        return Evidence(where, depth, np.hypot(relative, common) * depth)

    def _array(self, name: str, array: str) -> NDArray[Any]:
        return self._store.get(self.PARTS[1], name, array)

    def _choose(self, name: str, others: tuple[str, ...], outlines: Mapping[str, Outline]) -> tuple[str, ...]:
        """The neighbours with pictures that see the view's points at a suitable angle."""
        if self._views[name].image is None:
            return ()
        angles = {other: viewing_angle(outlines[name], outlines[other]) for other in others}
        suitable = [
            other
            for other, angle in angles.items()
            if MIN_ANGLE <= angle <= MAX_ANGLE and self._views[other].image is not None
        ]
        suitable.sort(key=lambda other: abs(math.log(angles[other] / BEST_ANGLE)))
        return tuple(suitable[:PICTURES])

    def _match(self, name: str) -> dict[str, NDArray[Any]]:
        """The matches of a view: pixel, depth, relative standard deviation, and place in the world."""
        view = self._views[name]
        if len(self._chosen[name]) < 2:
            return {
                "where": np.empty(0, np.intp),
                "points": np.empty((0, 3)),
                **dict.fromkeys(("depth", "relative"), np.empty(0)),
            }
        camera, picture = pinhole_camera(view.camera), self._store.get(self.PARTS[0], name, "grey")
        depth = straighten_depth(self._store.get(part_of(0), name, "depth"), view.camera)
        rows, columns = textured_places(picture, depth)
        planes = inverse_depth_planes(depth)[rows, columns]
        scales = np.exp(STEP * np.arange(-STEPS, STEPS + 1))
        correlations = np.empty((len(self._chosen[name]), rows.size, scales.size), np.float32)
        for k, other in enumerate(self._chosen[name]):
            neighbour = self._views[other]
            matrix, shift = plane_homography(
                camera,
                pinhole_camera(neighbour.camera),
                invert_transform(neighbour.camera_to_world) @ view.camera_to_world,
            )
            other_picture = self._store.get(self.PARTS[0], other, "grey")
            correlate[rows.size](picture, other_picture, rows, columns, planes, matrix, shift, scales, correlations[k])
        peaks = find_peaks(correlations)
        rows, columns = rows[peaks.found], columns[peaks.found]
        z = np.exp(-STEP * peaks.steps) / planes[peaks.found, 0]
        seen = np.stack(((columns - camera.cx) / camera.fx * z, (rows - camera.cy) / camera.fy * z, z), axis=1)
        u, v = np.floor(view.camera.project(seen) + 0.5).astype(np.intp).T
        inside = (u >= 0) & (u < view.camera.width) & (v >= 0) & (v < view.camera.height)
        return {
            "where": (v * view.camera.width + u)[inside],
            "depth": z[inside],
            "relative": (STEP * peaks.deviation)[inside],
            "points": transform_points(seen[inside], view.camera_to_world),
        }

    def _verify(self, name: str) -> dict[str, NDArray[Any]]:
        """Which matches of a view more neighbours agree with than contradict, and their typical deviation."""
        points = self._array(name, "points")
        ratios = np.full((len(self._chosen[name]) + 1, len(points)), np.nan)
        for k, other in enumerate(self._chosen[name]):
            ratios[k] = self._compare(other, points)
        deviations = np.abs(ratios)
        with np.errstate(invalid="ignore"):
            verified = (deviations < AGREES).sum(axis=0) > (deviations >= CONTRADICTS).sum(axis=0)
        known = deviations[:, verified]
        known = known[np.isfinite(known)]
        return {"verified": verified, "deviation": np.array(1.4826 * np.median(known) if known.size else 0.0)}

    def _compare(self, name: str, points: Float64Array) -> Float64Array:
        """Log of the depth of points relative to the nearest match or measurement of a view; NaN if none is close."""
        from scipy.spatial import cKDTree

        view, measured = self._views[name], stored_points(self._store, name)
        to_view, width = invert_transform(view.camera_to_world), view.camera.width
        known = np.concatenate((self._array(name, "where"), measured.where))
        ratio = np.full(len(points), np.nan)
        if not known.size or not len(points):
            return ratio
        depth = np.concatenate((self._array(name, "depth"), transform_points(measured.points, to_view)[:, 2]))
        seen = transform_points(points, to_view)
        pixels = view.camera.project(seen)
        inside = np.flatnonzero(np.isfinite(pixels).all(axis=1))
        tree = cKDTree(np.stack((known % width, known // width), axis=1))
        near = NEAR * math.hypot(view.camera.width, view.camera.height)
        distance, nearest = tree.query(pixels[inside], distance_upper_bound=near)
        close = np.isfinite(distance)
        ratio[inside[close]] = np.log(seen[inside[close], 2] / depth[nearest[close]])
        return ratio


def viewing_angle(view: Outline, other: Outline) -> float:
    """Median angle in degrees between the rays from two cameras to the points of the first; 0 without points."""
    if not len(view.points):
        return 0.0
    rays = [view.points - one.camera_to_world[:3, 3] for one in (view, other)]
    cosine = (rays[0] * rays[1]).sum(axis=1) / np.maximum(np.prod(np.linalg.norm(rays, axis=2), axis=0), 1e-300)
    return float(np.degrees(np.median(np.arccos(np.clip(cosine, -1.0, 1.0)))))


def plane_homography(camera: Camera, other: Camera, transform: Float64Array) -> tuple[Float64Array, Float64Array]:
    """A, (3, 3), and b, (3,): pixel x with inverse depth w of `camera` is A (x, 1) + b w of the other one.

    `transform`, (4, 4), leads from the camera's frame to that of the other.
    """
    first, second = (
        np.array([[one.fx, 0.0, one.cx], [0.0, one.fy, one.cy], [0.0, 0.0, 1.0]]) for one in (camera, other)
    )
    return second @ transform[:3, :3] @ np.linalg.inv(first), second @ transform[:3, 3]


def textured_places(picture: NDArray[np.uint8], depth: Float64Array) -> tuple[IndexArray, IndexArray]:
    """Rows and columns of the strongest gradient in each cell of a picture where depth is known."""
    from scipy.ndimage import binary_erosion, gaussian_filter

    smooth = gaussian_filter(picture.astype(np.float32), 1.0)
    down, right = np.gradient(smooth)
    strength = gaussian_filter(down**2 + right**2, HALF / 2)
    whole = binary_erosion((picture > UNSEEN) & np.isfinite(depth), np.ones((2 * HALF + 3,) * 2))
    strength = np.where(whole, strength, 0.0)
    height, width = (side // CELL for side in picture.shape)
    blocks = strength[: height * CELL, : width * CELL].reshape(height, CELL, width, CELL).swapaxes(1, 2)
    cells = blocks.reshape(height, width, CELL * CELL)
    row, column = np.divmod(cells.argmax(axis=2), CELL)
    strong = cells.max(axis=2) > MIN_GRADIENT**2
    rows = np.arange(height)[:, None] * CELL + row
    columns = np.arange(width)[None, :] * CELL + column
    return rows[strong], columns[strong]


def inverse_depth_planes(depth: Float64Array) -> Float64Array:
    """Inverse depth at each pixel, and its derivatives along columns and rows from a smooth map, (H, W, 3)."""
    from scipy.ndimage import gaussian_filter

    known = np.isfinite(depth)
    inverse = np.where(known, 1.0 / depth, 0.0)
    weight = gaussian_filter(known.astype(np.float64), HALF - 1.0)
    down, right = np.gradient(gaussian_filter(inverse, HALF - 1.0) / np.maximum(weight, 1e-6))
    return np.stack((inverse, right, down), axis=-1)


@parallel_loop(fastmath=SUM)
def correlate(i, picture, other, rows, columns, planes, matrix, shift, scales, result):  # type: ignore[no-untyped-def]
    """Normalised cross-correlation of one patch with its image in another picture, for each scale of inverse depth.

    It is NaN where the image of the patch is not inside of the other picture.
    """
    row, column = rows[i], columns[i]
    height, width = other.shape
    count = (2 * HALF // SPACING + 1) ** 2
    noise = count * GREY_NOISE**2
    patch = np.empty(count, np.float64)
    total, squares, k = 0.0, 0.0, 0
    for y in range(row - HALF, row + HALF + 1, SPACING):
        for x in range(column - HALF, column + HALF + 1, SPACING):
            value = np.float64(picture[y, x])
            patch[k] = value
            total += value
            squares += value * value
            k += 1
    mean = total / count
    spread = squares - total * mean + noise
    for k in range(count):
        patch[k] -= mean
    # Homogeneous coordinates in the other picture are linear in the pixel: a value in the middle and two derivatives.
    a0 = matrix[0, 0] * column + matrix[0, 1] * row + matrix[0, 2]
    a1 = matrix[1, 0] * column + matrix[1, 1] * row + matrix[1, 2]
    a2 = matrix[2, 0] * column + matrix[2, 1] * row + matrix[2, 2]
    for h in range(scales.size):
        inverse, across, down = scales[h] * planes[i, 0], scales[h] * planes[i, 1], scales[h] * planes[i, 2]
        u0, v0, w0 = a0 + shift[0] * inverse, a1 + shift[1] * inverse, a2 + shift[2] * inverse
        ux, vx, wx = (
            matrix[0, 0] + shift[0] * across,
            matrix[1, 0] + shift[1] * across,
            matrix[2, 0] + shift[2] * across,
        )
        uy, vy, wy = matrix[0, 1] + shift[0] * down, matrix[1, 1] + shift[1] * down, matrix[2, 1] + shift[2] * down
        total, squares, product, k = 0.0, 0.0, 0.0, 0
        inside = True
        for y in range(-HALF, HALF + 1, SPACING):
            for x in range(-HALF, HALF + 1, SPACING):
                w = w0 + wx * x + wy * y
                u = (u0 + ux * x + uy * y) / w
                v = (v0 + vx * x + vy * y) / w
                if not (w > 0.0 and u >= 0.0 and v >= 0.0 and u < width - 1 and v < height - 1):
                    inside = False
                    break
                left, top = int(u), int(v)
                fu, fv = u - left, v - top
                above = other[top, left] * (1.0 - fu) + other[top, left + 1] * fu
                below = other[top + 1, left] * (1.0 - fu) + other[top + 1, left + 1] * fu
                value = above * (1.0 - fv) + below * fv
                total += value
                squares += value * value
                product += value * patch[k]
                k += 1
            if not inside:
                break
        if inside:
            result[i, h] = product / math.sqrt(spread * (squares - total * total / count + noise))
        else:
            result[i, h] = np.nan


@dataclass(frozen=True, eq=False)
class Peaks:
    """Peaks of the score along rays that are high, unique and curved."""

    found: IndexArray  # (n,): which of the places have one
    steps: Float64Array  # (n,): where, in steps from the middle
    deviation: Float64Array  # (n,): standard deviation, in steps


def find_peaks(correlations: Float32Array) -> Peaks:
    """The accepted peaks of the mean correlation, from those of each neighbour, place and step, (k, n, s).

    The score near the peak is top - c d^2 / 2 at a distance of d steps. Noise of the patches lowers the top to
    1 - m v, where v is the variance of the noise of m pixels relative to the patch; it moves the peak by
    sqrt(v / c) = sqrt((1 - top) / (m c)), the bound of Cramér and Rao.
    """
    steps = correlations.shape[2]
    # A neighbour that sees only some of the steps would make a step in the score where its border is.
    sees = np.asarray(np.isfinite(correlations).all(axis=2))
    values = np.where(sees[:, :, None], correlations, 0.0)
    count = sees.sum(axis=0)
    score = np.maximum(values, 0.0).sum(axis=0) / np.maximum(count, 1)[:, None]
    place, every = score.argmax(axis=1), np.arange(score.shape[0])
    middle = np.clip(place, 1, steps - 2)
    before, top, after = (score[every, middle + k] for k in (-1, 0, 1))
    curvature = 2 * top - before - after
    higher = np.ones(score.shape, np.bool_)
    higher[:, 1:] = score[:, 1:] >= score[:, :-1]
    peak = higher & np.concatenate((~higher[:, 1:], np.ones((score.shape[0], 1), np.bool_)), axis=1)
    peak &= np.abs(np.arange(steps) - place[:, None]) > 1
    second = np.where(peak, score, 0.0).max(axis=1)
    alone = np.abs(values.argmax(axis=2) - middle) <= 1
    alone &= (np.take_along_axis(values, middle[None, :, None], axis=2)[:, :, 0] > MIN_ALONE) & sees
    accepted = (count >= 2) & (place >= 2) & (place < steps - 2) & alone.any(axis=0)
    accepted &= (top > MIN_SCORE) & (top - second > MIN_LEAD) & (curvature > MIN_CURVATURE)
    found = np.flatnonzero(accepted)
    top, curvature = top[found].astype(np.float64), curvature[found].astype(np.float64)
    offset = (after - before)[found] / (2 * curvature)
    pixels = (2 * HALF // SPACING + 1) ** 2
    deviation = np.sqrt(np.maximum(1.0 - top, 0.0) / (pixels * curvature))
    return Peaks(found, place[found] + offset - steps // 2, deviation)
