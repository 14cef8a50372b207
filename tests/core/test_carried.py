"""Depth carried along by poses or optical flow: less flicker, no harm by wrong motion, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage
from scipy.spatial.transform import Rotation

from leadline.base.errors import InputError
from leadline.core.carried import MARGIN, _compare, _least_beside
from leadline.core.pipeline import complete
from leadline.core.stream import Stream
from leadline.geometry.cameras import Camera
from support.carried import compare
from support.operators import bent_scene
from support.stream_scenes import SHAPE, measured, scene

CAMERA = Camera(SHAPE[1], SHAPE[0], 110.0, 110.0, 63.5, 47.5)


def posed_frames(count: int, rng: np.random.Generator):
    """A camera that moves sideways past a slanted wall, with a network whose error differs in each frame."""
    slant = CAMERA.points(np.ones(SHAPE)) @ (0.3, -0.2, 1.0)
    for k in range(count):
        pose = np.eye(4)
        pose[0, 3] = 0.02 * k
        depth = (2.5 - 0.3 * pose[0, 3]) / slant
        error = ndimage.zoom(0.05 * rng.standard_normal((6, 8)), 16, order=1)
        yield (depth**1.3 * np.exp(error)).astype(np.float32), depth, pose


def run_posed(frames, sparse_of, motion_of=lambda pose: {"camera": CAMERA, "camera_to_world": pose}):
    """Depth alone and in a stream, and the stream's results."""
    stream, alone, together = Stream(), [], []
    for prior, depth, pose in frames:
        sparse = sparse_of(depth)
        alone.append(complete(prior, sparse).depth)
        together.append(stream(prior, sparse, **motion_of(pose)))
        np.testing.assert_array_equal(together[-1].depth[sparse > 0], sparse[sparse > 0])
    return alone, together


def mean_error(maps, frames) -> float:
    return float(np.mean([np.abs(a / depth - 1).mean() for a, (_, depth, _) in zip(maps, frames, strict=True)]))


def test_poses_lower_flicker_and_error(rng):
    frames = list(posed_frames(8, rng))
    alone, together = run_posed(frames, lambda depth: measured(depth, 24))
    errors = mean_error(alone[2:], frames[2:]), mean_error([r.depth for r in together[2:]], frames[2:])
    assert errors[1] < 0.8 * errors[0]
    changes = [
        np.mean([np.abs(np.diff(np.log(np.array(maps) / depths), axis=0)).mean()])
        for depths in [np.array([depth for _, depth, _ in frames])]
        for maps in (alone, [r.depth for r in together])
    ]
    assert changes[1] < 0.6 * changes[0]
    assert together[0].carried_weight == 0.0
    assert min(r.carried_weight for r in together[1:]) > 0.4


def test_a_wrong_pose_does_no_harm(rng):
    frames = list(posed_frames(6, rng))

    def wrong(pose: np.ndarray) -> dict:
        turned = pose.copy()
        turned[:3, :3] = Rotation.from_rotvec(rng.uniform(-0.3, 0.3, 3)).as_matrix()
        return {"camera": CAMERA, "camera_to_world": turned}

    alone, together = run_posed(frames, lambda depth: measured(depth, 8), wrong)
    assert max(r.carried_weight for r in together) < 0.1
    assert mean_error([r.depth for r in together], frames) < 1.03 * mean_error(alone, frames)


def test_a_camera_that_stands_still_and_flow_of_zeros(rng):
    prior, depth = scene()
    sparse = measured(depth, 16)
    for motion in ({"camera": CAMERA, "camera_to_world": np.eye(4)}, {"flow": np.zeros((*SHAPE, 2))}):
        stream = Stream()
        first = stream(prior, sparse, **motion)
        np.testing.assert_array_equal(first.depth, complete(prior, sparse).depth)
        again = stream(prior, sparse, **motion)
        assert again.carried_weight > 0.5
        errors = [np.abs(r.depth / depth - 1).mean() for r in (first, again)]
        assert errors[1] < 1.05 * errors[0]


def test_poses_give_sharp_edges_and_flow_does_not():
    """A near square in front of a wall, with a blurred prior: fewer pixels lie between the two surfaces."""
    depth = np.full(SHAPE, 3.0)
    depth[30:66, 40:88] = 1.5
    prior = ndimage.gaussian_filter(depth, 3.0).astype(np.float32)
    sparse = measured(depth, 7)
    between, errors = [], []
    for motion in ({"camera": CAMERA, "camera_to_world": np.eye(4)}, {"flow": np.zeros((*SHAPE, 2))}):
        stream = Stream()
        for _ in range(3):
            result = stream(prior, sparse, **motion)
            np.testing.assert_array_equal(result.depth[sparse > 0], sparse[sparse > 0])
        between.append(np.mean((result.depth > 1.6) & (result.depth < 2.8)))
        errors.append(np.abs(result.depth / depth - 1).mean())
    assert between[0] < 0.7 * between[1]
    assert errors[0] < 0.9 * errors[1]


def test_a_failed_frame_interrupts_flow_but_not_poses(rng):
    """Flow leads to the frame that failed, not to the one before; a pose refers to a frame that does not move."""
    (first, first_depth, pose), (prior, depth, _), (last, last_depth, last_pose) = posed_frames(3, rng)
    poses = [{"camera": CAMERA, "camera_to_world": camera_to_world} for camera_to_world in (pose, last_pose)]
    flow = {"flow": np.zeros((*SHAPE, 2), np.float32)}
    for before, after, carried in ((flow, flow, False), (poses[0], flow, False), (poses[0], poses[1], True)):
        stream = Stream()
        stream(first, measured(first_depth, 16), **before)
        with pytest.raises(InputError):
            stream(prior, measured(depth, 16)[:-1], **flow)
        result = stream(last, measured(last_depth, 16), **after)
        assert (result.carried_weight > 0) == carried
        again = stream(last, measured(last_depth, 16), **flow)
        assert again.carried_weight > 0


def test_motion_is_checked_in_one_sentence():
    prior, sparse, _ = bent_scene(SHAPE)
    stream = Stream()
    mirrored = np.diag([-1.0, 1.0, 1.0, 1.0])
    for motion, words in (
        ({"camera": CAMERA}, "`camera_to_world` is missing"),
        ({"camera_to_world": np.eye(4)}, "`camera` is missing"),
        ({"camera": CAMERA.scaled(64, 48), "camera_to_world": np.eye(4)}, "size 128 x 96, got 64 x 48"),
        ({"camera": np.eye(3), "camera_to_world": np.eye(4)}, "must be a camera such as leadline.Camera"),
        ({"camera": CAMERA, "camera_to_world": mirrored}, "mirrors"),
        ({"flow": np.zeros(SHAPE)}, "`flow` must be an array of floats of shape"),
        ({"camera": CAMERA, "camera_to_world": np.eye(4), "flow": np.zeros((*SHAPE, 2))}, "exclude each other"),
    ):
        with pytest.raises(InputError, match=words):
            stream(prior, sparse, **motion)


def test_nothing_is_carried_beside_a_nearer_surface(rng):
    """The compiled comparison equals its twin, with unknown pixels and at borders."""
    for shape in ((1, 7), (9, 5), (23, 31)):
        calibrated = rng.uniform(1.0, 2.0, shape).astype(np.float32)
        depth = np.where(rng.random(shape) < 0.1, 1.0, rng.uniform(1.9, 2.1, shape)).astype(np.float32)
        depth[rng.random(shape) < 0.1] = np.nan
        ratio = rng.uniform(0.9, 1.1, shape).astype(np.float32)
        ratio[rng.random(shape) < 0.1] = np.nan
        beside, residual, change = (np.empty_like(depth) for _ in range(3))
        _least_beside[len(depth)](depth, beside)
        _compare[len(depth)](calibrated, depth, ratio, beside, residual, change)
        for found, expected in zip((residual, change), compare(calibrated, depth, ratio), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    far, near = np.full((9, 9), 2.0, np.float32), np.s_[:, :3]
    far[near] = 1.0
    residual = compare(np.ones((9, 9), np.float32), far, np.ones((9, 9), np.float32))[0]
    assert np.isnan(residual[0]).tolist() == [False] * 3 + [True] * MARGIN + [False] * (6 - MARGIN)
