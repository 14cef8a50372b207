"""Rigid transforms as 4x4 arrays, trajectories, trees of moving frames, and motion compensation of a sweep.

A transform T maps a point from one frame to another, x' = T[:3, :3] @ x + T[:3, 3], in metres.

The points of a sweep are measured one after the other; motion compensation moves them to where they would have been
measured at one instant. A spinning LiDAR takes 0.1 s for a turn. At 13 m/s the car moves 1.3 m meanwhile, so points at
the sides of a forward camera's image are off by some 0.2 m, several pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation, Slerp

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param

Transform = NDArray[np.float64]  # (4, 4)

# Calibrations are written with about seven digits; a matrix farther from orthogonal than this is not a rotation.
ROTATION_TOLERANCE = 1e-3
_QUATERNION_LENGTHS = (0.9, 1.1)  # outside this range the numbers are not a rotation


def rotation_from_quaternion(quaternion: ArrayLike) -> Rotation:
    """The rotations of quaternions w, x, y, z, (4,) or (N, 4), whose length must be near 1."""
    values = np.asarray(quaternion, np.float64)
    lengths = np.linalg.norm(values, axis=-1)
    low, high = _QUATERNION_LENGTHS
    if values.ndim not in (1, 2) or values.shape[-1] != 4 or not ((lengths > low) & (lengths < high)).all():
        raise InputError(f"{param('quaternion')} must be four numbers w, x, y, z of length 1, got {quaternion!r:.100}.")
    return Rotation.from_quat(np.roll(values, -1, axis=-1))  # SciPy has the scalar last


def rigid_transform(rotation: Rotation, translation: ArrayLike) -> Transform:
    """The 4x4 transform of a rotation and a translation, (3,)."""
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = rotation.as_matrix(), translation
    return transform


def as_transform(matrix: Any, name: str = "transform") -> Transform:
    """`matrix`, 4x4 or 3x4, as a 4x4 rigid transform."""
    try:
        array = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape == (3, 4):
        array = np.vstack((array, (0.0, 0.0, 0.0, 1.0)))
    if array.shape != (4, 4) or not np.isfinite(array).all():
        shown = array.tolist() if array.size else matrix  # a list is one line, an array several
        raise InputError(f"{param(name)} must be a 4x4 or 3x4 matrix of finite numbers, got {shown!r:.200} instead.")
    rotation = array[:3, :3]
    with np.errstate(all="ignore"):
        determinant = float(np.linalg.det(rotation))
        deviation = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if not (deviation <= ROTATION_TOLERANCE and determinant > 0 and np.allclose(array[3], (0, 0, 0, 1))):
        fault = f"its determinant is {determinant:.4g}"
        if abs(determinant) < ROTATION_TOLERANCE:
            fault = "it is singular"
        elif determinant < 0:
            fault = "it mirrors (determinant below 0)"
        elif not np.allclose(array[3], (0, 0, 0, 1)):
            fault = f"its last row is {array[3].tolist()} and not 0, 0, 0, 1 (is it transposed?)"
        raise InputError(f"{param(name)} must be a rotation and a translation, but {fault}. Check its numbers.")
    return array


def invert_transform(transform: Transform) -> Transform:
    """The inverse transform. A general inverse, so it is exact also for a rotation that was rounded in a file."""
    return np.linalg.inv(transform).astype(np.float64)


def transform_points(points: FloatArray, transform: Transform) -> NDArray[np.float64]:
    """`points`, (N, 3), in the target frame of `transform`."""
    return points @ transform[:3, :3].T + transform[:3, 3]


def time_from_azimuth(points: FloatArray, period: float, *, clockwise: bool = True) -> FloatArray:
    """When each point of one turn was measured, (N,) seconds in [-period/2, period/2], from its direction alone.

    The sensor's frame has x forward, y left and z up, and the axis of rotation is z. Time 0 is when the sensor looked
    along x. Rigs such as KITTI's trigger the camera then, so it is the time of the image. A moving sensor returns to a
    direction after slightly less or more than its period, which is ignored. Velodyne's sensors turn clockwise, seen
    from above.

    Examples
    --------
    >>> time_from_azimuth(np.array([[1.0, 0.0, 0.0], [0.0, -2.0, 0.0]]), 0.1)
    array([0.   , 0.025])
    """
    if not (0 < period < math.inf):
        raise InputError(f"{param('period')} must be a positive number of seconds, got {period!r} instead.")
    turns = (np.arctan2(points[:, 1], points[:, 0]).astype(np.float64) / (2 * math.pi) + 0.5) % 1.0 - 0.5
    # + 0.0 turns -0.0 into 0.0
    return period * (-turns if clockwise else turns) + 0.0


def compensate_motion(
    points: FloatArray, time: FloatArray, *, velocity: tuple[float, ...], turn_rate: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> FloatArray:
    """The points in the sensor's frame at time 0, (N, 3), for a sensor of constant velocity and turn rate.

    With the twist (v, w) the sensor's pose at time t is exp(t (v, w)) relative to time 0, so x becomes
    R(w t) x + V(w t) v t, where V is the mean of R over the motion.

    `points`, (N, 3), are each in the sensor's frame at their own `time`, (N,) seconds; 0 is the time of the image. The
    velocity is in m/s along the sensor's own axes, the turn rate in rad/s about them.

    Examples
    --------
    >>> compensate_motion(np.array([[10.0, 0.0, 0.0]]), np.array([0.05]), velocity=(12.0, 0.0, 0.0))
    array([[10.6,  0. ,  0. ]])
    """
    v, w = (np.asarray(value, np.float64) for value in (velocity, turn_rate))
    if v.shape != (3,) or w.shape != (3,) or not (np.isfinite(v).all() and np.isfinite(w).all()):
        raise InputError(
            f"{param('velocity')} and {param('turn_rate')} must be three finite numbers each, got {velocity}, "
            f"{turn_rate}."
        )
    t = _check_times(points, time)[:, None]
    rate = float(np.linalg.norm(w))
    axis, angle = (w / rate if rate else w), rate * t
    # V(θ) v = v + (1 - cos θ) / θ (a x v) + (1 - sin θ / θ) a x (a x v), written with sinc for small angles.
    once = np.cross(axis, v)
    mean = (
        v
        + np.sin(angle / 2) * np.sinc(angle / (2 * np.pi)) * once
        + (1 - np.sinc(angle / np.pi)) * np.cross(axis, once)
    )
    moved = Rotation.from_rotvec(w * t).apply(points) + t * mean if len(t) else np.empty((0, 3))
    return moved.astype(points.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses of the sensor over time: x_world = rotation @ x_sensor + position."""

    times: NDArray[np.float64]  # (M,) seconds, increasing
    positions: NDArray[np.float64]  # (M, 3) metres
    quaternions: NDArray[np.float64]  # (M, 4), w, x, y, z of unit length
    _slerp: Slerp = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.times)
        if count < 2 or self.positions.shape != (count, 3) or self.quaternions.shape != (count, 4):
            raise InputError(f"A trajectory needs two poses or more, each with 3 + 4 numbers, got {count}.")
        if not ((np.diff(self.times) > 0).all() and np.isfinite(self.positions).all()):
            raise InputError("A trajectory's times must increase, and its positions must be finite.")
        object.__setattr__(self, "_slerp", Slerp(self.times, rotation_from_quaternion(self.quaternions)))

    def at(self, time: FloatArray) -> tuple[Rotation, NDArray[np.float64]]:
        """Rotations and positions, (N, 3), at `time`, (N,): spherical and linear interpolation."""
        t = np.asarray(time, np.float64)
        if t.size and not (self.times[0] <= t.min() and t.max() <= self.times[-1]):
            raise InputError(
                f"{param('time')} must lie within the trajectory, {self.times[0]:.6f} to {self.times[-1]:.6f} s, got "
                f"{t.min():.6f} to {t.max():.6f}. Do the two clocks agree?"
            )
        positions = np.stack([np.interp(t, self.times, column) for column in self.positions.T], axis=1)
        rotations: Rotation = self._slerp(t)
        return rotations, positions


def compensate_along_trajectory(
    points: FloatArray, time: FloatArray, trajectory: Trajectory, target_time: float
) -> FloatArray:
    """The points in the sensor's frame at `target_time`, (N, 3), from the poses at which they were measured.

    `points`, (N, 3), are each in the sensor's frame at their own `time`, (N,). All times are seconds on the clock of
    the trajectory, which holds the poses of the sensor itself.
    """
    t = _check_times(points, time)
    target_rotation, origin = trajectory.at(np.array([target_time]))
    rotations, positions = trajectory.at(t)
    moved: NDArray[np.float64] = target_rotation.inv().apply(rotations.apply(points) + positions - origin)
    return moved.astype(points.dtype, copy=False)


@dataclass(frozen=True)
class FramePose:
    """The pose of a frame in its parent's frame, as ROS's tf publishes it."""

    child: str
    parent: str
    time: int | None  # nanoseconds; None if the pose never changes
    translation: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]  # w, x, y, z

    @property
    def transform(self) -> Transform:
        return rigid_transform(rotation_from_quaternion(self.quaternion), self.translation)


class TransformTree:
    """A tree of frames, each fixed or moving relative to its parent."""

    def __init__(self, poses: Iterable[FramePose]) -> None:
        self._parents: dict[str, str] = {}
        self._fixed: dict[str, Transform] = {}
        self._moving: dict[str, Trajectory] = {}
        moving: dict[str, dict[int, FramePose]] = {}
        for pose in poses:
            self._parents[pose.child] = pose.parent
            if pose.time is None:
                self._fixed[pose.child] = pose.transform
            else:
                moving.setdefault(pose.child, {})[pose.time] = pose
        for child, by_time in moving.items():
            times = sorted(by_time)
            known = [by_time[time] for time in times]
            if len(known) == 1:
                self._fixed.setdefault(child, known[0].transform)
            elif child not in self._fixed:
                self._moving[child] = Trajectory(
                    np.array(times) * 1e-9,
                    np.array([pose.translation for pose in known], np.float64),
                    np.array([pose.quaternion for pose in known], np.float64),
                )

    @property
    def frames(self) -> tuple[str, ...]:
        """Names of all frames."""
        return tuple(sorted({*self._parents, *self._parents.values()}))

    def between(self, source: str, target: str, time: int) -> Transform:
        """The transform from `source` to `target` at `time` in nanoseconds, interpolated between moving poses."""
        up, down = self.chains(source, target)
        return invert_transform(self._to_root(down, time)) @ self._to_root(up, time)

    def pose(self, frame: str, time: int) -> Transform | None:
        """The pose of `frame` in the frame that stands still, at `time` in nanoseconds.

        That is ``odom``, which does not jump (REP 105), or else the root of the tree. The result is None if nothing on
        the way is known to move, because then the root may move with the camera, and at times without poses.
        """
        try:
            chain = self._chain(frame)
            chain = chain[: chain.index("odom") + 1] if "odom" in chain else chain
            return self._to_root(chain, time) if any(link in self._moving for link in chain[:-1]) else None
        except InputError:
            return None

    def chains(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """The frames from `source` and from `target` up to the root of the tree."""
        up, down = self._chain(source), self._chain(target)
        if up[-1] != down[-1]:
            known = ", ".join(self.frames) or "none"
            raise InputError(
                f"tf does not connect the frames {source!r} and {target!r} (known frames: {known}); "
                f"give {param('extrinsics')}."
            )
        return up, down

    def _chain(self, frame: str) -> list[str]:
        chain = [frame]
        while chain[-1] in self._parents:
            if self._parents[chain[-1]] in chain:
                raise InputError(f"tf has a loop at the frame {chain[-1]!r}; give {param('extrinsics')}.")
            chain.append(self._parents[chain[-1]])
        return chain

    def _to_root(self, chain: list[str], time: int) -> Transform:
        result = np.eye(4)
        for frame in chain[:-1]:
            result = self._pose(frame, time) @ result
        return result

    def _pose(self, frame: str, time: int) -> Transform:
        if frame in self._fixed:
            return self._fixed[frame]
        try:
            rotations, positions = self._moving[frame].at(np.array([time * 1e-9]))
        except InputError as error:
            raise InputError(f"tf of {frame!r}: {error}") from error
        return rigid_transform(rotations[0], positions[0])


def _check_times(points: FloatArray, time: FloatArray) -> NDArray[np.float64]:
    t = np.asarray(time, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or t.shape != (len(points),):
        raise InputError(
            f"{param('time')} must have one number for each point, got {t.shape} for points of {points.shape}."
        )
    if not np.isfinite(t).all():
        raise InputError(f"{param('time')} must be finite: some points have no time.")
    return t
