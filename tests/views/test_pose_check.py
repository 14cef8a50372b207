"""Which poses the registration of the neighbours' measurements calls wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import leadline
from leadline.geometry.poses import invert_transform, rigid_transform
from leadline.views.evidence import DepthMap, measured_points
from leadline.views.pose_check import WRONG, remaining_deviation, without_wrong_poses
from support.posed_room import CAMERA, Room

ROOM = Room(count=9, measurements=150)
POINTS = [measured_points(view.sparse, view.noise, CAMERA, view.pose).points for view in ROOM.views]


def remaining(pose_error: np.ndarray, number: int = 4, neighbours: int = 9) -> float:
    view = ROOM.views[number]
    depth = leadline.complete(view.prior, view.sparse, noise=view.noise).depth
    others = [points for k, points in enumerate(POINTS[:neighbours]) if k != number]
    own = DepthMap(depth, CAMERA, view.pose)
    return remaining_deviation(
        replace(own, camera_to_world=view.pose @ pose_error), np.flatnonzero(view.sparse), others
    )


@pytest.mark.parametrize("number", range(9))
def test_right_poses_are_right(number: int) -> None:
    assert remaining(np.eye(4), number) > WRONG


@pytest.mark.parametrize(
    ("degrees", "shift"), [((2.0, 0, 0), (0, 0, 0)), ((0, 0, 0), (0, 0, 0.1)), ((0.8, 1.6, 0.4), (0.03, 0.05, -0.08))]
)
def test_small_errors_of_a_pose_are_found(degrees: tuple[float, ...], shift: tuple[float, ...]) -> None:
    error = rigid_transform(Rotation.from_rotvec(degrees, degrees=True), shift)
    assert remaining(error) < WRONG


def test_too_few_points_decide_nothing() -> None:
    assert math.isnan(remaining(rigid_transform(Rotation.identity(), (0, 0, 0.1)), neighbours=2))


def test_a_wrong_view_leaves_first_and_its_neighbours_are_registered_again() -> None:
    """Beside the wrong view "b" its neighbours look wrong as well, but less so."""
    calls = []

    def remaining_of(name: str, others: tuple[str, ...]) -> float:
        calls.append((name, others))
        return 0.4 if name == "b" else 0.7 if "b" in others else 0.95

    neighbours = {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b"), "d": ()}
    assert without_wrong_poses(neighbours, remaining_of) == {"a": ("c",), "b": (), "c": ("a",), "d": ()}
    assert calls[-2:] == [("a", ("c",)), ("c", ("a",))]


def add_inverted(views: leadline.Views, room: Room, *, inverted: bool) -> leadline.Views:
    for view in room.views:
        pose = invert_transform(view.pose) if inverted else view.pose
        views.add(view.name, view.prior, view.sparse, CAMERA, pose, view.noise)
    return views


@pytest.mark.parametrize("count", [2, 9])
def test_inverted_poses_are_found_and_told_once(count: int) -> None:
    room = Room(count=count, step=0.2, measurements=150)
    views = add_inverted(leadline.Views(), room, inverted=True)
    with pytest.warns(leadline.InputWarning, match="from world to camera") as found:
        views.neighbours("view-0")
    assert views.look_inverted
    assert len(found) == 1
    assert found[0].filename == __file__
    views.neighbours("view-1")  # a second warning would be an error
    right = add_inverted(leadline.Views(), room, inverted=False)
    right.neighbours("view-0")  # a warning would be an error
    assert not right.look_inverted


def test_cameras_that_stand_still_and_wrong_poses_do_not_look_inverted() -> None:
    for room in (Room(count=3, step=0.0), Room(count=5, wrong=2, measurements=150)):
        views = add_inverted(leadline.Views(), room, inverted=False)
        views.neighbours("view-0")
        assert not views.look_inverted
