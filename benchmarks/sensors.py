"""Complete and score the measurements of real sensors with the command line.

    python benchmarks/sensors.py DATA MODEL.onnx [-o FOLDER] [--only TEXT]

DATA contains scene folders with ``scene.json``; MODEL is the network of the prior. The scores are AbsRel in percent
against the reference of the scene or, if it has none, against blocks of measurements that were left out. Depth,
previews and point clouds are written to FOLDER.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from leadline.apps.cli import group
from leadline.bench.metrics import depth_scores
from leadline.geometry.grids import scatter_nearest
from leadline.io.depth import read_depth, write_depth

VARIANTS: dict[str, tuple[str, ...]] = {
    "paper": ("--preset", "paper"),
    "paper, `--outliers single`": ("--preset", "paper", "--outliers", "single"),
    "best": ("--preset", "best"),
    "best, `--outliers single`": ("--preset", "best", "--outliers", "single"),
    "best, `--prior none`": ("--preset", "best"),
}
ALIKE = 1.05  # ratio up to which results with and without a network count as equal
BLOCKS, HELD_OUT = 40, 0.1  # number of blocks across a map, and share of the blocks that are left out
KITTI, CYCLIST = "kitti_dc/2011_09_26_drive_0001_f005_cam02", "kitti_dc/ttaz_ex4_cyclist"

Depth = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Home:
    """Folder and description of a scene, and a folder for the output."""

    folder: Path
    about: dict[str, Any]
    work: Path

    @property
    def image(self) -> Path:
        return self.folder / str(self.about["image"])

    def shape(self) -> tuple[int, int]:
        with Image.open(self.image) as picture:
            return picture.height, picture.width

    def depth(self, entry: dict[str, Any]) -> Depth:
        """One of the depth maps of the scene in metres, at its own resolution."""
        values = read_depth(self.folder / entry["file"], entry["metres_per_unit"], key=entry["key"]).values
        far = entry.get("max_m")
        return values if far is None else np.where(values <= far, values, np.nan)

    def json(self, name: str, content: object) -> str:
        path = self.work / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)


Command = Callable[[Home], Sequence[str]]


@dataclass(frozen=True)
class Case:
    """A scene, a description of its measurements, and the arguments of the command that uses them."""

    scene: str
    description: str
    command: Command
    region: str | None = None  # only pixels inside are scored
    prior: str | None = None  # file instead of the network


def leadline(*arguments: str) -> None:
    group.main([*arguments], prog_name="leadline", standalone_mode=False)


def published(home: Home) -> Sequence[str]:
    """The published sparse depth; if the scene has none, the depth of its camera."""
    entry = (home.about["sparse"] or [home.about["reference"]])[0]
    path = home.folder / entry["file"]
    small = ("--scatter-sparse",) if "width" in entry else ()
    return ("--sparse", str(path), "--unit", f"{entry['metres_per_unit']}", *small)


def sweep(*options: str) -> Command:
    """The raw LiDAR sweep, projected by `leadline project`."""

    def command(home: Home) -> Sequence[str]:
        lidar = home.about["lidar"]
        where: tuple[str, ...] = ("--kitti", str(home.folder))
        if not (home.folder / "calib_cam_to_cam.txt").exists():
            camera = home.json("cam.json", home.about["intrinsics"])
            where = ("--camera", camera, "--extrinsics", home.json("T.json", lidar["lidar_to_camera"]))
        key = ("--key", lidar["key"]) if lidar.get("key") else ()
        output = home.work / "sparse.npy"
        cloud = str(home.folder / lidar["file"])
        image = ("--image", str(home.image))
        leadline("project", cloud, *where, *key, *options, *image, "-o", str(output), "--quiet")
        return ("--sparse", str(output), "--unit", "m")

    return command


def moving(home: Home) -> Sequence[str]:
    """The raw LiDAR sweep, compensated for the motion of the car."""
    motion = home.about["lidar"]["motion"]
    velocity, turn = f"{motion['forward_m_s']},0,0", f"0,0,{motion['yaw_rate_rad_s']}"
    return sweep("--velocity", velocity, "--turn-rate", turn, "--period", f"{motion['period_s']}")(home)


def reprojected(home: Home) -> Sequence[str]:
    """A projected sweep, projected again as a point cloud so that hidden points are removed."""
    entry = home.about["sparse"][0]
    camera, output = home.json("cam.json", home.about["intrinsics"]), home.work / "sparse.npy"
    unit = ("--depth-unit", f"{entry['metres_per_unit']}")
    files = ("--depth-camera", camera, "--camera", camera, "--image", str(home.image), "-o", str(output))
    leadline("project", str(home.folder / entry["file"]), *files, *unit, "--quiet")
    return ("--sparse", str(output), "--unit", "m")


def without(region: str) -> Command:
    """The published map with a confidence of 0 in a region where the sensor is known to be wrong."""

    def command(home: Home) -> Sequence[str]:
        (mask,) = (entry["file"] for entry in home.about["regions"] if entry["name"] == region)
        trusted = home.work / "trusted.png"
        inside = np.asarray(Image.open(home.folder / mask).convert("L")) > 0
        Image.fromarray(np.where(inside, 0, 1).astype(np.uint8)).save(trusted)
        return (*published(home), "--confidence", str(trusted), "--min-confidence", "1")

    return command


CASES = (
    Case(KITTI, "raw sweep, see-through points kept", sweep("--no-see-through")),
    Case(KITTI, "raw sweep", sweep()),
    Case(KITTI, "raw sweep, motion compensated", moving),
    Case(CYCLIST, "published sweep", published),
    Case(CYCLIST, "published sweep, see-through points removed", reprojected),
    Case("nuscenes_mini/cam_front", "raw sweep of 32 beams", sweep()),
    Case("dgp_ddad_rig/scene_01_CAMERA_01", "raw sweep, inaccurate calibration", sweep()),
    Case("dgp_ddad_rig/scene_01_CAMERA_06", "raw sweep, inaccurate calibration", sweep()),
    Case("cleargrasp_d435/real_val_080", "RealSense D435", published),
    Case("cleargrasp_d435/real_val_080", "RealSense D435, on the glass", published, "transparent"),
    Case("cleargrasp_d435/real_val_080", "glass masked, on the glass", without("transparent"), "transparent"),
    Case("cleargrasp_d435/real_val_123", "RealSense D435", published),
    Case("cleargrasp_d435/real_val_123", "RealSense D435, on the glass", published, "transparent"),
    Case("cleargrasp_d435/real_val_123", "glass masked, on the glass", without("transparent"), "transparent"),
    Case("lingbot_rgbd/example0", "RGB-D camera", published),
    Case("lingbot_rgbd/example2", "RGB-D camera", published),
    Case("lingbot_rgbd/example6", "RGB-D camera", published),
    *(Case(f"7scenes_seq/frame{number:06d}", "Kinect", published) for number in range(0, 1000, 100)),
    Case("nyuv2/basement_00000", "Kinect", published),
    Case("nyuv2/unidepth_livingroom", "Kinect", published),
    Case("tum_rgbd/fr2_desk_1", "Kinect", published),
    Case("tum_rgbd/open3d_office_desk", "Kinect", published),
    Case("arkit/promptda_example", "iPhone, 256x192", published),
    Case("rgb_d_d/sample2_rgbdd_toy", "phone's ToF, 192x144", published),
    Case("zju_l5/cafe1_1645168915", "zone sensor, 16 zones", published),
    Case("void/any2full_void_150_1", "225 points of VIO", published),
    Case("eth3d_prior_pair/madpose_view0", "167 points of SfM", published),
    Case("eth3d_prior_pair/madpose_view0", "167 points of SfM, metric prior", published, prior="prior0_da_metric.npy"),
    Case("eth3d_prior_pair/madpose_view1", "167 points of SfM", published),
    Case("eth3d_prior_pair/madpose_view1", "167 points of SfM, metric prior", published, prior="prior1_da_metric.npy"),
)


# The scenes as the table has them; frames of one name are averaged.
TITLES = {
    KITTI: "KITTI, drive 0001",
    CYCLIST: "KITTI, cyclist",
    "nuscenes_mini/cam_front": "nuScenes, front camera",
    "dgp_ddad_rig/scene_01_CAMERA_01": "DDAD, camera 1",
    "dgp_ddad_rig/scene_01_CAMERA_06": "DDAD, camera 6",
    "cleargrasp_d435/real_val_080": "ClearGrasp 080",
    "cleargrasp_d435/real_val_123": "ClearGrasp 123",
    "lingbot_rgbd/example0": "RGB-D camera, corridor",
    "lingbot_rgbd/example2": "RGB-D camera, steel bowl",
    "lingbot_rgbd/example6": "RGB-D camera, wine glasses",
    **{f"7scenes_seq/frame{number:06d}": "7-Scenes, mean of 10 frames" for number in range(0, 1000, 100)},
    "nyuv2/basement_00000": "NYUv2, basement",
    "nyuv2/unidepth_livingroom": "NYUv2, living room",
    "tum_rgbd/fr2_desk_1": "TUM, fr2 desk",
    "tum_rgbd/open3d_office_desk": "TUM, office desk",
    "arkit/promptda_example": "ARKit, library",
    "rgb_d_d/sample2_rgbdd_toy": "RGB-D-D, toy",
    "zju_l5/cafe1_1645168915": "ZJU-L5, café",
    "void/any2full_void_150_1": "VOID",
    "eth3d_prior_pair/madpose_view0": "ETH3D pair, view 0",
    "eth3d_prior_pair/madpose_view1": "ETH3D pair, view 1",
}


def held_out(home: Home, arguments: Sequence[str]) -> tuple[Sequence[str], Depth]:
    """The arguments with a map without a tenth of its blocks, and these blocks at the resolution of the image."""
    before = dict(zip(arguments[::2], arguments[1::2], strict=False))
    sparse = read_depth(before["--sparse"], before["--unit"]).values
    side = max(sparse.shape[1] // BLOCKS, 1)
    rows, columns = (np.arange(length) // side for length in sparse.shape)
    chosen = np.random.default_rng(0).random((rows[-1] + 1, columns[-1] + 1)) < HELD_OUT
    hidden = chosen[np.ix_(rows, columns)]
    path = home.work / "kept.npy"
    write_depth(path, np.where(hidden, np.nan, sparse))
    left = np.where(hidden, sparse, np.nan)
    small = ("--scatter-sparse",) if sparse.shape != home.shape() else ()
    reference = scatter_nearest(left, home.shape())[0] if small else left
    return ("--sparse", str(path), "--unit", "m", *small), reference


def run(case: Case, home: Home, model: Path) -> tuple[dict[str, float], float, bool]:
    """AbsRel by variant, AbsRel of the measurements themselves, and whether the scene has a reference."""
    arguments = case.command(home)
    entry = home.about["reference"] if home.about["sparse"] else None  # a map cannot be its own reference
    if entry is None:
        arguments, reference = held_out(home, arguments)
    else:
        reference = home.depth(entry)
    mask = np.isfinite(reference)
    if case.region is not None:
        (file,) = (region["file"] for region in home.about["regions"] if region["name"] == case.region)
        mask &= np.asarray(Image.open(home.folder / file).convert("L")) > 0
    before = dict(zip(arguments[::2], arguments[1::2], strict=False))
    sparse = read_depth(before["--sparse"], before["--unit"]).values
    if sparse.shape != reference.shape:
        sparse = scatter_nearest(sparse, home.shape())[0]
    own = np.nan if "--confidence" in before else depth_scores(sparse, reference, mask).absrel
    prior = f"onnx:{model}" if case.prior is None else str(home.folder / case.prior)
    found = {}
    for name, options in VARIANTS.items():
        output = home.work / re.sub(r"\W+", "-", name).strip("-")
        chosen = "none" if "none" in name else prior
        cache = ("--cache", str(home.work.parent / "cache")) if chosen.startswith("onnx:") else ()
        files = (
            str(home.image),
            *arguments,
            "--prior",
            chosen,
            *cache,
            "-o",
            str(output),
            "--format",
            "npy",
            "--quiet",
        )
        leadline("complete", *files, *options)
        depth = np.load(output / f"{home.image.stem}_depth.npy")
        found[name] = depth_scores(depth, reference, mask).absrel
    return found, own, entry is not None


def row(case: Case, scored: str, own: float, scores: NDArray[np.float64]) -> str:
    """A row of the table: means over the frames of a title in percent, the lowest in bold."""
    numbers = [f"{100 * value:.2f}" for value in scores.mean(axis=0)]
    lowest = min(numbers, key=float)
    cells = [TITLES[case.scene], case.description, scored, "–" if np.isnan(own) else f"{100 * own:.2f}"]
    cells += [f"**{number}**" if number == lowest else number for number in numbers]
    return f"| {' | '.join(cells)} |"


def summary(scores: NDArray[np.float64]) -> str:
    """The counts below the table, over all frames."""
    paper, _, best, single, without = scores.T
    alike = (best <= ALIKE * without) & (without <= ALIKE * best)
    return (
        f"best is below paper in {(best < paper).sum()} of {len(scores)}; with best, --outliers single is lower in "
        f"{(single < best).sum()} and higher in {(single > best).sum()}; {alike.sum()} within 5 % of --prior none, "
        f"{(~alike & (best < without)).sum()} lower, {(~alike & (best > without)).sum()} higher"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="folder for depth, previews and point clouds")
    parser.add_argument("--only", default="", help="run only cases whose scene or description contains this text")
    chosen = parser.parse_args()
    cases = [case for case in CASES if chosen.only in f"{case.scene} {case.description}"]
    scores: list[list[float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        output = chosen.output or Path(temporary)
        heads = ("scene", "measurements", "scored on", "sensor error", *VARIANTS)
        sys.stdout.write(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n")
        frames = 0
        for case, following in zip(cases, [*cases[1:], None], strict=True):
            folder = chosen.data / case.scene
            if not folder.is_dir():
                sys.stderr.write(f"{case.scene} is not in {chosen.data} and is left out\n")
                continue
            work = output / f"{CASES.index(case):02d}-{case.scene.replace('/', '-')}"
            work.mkdir(parents=True, exist_ok=True)
            about = json.loads((folder / "scene.json").read_text(encoding="utf-8"))
            found, own, reference = run(case, Home(folder, about, work), chosen.model)
            scores.append(list(found.values()))
            frames += 1
            key = (TITLES[case.scene], case.description)
            if following is None or key != (TITLES[following.scene], following.description):
                sys.stdout.write(
                    row(case, "reference" if reference else "blocks", own, np.array(scores[-frames:])) + "\n"
                )
                sys.stdout.flush()
                frames = 0
    if scores:
        sys.stdout.write(f"\n{summary(np.array(scores))}\n")


if __name__ == "__main__":
    main()
