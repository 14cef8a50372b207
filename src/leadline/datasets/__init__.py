"""Data sets of images with reference depth behind one protocol: public data sets, bundles and scene folders.

`dataset(name, root)` opens one by its name. `rendered` renders scenes; the other modules read them from disk, each
image when it is loaded.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, param
from leadline.base.registry import Registry, check_options
from leadline.geometry.cameras import CameraModel


@dataclass(frozen=True)
class Scene:
    """One image with its reference depth and camera; None where these are unknown."""

    name: str
    image: NDArray[np.uint8]  # (H, W, 3) RGB
    reference: NDArray[np.float32] | None = None  # (H, W) metres, NaN where unknown
    camera: CameraModel | None = None


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
    images: int | None  # number of images in the paper; None if the paper does not use it
    needs: str  # the files that its folder must hold
    source: str  # where to download them
    licence: str
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of the callable that the name implies


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
    ),
    "tanks": DatasetFacts(
        "leadline.datasets.tanks:TanksAndTemples",
        1678,
        "<Scene>/<Scene>.ply, <Scene>/<Scene>_trans.txt, TNT_GOF/TrainingSet/<Scene>/{images/*.jpg,sparse/0}, for "
        "Barn, Caterpillar, Ignatius, Meetingroom and Truck",
        "https://www.tanksandtemples.org/download (scans, alignments), and the TNT_GOF calibration bundle",
        "non-commercial research; terms at the source",
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
    "scenes": DatasetFacts(
        "leadline.datasets.scene_folders:SceneFolders",
        None,
        "any folders with a scene.json",
        "your own, see the documentation of data sets",
        "stated in each scene.json",
    ),
}


def dataset(name: str, root: str | os.PathLike[str], **options: Any) -> Dataset:
    """The data set of that name in the folder `root`; the defaults are the paper's sizes, depth limits and sampling.

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
    folder = Path(root)
    if not folder.is_dir():
        raise FileError(f"{folder}: there is no such folder; {param('root')} must hold the data set {name!r}.")
    return target(folder, **implied, **options)
