"""Scene folders: leadline's own layout, one folder per image with a ``scene.json`` that describes its files.

    <scene>/scene.json      image, reference, sparse, priors, intrinsics: file names, units, missing values
            ...             the files that it names

The documentation of data sets lists every key. Depth is z in metres after multiplication by ``metres_per_unit``. A
pixel is valid if its raw value is finite, above 0 and not listed in ``invalid``, and if it is inside ``mask`` and not
above ``max_m``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, require_choice
from leadline.core.prior import Prior
from leadline.datasets import Scene, SparseInput, loading
from leadline.geometry.cameras import Camera
from leadline.geometry.grids import scatter_nearest
from leadline.io.depth import read_image, read_values
from leadline.io.files import read_json, reading
from leadline.io.units import scale_depth

_FILE = "scene.json"
Listed = Literal["reference", "sensor", "measured", "all"]
_EXPECTED = {
    "reference": " that has a reference",
    "sensor": " that has a reference and measurements of a sensor",
    "measured": " that has measurements and no reference",
    "all": "",
}


def _folders_with(file: str, root: Path) -> Iterator[Path]:
    """The folders below `root` that contain `file`. A folder that symbolic links reach several times is listed once."""
    visited = set()
    for folder, below, files in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in visited:  # a link to a folder above it has no end
            below.clear()
            continue
        visited.add(place)
        below.sort()
        if file in files:
            yield Path(folder)


@dataclass(frozen=True)
class SceneFolders:
    """All scene folders inside a folder. The name of a scene is its path relative to `root`.

    `listed` selects the scenes that `names` lists; `load` accepts the others, too:

    - ``"reference"``: those with a reference.
    - ``"sensor"``: those with a reference and with measurements that were not taken from it.
    - ``"measured"``: those with measurements and without a reference. Their first measurements take its place, so that
      a benchmark can measure some of them and score the others.
    - ``"all"``: all of them.
    """

    name = "scenes"
    root: Path  # searched recursively for scene.json, also through symbolic links
    listed: Listed = "reference"
    max_depth: float | None = None  # metres beyond which references are not used, besides the scene's own max_m

    def __post_init__(self) -> None:
        require_choice("listed", self.listed, Listed)
        loading.require_positive_or_none(max_depth=self.max_depth)

    def names(self) -> list[str]:
        names = [folder.relative_to(self.root).as_posix() for folder in _folders_with(_FILE, self.root)]
        listed = [name for name in names if self._is_listed(name)]
        return loading.require_images(listed, self.root, f"folders with a {_FILE}{_EXPECTED[self.listed]}")

    def files(self, name: str) -> list[Path]:
        folder, paths = self.root / name, [self.root / name / _FILE]
        try:
            scene = self.describe(name)
        except FileError:
            return paths
        parts = scene.get("reference") or {}
        named = [scene.get("image"), parts.get("file"), parts.get("mask")]
        measured = scene.get("sparse")
        for entry in measured if isinstance(measured, list) else []:
            named += [entry.get("file"), entry.get("mask")] if isinstance(entry, dict) else []
        return paths + [folder / part for part in dict.fromkeys(named) if isinstance(part, str)]

    def describe(self, name: str) -> dict[str, Any]:
        """The content of the scene's ``scene.json``."""
        return read_json(self.root / name / _FILE, "a scene")

    def load(self, name: str) -> Scene:
        scene, file = self.describe(name), self.root / name / _FILE
        with reading(file, "a scene"):
            image_file = self.root / name / scene["image"]
            entry, numbers = scene.get("reference"), scene.get("intrinsics")
        image = read_image(image_file)
        depth, sparse = None, self._sparse(name)
        if entry is not None:
            depth = loading.clean_reference(self._depth(name, entry, image.shape), self.max_depth)
        elif self.listed == "measured" and sparse:
            measured = next(iter(sparse.values())).values
            placed, _ = scatter_nearest(measured, (image.shape[0], image.shape[1]))
            depth = loading.clean_reference(placed.astype(np.float32), self.max_depth)
        camera = None
        if numbers is not None:
            with reading(file, "a scene"):
                camera = Camera(*(numbers[key] for key in ("width", "height", "fx", "fy", "cx", "cy")))
            if (camera.width, camera.height) != (image.shape[1], image.shape[0]):
                raise FileError(
                    f"{file}: its intrinsics are for {camera.width}x{camera.height}, but {image_file.name} is "
                    f"{image.shape[1]}x{image.shape[0]}."
                )
        return Scene(name, image, depth, camera, sparse)

    def _sparse(self, name: str) -> dict[str, SparseInput]:
        """The measurements that a scene contains, in the order of its ``sparse``."""
        inputs: dict[str, SparseInput] = {}
        for entry in self._entries(name, "sparse"):
            label = str(entry.get("name"))
            if label in inputs:
                raise FileError(f"{self.root / name / _FILE}: two entries of `sparse` are named {label!r}.")
            values, from_reference = self._depth(name, entry, None), bool(entry.get("from_reference", False))
            inputs[label] = SparseInput(values, str(entry.get("sensor")), from_reference)
        return inputs

    def scene_priors(self, name: str) -> list[Prior]:
        """The monocular predictions that a scene contains, in the order of its ``priors``."""
        file, priors = self.root / name / _FILE, []
        for entry in self._entries(name, "priors"):
            with reading(file, "a scene"):
                values = read_values(self.root / name / entry["file"], key=entry.get("key"))
                try:
                    priors.append(Prior(values, kind=entry["kind"]))
                except InputError as error:
                    raise FileError(f"{file}: a prior is wrong: {error}") from error
        return priors

    def _entries(self, name: str, key: str) -> list[dict[str, Any]]:
        entries = self.describe(name).get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise FileError(f"{self.root / name / _FILE}: `{key}` must be a list of objects.")
        return entries

    def _depth(self, name: str, entry: dict[str, Any], shape: tuple[int, ...] | None) -> NDArray[np.float32]:
        """The depth in metres that an entry of the scene describes; it must have that `shape`, if one is given."""
        scene = self.root / name / _FILE
        with reading(scene, "a scene"):
            file = self.root / name / entry["file"]
            unit, ceiling = float(entry["metres_per_unit"]), entry.get("max_m")
            invalid = [float(value) for value in entry.get("invalid") or []]
            mask = self.root / name / entry["mask"] if entry.get("mask") else None
        raw = read_values(file, key=entry.get("key"))
        if shape is not None:
            loading.require_shape(raw, shape, file, scene.with_name(str(self.describe(name)["image"])))
        # Compared in the dtype of the file, so that a listed 0.0437… matches the float32 that was read.
        missing = np.isin(raw, np.array(invalid, dtype=raw.dtype))
        depth = scale_depth(raw, unit)
        with np.errstate(invalid="ignore"):
            if ceiling is not None:
                missing |= depth > ceiling
        if mask is not None:
            inside = read_values(mask)
            loading.require_shape(inside, depth.shape, mask, file)
            missing |= ~(inside > 0)
        depth[missing] = np.nan
        return depth

    def _is_listed(self, name: str) -> bool:
        """Whether `names` lists a scene. One that cannot be read is listed, so that loading it reports the error."""
        if self.listed == "all":
            return True
        try:
            has_reference = self.describe(name).get("reference") is not None
            measured = self._entries(name, "sparse")
        except FileError:
            return True
        if self.listed == "measured":
            return bool(measured) and not has_reference
        from_sensor = any(not entry.get("from_reference", False) for entry in measured)
        return has_reference and (from_sensor or self.listed == "reference")
