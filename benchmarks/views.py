"""Depth of many posed views that agrees: each view alone against `leadline.Views`, on real frames with poses.

    python benchmarks/views.py FRAMES MODEL.onnx [--points 80 300 1500] [--every 1] [--cases clean sfm poses object ...]

FRAMES contains ``frame-N.color.jpg``, ``.depth.png`` (mm), ``.pose.txt`` (camera to world) and
``camera-intrinsics.txt``, the layout of 7-Scenes. MODEL is the network of the prior. Measurements are the strongest
corners of each image with 1 % noise, or, in the case ``sfm``, the points of a COLMAP model that pycolmap reconstructs
from the images and that is aligned to the poses of FRAMES. Pictures are matched in this case only: the other poses are
those of the depth camera, which lies beside the colour camera.

Disagreement is the median of |log depth ratio| between a frame and the next one carried into it, a mean over the
frames. Normals are compared with those of the reference after a Gaussian filter of 3 pixels: without it they are noise
of the sensor, and their error is printed in brackets. The meshes are those of ``benchmarks/fusion.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from fusion import print_meshes
from numpy.typing import NDArray
from PIL import Image
from registration import Registration
from scipy.ndimage import correlate1d, gaussian_filter, maximum_filter
from scipy.spatial.transform import Rotation

import leadline
from leadline import CompletionOptions
from leadline.bench.metrics import depth_scores, normal_scores
from leadline.geometry.cameras import Camera, CameraModel
from leadline.geometry.poses import invert_transform, transform_points
from leadline.geometry.projection import z_buffer
from leadline.io.colmap import position_covariances, read_model, read_tracks, track_noise
from leadline.priors import prior_source

NOISE = 0.01  # relative standard deviation of the corner measurements
CORNER_DISTANCE = 2  # least distance of two corners along either axis, in pixels
WRONG_SHARE, WRONG_METRES, WRONG_DEGREES = 0.1, 0.05, 2.0  # share of the poses that are wrong, and by how much
CHANGED_EVERY = 2  # frames with wrong poses or a moved object are every second one, to save time
BOX_METRES = 0.4  # side of the box that is moved
MAX_DEPTH = 10.0
WITH_CHECK = CompletionOptions(outliers="single")  # for points of a COLMAP model, ``--outliers single``

Depth = NDArray[np.floating[Any]]
Maps = dict[str, Depth]


@dataclass(frozen=True, eq=False)
class Frame:
    """One posed frame with its reference, the prior of the network, and measurements."""

    name: str
    image: NDArray[np.uint8]
    reference: Depth
    pose: NDArray[np.float64]
    camera: CameraModel
    prior: leadline.Prior
    sparse: Depth
    noise: Depth
    true_pose: NDArray[np.float64]

    @cached_property
    def corners(self) -> NDArray[np.intp]:
        """Flat indices of the corners of the image at which the reference is valid, the strongest first."""
        grey = self.image.astype(np.float64).mean(axis=2)
        gy, gx = np.gradient(grey)
        window = np.ones(5)
        xx, xy, yy = (
            correlate1d(correlate1d(product, window, axis=0, mode="nearest"), window, axis=1, mode="nearest")
            for product in (gx * gx, gx * gy, gy * gy)
        )
        strength = np.where(np.isfinite(self.reference), 0.5 * (xx + yy) - np.sqrt(0.25 * (xx - yy) ** 2 + xy * xy), -1)
        order = np.argsort(strength, axis=None, kind="stable")
        rank = np.empty(strength.shape, np.int64)
        rank.flat[order] = np.arange(strength.size)
        peak = (maximum_filter(rank, size=2 * CORNER_DISTANCE + 1, mode="constant") == rank) & (strength > 0)
        return order[::-1][peak.flat[order[::-1]]]

    def measured(self, count: int, seed: int) -> Frame:
        """This frame with measurements at its strongest corners."""
        where = self.corners[:count]
        generator = np.random.default_rng([seed, count])
        sparse = np.zeros(self.reference.shape, np.float32)
        sparse.flat[where] = self.reference.flat[where] * (1 + NOISE * generator.standard_normal(where.size))
        return replace(self, sparse=sparse, noise=NOISE * sparse)


def read_frames(folder: Path, model: Path, every: int) -> list[Frame]:
    matrix = np.loadtxt(folder / "camera-intrinsics.txt")
    network, frames = prior_source(f"onnx:{model}"), []
    for path in sorted(folder.glob("*.color.jpg"))[::every]:
        stem = path.name.removesuffix(".color.jpg")
        with Image.open(path) as picture:
            image = np.asarray(picture.convert("RGB"))
        with Image.open(folder / f"{stem}.depth.png") as picture:
            depth = np.asarray(picture).astype(np.float32) / 1000.0
        reference = np.where((depth > 0) & (depth < MAX_DEPTH), depth, np.float32(np.nan))
        camera = Camera(depth.shape[1], depth.shape[0], matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2])
        pose, nothing = np.loadtxt(folder / f"{stem}.pose.txt"), np.zeros(depth.shape, np.float32)
        frames.append(Frame(stem, image, reference, pose, camera, network(image), nothing, nothing, pose))
    return frames


def with_wrong_poses(frames: Sequence[Frame]) -> list[Frame]:
    """The frames with a tenth of the poses wrong, in random directions."""
    generator = np.random.default_rng(7)
    wrong = set(generator.permutation(len(frames))[: max(1, round(WRONG_SHARE * len(frames)))].tolist())
    result = []
    for k, frame in enumerate(frames):
        shift, axis = (v / np.linalg.norm(v) for v in generator.standard_normal((2, 3)))
        error = np.eye(4)
        error[:3, :3] = Rotation.from_rotvec(np.radians(WRONG_DEGREES) * axis).as_matrix()
        error[:3, 3] = WRONG_METRES * shift
        result.append(replace(frame, pose=frame.pose @ error) if k in wrong else frame)
    return result


def with_moved_box(frames: Sequence[Frame]) -> list[Frame]:
    """The frames with a box that stands at one place in the first half of them and 30 cm aside in the second half.

    The box is rendered into the reference. The network never saw it: its prior is fitted to the whole reference without
    the box, and gets the box with its depth wrong by a tenth.
    """
    middle = frames[len(frames) // 2]
    height, width = middle.reference.shape
    there = np.nanmedian(middle.reference[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3])
    centre = transform_points(np.array([[0.0, 0.0, there - BOX_METRES]]), middle.true_pose)[0]
    aside = middle.true_pose[:3, 0] * 0.3
    result = []
    for k, frame in enumerate(frames):
        box = render_box(frame, centre + (aside if 2 * k >= len(frames) else 0 * aside))
        in_front = box < np.where(np.isfinite(frame.reference), frame.reference, np.inf)
        reference = np.where(in_front, box, frame.reference).astype(np.float32)
        calibrated = leadline.align(frame.prior, frame.reference, unit="m").calibrated
        prior = leadline.Prior(np.where(in_front, 1.1 * box, calibrated).astype(np.float32))
        result.append(replace(frame, reference=reference, prior=prior))
    return result


def render_box(frame: Frame, centre: NDArray[np.float64]) -> Depth:
    """Depth of a cube whose sides are parallel to the axes of the world; infinite beside it."""
    rays = frame.camera.points(np.ones(frame.reference.shape)).reshape(-1, 3) @ frame.true_pose[:3, :3].T
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = [(centre + side * BOX_METRES / 2 - frame.true_pose[:3, 3]) / rays for side in (-1, 1)]
    enter, leave = np.minimum(*ends).max(axis=1), np.maximum(*ends).min(axis=1)
    return np.where((enter > 0) & (enter < leave), enter, np.inf).reshape(frame.reference.shape)


def with_sfm(frames: Sequence[Frame], folder: Path) -> tuple[list[Frame], str]:
    """The frames with poses, camera and points of a COLMAP model of their images, in the scale of the reference.

    The reference is moved from the depth camera into the colour camera, see `registration`.
    """
    model = reconstruct(frames, folder)
    colmap, tracks = read_model(model), read_tracks(model)
    covariances = position_covariances(colmap, tracks)
    images = {Path(image.name).stem: image for image in colmap.images.values()}
    found = []
    for frame in frames:
        if frame.name not in images:
            continue
        image = images[frame.name]
        seen, sigma = tracks.indices_seen_by(image), track_noise(colmap, tracks, image, covariances)
        usable = (tracks.lengths[seen] >= 3) & (tracks.errors[seen] <= 2.0) & np.isfinite(sigma)
        found.append((frame, image, transform_points(tracks.points[seen][usable], image.transform), sigma[usable]))
    some = [(points[::3], frame.reference) for frame, _, points, _ in found]
    registration = Registration.fit(frames[0].camera, some)
    result, errors = [], []
    for frame, image, points, sigma in found:
        lens, pose = colmap.camera_of(image), invert_transform(image.transform)
        pose[:3, 3] *= registration.scale
        sparse, noise = registration.scale * rasterise(points, sigma, lens)
        reference = registration.move(frame.reference, lens)
        both = (sparse > 0) & np.isfinite(reference)
        errors.append(np.abs(np.log(sparse[both] / reference[both])))
        values = {"sparse": sparse, "noise": noise, "pose": pose, "true_pose": pose}
        result.append(replace(frame, camera=lens, reference=reference, **values))
    count = np.mean([np.count_nonzero(frame.sparse) for frame in result])
    focal = colmap.cameras[min(colmap.cameras)].params[0]
    aside = 100 * np.linalg.norm(registration.from_colour[:3, 3])
    return result, (
        f"{len(result)} frames, {count:.0f} points a frame with a median error of "
        f"{100 * np.median(np.concatenate(errors)):.2f} %, focal length {focal:.1f} px, {aside:.1f} cm from the depth "
        "camera"
    )


def rasterise(points: NDArray[np.float64], sigma: NDArray[np.float64], camera: CameraModel) -> Depth:
    """Depth and standard deviation of points in the camera's frame, (2, H, W); the nearest of a pixel, 0 elsewhere."""
    columns, rows = np.floor(camera.project(points) + 0.5).astype(int).T
    inside = (rows >= 0) & (rows < camera.height) & (columns >= 0) & (columns < camera.width)
    order = np.flatnonzero(inside)[np.argsort(-points[inside, 2])]  # the nearest point of a pixel is written last
    result = np.zeros((2, camera.height, camera.width), np.float32)
    result[:, rows[order], columns[order]] = points[order, 2], sigma[order]
    return result


def reconstruct(frames: Sequence[Frame], folder: Path) -> Path:
    """A COLMAP model of the images, made by pycolmap."""
    import pycolmap

    images = folder / "images"
    if not images.is_dir():
        images.mkdir(parents=True)
        for frame in frames:
            Image.fromarray(frame.image).save(images / f"{frame.name}.png")
        height, width = frames[0].reference.shape
        reader = pycolmap.ImageReaderOptions()
        reader.camera_model, reader.camera_params = "SIMPLE_RADIAL", f"{0.85 * width},{width / 2},{height / 2},0"
        database = folder / "database.db"
        pycolmap.extract_features(database, images, camera_mode=pycolmap.CameraMode.SINGLE, reader_options=reader)
        pycolmap.match_exhaustive(database)
        models = pycolmap.incremental_mapping(database, images, folder)
        largest = max(models.values(), key=lambda model: model.num_reg_images())
        (folder / "largest").mkdir(exist_ok=True)
        largest.write(folder / "largest")
    return folder / "largest"


@dataclass(frozen=True)
class Scores:
    absrel: NDArray[np.float64]  # one number a frame
    normals: float
    raw_normals: float
    disagreement: float


def score(frames: Sequence[Frame], maps: Maps) -> Scores:
    everywhere = np.ones(frames[0].reference.shape, np.bool_)
    absrel = [depth_scores(maps[frame.name], frame.reference, everywhere).absrel for frame in frames]
    some = frames[:: max(1, len(frames) // 12)]
    normals = [
        np.mean([normal_scores(maps[f.name], reference(f), f.camera, everywhere).median_deg for f in some])
        for reference in (smoothed, lambda frame: frame.reference)
    ]
    return Scores(np.array(absrel), *map(float, normals), disagreement(frames, maps))


def smoothed(frame: Frame) -> Depth:
    known = np.isfinite(frame.reference)
    weight = gaussian_filter(known.astype(np.float64), 3.0)
    values = gaussian_filter(np.where(known, frame.reference, 0.0).astype(np.float64), 3.0)
    return np.where(known, values / np.maximum(weight, 1e-3), np.nan)


def disagreement(frames: Sequence[Frame], maps: Maps) -> float:
    found = []
    for first, second in pairwise(frames):
        points = second.camera.points(maps[second.name].astype(np.float64)).reshape(-1, 3)
        carried = z_buffer(points, invert_transform(first.true_pose) @ second.true_pose, first.camera)
        with np.errstate(invalid="ignore"):
            ratio = np.abs(np.log(carried / maps[first.name]))
        found.append(np.nanmedian(ratio))
    return float(np.mean(found))


def compare(
    title: str,
    frames: Sequence[Frame],
    rounds: int | None,
    options: CompletionOptions | str = "best",
    *,
    matched: bool = False,
) -> None:
    """Print the scores of each view alone and after the rounds; with `matched` the pictures are matched, too."""
    views = leadline.Views(options)
    for frame in frames:
        image = frame.image if matched else None
        views.add(frame.name, frame.prior, frame.sparse, frame.camera, frame.pose, frame.noise, image=image)
    alone = {frame.name: views.alone(frame.name) for frame in frames}
    if options != "best":  # "single" makes a view alone worse, so the presets are compared
        alone = {frame.name: leadline.complete(frame.prior, frame.sparse, noise=frame.noise).depth for frame in frames}
    together, sigma = {}, {}
    for name, completion in views.complete(rounds, uncertainty=True):
        together[name], sigma[name] = completion.depth, completion.sigma
    count = len(views.rounds) - 1
    before, after = score(frames, alone), score(frames, together)
    ratios = after.absrel / before.absrel
    wrong = np.array([not np.array_equal(frame.pose, frame.true_pose) for frame in frames])
    reference = disagreement(frames, {frame.name: frame.reference for frame in frames})
    print(f"\n{title}: {len(frames)} frames, {count} rounds")
    print(
        f"  AbsRel        {before.absrel.mean():.4f} -> {after.absrel.mean():.4f}, ratio "
        f"{after.absrel.mean() / before.absrel.mean():.3f}, worst frame {ratios.max():.3f}, "
        f"{np.count_nonzero(ratios > 1.05)} frames above 1.05; mean of the ratios {ratios.mean():.3f}"
    )
    if wrong.any() and not wrong.all():
        of_wrong, of_others = (after.absrel[w].mean() / before.absrel[w].mean() for w in (wrong, ~wrong))
        without = sum(not views.neighbours(frame.name) for frame in frames)
        print(
            f"                {np.count_nonzero(wrong)} frames with wrong poses: ratio {of_wrong:.3f}, the others "
            f"{of_others:.3f}; {without} frames without neighbours"
        )
    print(
        f"  normals       {before.normals:.2f} -> {after.normals:.2f} degrees, ratio "
        f"{after.normals / before.normals:.3f} (unfiltered reference: {after.raw_normals / before.raw_normals:.3f})"
    )
    print(
        f"  disagreement  {before.disagreement:.5f} -> {after.disagreement:.5f}, ratio "
        f"{after.disagreement / before.disagreement:.3f}; reference {reference:.5f}"
    )
    print_meshes(frames, alone, together, sigma)
    sys.stdout.flush()


def returned_error(frames: Sequence[Frame], rounds: int) -> None:
    """Print how much of an error that is put into the prior of one view comes back to it through its neighbours."""
    chosen = len(frames) // 2
    rows, columns = np.indices(frames[0].reference.shape)
    bump = np.exp(-((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2) / (2 * 60.0**2))
    frame = frames[chosen]
    bent = replace(frame.prior, values=(frame.prior.values * np.exp(-0.3 * bump)).astype(np.float32))
    disturbed = [replace(f, prior=bent) if k == chosen else f for k, f in enumerate(frames)]
    runs = []
    for group in (frames, disturbed):
        views = leadline.Views()
        for f in group:
            views.add(f.name, f.prior, f.sparse, f.camera, f.pose, f.noise)
        runs.append((views, dict(views.complete(rounds))[frame.name].depth, dict(views.complete(0))[frame.name].depth))
    (clean, depth, alone), (loop, moved, moved_alone) = runs
    # The same disturbed view, but with neighbours that never saw it.
    clean._views[frame.name] = loop._views[frame.name]
    first_hand = clean._complete(frame.name, rounds)[0].depth
    response = np.abs(np.log(moved_alone / alone))
    where = response > 0.5 * np.nanmax(response)
    sizes = [float(np.mean(np.abs(np.log(a[where] / b[where])))) for a, b in (
        (moved_alone, alone), (first_hand, depth), (moved, first_hand))]  # fmt: skip
    print(
        f"\nAn error of 35 % in the prior of one view changes its depth alone by {100 * sizes[0]:.2f} %, with "
        f"undisturbed neighbours by {100 * sizes[1]:.2f} %; {100 * sizes[2]:.2f} % come back through them."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frames", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--points", type=int, nargs="*", default=[80, 300, 1500], help="measurements a frame")
    parser.add_argument("--every", type=int, default=1, help="use every n-th frame")
    parser.add_argument("--rounds", type=int, default=None, help="default: until nothing moves")
    cases = ["clean", "sfm", "poses", "object", "echo"]
    parser.add_argument("--cases", nargs="*", default=cases, choices=cases)
    parser.add_argument("--sfm", type=Path, default=None, help="folder for the COLMAP model, which is used again")
    arguments = parser.parse_args()
    frames = read_frames(arguments.frames, arguments.model, arguments.every)
    changes: dict[str, Callable[[Sequence[Frame]], Sequence[Frame]]] = {
        "clean": lambda given: given, "poses": with_wrong_poses, "object": with_moved_box,
    }  # fmt: skip
    for case in arguments.cases:
        if case == "sfm":
            with tempfile.TemporaryDirectory() as temporary:
                sfm, facts = with_sfm(frames, arguments.sfm or Path(temporary) / "model")
            print(f"\nCOLMAP model: {facts}")
            compare("real SfM points and pictures", sfm, arguments.rounds, matched=True)
            compare("real SfM points, with check", sfm, arguments.rounds, WITH_CHECK)
        elif case == "echo":
            measured = [frame.measured(300, k) for k, frame in enumerate(frames[:20])]
            returned_error(measured, 4)
        else:
            changed = changes[case](frames if case == "clean" else frames[::CHANGED_EVERY])
            for count in arguments.points:
                measured = [frame.measured(count, k) for k, frame in enumerate(changed)]
                compare(f"{case}, {count} points a frame", measured, arguments.rounds)


if __name__ == "__main__":
    main()
