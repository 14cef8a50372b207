"""Images with reference depth behind one protocol: public data sets, bundles and scene folders, read lazily.

`rendered` makes scenes; the other modules read them from disk. `dataset(name, root)` opens one by its name.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from leadline.base.errors import FileError, InputError
from leadline.datasets.scene import Scene


@runtime_checkable
class Dataset(Protocol):
    """A list of images with what is known about each."""

    @property
    def name(self) -> str:
        """Of the data set, e.g. ``"diode-indoor"``; it goes into records."""
        ...

    def names(self) -> list[str]:
        """Image names in a fixed order. A listing only: nothing is decoded."""
        ...

    def load(self, name: str) -> Scene:
        """One image with its reference depth and camera; a bad file raises a `LeadlineError` that names it."""
        ...

    def files(self, name: str) -> list[Path]:
        """What `load` reads for this image, whether or not it is there."""
        ...


DATASETS: dict[str, str] = {
    "diode-indoor": "leadline.datasets.diode:indoor",
    "diode-outdoor": "leadline.datasets.diode:outdoor",
    "eth3d": "leadline.datasets.eth3d:Eth3d",
    "ibims": "leadline.datasets.ibims:ibims",
    "arkit": "leadline.datasets.arkit:ArkitScenes",
    "tanks": "leadline.datasets.tanks:TanksAndTemples",
    "moge": "leadline.datasets.moge_bundle:MogeBundle",
    "marigold": "leadline.datasets.marigold_bundle:MarigoldBundle",
    "scenes": "leadline.datasets.scenes:SceneFolders",
}
"""Each data set's name and the factory that opens a tree of it, imported when it is used."""


@dataclass(frozen=True)
class Origin:
    """What a data set needs on disk, and where that comes from."""

    images: int | None  # in the paper; None: not used there
    needs: str
    source: str
    licence: str


_DIODE = ("https://diode-dataset.org (val.tar.gz)", "MIT")

ORIGINS: dict[str, Origin] = {
    "diode-indoor": Origin(
        325, "[val/]indoors/scene_*/scan_*/<id>.png, <id>_depth.npy, <id>_depth_mask.npy; 1024x768", *_DIODE
    ),
    "diode-outdoor": Origin(None, "[val/]outdoor/scene_*/scan_*/<id>.png, ... as for diode-indoor; 1024x768", *_DIODE),
    "eth3d": Origin(
        454,
        "<scene>/images/dslr_images/*.JPG, <scene>/ground_truth_depth/dslr_images/*.JPG (raw float32), "
        "<scene>/dslr_calibration_jpg/{cameras,images}.txt; or repacked as rgb/<scene>/... and "
        "depth/<scene>_dslr_depth/<scene>/...; 6048x4032",
        "https://www.eth3d.net/datasets (high-res multi-view, training: *_dslr_jpg.7z, *_dslr_depth.7z)",
        "CC BY-NC-SA 4.0",
    ),
    "ibims": Origin(
        100,
        "[ibims1_core_raw/]{rgb,depth,mask_invalid,mask_transp}/<name>.png, calib/<name>.txt; "
        "or [ibims1_core_mat/]<name>.mat; imagelist.txt (optional); 640x480",
        "https://mediatum.ub.tum.de/1455541 (ibims1_core_raw.zip or ibims1_core_mat.zip)",
        "research use; terms at the source",
    ),
    "arkit": Origin(
        1141,
        "metadata.csv, Validation/<video>/{wide,highres_depth}/<video>_<time>.png; for normals also "
        "<video>/lowres_wide_intrinsics/*.pincam of the raw split; 1920x1440",
        "https://github.com/apple/ARKitScenes (download_data.py upsampling, and raw for the intrinsics)",
        "CC BY-NC-SA 4.0",
    ),
    "tanks": Origin(
        1678,
        "<Scene>/<Scene>.ply, <Scene>/<Scene>_trans.txt, TNT_GOF/TrainingSet/<Scene>/{images/*.jpg,sparse/0}, for "
        "Barn, Caterpillar, Ignatius, Meetingroom and Truck",
        "https://www.tanksandtemples.org/download (scans, alignments), and the TNT_GOF calibration bundle",
        "non-commercial research; terms at the source",
    ),
    "moge": Origin(
        None,
        ".index.txt, <id>/{image.jpg,depth.png,meta.json}",
        "https://huggingface.co/datasets/Ruicheng/monocular-geometry-evaluation",
        "that of each data set in it",
    ),
    "marigold": Origin(
        None,
        "rgb/<id>.png or .jpg, gt/<id>.npy (m, 0 = missing); optional: sparse/<id>.npy, intrinsics/<id>.txt",
        "https://github.com/prs-eth/Marigold-DC (DATASETS.md)",
        "that of each data set in it",
    ),
    "scenes": Origin(
        None,
        "any folders with a scene.json",
        "your own, see the documentation of data sets",
        "stated in each scene.json",
    ),
}


def dataset(name: str, root: str | os.PathLike[str], **options: Any) -> Dataset:
    """The data set of that name in the folder `root`, with the paper's sizes, caps and sampling unless told otherwise.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    root : path
        The folder that holds what `ORIGINS` lists.
    **options
        Keywords of the data set's factory, e.g. ``max_depth=20.0`` for iBims-1.

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
    leadline.core.types.InputError: There is no data set 'ibmis'; did you mean ibims? There are: diode-indoor, ...
    """
    factory = _factory(name)
    accepted = [parameter for parameter in inspect.signature(factory).parameters if parameter != "root"]
    unknown = sorted(options.keys() - set(accepted))
    if unknown:
        raise InputError(
            f"The data set {name!r} takes no option {', '.join(unknown)}. It takes: {', '.join(accepted) or 'none'}."
        )
    folder = Path(root)
    if not folder.is_dir():
        raise FileError(f"{folder}: there is no such folder; the data set {name!r} was to be read from it.")
    return factory(folder, **options)


def _factory(name: str) -> Callable[..., Dataset]:
    if name not in DATASETS:
        close = [known for known in DATASETS if name and known.startswith(name)]
        close = close or difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(f"There is no data set {name!r}; {hint}There are: {', '.join(DATASETS)}.")
    module, _, attribute = DATASETS[name].partition(":")
    found: Callable[..., Dataset] = getattr(import_module(module), attribute)
    return found
