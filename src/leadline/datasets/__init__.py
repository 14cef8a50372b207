"""Data sets of images with reference depth behind one protocol: public data sets, bundles and scene folders.

`dataset(name, root)` opens one by its name. `rendered` renders scenes; the other modules read them from disk, each
image when it is loaded.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.base.registry import Registry, check_option_types, check_options
from leadline.geometry.cameras import CameraModel
from leadline.io.files import why_no_folder


@dataclass(frozen=True, eq=False)
class SparseInput:
    """Measurements that come with an image: a LiDAR sweep, points of structure from motion, a low-resolution sensor."""

    values: NDArray[np.float32]  # (h, w) metres, NaN where not measured; of the image's size, or of the same view
    sensor: str = "unknown"
    from_reference: bool = False  # a subset of the reference: it has no sensor noise


@dataclass(frozen=True)
class Scene:
    """One image with its reference depth, camera and stored measurements; None or empty where there are none."""

    name: str
    image: NDArray[np.uint8]  # (H, W, 3) RGB
    reference: NDArray[np.float32] | None = None  # (H, W) metres, NaN where unknown
    camera: CameraModel | None = None
    sparse: Mapping[str, SparseInput] = field(default_factory=dict)  # by label; the case "stored" uses them


@runtime_checkable
class Dataset(Protocol):
    """Images by name, each with its reference depth and camera where these are known."""

    @property
    def name(self) -> str:
        """The name of the data set as it appears in records, e.g. ``"diode-indoor"``."""
        ...

    def names(self) -> list[str]:
        """The names of the images in a fixed order. Files are only listed, not decoded."""
        ...

    def load(self, name: str) -> Scene:
        """One image with its reference depth and camera; a bad file raises a `LeadlineError` that names it."""
        ...

    def files(self, name: str) -> list[Path]:
        """The files that `load` reads for this image, whether or not they exist."""
        ...


@dataclass(frozen=True)
class DatasetFacts:
    """One row of the list of data sets."""

    target: str  # "module:callable" that opens a folder, imported when the data set is used
    images: int | None  # number of images in the paper or the published evaluation; None if there is no such number
    needs: str  # the files that its folder must hold
    source: str  # where to download them
    licence: str
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the callable that the name implies
    counted_by: str = "the paper"  # whose number of images that is
    selecting: frozenset[str] = frozenset()  # options that select other images

    def absent(self, images: int, options: Collection[str] = ()) -> int:
        """How many of the published images a folder with so many images lacks; 0 if their number is not known."""
        return 0 if self.images is None or self.selecting & set(options) else max(0, self.images - images)


_NYU = ("no explicit licence; research use",)
_KITTI = ("CC BY-NC-SA 3.0",)
_DIODE = ("https://diode-dataset.org (val.tar.gz)", "MIT")

DATASETS: dict[str, DatasetFacts] = {
    "diode-indoor": DatasetFacts(
        "leadline.datasets.diode:Diode",
        325,
        "[val/]indoors/scene_*/scan_*/<id>.png, <id>_depth.npy, <id>_depth_mask.npy; 1024x768",
        *_DIODE,
        options={"part": "indoors"},
    ),
    "diode-outdoor": DatasetFacts(
        "leadline.datasets.diode:Diode",
        None,
        "[val/]outdoor/scene_*/scan_*/<id>.png, ... as for diode-indoor; 1024x768",
        *_DIODE,
        options={"part": "outdoor"},
    ),
    "eth3d": DatasetFacts(
        "leadline.datasets.eth3d:Eth3d",
        454,
        "<scene>/images/dslr_images/*.JPG, <scene>/ground_truth_depth/dslr_images/*.JPG (raw float32), "
        "<scene>/dslr_calibration_jpg/{cameras,images}.txt; or repacked as rgb/<scene>/... and "
        "depth/<scene>_dslr_depth/<scene>/...; 6048x4032",
        "https://www.eth3d.net/datasets (high-res multi-view, training: *_dslr_jpg.7z, *_dslr_depth.7z)",
        "CC BY-NC-SA 4.0",
    ),
    "ibims": DatasetFacts(
        "leadline.datasets.ibims:ibims",
        100,
        "[ibims1_core_raw/]{rgb,depth,mask_invalid,mask_transp}/<name>.png, calib/<name>.txt; "
        "or [ibims1_core_mat/]<name>.mat; imagelist.txt (optional); 640x480",
        "https://mediatum.ub.tum.de/1455541 (ibims1_core_raw.zip or ibims1_core_mat.zip)",
        "research use; terms at the source",
    ),
    "arkit": DatasetFacts(
        "leadline.datasets.arkit:ArkitScenes",
        1141,
        "metadata.csv, Validation/<video>/{wide,highres_depth}/<video>_<time>.png; for normals also "
        "<video>/lowres_wide_intrinsics/*.pincam of the raw split; 1920x1440",
        "https://github.com/apple/ARKitScenes (download_data.py upsampling, and raw for the intrinsics)",
        "CC BY-NC-SA 4.0",
        selecting=frozenset({"fold", "frames"}),
    ),
    "tanks": DatasetFacts(
        "leadline.datasets.tanks:TanksAndTemples",
        1678,
        "<Scene>/<Scene>.ply, <Scene>/<Scene>_trans.txt, TNT_GOF/TrainingSet/<Scene>/{images/*.jpg,sparse/0}, for "
        "Barn, Caterpillar, Ignatius, Meetingroom and Truck",
        "https://www.tanksandtemples.org/download (scans, alignments), and the TNT_GOF calibration bundle",
        "non-commercial research; terms at the source",
        selecting=frozenset({"scenes"}),
    ),
    "moge": DatasetFacts(
        "leadline.datasets.bundles:MogeBundle",
        None,
        ".index.txt, <id>/{image.jpg,depth.png,meta.json}",
        "https://huggingface.co/datasets/Ruicheng/monocular-geometry-evaluation",
        "that of each data set in it",
    ),
    "marigold": DatasetFacts(
        "leadline.datasets.bundles:MarigoldBundle",
        None,
        "rgb/<id>.png or .jpg, gt/<id>.npy (m, 0 = missing); optional: sparse/<id>.npy, intrinsics/<id>.txt",
        "https://github.com/prs-eth/Marigold-DC (DATASETS.md)",
        "that of each data set in it",
    ),
    "nyu": DatasetFacts(
        "leadline.datasets.completion.nyu:NyuHdf5",
        654,
        "[nyudepthv2/]val/official/<number>.h5 with rgb (3, 480, 640) and depth (480, 640)",
        "http://datasets.lids.mit.edu/sparse-to-dense/data/nyudepthv2.tar.gz (Ma & Karaman)",
        *_NYU,
        counted_by="the published evaluation",
    ),
    "nyu-labelled": DatasetFacts(
        "leadline.datasets.completion.nyu:NyuLabelled",
        654,
        "nyu_depth_v2_labeled.mat, splits.mat",
        "https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html (labeled dataset, and the train/test split)",
        *_NYU,
        counted_by="the published evaluation",
    ),
    "nyu-conti": DatasetFacts(
        "leadline.datasets.completion.nyu:NyuConti",
        654,
        "nyu_img_gt.h5, nyu_pred_with_500.h5",
        "https://github.com/andreaconti/sparsity-agnostic-depth-completion (release v0.1.0)",
        *_NYU,
        counted_by="the published evaluation",
    ),
    "kitti-dc": DatasetFacts(
        "leadline.datasets.completion.kitti:KittiSelection",
        1000,
        "[[data_]depth_selection/]val_selection_cropped/{image,velodyne_raw,groundtruth_depth}/*.png, intrinsics/*.txt",
        "https://www.cvlibs.net/datasets/kitti/eval_depth.php (data_depth_selection.zip)",
        *_KITTI,
        counted_by="the published evaluation",
    ),
    "kitti-dc-val": DatasetFacts(
        "leadline.datasets.completion.kitti:KittiValidation",
        6852,
        "[data_depth_annotated/]val/<drive>/proj_depth/groundtruth/image_0{2,3}/*.png, "
        "[data_depth_velodyne/]val/<drive>/proj_depth/velodyne_raw/image_0{2,3}/*.png, "
        "[kitti_raw/]<date>/<drive>/image_0{2,3}/data/*.png, [kitti_raw/]<date>/calib_cam_to_cam.txt",
        "https://www.cvlibs.net/datasets/kitti/eval_depth.php (data_depth_annotated.zip, data_depth_velodyne.zip), and "
        "the synced and rectified drives of raw_data.php",
        *_KITTI,
        counted_by="the published evaluation",
    ),
    "void": DatasetFacts(
        "leadline.datasets.completion.void:Void",
        800,
        "[void_release/]void_<density>/{test,train}_{image,sparse_depth,validity_map,ground_truth,intrinsics}.txt and "
        "the files that these list",
        "https://github.com/alexklwong/void-dataset (void_release.zip)",
        "academic, non-commercial; terms at the source",
        counted_by="the published evaluation",
        selecting=frozenset({"split"}),
    ),
    "ddad": DatasetFacts(
        "leadline.datasets.completion.ddad:Ddad",
        3950,
        "[[pregenerated/]val/]{rgb,gt,hints}/<number>.png, intrinsics/<number>.txt; 1936x1216",
        "https://github.com/bartn8/vppdc (ddad_pregenerated.zip, also used by Marigold-DC)",
        "CC BY-NC-SA 4.0",
        counted_by="the published evaluation",
    ),
    "eth3d-sfm": DatasetFacts(
        "leadline.datasets.completion.eth3d_sfm:Eth3dSfm",
        None,
        "as eth3d, and <scene>/dslr_calibration_jpg/points3D.txt",
        "https://www.eth3d.net/datasets (high-res multi-view, training: *_dslr_jpg.7z, *_dslr_depth.7z)",
        "CC BY-NC-SA 4.0",
    ),
    "scannet": DatasetFacts(
        "leadline.datasets.completion.scannet:ScanNet",
        745,
        "[scannet_test_all/]<scene>/{color/<number>.jpg,depth/<number>.png,intrinsic/intrinsic_depth.txt}, and a list "
        "of <scene>/<number>, scannet_decotr_split.txt",
        "https://github.com/ScanNet/ScanNet; the list and a download script: https://github.com/prs-eth/Marigold-DC",
        "ScanNet terms of use, research only",
        counted_by="the published evaluation",
        selecting=frozenset({"split"}),
    ),
    "arkit-lowres": DatasetFacts(
        "leadline.datasets.arkit:ArkitScenes",
        None,
        "as arkit, and Validation/<video>/{lowres_depth,confidence}/<video>_<time>.png; 256x192",
        "https://github.com/apple/ARKitScenes (download_data.py upsampling)",
        "CC BY-NC-SA 4.0",
        options={"lowres": True},
    ),
    "uniformat": DatasetFacts(
        "leadline.datasets.completion.uniformat:Uniformat",
        None,
        "<number>.npy with gt, rgb, dep and K, as OMNI-DC saves them",
        "https://github.com/princeton-vl/OMNI-DC (src/robust_dc_protocol)",
        "that of each data set in it",
    ),
    "scenes": DatasetFacts(
        "leadline.datasets.scene_folders:SceneFolders",
        None,
        "any folders with a scene.json",
        "your own, see the documentation of data sets",
        "stated in each scene.json",
    ),
}


def dataset(name: str, root: str | os.PathLike[str], **options: Any) -> Dataset:
    """The data set of that name in the folder `root`; the defaults are our reading of the paper or publication.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    root : path
        The folder that holds the files that `DATASETS` lists.
    **options
        Options of the data set, e.g. ``max_depth=20.0`` for iBims-1.

    Raises
    ------
    InputError
        There is no such data set, or it does not take such an option.
    FileError
        There is no such folder.

    Examples
    --------
    >>> dataset("ibmis", "data")
    Traceback (most recent call last):
    leadline.base.errors.InputError: `dataset`: there is no data set 'ibmis'; did you mean 'ibims'?
    """
    registry = Registry("data set", {key: facts.target for key, facts in DATASETS.items()}, parameter="dataset")
    target: Callable[..., Dataset] = registry.load(name)
    implied = DATASETS[name].options
    accepted = [key for key in inspect.signature(target).parameters if key != "root" and key not in implied]
    check_options(f"The data set {name!r}", options, accepted)
    check_option_types(f"The data set {name!r}", options, target)
    folder = Path(root)
    if not folder.is_dir():
        raise FileError(f"{folder}: {why_no_folder(folder)}; it must hold the data set {name!r}.")
    return target(folder, **implied, **options)
