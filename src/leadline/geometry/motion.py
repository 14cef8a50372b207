"""Motion compensation: the points of a sweep, measured one after the other, as if all at one instant.

A spinning LiDAR takes 0.1 s for a turn. At 13 m/s the car moves 1.3 m meanwhile, so points at the sides of a forward
camera's picture are off by some 0.2 m, several pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.geometry.poses import rotation_of

_SMALL_ANGLE = 1e-4  # below it the series of sin and cos are exact to 1e-16


def azimuth_time(points: FloatArray, period: float, *, zero_azimuth: float = 0.0, clockwise: bool = True) -> FloatArray:
    """When each point of one turn was measured, (N,) seconds in [-period/2, period/2], from its direction alone.

    Zero is when the sensor looked in the direction `zero_azimuth`: for rigs that trigger the camera then, as KITTI's,
    the time of the picture. A sensor that moves while it turns meets a direction again after slightly less or more
    than its period, which is ignored.

    Parameters
    ----------
    points : (N, 3) array
        In the sensor's frame: x forward, y left, z up, with the axis of rotation along z.
    period : float
        Seconds for one turn.
    zero_azimuth : float
        Degrees from x towards y.
    clockwise : bool
        As seen from above; Velodyne's sensors turn so.

    Examples
    --------
    >>> azimuth_time(np.array([[1.0, 0.0, 0.0], [0.0, -2.0, 0.0]]), 0.1)
    array([0.   , 0.025])
    """
    if not (0 < period < math.inf):
        raise InputError(f"`period` must be a positive number of seconds, got {period!r} instead.")
    turned = np.arctan2(points[:, 1], points[:, 0]).astype(np.float64) - math.radians(zero_azimuth)
    share = (turned / (2 * math.pi) + 0.5) % 1.0 - 0.5
    # + 0.0 turns -0.0 into 0.0
    return period * (-share if clockwise else share) + 0.0


def compensate(
    points: FloatArray, time: FloatArray, *, velocity: tuple[float, ...], turn_rate: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> FloatArray:
    """The points in the sensor's frame at time 0, (N, 3), for a sensor that moves evenly.

    With the twist (v, w) the sensor's frame at time t is exp(t (v, w)) in that of time 0, so x becomes
    R(w t) x + V(w t) v t, with V the mean of R along the way.

    Parameters
    ----------
    points : (N, 3) array
        Each in the sensor's frame at its own time.
    time : (N,) array
        Seconds; 0 is the instant that is wanted, e.g. that of the picture.
    velocity : 3 floats
        Metres per second along the sensor's own axes.
    turn_rate : 3 floats
        Radians per second about them; a car's yaw is the third where z points up.

    Raises
    ------
    InputError
        If the shapes do not fit, or a number is not finite.

    Examples
    --------
    >>> compensate(np.array([[10.0, 0.0, 0.0]]), np.array([0.05]), velocity=(12.0, 0.0, 0.0))
    array([[10.6,  0. ,  0. ]])
    """
    v, w = (np.asarray(value, np.float64) for value in (velocity, turn_rate))
    if v.shape != (3,) or w.shape != (3,) or not (np.isfinite(v).all() and np.isfinite(w).all()):
        raise InputError(f"`velocity` and `turn_rate` must be three finite numbers each, got {velocity}, {turn_rate}.")
    t = _times(points, time)
    rate = float(np.linalg.norm(w))
    angle = rate * t
    axis = w / rate if rate else w
    x = points.astype(np.float64)
    once, shift = np.cross(axis, x), np.cross(axis, v)
    twice, shift2 = np.cross(axis, once), np.cross(axis, shift)
    small = np.abs(angle) < _SMALL_ANGLE
    safe = np.where(small, 1.0, angle)
    half = np.where(small, angle / 2, (1 - np.cos(safe)) / safe)
    third = np.where(small, angle**2 / 6, 1 - np.sin(safe) / safe)
    rotated = x + np.sin(angle)[:, None] * once + (1 - np.cos(angle))[:, None] * twice
    moved = rotated + t[:, None] * (v + half[:, None] * shift + third[:, None] * shift2)
    return moved.astype(points.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses of the sensor over time: x_world = rotation @ x_sensor + position.

    Parameters
    ----------
    times : (M,) array
        Seconds, increasing.
    positions : (M, 3) array
    quaternions : (M, 4) array
        w, x, y, z of unit length.
    """

    times: NDArray[np.float64]
    positions: NDArray[np.float64]
    quaternions: NDArray[np.float64]

    def __post_init__(self) -> None:
        count = len(self.times)
        if count < 2 or self.positions.shape != (count, 3) or self.quaternions.shape != (count, 4):
            raise InputError(f"A trajectory needs two poses or more, each with 3 + 4 numbers, got {count}.")
        lengths = np.linalg.norm(self.quaternions, axis=1)
        if not ((np.diff(self.times) > 0).all() and np.isfinite(self.positions).all() and (lengths > 0.5).all()):
            raise InputError("A trajectory's times must increase, and its positions and quaternions be finite.")
        object.__setattr__(self, "quaternions", self.quaternions / lengths[:, None])

    def at(self, time: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Quaternions and positions at `time`, (N, 4) and (N, 3), interpolated on the sphere and in line.

        Raises
        ------
        InputError
            If a time lies outside of the trajectory.
        """
        t = np.asarray(time, np.float64)
        if t.size and not (self.times[0] <= t.min() and t.max() <= self.times[-1]):
            raise InputError(
                f"`time` must lie within the trajectory, {self.times[0]:.6f} to {self.times[-1]:.6f} s, got "
                f"{t.min():.6f} to {t.max():.6f}. Do the two clocks agree?"
            )
        after = np.clip(np.searchsorted(self.times, t, side="right"), 1, len(self.times) - 1)
        share = ((t - self.times[after - 1]) / (self.times[after] - self.times[after - 1]))[:, None]
        q, r = self.quaternions[after - 1], self.quaternions[after]
        dot = (q * r).sum(axis=1, keepdims=True)
        r, dot = np.where(dot < 0, -r, r), np.abs(dot)  # q and -q are one rotation: the shorter way
        angle = np.arccos(np.clip(dot, 0, 1))
        near = angle < _SMALL_ANGLE
        sine = np.where(near, 1.0, np.sin(angle))
        first = np.where(near, 1 - share, np.sin((1 - share) * angle) / sine)
        second = np.where(near, share, np.sin(share * angle) / sine)
        between = first * q + second * r
        positions = self.positions[after - 1] * (1 - share) + self.positions[after] * share
        return between / np.linalg.norm(between, axis=1, keepdims=True), positions


def compensate_along(points: FloatArray, time: FloatArray, trajectory: Trajectory, at: float) -> FloatArray:
    """The points in the sensor's frame at the time `at`, (N, 3), from the poses at which they were measured.

    Parameters
    ----------
    points : (N, 3) array
    time : (N,) array
        Seconds on the trajectory's clock.
    trajectory : Trajectory
        Of the sensor itself.
    at : float
        Seconds on the same clock, e.g. that of the picture.
    """
    t = _times(points, time)
    (wanted,), (origin,) = trajectory.at(np.array([at]))
    quaternions, positions = trajectory.at(t)
    x = points.astype(np.float64)
    w, v = quaternions[:, :1], quaternions[:, 1:]
    world = x + 2 * np.cross(v, np.cross(v, x) + w * x) + positions
    back: NDArray[np.float64] = (world - origin) @ rotation_of(tuple(wanted))
    return back.astype(points.dtype, copy=False)


def _times(points: FloatArray, time: FloatArray) -> NDArray[np.float64]:
    t = np.asarray(time, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or t.shape != (len(points),):
        raise InputError(f"`time` must have one number for each point, got {t.shape} for points of {points.shape}.")
    if not np.isfinite(t).all():
        raise InputError("`time` must be finite: some points have no time.")
    return t
