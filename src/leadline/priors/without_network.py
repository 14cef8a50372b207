"""Priors that need no network: saved predictions, the predictions in scene folders, and a constant."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, require_choice
from leadline.core.prior import Prior, PriorKind
from leadline.io.depth import DEPTH_SUFFIXES
from leadline.io.files import read_json
from leadline.io.priors import read_prior
from leadline.priors import Gauge, PriorSource


def find_prediction(folder: Path, name: str) -> Path:
    """The file in `folder` with the prediction for the image `name`.

    For the name ``a/b`` that is ``a/b.*``, ``a_b.*`` or ``b.*``, in this order.
    """
    stems = (name, name.replace("/", "_"), Path(name).name)
    tried = [folder / f"{stem}{suffix}" for stem in stems for suffix in DEPTH_SUFFIXES]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        raise FileError(f"{folder}: no prediction for {name!r}; expected a file like {tried[0].name}.")
    return found


def require_image_size(file: Path, shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    """Raise `FileError` unless a prediction has the height and width of its image."""
    if shape != image[:2]:
        raise FileError(
            f"{file}: the prediction is {shape[1]}x{shape[0]}, the image {image[1]}x{image[0]}. Save it at the image's "
            "size."
        )


def _declared(gauge: str | None) -> str | None:
    """`gauge` itself, if it is a valid one or None."""
    if gauge is not None:
        require_choice("gauge", gauge, Gauge)
    return gauge


def _common_gauge(folder: Path) -> str:
    """The gauge that all sidecar files of a folder state; "unknown" if there are none, they differ or are damaged."""
    try:
        found = {str(read_json(file, "a sidecar").get("gauge")) for file in folder.rglob("*.prior.json")}
    except FileError:  # reported when that prediction is used
        return "unknown"
    return next((gauge for gauge in get_args(Gauge) if found == {gauge}), "unknown")


class FilePriors(PriorSource):
    """Predictions saved earlier, one file per image, found by the image's name as `find_prediction` does.

    Parameters
    ----------
    folder : str or path
    kind, floor : optional
        As for `read_prior`. Default: as in the sidecar file, or depth if there is none.
    gauge : str, optional
        One of `Gauge`. Default: that of the sidecar files, if they all state the same, else unknown.
    name : str, optional
        For records. Default: the folder's name.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        kind: PriorKind | None = None,
        gauge: str | None = None,
        floor: float | None = None,
        name: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileError(f"{self.folder}: there is no such folder of predictions.")
        self.kind, self.floor = kind, floor
        self.gauge = _declared(gauge) or ("unknown" if kind else _common_gauge(self.folder))
        self.quantity: PriorKind = kind or "depth"
        self.name = name or self.folder.name

    def fingerprint(self) -> str:
        """A hash of names, sizes and times: the content of a whole benchmark's predictions would take too long."""
        digest = hashlib.sha256(f"{self.kind} {self.floor}".encode())
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                state = path.stat()
                digest.update(f"{path.relative_to(self.folder)} {state.st_size} {state.st_mtime_ns}".encode())
        return digest.hexdigest()

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        if name is None:
            raise InputError("priors from files are found by the image's name, and this image has none.")
        path = find_prediction(self.folder, name)
        prior = read_prior(path, kind=self.kind, floor=self.floor).prior
        require_image_size(path, prior.shape, image.shape)
        return prior


class ScenePriors(PriorSource):
    """The prediction of a scene folder at an index of ``priors`` in its ``scene.json``.

    Scenes may differ in what their predictions are known up to, so `gauge` is unknown unless the caller declares it.
    """

    name = "scene"
    quantity: PriorKind = "depth"  # each scene states its own

    def __init__(self, index: str | int = 0, *, gauge: str | None = None, floor: float = 0.01) -> None:
        self.index = int(index)
        self.gauge = _declared(gauge) or "unknown"
        self.floor = floor

    def fingerprint(self) -> str:
        return f"scene {self.index} {self.floor}"

    def covers(self, dataset: Any, name: str) -> bool:
        if not hasattr(dataset, "describe"):
            return True
        try:
            return bool(dataset.describe(name).get("priors"))
        except FileError:
            return True  # reading it will report the error

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        stored: list[Prior] = dataset.scene_priors(name) if hasattr(dataset, "scene_priors") else []
        if self.index >= len(stored):
            raise FileError(f"{name}: the scene has {len(stored)} priors, so there is none of index {self.index}.")
        prior = stored[self.index]
        if prior.kind != "disparity" or prior.floor:
            return prior
        return Prior(prior.values, kind="disparity", valid=prior.valid, floor=self.floor)


class NoPrior(PriorSource):
    """A constant prior, so that the result interpolates the measurements smoothly in log depth.

    It has no edges and shapes between the measurements. Any network should do better.
    """

    name = "none"
    quantity: PriorKind = "depth"
    gauge = "scale"

    def __init__(self) -> None:
        """It takes no argument; without this method, the constructor inherited from Protocol would accept any."""

    def fingerprint(self) -> str:
        return "none"

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        return Prior(np.ones(image.shape[:2], np.float32))
