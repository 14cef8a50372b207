"""Moving sensors: motion compensation of a sweep, trajectories, and trees of moving frames.

The points of a sweep are measured one after the other; motion compensation moves them to where they would have been
measured at one instant. A spinning LiDAR takes 0.1 s for a turn. At 13 m/s the car moves 1.3 m meanwhile, so points at
the sides of a forward camera's image are off by some 0.2 m, several pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.geometry.poses import Transform, invert_transform, rigid_transform, rotation_from_quaternion


def time_from_azimuth(
    points: FloatArray, period: float, *, zero_azimuth: float = 0.0, clockwise: bool = True
) -> FloatArray:
    """When each point of one turn was measured, (N,) seconds in [-period/2, period/2], from its direction alone.

    Time 0 is when the sensor looked in the direction `zero_azimuth`. Rigs such as KITTI's trigger the camera then, so
    it is the time of the image. A moving sensor returns to a direction after slightly less or more than its period,
    which is ignored.

    Parameters
    ----------
    points : (N, 3) array
        In the sensor's frame: x forward, y left, z up, with the axis of rotation along z.
    period : float
        Seconds for one turn.
    zero_azimuth : float
        Degrees from x towards y.
    clockwise : bool
        Sense of rotation seen from above; Velodyne's sensors turn clockwise.

    Examples
    --------
    >>> time_from_azimuth(np.array([[1.0, 0.0, 0.0], [0.0, -2.0, 0.0]]), 0.1)
    array([0.   , 0.025])
    """
    if not (0 < period < math.inf):
        raise InputError(f"{param('period')} must be a positive number of seconds, got {period!r} instead.")
    azimuth = np.arctan2(points[:, 1], points[:, 0]).astype(np.float64) - math.radians(zero_azimuth)
    turns = (azimuth / (2 * math.pi) + 0.5) % 1.0 - 0.5
    # + 0.0 turns -0.0 into 0.0
    return period * (-turns if clockwise else turns) + 0.0


def compensate_motion(
    points: FloatArray, time: FloatArray, *, velocity: tuple[float, ...], turn_rate: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> FloatArray:
    """The points in the sensor's frame at time 0, (N, 3), for a sensor of constant velocity and turn rate.

    With the twist (v, w) the sensor's pose at time t is exp(t (v, w)) relative to time 0, so x becomes
    R(w t) x + V(w t) v t, where V is the mean of R over the motion.

    Parameters
    ----------
    points : (N, 3) array
        Each in the sensor's frame at its own time.
    time : (N,) array
        Seconds; 0 is the time to compensate to, e.g. that of the image.
    velocity : 3 floats
        Metres per second along the sensor's own axes.
    turn_rate : 3 floats
        Radians per second about them; a car's yaw is the third where z points up.

    Raises
    ------
    InputError
        The shapes do not fit, or a number is not finite.

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
    """Poses of the sensor over time: x_world = rotation @ x_sensor + position.

    Parameters
    ----------
    times : (M,) array
        Seconds, increasing.
    positions : (M, 3) array
        Metres.
    quaternions : (M, 4) array
        w, x, y, z of unit length.

    Raises
    ------
    InputError
        There are fewer than two poses, times do not increase, or a number is not finite.
    """

    times: NDArray[np.float64]
    positions: NDArray[np.float64]
    quaternions: NDArray[np.float64]
    _slerp: Slerp = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.times)
        if count < 2 or self.positions.shape != (count, 3) or self.quaternions.shape != (count, 4):
            raise InputError(f"A trajectory needs two poses or more, each with 3 + 4 numbers, got {count}.")
        if not ((np.diff(self.times) > 0).all() and np.isfinite(self.positions).all()):
            raise InputError("A trajectory's times must increase, and its positions must be finite.")
        object.__setattr__(self, "_slerp", Slerp(self.times, rotation_from_quaternion(self.quaternions)))

    def at(self, time: FloatArray) -> tuple[Rotation, NDArray[np.float64]]:
        """Rotations and positions, (N, 3), at `time`, (N,): spherical and linear interpolation.

        Raises
        ------
        InputError
            A time lies outside the trajectory.
        """
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

    Parameters
    ----------
    points : (N, 3) array
        Each in the sensor's frame at its own time.
    time : (N,) array
        Seconds on the trajectory's clock.
    trajectory : Trajectory
        Poses of the sensor itself.
    target_time : float
        Seconds on the same clock, e.g. the time of the image.
    """
    t = _check_times(points, time)
    target_rotation, origin = trajectory.at(np.array([target_time]))
    rotations, positions = trajectory.at(t)
    moved: NDArray[np.float64] = target_rotation.inv().apply(rotations.apply(points) + positions - origin)
    return moved.astype(points.dtype, copy=False)


@dataclass(frozen=True)
class FramePose:
    """The pose of a frame in its parent's frame, as ROS's tf publishes it.

    Parameters
    ----------
    child, parent : str
        Names of the frames.
    time : int or None
        Nanoseconds; None if the pose never changes.
    translation : (x, y, z)
    quaternion : (w, x, y, z)
    """

    child: str
    parent: str
    time: int | None
    translation: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]


class TransformTree:
    """A tree of frames, each fixed or moving relative to its parent."""

    def __init__(self, poses: Iterable[FramePose]) -> None:
        self._parents: dict[str, str] = {}
        moving: dict[str, dict[int, FramePose]] = {}
        self._fixed: dict[str, Transform] = {}
        for pose in poses:
            self._parents[pose.child] = pose.parent
            if pose.time is None:
                self._fixed[pose.child] = _pose_transform(pose)
            else:
                moving.setdefault(pose.child, {})[pose.time] = pose
        self._moving: dict[str, Trajectory] = {}
        for child, by_time in moving.items():
            known = [by_time[time] for time in sorted(by_time)]
            if child in self._fixed:
                continue
            if len(known) == 1:
                self._fixed[child] = _pose_transform(known[0])
            else:
                self._moving[child] = Trajectory(
                    np.array(sorted(by_time)) * 1e-9,
                    np.array([pose.translation for pose in known], np.float64),
                    np.array([pose.quaternion for pose in known], np.float64),
                )

    @property
    def frames(self) -> tuple[str, ...]:
        """Names of all frames."""
        return tuple(sorted({*self._parents, *self._parents.values()}))

    def between(self, source: str, target: str, time: int) -> Transform:
        """The transform from `source` to `target` at `time` in nanoseconds, interpolated between moving poses.

        Raises
        ------
        InputError
            No chain of frames connects the two, or a pose is not known at that time.
        """
        up, down = self.chains(source, target)
        return invert_transform(self._to_root(down, time)) @ self._to_root(up, time)

    def chains(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """The frames from `source` and from `target` up to the root of the tree.

        Raises
        ------
        InputError
            The two have different roots.
        """
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


def _pose_transform(pose: FramePose) -> Transform:
    return rigid_transform(rotation_from_quaternion(pose.quaternion), pose.translation)


def _check_times(points: FloatArray, time: FloatArray) -> NDArray[np.float64]:
    t = np.asarray(time, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or t.shape != (len(points),):
        raise InputError(
            f"{param('time')} must have one number for each point, got {t.shape} for points of {points.shape}."
        )
    if not np.isfinite(t).all():
        raise InputError(f"{param('time')} must be finite: some points have no time.")
    return t
