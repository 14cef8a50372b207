"""The nine subsets of the paper as small trees in their exact public layouts, with rendered rooms as content.

Every image contains its depth: the colours are a code of log depth with the room's texture on top. A stand-in network
that decodes the mean colour therefore predicts a useful prior, and methods have something to improve.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from leadline.datasets.rendered import render
from leadline.geometry.cameras import Camera
from leadline.io.ply import write_ply
from support.trees import counts, save_npy, save_png

SUBSETS = ("DIODE-in", "ETH3D", "iBims", "ARKit", "Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")
IMAGES = {"DIODE-in": 2, "ETH3D": 2, "iBims": 2, "ARKit": 5, **dict.fromkeys(SUBSETS[4:], 1)}
"""Images per subset: ARKit has one video of six frames, of which four are used, and one of a single frame."""

NEAR, FAR = 1.2, 7.5  # metres; the rendered rooms lie between them
TEXTURE = 0.15  # share of the room's own colours


def picture(width: int, height: int, seed: int) -> tuple[np.ndarray, np.ndarray, Camera]:
    """An image whose mean colour is a code of its depth, the depth in metres and the camera."""
    room = render(width, height, seed=seed)
    code = np.log(room.reference / NEAR) / np.log(FAR / NEAR)
    mixed = (1 - TEXTURE) * code[..., None] + TEXTURE * room.image / 255
    return np.rint(255 * np.clip(mixed, 0, 1)).astype(np.uint8), room.reference.astype(np.float64), room.camera


def with_holes(depth: np.ndarray, seed: int, share: float = 0.1) -> np.ndarray:
    """The depth with NaN in a band at one side, as where a scanner has no return."""
    holed = depth.copy()
    width = round(share * depth.shape[1])
    at = np.random.default_rng(seed).integers(0, depth.shape[1] - width)
    holed[:, at : at + width] = np.nan
    return holed


def write_diode(root: Path) -> None:
    for seed, scan in enumerate(("scene_00019/scan_00183", "scene_00020/scan_00185")):
        scene, number = (text.split("_")[1] for text in scan.split("/"))
        image, depth, _ = picture(128, 96, seed)
        stem = root / "val" / "indoors" / scan / f"{scene}_{number}_indoors_000_010"
        holed = with_holes(depth, seed)
        save_png(stem.with_suffix(".png"), image)
        save_npy(stem.with_name(f"{stem.name}_depth.npy"), np.nan_to_num(holed)[..., None].astype(np.float32))
        save_npy(stem.with_name(f"{stem.name}_depth_mask.npy"), np.isfinite(holed).astype(np.float64))


def write_eth3d(root: Path) -> None:
    for index, (scene, stem) in enumerate((("courtyard", "DSC_0286"), ("office", "DSC_0223"))):
        image, depth, camera = picture(192, 128, 10 + index)
        images, references = (root / scene / folder / "dslr_images" for folder in ("images", "ground_truth_depth"))
        calibration = root / scene / "dslr_calibration_jpg"
        for folder in (images, references, calibration):
            folder.mkdir(parents=True)
        Image.fromarray(image).save(images / f"{stem}.JPG", quality=95)
        raw = np.nan_to_num(with_holes(depth, index, share=0.3), nan=np.inf).astype("<f4")
        (references / f"{stem}.JPG").write_bytes(raw.tobytes())
        lens = (camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5, *[0.0] * 8)
        line = f"0 THIN_PRISM_FISHEYE {camera.width} {camera.height} {' '.join(map(str, lens))}\n"
        (calibration / "cameras.txt").write_text(line, encoding="utf-8")
        (calibration / "images.txt").write_text(f"0 1 0 0 0 0 0 0 0 dslr_images/{stem}.JPG\n\n", encoding="utf-8")


def write_ibims(root: Path) -> None:
    folder, names = root / "ibims1_core_raw", ("corridor_01", "livingroom_02")
    (folder / "calib").mkdir(parents=True)
    for seed, name in enumerate(names):
        image, depth, camera = picture(128, 96, 20 + seed)
        save_png(folder / "rgb" / f"{name}.png", image)
        save_png(folder / "depth" / f"{name}.png", counts(with_holes(depth, seed), 50 / 65535))
        for mask in ("mask_invalid", "mask_transp"):
            save_png(folder / mask / f"{name}.png", np.ones(depth.shape, np.uint8))
        text = ",".join(map(str, (camera.fx, camera.fy, camera.cx, camera.cy)))
        (folder / "calib" / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    (root / "imagelist.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def write_arkit(root: Path) -> None:
    videos = {"41069021": 6, "41069043": 1}
    for video, frames in videos.items():
        folder = root / "Validation" / video
        for number in range(frames):
            stem = f"{video}_{8 + 2.5 * number:.3f}"
            image, depth, camera = picture(240, 180, 30 + number)  # 1920x1440 divided by 8
            save_png(folder / "wide" / f"{stem}.png", image)
            save_png(folder / "highres_depth" / f"{stem}.png", counts(with_holes(depth, number), 1e-3))
            low = camera.scaled(32, 24)  # 256x192 divided by 8
            line = f"32 24 {low.fx} {low.fy} {low.cx + 0.5} {low.cy + 0.5}\n"
            (folder / "lowres_wide_intrinsics").mkdir(exist_ok=True)
            (folder / "lowres_wide_intrinsics" / f"{stem}.pincam").write_text(line, encoding="utf-8")
    with (root / "metadata.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(("video_id", "visit_id", "fold", "sky_direction"))
        table.writerows((video, "1", "Validation", "Up") for video in videos)


def write_tanks(root: Path) -> None:
    import pycolmap

    scale, offset = 2.5, np.array([10.0, -4.0, 7.0])  # one unit of the reconstruction is 2.5 m
    for index, scene in enumerate(SUBSETS[4:]):
        image, _, camera = picture(240, 136, 40 + index)
        folder = root / "TNT_GOF" / "TrainingSet" / scene
        (folder / "images").mkdir(parents=True)
        (folder / "sparse" / "0").mkdir(parents=True)
        Image.fromarray(image).save(folder / "images" / "000001.jpg", quality=95)
        model = pycolmap.Reconstruction()
        lens = [camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5, 0.0, 0.0, 0.0, 0.0]
        model.add_camera_with_trivial_rig(
            pycolmap.Camera(model="OPENCV", width=camera.width, height=camera.height, params=lens, camera_id=1)
        )
        model.add_image_with_trivial_frame(
            pycolmap.Image(name="000001.jpg", camera_id=1, image_id=1), pycolmap.Rigid3d()
        )
        model.write_binary(str(folder / "sparse" / "0"))
        # The scan is the visible surface at twice the resolution of the image, without a strip.
        fine = render(480, 272, seed=40 + index)
        points = fine.camera.points(with_holes(fine.reference, index, share=0.2)).reshape(-1, 3)
        points = points[np.isfinite(points).all(axis=1)]
        (root / scene).mkdir()
        write_ply(root / scene / f"{scene}.ply", points + offset, np.full(points.shape, 128, np.uint8))
        matrix = np.diag([scale, scale, scale, 1.0])
        matrix[:3, 3] = offset
        np.savetxt(root / scene / f"{scene}_trans.txt", matrix)


def write_paper_data(root: Path) -> Path:
    """All nine subsets below `root`, in the folders that the packaged protocols expect."""
    write_diode(root / "diode")
    write_eth3d(root / "eth3d")
    write_ibims(root / "ibims1")
    write_arkit(root / "arkitscenes")
    write_tanks(root / "tanks-and-temples")
    return root
