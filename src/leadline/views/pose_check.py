"""Which poses are wrong: those that a small motion of the camera would improve by much.

Noise, depth edges and errors of the network make the measurements of two views deviate from each other whatever the
poses are, and may hide what a wrong pose adds. But they deviate in all directions, while a wrong pose moves everything
by one rigid motion. The measurements of all neighbours of a view are therefore registered to its depth, close to its
own measurements: point to plane (Chen and Medioni, 1991), with the weights of Geman and McClure against points that
match nothing. If the motion that is found reduces the typical deviation to less than `WRONG` of what it was, the pose
is wrong. The motion itself is not used: along directions in which the surfaces slide it is not determined.

Poses from world to camera in place of camera to world are wrong in all views alike, and if the motion is small the
views overlap all the same. They are found by inverting all poses at once (`look_inverted`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray
from leadline.geometry.cameras import CameraModel
from leadline.geometry.poses import Transform, invert_transform, rigid_transform, transform_points
from leadline.views.agreement import MIN_COMPARED, close_to
from leadline.views.evidence import NEARER, DepthMap, carry, cell_side
from leadline.views.overlap import Outline

WRONG = 0.8
"""Share of the typical deviation that the registration of a view with a wrong pose leaves at most. On 60 real frames
with right poses and 80, 300 or 1,500 measurements it is at least 0.90, and sometimes below 0.8 beside views with wrong
poses. With poses that are wrong by 5 cm and 2 degrees it is below 0.8 in at least 29 of 36 views."""
MIN_DEVIATION = 0.005
"""Views with a smaller typical deviation in log depth agree in any case."""
INLIERS = 0.8
"""The typical deviation is the mean over this share of the points, those that deviate least."""
MIN_POINTS, MIN_MEASUREMENTS = 200, 12
"""Points that a registration needs, and measurements of the view to which they are close; with fewer, six parameters
fit noise."""
MAX_POINTS = 3000
"""Points of all neighbours together that are registered; with more, results hardly change."""
ITERATIONS = 6
LOSS_SCALE = 2.0
"""Deviation at which the weight of a point has decreased to a quarter, in typical standard deviations."""
MAX_SLANT = 10.0
"""Planes that a ray meets at a smaller angle than the inverse of this are depth edges rather than surfaces."""
INVERTED, INVERTED_SHARE = 0.6, 0.8
"""Poses look inverted if inverting them reduces the typical deviation to less than the first number, and the deviation
of at least the second share of the pairs. In 271 sets of 2 to 60 real frames with 80 or 300 measurements none does if
the poses are right, or a tenth of them wrong. If they are inverted at least 264 do; the others have 2 or 3 frames."""
INVERTED_VIEWS, INVERTED_NEIGHBOURS = 30, 3
"""Views that are compared with others to find inverted poses, and the number of neighbours of each."""
LOOKS_INVERTED = (
    "the poses seem to be from world to camera, as those in COLMAP's files and of OpenCV: the views agree much better "
    "if all poses are inverted. Poses must be from camera to world: give the inverse of each."
)


def without_wrong_poses(
    neighbours: Mapping[str, tuple[str, ...]], remaining: Callable[[str, tuple[str, ...]], float]
) -> dict[str, tuple[str, ...]]:
    """The neighbours of each view, without views whose pose is wrong, which have none themselves.

    ``remaining(name, others)`` is the result of `remaining_deviation` for a view and these neighbours. The view with
    the smallest one leaves first, and its neighbours are registered again without it.
    """
    result = dict(neighbours)
    left = {name: remaining(name, others) for name, others in neighbours.items()}
    while wrong := [name for name, value in left.items() if value < WRONG]:
        worst = min(wrong, key=lambda name: left[name])
        result[worst], left[worst] = (), math.nan
        for name, others in result.items():
            if worst in others:
                result[name] = tuple(other for other in others if other != worst)
                left[name] = remaining(name, result[name])
    return result


def remaining_deviation(own: DepthMap, measured: IndexArray, points: list[Float64Array]) -> float:
    """Share of the typical deviation that is left when the points of the neighbours are registered to the view.

    `measured` are the flat indices of the view's own measurements. Points that lie close to the same one share its
    error; the share is therefore divided by that which six parameters leave of the noise of as many measurements. NaN
    if there are too few of them, or if the points deviate by little.
    """
    from scipy.spatial.transform import Rotation

    total, close = sum(map(len, points)), close_to(measured, own.depth)
    spacing = math.sqrt(own.depth.size / max(1, measured.size))
    some = np.concatenate([np.empty((0, 3)), *(part[:: max(1, total // MAX_POINTS)] for part in points)])
    planes, motion, typical = _planes(own), np.eye(4), []
    for _ in range(ITERATIONS + 1):
        where, jacobian, deviations = _linearise(own, close, planes, some, motion)
        rows, columns = np.divmod(where, own.depth.shape[1])
        count = np.unique(np.stack((rows // spacing, columns // spacing)), axis=1).shape[1]
        if deviations.size < MIN_POINTS or count < MIN_MEASUREMENTS:
            return math.nan
        magnitudes = np.sort(np.abs(deviations))
        typical.append(float(magnitudes[: round(INLIERS * magnitudes.size)].mean()))
        if typical[0] < MIN_DEVIATION:
            return math.nan
        scale = LOSS_SCALE * 1.4826 * float(np.median(magnitudes))
        weights = (1.0 + (deviations / scale) ** 2) ** -2
        normal = jacobian.T @ (weights[:, None] * jacobian)
        normal += 1e-6 * np.trace(normal) * np.eye(6)  # where the surfaces slide, as those of a single plane
        step = -np.linalg.solve(normal, jacobian.T @ (weights * deviations))
        motion = rigid_transform(Rotation.from_rotvec(step[:3]), step[3:]) @ motion
    return typical[-1] / typical[0] / math.sqrt(1.0 - 6.0 / count)


def look_inverted(
    neighbours: Mapping[str, tuple[str, ...]],
    outlines: Mapping[str, Outline],
    read: Callable[[str, str], FloatArray],
) -> bool:
    """Whether the views agree much better if all poses are inverted.

    ``read("depth", name)`` is the depth of a view alone, and ``read("points", name)`` are its measurements in the
    world. A view is compared with its neighbours and with the views that were added before and after it: with inverted
    poses the overlap may be wrong, too. Pairs that see nothing of each other in one of the two cases do not count.
    """
    names = list(neighbours)
    given, inverted = [], []
    for index in np.unique(np.linspace(0, len(names) - 1, min(len(names), INVERTED_VIEWS)).astype(int)):
        name = names[index]
        beside = names[max(0, index - 1) : index] + names[index + 1 : index + 2]
        own, camera, pose = read("depth", name), outlines[name].camera, outlines[name].camera_to_world
        for other in dict.fromkeys([*neighbours[name][:INVERTED_NEIGHBOURS], *beside]):
            other_pose = outlines[other].camera_to_world
            measured = transform_points(read("points", other), invert_transform(other_pose))
            as_given = _typical_deviation(own, camera, transform_points(measured, invert_transform(pose) @ other_pose))
            turned = transform_points(measured, pose @ invert_transform(other_pose))
            pair = as_given, _typical_deviation(own, camera, turned)
            if not any(map(math.isnan, pair)):
                given.append(pair[0])
                inverted.append(pair[1])
    if not given or np.median(given) < MIN_DEVIATION:
        return False
    better = float(np.mean(np.less(inverted, given)))
    return bool(np.median(inverted) < INVERTED * np.median(given)) and better >= INVERTED_SHARE


def _typical_deviation(depth: FloatArray, camera: CameraModel, points: Float64Array) -> float:
    """Median of |log depth ratio| of points in the frame of the camera, hidden ones included; NaN if it sees too few.

    Deviations count as `NEARER` at most, so that those of surfaces that hide each other do not decide.
    """
    height, width = depth.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        columns, rows = np.floor(camera.project(points) + 0.5).T
        inside = np.flatnonzero((columns >= 0) & (columns < width) & (rows >= 0) & (rows < height))
        where = (rows[inside] * width + columns[inside]).astype(np.intp)
        deviations = np.abs(np.log(points[inside, 2] / depth.flat[where]))
    deviations = np.minimum(deviations[np.isfinite(deviations)], NEARER)
    return float(np.median(deviations)) if deviations.size >= MIN_COMPARED else math.nan


def _linearise(
    own: DepthMap, close: BoolArray, planes: Float64Array, points: Float64Array, motion: Transform
) -> tuple[IndexArray, Float64Array, Float64Array]:
    """Pixels, derivatives by rotation and translation, (n, 6), and log depth ratios of the points that the view sees.

    `motion` is applied to the points in the frame of the camera.
    """
    moved = replace(own, camera_to_world=own.camera_to_world @ invert_transform(motion))
    where, ratio, index = carry(moved, points)
    side = cell_side(own.depth.shape)
    rows, columns = np.divmod(where, own.depth.shape[1])
    plane = planes[np.minimum(rows // side, len(planes) - 1), np.minimum(columns // side, planes.shape[1] - 1)]
    usable = close.flat[where] & np.isfinite(plane).all(axis=1)
    plane, to_camera = plane[usable], invert_transform(moved.camera_to_world)
    seen = points[index[usable]] @ to_camera[:3, :3].T + to_camera[:3, 3]
    return where[usable], np.concatenate((np.cross(seen, plane), plane), axis=1), ratio[usable]


def _planes(own: DepthMap) -> Float64Array:
    """For each cell of the view the vector n of the plane n . p = 1 through its point; NaN at depth edges.

    A motion of a point p by d changes the log of its depth relative to that of the plane by n . d.
    """
    from scipy.ndimage import gaussian_filter

    side = cell_side(own.depth.shape)
    coarse = own.depth[side // 2 :: side, side // 2 :: side].astype(np.float64)
    known = np.isfinite(coarse)
    weight = gaussian_filter(known.astype(np.float64), 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        depth = np.exp(gaussian_filter(np.log(np.where(known, coarse, 1.0)), 1.0) / weight)
        depth[~known] = np.nan
        points = own.camera.scaled(coarse.shape[1], coarse.shape[0]).points(depth)
        if min(coarse.shape) < 2:
            return np.full(points.shape, np.nan)
        normals = np.cross(np.gradient(points, axis=1), np.gradient(points, axis=0))
        planes: Float64Array = normals / np.sum(normals * points, axis=2, keepdims=True)
        slant = np.linalg.norm(planes, axis=2) * np.linalg.norm(points, axis=2)
        planes[~(slant < MAX_SLANT)] = np.nan
    return planes
