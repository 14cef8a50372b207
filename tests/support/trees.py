"""Small trees in the exact layout of each public data set, with the depth that a loader should find in them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

WIDTH, HEIGHT = 24, 16
ETH3D_SCENES = {"courtyard": ("DSC_0286", "DSC_0287"), "office": ("DSC_0219",)}
# A real lens of this kind, brought from 6048x4032 to the size of these trees.
ETH3D_PARAMS = (13.54, 13.53, 12.07, 7.99, 0.21, 0.19, 0.32, 0.0, -3e-4, 2e-4, 0.0, 0.0)


@dataclass(frozen=True)
class Frame:
    """What was written for one image."""

    image: np.ndarray  # (H, W, 3) uint8
    depth: np.ndarray  # (H, W) float64 metres, NaN where the tree says there is none


def make_frame(seed: int, width: int = WIDTH, height: int = HEIGHT, holes: float = 0.1) -> Frame:
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    depth = generator.uniform(0.5, 20.0, (height, width))
    depth[generator.random((height, width)) < holes] = np.nan
    return Frame(image, depth)


def save_png(path: Path, values: np.ndarray, **texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    Image.fromarray(values).save(path, pnginfo=info)


def save_npy(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)


def counts(depth: np.ndarray, metres: float) -> np.ndarray:
    return np.rint(np.nan_to_num(depth) / metres).astype(np.uint16)


def diode(root: Path, part: str = "indoors") -> dict[str, Frame]:
    frames = {}
    for index, scan in enumerate(("scene_00019/scan_00183", "scene_00020/scan_00185")):
        scene, number = (text.split("_")[1] for text in scan.split("/"))
        name = f"{scan}/{scene}_{number}_{part}_000_010"
        frames[name] = frame = make_frame(index)
        stem = root / "val" / part / name
        save_png(stem.with_name(f"{stem.name}.png"), frame.image)
        # Where the mask is 0 depth holds numbers all the same.
        save_npy(stem.with_name(f"{stem.name}_depth.npy"), np.nan_to_num(frame.depth, nan=3.5)[..., None])
        save_npy(stem.with_name(f"{stem.name}_depth_mask.npy"), np.isfinite(frame.depth).astype(np.float64))
    return frames


def eth3d(root: Path, repacked: bool = False) -> dict[str, Frame]:
    frames = {}
    for index, (scene, stems) in enumerate(ETH3D_SCENES.items()):
        pictures = root / "rgb" / scene if repacked else root / scene
        depths = root / "depth" / f"{scene}_dslr_depth" / scene if repacked else root / scene
        calibration = pictures / "dslr_calibration_jpg"
        for folder in (
            pictures / "images" / "dslr_images",
            depths / "ground_truth_depth" / "dslr_images",
            calibration,
        ):
            folder.mkdir(parents=True)
        poses = ["# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME"]
        for number, stem in enumerate(stems):
            frames[f"{scene}/{stem}"] = frame = make_frame(10 * index + number, holes=0.7)
            Image.fromarray(frame.image).save(
                pictures / "images" / "dslr_images" / f"{stem}.JPG", quality=100, subsampling=0
            )
            raw = np.nan_to_num(frame.depth, nan=np.inf).astype("<f4").tobytes()
            (depths / "ground_truth_depth" / "dslr_images" / f"{stem}.JPG").write_bytes(raw)
            poses += [f"{number} 1 0 0 0 0 0 0 {index} dslr_images/{stem}.JPG", "1.5 2.5 -1"]
        parameters = " ".join(str(value) for value in ETH3D_PARAMS)
        camera = (
            f"# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n{index} THIN_PRISM_FISHEYE {WIDTH} {HEIGHT} {parameters}\n"
        )
        (calibration / "cameras.txt").write_text(camera, encoding="utf-8")
        (calibration / "images.txt").write_text("\n".join(poses) + "\n", encoding="utf-8")
    return frames


IBIMS_NAMES = ("corridor_01", "livingroom_02")
IBIMS_CALIB = (559.0, 560.0, 11.25, 7.5)


def _ibims_masks(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Two masks, 1 = valid, that leave out a corner each."""
    invalid, transparent = np.ones((2, HEIGHT, WIDTH), dtype=np.uint8)
    invalid[:3, :3], transparent[-3:, -3:] = 0, 0
    frame.depth[:3, :3] = frame.depth[-3:, -3:] = np.nan
    return invalid, transparent


def ibims_raw(root: Path) -> dict[str, Frame]:
    folder, frames = root / "ibims1_core_raw", {}
    for index, name in enumerate(IBIMS_NAMES):
        frames[name] = frame = make_frame(index)
        stored = counts(frame.depth, 50 / 65535)
        invalid, transparent = _ibims_masks(frame)
        save_png(folder / "rgb" / f"{name}.png", frame.image)
        save_png(folder / "depth" / f"{name}.png", stored)
        save_png(folder / "mask_invalid" / f"{name}.png", invalid)
        save_png(folder / "mask_transp" / f"{name}.png", transparent)
        (folder / "calib").mkdir(exist_ok=True)
        (folder / "calib" / f"{name}.txt").write_text(",".join(map(str, IBIMS_CALIB)) + "\n", encoding="utf-8")
    (root / "imagelist.txt").write_text("\n".join(IBIMS_NAMES) + "\n", encoding="utf-8")
    return frames


def ibims_mat(root: Path, hdf5: bool = False) -> dict[str, Frame]:
    folder, frames = root / "ibims1_core_mat", {}
    folder.mkdir()
    fx, fy, cx, cy = IBIMS_CALIB
    for index, name in enumerate(IBIMS_NAMES):
        frames[name] = frame = make_frame(index)
        stored = np.nan_to_num(frame.depth)
        invalid, transparent = _ibims_masks(frame)
        data = {
            "rgb": frame.image,
            "depth": stored,
            "calib": np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]).T,
            "mask_invalid": invalid,
            "mask_transp": transparent,
        }
        if hdf5:
            _save_matlab_73(folder / f"{name}.mat", data)
        else:
            from scipy.io import savemat

            savemat(folder / f"{name}.mat", {"data": data})
    return frames


def _save_matlab_73(path: Path, data: dict[str, np.ndarray]) -> None:
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        for field, values in data.items():
            file[f"data/{field}"] = values.T
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(512))


ARKIT_VIDEOS = {"41069021": "Left", "41069043": "Up", "41069050": "Right", "41069051": "Down"}
ARKIT_LOW = (4, 3)  # width and height of the camera whose intrinsics are stored
ARKIT_PINCAM = (3.5, 3.25, 1.75, 1.0)


def arkit(root: Path, frames: int = 6, scale: int = 15) -> dict[str, Frame]:
    """Videos of so many frames, 2.5 s apart, at ARKIT_LOW times 15/2."""
    width, height = (side * scale // 2 for side in ARKIT_LOW)
    written = {}
    for index, video in enumerate(ARKIT_VIDEOS):
        for number in range(frames):
            # Times of 8 to 20.5 s: as text, 10 comes before 8.
            stem = f"{video}_{8 + 2.5 * number:.3f}"
            written[f"{video}/{stem}"] = frame = make_frame(100 * index + number, width, height)
            folder = root / "Validation" / video
            save_png(folder / "wide" / f"{stem}.png", frame.image)
            save_png(folder / "highres_depth" / f"{stem}.png", counts(frame.depth, 1e-3))
            (folder / "lowres_wide_intrinsics").mkdir(exist_ok=True)
            line = " ".join(str(value) for value in (*ARKIT_LOW, *ARKIT_PINCAM))
            # The low-resolution camera's clock ticks a little apart from the other's.
            late = f"{video}_{8 + 2.5 * number + (0.01 if number % 2 else 0.0):.3f}.pincam"
            (folder / "lowres_wide_intrinsics" / late).write_text(line, encoding="utf-8")
    with (root / "metadata.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(("video_id", "visit_id", "fold", "sky_direction"))
        table.writerows((video, "1", "Validation", sky) for video, sky in ARKIT_VIDEOS.items())
    return written


MOGE_INTRINSICS = ((0.75, 0, 0.5), (0, 1.1, 0.48), (0, 0, 1))
MOGE_RANGE = (0.25, 40.0)


def moge(root: Path) -> dict[str, Frame]:
    near, far = MOGE_RANGE
    frames = {}
    for index, name in enumerate(("b/two", "a/one")):  # the index's order, not the alphabet's
        frames[name] = frame = make_frame(index)
        codes = 1 + np.rint(np.log(frame.depth / near) / np.log(far / near) * 65533)
        codes[0, 0], frame.depth[0, 0] = 65535, np.nan
        save_png(root / name / "depth.png", np.nan_to_num(codes).astype(np.uint16), near=str(near), far=str(far))
        Image.fromarray(frame.image).save(root / name / "image.jpg", quality=100, subsampling=0)
        (root / name / "meta.json").write_text(json.dumps({"intrinsics": MOGE_INTRINSICS}), encoding="utf-8")
    (root / ".index.txt").write_text("\n".join(frames) + "\n", encoding="utf-8")
    return frames


def marigold(root: Path) -> dict[str, Frame]:
    frames = {}
    for index in range(2):
        name = f"{index:04d}"
        frames[name] = frame = make_frame(index)
        save_png(root / "rgb" / f"{name}.png", frame.image)
        depth = np.nan_to_num(frame.depth)
        save_npy(root / "gt" / f"{name}.npy", depth)
        sparse = np.zeros_like(depth)
        sparse[::4, ::4] = depth[::4, ::4]
        save_npy(root / "sparse" / f"{name}.npy", sparse)
        (root / "intrinsics").mkdir(exist_ok=True)
        np.savetxt(root / "intrinsics" / f"{name}.txt", [[20.0, 0, 12.0], [0, 21.0, 8.0], [0, 0, 1]])
    return frames


def scenes(root: Path) -> dict[str, Frame]:
    """Two scenes with a reference and one without."""
    frames = {}
    for index, name in enumerate(("set_a/one", "set_a/two", "set_b/bare")):
        frames[name] = frame = make_frame(index)
        folder = root / name
        save_png(folder / "rgb.png", frame.image)
        raw = counts(frame.depth, 1e-3)
        raw[0, 0], frame.depth[0, 0] = 7, np.nan
        mask = np.ones((HEIGHT, WIDTH), dtype=np.uint8)
        mask[-1], frame.depth[-1] = 0, np.nan
        frame.depth[frame.depth > 15] = np.nan
        save_png(folder / "depth.png", raw)
        save_png(folder / "mask.png", 255 * mask)
        save_npy(folder / "prior.npy", (1 / np.nan_to_num(frame.depth, nan=5.0)).astype(np.float32)[None, None])
        entry = {"file": "depth.png", "key": None, "metres_per_unit": 1e-3, "invalid": [0, 7]}
        sparse = {
            **entry,
            "name": "tof",
            "sensor": "time of flight",
            "from_reference": False,
            "points": int((raw > 7).sum()),
        }
        scene = {
            "name": name,
            "image": "rgb.png",
            "reference": None if index == 2 else {**entry, "mask": "mask.png", "max_m": 15.0},
            "sparse": [sparse],
            "priors": [
                {"name": "net", "file": "prior.npy", "key": None, "kind": "disparity", "gauge": "affine-disparity"}
            ],
            "intrinsics": {"width": WIDTH, "height": HEIGHT, "fx": 20, "fy": 21, "cx": 11.5, "cy": 7.5},
        }
        (folder / "scene.json").write_text(json.dumps(scene), encoding="utf-8")
    return frames
