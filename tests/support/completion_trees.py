"""Small trees in the exact layout of each data set of depth completion, with what a loader should find in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from support.trees import Frame, counts, make_frame, save_png

KITTI_UNIT = 1 / 256


@dataclass(frozen=True)
class Measured(Frame):
    """What was written for one image, with its stored measurements."""

    sparse: np.ndarray | None = None  # (h, w) float64 metres, NaN where nothing is stored


def measured_frame(seed: int, width: int, height: int, share: float = 0.2, holes: float = 0.5) -> Measured:
    frame = make_frame(seed, width, height, holes)
    generator = np.random.default_rng([seed, 1])
    sparse = np.where(generator.random((height, width)) < share, generator.uniform(2.0, 60.0, (height, width)), np.nan)
    return Measured(frame.image, frame.depth, sparse)


def save_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def save_hdf5(path: Path, arrays: dict[str, np.ndarray], userblock: int = 0) -> None:
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=userblock) as file:
        for key, values in arrays.items():
            file[key] = values
    if userblock:
        with path.open("r+b") as stream:
            stream.write(b"MATLAB 7.3 MAT-file".ljust(userblock))


# ---- NYU Depth v2

NYU_SIZE = (640, 480)


def nyu(root: Path) -> dict[str, Frame]:
    frames = {}
    for number in (1, 9):
        frames[f"{number:05d}"] = frame = make_frame(number, *NYU_SIZE, holes=0.0)
        arrays = {"rgb": frame.image.transpose(2, 0, 1), "depth": frame.depth.astype(np.float32)}
        save_hdf5(root / "nyudepthv2" / "val" / "official" / f"{number:05d}.h5", arrays)
    return frames


def nyu_labelled(root: Path) -> dict[str, Frame]:
    """Four images, of which numbers 2 and 4 are the test split; the raw depth is the filled one plus 1 m."""
    from scipy.io import savemat

    frames = [make_frame(number, *NYU_SIZE, holes=0.0) for number in range(4)]
    images = np.stack([frame.image.transpose(2, 1, 0) for frame in frames])
    depths = np.stack([frame.depth.T for frame in frames]).astype(np.float32)
    arrays = {"images": images, "depths": depths, "rawDepths": depths + 1}
    save_hdf5(root / "nyu_depth_v2_labeled.mat", arrays, userblock=512)
    savemat(root / "splits.mat", {"testNdxs": np.array([[2], [4]]), "trainNdxs": np.array([[1], [3]])})
    return {"0002": frames[1], "0004": frames[3]}


def nyu_conti(root: Path) -> dict[str, Measured]:
    frames = [measured_frame(number, 304, 228, share=0.01, holes=0.1) for number in range(2)]
    hints = [np.nan_to_num(frame.sparse)[None] for frame in frames]
    gt = [np.nan_to_num(frame.depth)[None] for frame in frames]
    images = np.stack([frame.image for frame in frames])
    save_hdf5(root / "nyu_img_gt.h5", {"img": images, "gt": np.stack(gt).astype(np.float32)})
    save_hdf5(root / "nyu_pred_with_500.h5", {"hints": np.stack(hints).astype(np.float32)})
    return {"0000": frames[0], "0001": frames[1]}


# ---- KITTI

KITTI_K = (721.5, 722.5, 30.25, 12.5)


def kitti_selection(root: Path) -> dict[str, Measured]:
    folder, frames = root / "depth_selection" / "val_selection_cropped", {}
    fx, fy, cx, cy = KITTI_K
    for index, (drive, number, camera) in enumerate(
        (("2011_09_26_drive_0002_sync", 5, "02"), ("2011_10_03_drive_0047_sync", 761, "03"))
    ):
        stem = f"{drive}_{{}}_{number:010d}_image_{camera}"
        frames[stem.format("image")] = frame = measured_frame(index, 60, 24)
        save_png(folder / "image" / f"{stem.format('image')}.png", frame.image)
        save_png(
            folder / "groundtruth_depth" / f"{stem.format('groundtruth_depth')}.png", counts(frame.depth, KITTI_UNIT)
        )
        save_png(folder / "velodyne_raw" / f"{stem.format('velodyne_raw')}.png", counts(frame.sparse, KITTI_UNIT))
        save_text(folder / "intrinsics" / f"{stem.format('image')}.txt", f"{fx} 0.0 {cx} 0.0 {fy} {cy} 0.0 0.0 1.0")
    return frames


def kitti_validation(root: Path, split_parts: bool = True) -> dict[str, Measured]:
    frames = {}
    fx, fy, cx, cy = KITTI_K
    annotated, velodyne = ("data_depth_annotated", "data_depth_velodyne") if split_parts else (".", ".")
    for index, (drive, camera) in enumerate(
        (("2011_09_26_drive_0002_sync", "image_02"), ("2011_09_26_drive_0002_sync", "image_03"))
    ):
        stem, date = f"{index + 5:010d}", drive[:10]
        frames[f"{drive}/{camera}/{stem}"] = frame = measured_frame(index, 66, 31)
        projected = root / annotated / "val" / drive / "proj_depth"
        save_png(projected / "groundtruth" / camera / f"{stem}.png", counts(frame.depth, KITTI_UNIT))
        projected = root / velodyne / "val" / drive / "proj_depth"
        save_png(projected / "velodyne_raw" / camera / f"{stem}.png", counts(frame.sparse, KITTI_UNIT))
        save_png(root / "kitti_raw" / date / drive / camera / "data" / f"{stem}.png", frame.image)
        rows = "".join(
            f"P_rect_{number}: {fx + offset} 0.0 {cx} 1.0 0.0 {fy} {cy} 2.0 0.0 0.0 1.0 3.0\n"
            for number, offset in (("02", 0), ("03", 1))
        )
        save_text(root / "kitti_raw" / date / "calib_cam_to_cam.txt", "calib_time: 09-Jan-2012 13:57:47\n" + rows)
    return frames


# ---- VOID, DDAD, ScanNet


def void(root: Path, density: int = 1500) -> dict[str, Measured]:
    part, frames = f"void_{density}", {}
    kinds = ("image", "sparse_depth", "validity_map", "ground_truth", "intrinsics")
    lists: dict[str, list[str]] = {kind: [] for kind in kinds}
    for index, sequence in enumerate(("birthplace_of_internet", "stairs4")):
        stem = f"15{index}.0700"
        frames[f"{sequence}/{stem}"] = frame = measured_frame(index, 32, 24, share=0.05)
        folder = root / "void_release" / part / "data" / sequence
        save_png(folder / "image" / f"{stem}.png", frame.image)
        save_png(folder / "ground_truth" / f"{stem}.png", counts(frame.depth, KITTI_UNIT))
        # One count lies where the validity map has no point.
        stored = counts(frame.sparse, KITTI_UNIT)
        stored[0, 0], frame.sparse[0, 0] = 999, np.nan
        save_png(folder / "sparse_depth" / f"{stem}.png", stored)
        save_png(folder / "validity_map" / f"{stem}.png", (256 * np.isfinite(frame.sparse)).astype(np.uint16))
        np.savetxt(folder / "K.txt", [[20.0, 0, 15.5], [0, 21.0, 11.5], [0, 0, 1]])
        for kind in kinds[:-1]:
            lists[kind].append(f"{part}/data/{sequence}/{kind}/{stem}.png")
        lists["intrinsics"].append(f"{part}/data/{sequence}/K.txt")
    for kind, lines in lists.items():
        save_text(root / "void_release" / part / f"test_{kind}.txt", "\n".join(lines) + "\n")
    return frames


def ddad(root: Path) -> dict[str, Measured]:
    folder, frames = root / "pregenerated" / "val", {}
    for index in range(2):
        name = f"{index:010d}"
        frames[name] = frame = measured_frame(index, 40, 26)
        save_png(folder / "rgb" / f"{name}.png", frame.image)
        save_png(folder / "gt" / f"{name}.png", counts(frame.depth, KITTI_UNIT))
        save_png(folder / "hints" / f"{name}.png", counts(frame.sparse, KITTI_UNIT))
        (folder / "intrinsics").mkdir(exist_ok=True)
        np.savetxt(folder / "intrinsics" / f"{name}.txt", [[30.0, 0, 19.5], [0, 31.0, 12.5], [0, 0, 1]])
    return frames


def scannet(root: Path) -> dict[str, Frame]:
    """Depth of 32x24; the colours are twice as large and constant in blocks, so that resizing leaves them."""
    frames, lines = {}, []
    for index, (scene, number) in enumerate((("scene0707_00", 12), ("scene0708_01", 300))):
        frames[f"{scene}/{number:04d}"] = frame = make_frame(index, 32, 24)
        folder = root / "scannet_test_all" / scene
        (folder / "color").mkdir(parents=True)
        frame.image[:] = 20 * index + 90
        Image.fromarray(np.repeat(np.repeat(frame.image, 2, 0), 2, 1)).save(folder / "color" / f"{number:04d}.jpg")
        save_png(folder / "depth" / f"{number:04d}.png", counts(frame.depth, 1e-3))
        (folder / "intrinsic").mkdir()
        np.savetxt(folder / "intrinsic" / "intrinsic_depth.txt", np.diag([25.0, 26.0, 1, 1]) + np.eye(4, k=2) * 15.5)
        lines.append(f"{scene}/{number}")
    save_text(root / "scannet_decotr_split.txt", "\n".join(lines))
    return frames


# ---- OMNI-DC's uniformat


def uniformat(root: Path) -> dict[str, Measured]:
    frames = {}
    for index in range(2):
        name = f"{index:06d}"
        frames[name] = frame = measured_frame(index, 40, 26)
        content = {
            "gt": np.nan_to_num(frame.depth).astype(np.float32),
            "rgb": frame.image,
            "dep": np.nan_to_num(frame.sparse).astype(np.float32),
            "K": np.array([[30.0, 0, 19.5], [0, 31.0, 12.5], [0, 0, 1]], dtype=np.float32),
        }
        np.save(root / f"{name}.npy", content)
    return frames


# ---- ETH3D with points, in a tree of trees.eth3d


def eth3d_sfm(root: Path, width: int, height: int, lens: tuple[float, ...]) -> dict[str, Frame]:
    """One image of a scene, with 60 points; several of them fall into one pixel of the reduced image."""
    scene, stem = "kicker", "DSC_6500"
    frame = make_frame(3, width, height, holes=0.7)
    folder = root / scene
    for part in ("images/dslr_images", "ground_truth_depth/dslr_images", "dslr_calibration_jpg"):
        (folder / part).mkdir(parents=True)
    Image.fromarray(frame.image).save(folder / "images/dslr_images" / f"{stem}.JPG", quality=100, subsampling=0)
    raw = np.nan_to_num(frame.depth, nan=np.inf).astype("<f4").tobytes()
    (folder / "ground_truth_depth/dslr_images" / f"{stem}.JPG").write_bytes(raw)
    generator = np.random.default_rng(5)
    positions = np.column_stack((generator.uniform(-1, 1, (60, 2)), generator.uniform(2, 6, 60)))
    ids = generator.permutation(np.arange(1, 61))
    parameters = " ".join(map(str, lens))
    save_text(folder / "dslr_calibration_jpg/cameras.txt", f"0 THIN_PRISM_FISHEYE {width} {height} {parameters}\n")
    features = " ".join(f"1.0 2.0 {number}" for number in (*ids, -1))
    pose = "0.99619469809 0 0.08715574275 0 0.1 -0.05 0.2"  # ten degrees about the vertical axis
    text = f"# images\n7 {pose} 0 dslr_images/{stem}.JPG\n{features}\n"
    save_text(folder / "dslr_calibration_jpg/images.txt", text)
    points = "".join(
        f"{number} {x!r} {y!r} {z!r} 10 20 30 0.5 7 0\n" for number, (x, y, z) in enumerate(positions.tolist(), start=1)
    )
    save_text(folder / "dslr_calibration_jpg/points3D.txt", "# points\n" + points)
    return {f"{scene}/{stem}": frame}
