"""The sampling of other projects, with their generators and seeds, so that their tables can be repeated.

Marigold-DC samples each image with NumPy's legacy generator and the seed 2024. OMNI-DC, NLSPN and PriorDA permute the
valid pixels with ``torch.randperm``, whose numbers are those of the same Mersenne twister, so that torch is not needed
here. Their generator continues from image to image and depends on the number of loading processes; here each image
begins with the seed, which is what they get for the first image in one process. Their own points of every image are in
their prepared files (`leadline.datasets.completion.uniformat`).
"""

from __future__ import annotations

import importlib
import math

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray
from leadline.base.errors import InputError, MissingExtra
from leadline.bench.patterns.parts import PatternPart
from leadline.datasets import Scene

MARIGOLD_SEED = 2024
OMNI_SEED = 43  # the default of OMNI-DC's configuration
OMNI_LEAST = 5  # measurements, however few valid pixels there are
LIDAR_PITCH = 0.5  # radians above and below the optical axis
LIDAR_COLUMNS = 200
LIDAR_YAW = math.pi / 2.1  # radians to the left and to the right
FEWEST_KEYPOINTS = 20  # with fewer, random points are taken instead
KEYPOINT_FALLBACK = 1000
FILL_NEIGHBOURS = 5


def marigold_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """The first N of the valid pixels after a shuffle, as Marigold-DC chooses them."""
    pixels = np.argwhere(valid)
    np.random.RandomState(_seed(part, MARIGOLD_SEED)).shuffle(pixels)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen[tuple(pixels[: int(part.numbers[0])].T)] = True
    return chosen


def permuted_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """N valid pixels by ``torch.randperm``, as NLSPN and PriorDA choose them, and OMNI-DC on NYU."""
    return _permuted(valid, int(part.numbers[0]), _seed(part, OMNI_SEED))


def density_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """N pixels per image area: N times the valid fraction, at least 5, by ``torch.randperm``, as OMNI-DC does."""
    count = max(round(int(valid.sum()) * int(part.numbers[0]) / valid.size), OMNI_LEAST)
    return _permuted(valid, count, _seed(part, OMNI_SEED))


def virtual_lidar(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """The pixels that N lines of 200 directions hit, as in OMNI-DC and PriorDA.

    The camera is one with a focal length of the image's height and a centre at half its size, whatever the real one is.
    """
    height, width = valid.shape
    pitch, yaw = np.meshgrid(
        np.linspace(-LIDAR_PITCH, LIDAR_PITCH, int(part.numbers[0])), np.linspace(-LIDAR_YAW, LIDAR_YAW, LIDAR_COLUMNS)
    )
    x, y = np.cos(pitch) * np.sin(yaw), np.sin(pitch)
    z = np.sqrt(1.0 - x**2 - y**2)
    columns, rows = (
        np.round((height * across + 0.5 * size * z) / (z + 1e-8)).astype(int).ravel()
        for across, size in ((x, width), (y, height))
    )
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen[rows[inside], columns[inside]] = True
    return chosen & valid


def keypoints(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """The pixels of OpenCV's SIFT or ORB key points, as OMNI-DC and PriorDA imitate structure from motion."""
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        raise MissingExtra("opencv-python-headless", "opencv", "Key points of SIFT and ORB") from error
    grey = cv2.cvtColor(np.ascontiguousarray(scene.image), cv2.COLOR_RGB2GRAY)
    if part.words == ("sift",):
        detector = cv2.SIFT.create()
    else:
        detector = cv2.ORB.create(nfeatures=100000, scoreType=cv2.ORB_FAST_SCORE)
    found = detector.detect(grey)
    if len(found) < FEWEST_KEYPOINTS:
        return density_pixels(scene, valid, PatternPart("omni", (KEYPOINT_FALLBACK,)), rng)
    chosen = np.zeros(valid.shape, dtype=bool)
    for point in found:
        chosen[round(point.pt[1]), round(point.pt[0])] = True
    return chosen & valid


def square_hole(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """Every valid pixel outside a square of side N at a random place, as PriorDA's missing area."""
    side = int(part.numbers[0])
    height, width = valid.shape
    if side >= min(height, width):
        raise InputError(f"{scene.name}: a square of {side} pixels does not fit into {width}x{height}.")
    top, left = int(rng.integers(0, height - side)), int(rng.integers(0, width - side))
    measured = valid.copy()
    measured[top : top + side, left : left + side] = False
    return measured


def low_resolution(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> NDArray[np.float32]:
    """The reference reduced by the factor N and put back at the corners of its cells, as PriorDA's low resolution.

    Missing depth is filled with the mean of the five nearest valid pixels, the result is reduced bilinearly with
    aligned corners, and each value is placed at the first pixel of its cell, where the reference is valid there.
    """
    from scipy.spatial import cKDTree

    if scene.reference is None or not valid.any():
        return np.full(valid.shape, np.nan, np.float32)
    factor = int(part.numbers[0])
    height, width = valid.shape
    small = height // factor, width // factor
    if min(small) < 1:
        raise InputError(f"{scene.name}: {width}x{height} cannot be reduced by a factor of {factor}.")
    filled = np.where(valid, scene.reference, 0).astype(np.float32)
    if not valid.all():
        pixels = np.argwhere(valid)
        count = min(FILL_NEIGHBOURS, len(pixels))
        _, nearest = cKDTree(pixels).query(np.argwhere(~valid), k=count)
        filled[~valid] = filled[valid][nearest.reshape(-1, count)].mean(axis=1)
    for axis, (given, size) in enumerate(zip(valid.shape, small, strict=True)):
        position = np.arange(size) * ((given - 1) / (size - 1) if size > 1 else 0.0)
        low = np.minimum(position.astype(np.intp), given - 1)
        near, far = np.take(filled, low, axis), np.take(filled, np.minimum(low + 1, given - 1), axis)
        filled = near + (far - near) * np.expand_dims((position - low).astype(np.float32), 1 - axis)
    rows, columns = (
        (size / count * np.arange(count)).astype(np.intp) for size, count in zip(valid.shape, small, strict=True)
    )
    sparse = np.full(valid.shape, np.nan, np.float32)
    sparse[np.ix_(rows, columns)] = filled
    sparse[~valid] = np.nan
    return sparse


def torch_permutation(count: int, seed: int, first: int) -> NDArray[np.int64]:
    """The first numbers of ``torch.randperm(count)`` after ``torch.manual_seed(seed)``, on a CPU.

    Examples
    --------
    >>> torch_permutation(5, 43, 5)
    array([3, 1, 4, 2, 0])
    """
    steps = min(first, count - 1)
    numbers = np.frombuffer(np.random.RandomState(seed).bytes(4 * max(steps, 0)), "<u4")
    order = np.arange(count)
    for index in range(steps):
        other = index + int(numbers[index]) % (count - index)
        order[index], order[other] = order[other], order[index]
    return order[:first]


def _permuted(valid: BoolArray, count: int, seed: int) -> BoolArray:
    candidates = np.flatnonzero(valid)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen.flat[candidates[torch_permutation(len(candidates), seed, min(count, len(candidates)))]] = True
    return chosen


def _seed(part: PatternPart, default: int) -> int:
    return int(part.numbers[1]) if len(part.numbers) > 1 else default
