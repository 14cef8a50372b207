"""iBims-1: 100 indoor images with precise laser depth at 640x480, in either of its two formats.

    [ibims1_core_raw/]{rgb,depth,mask_invalid,mask_transp}/<name>.png, calib/<name>.txt (fx, fy, cx, cy)
    [ibims1_core_mat/]<name>.mat -> data.{rgb, depth, calib, mask_invalid, mask_transp}

Depth in PNG files is 16-bit in units of 50/65535 m, that in mat files is in metres. A pixel is valid where both masks
are 1 (neither transparent, nor reflecting, nor missed by the scanner) and depth is not 0. The paper "caps" depth at
10 m; here depth beyond is not used, or, with ``beyond="clip"``, set to 10 m.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, require_choice
from leadline.datasets import Scene, loading
from leadline.io.depth import read_depth, read_image, read_values
from leadline.io.files import read_text, reading

Format = Literal["auto", "raw", "mat"]

_LIST = "imagelist.txt"
_FIELDS = ("rgb", "depth", "calib", "mask_invalid", "mask_transp")


@dataclass(frozen=True)
class _Ibims(ABC):
    folder: Path  # the folder of the images in the chosen format
    root: Path
    max_depth: float | None
    beyond: loading.Beyond = "drop"

    name = "ibims"

    def names(self) -> list[str]:
        for place in (self.root, self.folder):
            if (place / _LIST).is_file():
                lines = read_text(place / _LIST, "a list of image names").split()
                return loading.require_images(
                    {line.removesuffix(".mat") for line in lines}, place / _LIST, "one name per line"
                )
        return loading.require_images(self._stems(), self.folder, "the images that imagelist.txt names")

    @abstractmethod
    def _stems(self) -> set[str]:
        """The names of the images in the folder, used where there is no list."""


class IbimsRaw(_Ibims):
    """iBims-1 as PNG and text files."""

    def _stems(self) -> set[str]:
        return loading.list_stems(self.folder / "rgb", (".png",)) | loading.list_stems(self.folder / "depth", (".png",))

    def files(self, name: str) -> list[Path]:
        kinds = ("rgb", "depth", "mask_invalid", "mask_transp")
        return [*(self.folder / kind / f"{name}.png" for kind in kinds), self.folder / "calib" / f"{name}.txt"]

    def load(self, name: str) -> Scene:
        image_file, depth_file, *masks, calib = self.files(name)
        image = read_image(image_file)
        depth = read_depth(depth_file, "ibims").values
        loading.require_shape(depth, image.shape, depth_file, image_file)
        valid = np.ones(depth.shape, dtype=bool)
        for file in masks:
            mask = read_values(file)
            loading.require_shape(mask, image.shape, file, image_file)
            valid &= mask > 0
        numbers = loading.read_numbers(calib, (4, 9), "fx, fy, cx, cy")
        camera = loading.pinhole_camera(numbers, image.shape[1], image.shape[0], calib)
        return Scene(name, image, loading.clean_reference(depth, self.max_depth, valid, self.beyond), camera)


class IbimsMat(_Ibims):
    """iBims-1 as one MATLAB file per image."""

    def _stems(self) -> set[str]:
        return loading.list_stems(self.folder, (".mat",))

    def files(self, name: str) -> list[Path]:
        return [self.folder / f"{name}.mat"]

    def load(self, name: str) -> Scene:
        (file,) = self.files(name)
        data = read_struct(file)
        image, depth = np.ascontiguousarray(data["rgb"]), data["depth"]
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise FileError(f"{file}: data.rgb must be (H, W, 3) uint8, got {image.dtype} {image.shape} instead.")
        for kind in ("depth", "mask_invalid", "mask_transp"):
            values, shape = data[kind], image.shape[:2]
            if values.shape != shape or values.dtype.kind not in "iufb":
                got = f"{values.dtype} {values.shape}"
                raise FileError(f"{file}: data.{kind} must be numbers of shape {shape}, got {got} instead.")
        valid = (data["mask_invalid"] > 0) & (data["mask_transp"] > 0)
        calib = data["calib"]
        if calib.size not in (4, 9) or calib.dtype.kind not in "iuf":
            raise FileError(f"{file}: data.calib must hold 4 or 9 numbers, got {calib.dtype} {calib.shape} instead.")
        # MATLAB multiplies row vectors from the left, so the matrix is stored transposed.
        numbers = calib.T.astype(np.float64).ravel().tolist()
        camera = loading.pinhole_camera(numbers, image.shape[1], image.shape[0], file)
        reference = loading.clean_reference(depth.astype(np.float64), self.max_depth, valid, self.beyond)
        return Scene(name, image, reference, camera)


def ibims(
    root: Path, *, format: Format = "auto", max_depth: float | None = 10.0, beyond: loading.Beyond = "drop"
) -> IbimsRaw | IbimsMat:
    """iBims-1 in the folder `root`, which holds ``ibims1_core_raw`` or ``ibims1_core_mat``, or is one of them.

    The format ``raw`` means PNG and text files; ``auto`` prefers them where both formats exist. Depth beyond
    `max_depth` metres is not used, or set to it if `beyond` is ``clip``.
    """
    require_choice("format", format, Format)
    require_choice("beyond", beyond, loading.Beyond)
    loading.require_positive_or_none(max_depth=max_depth)
    raw = next((place for place in (root / "ibims1_core_raw", root) if (place / "rgb").is_dir()), None)
    if raw is not None and format != "mat":
        return IbimsRaw(raw, root, max_depth, beyond)
    # Unpacking the archive into a folder of the same name nests that name twice.
    places = (root / "ibims1_core_mat", root / "ibims1_core_mat" / "ibims1_core_mat", root)
    mat = next((place for place in places if any(place.glob("*.mat"))), None)
    if mat is not None and format != "raw":
        return IbimsMat(mat, root, max_depth, beyond)
    wanted = {"raw": "rgb/*.png", "mat": "*.mat", "auto": "rgb/*.png or *.mat"}[format]
    raise FileError(f"{root}: holds no iBims-1 images. Expected {wanted} in ibims1_core_raw, ibims1_core_mat or here.")


def read_struct(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the variable ``data`` in a MATLAB file of version 5 to 7.3."""
    with reading(file, "a MATLAB file"):
        with file.open("rb") as stream:
            head = stream.read(520)
        if head[512:516] == b"\x89HDF" or head[:4] == b"\x89HDF":
            return _read_hdf5(file)
        from scipy.io import loadmat

        variables = loadmat(str(file), variable_names=["data"])
        if "data" not in variables or variables["data"].dtype.names is None or variables["data"].size != 1:
            raise FileError(f"{file}: has no variable `data` that is one struct. Is it a file of ibims1_core_mat?")
        record = variables["data"].reshape(-1)[0]
        _require_fields(file, record.dtype.names)
        return {field: np.asarray(record[field]) for field in _FIELDS}


def _read_hdf5(file: Path) -> dict[str, NDArray[Any]]:
    h5py = loading.import_h5py("Reading MATLAB 7.3 files")
    with h5py.File(file, "r") as content:
        if "data" not in content or not hasattr(content["data"], "keys"):
            raise FileError(f"{file}: has no variable `data` that is one struct. Is it a file of ibims1_core_mat?")
        group = content["data"]
        _require_fields(file, tuple(group.keys()))
        # HDF5 lists axes in the opposite order of MATLAB.
        return {field: np.asarray(group[field][()]).T for field in _FIELDS}


def _require_fields(file: Path, names: tuple[str, ...]) -> None:
    missing = [field for field in _FIELDS if field not in names]
    if missing:
        raise FileError(f"{file}: its struct `data` has no field {', '.join(missing)}, only {', '.join(names)}.")
