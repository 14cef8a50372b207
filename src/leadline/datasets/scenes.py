"""Scene folders: the project's own interchange form, one folder an image with a ``scene.json`` that says it all.

    <scene>/scene.json      image, reference, sparse, priors, intrinsics: which file, which unit, what is missing
            ...             the files it names

See the page on data sets for every key. Depth is z in metres after ``metres_per_unit``; a pixel is valid when its raw
value is finite, above 0, not listed in ``invalid``, inside ``mask`` and not above ``max_m``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.datasets import tree
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera
from leadline.io.depth.files import read_image, read_values
from leadline.io.depth.units import scaled
from leadline.io.reading import reading

_FILE = "scene.json"


@dataclass(frozen=True, eq=False)
class SparseInput:
    """Measurements that come with a scene.

    Parameters
    ----------
    name, sensor : str
        What the scene calls them, and what measured them.
    values : (h, w) float32 array, metres
        NaN where not measured. On the image's grid or, covering the same view, on one of its own.
    from_reference : bool
        True for a subset of the reference: without sensor noise, and not to be scored.
    """

    name: str
    sensor: str
    values: NDArray[np.float32]
    from_reference: bool


@dataclass(frozen=True)
class SceneFolders:
    """All scene folders below a folder.

    Parameters
    ----------
    root : Path
        Searched to any depth for ``scene.json``; a scene's name is its path from here.
    reference_only : bool
        List only scenes that have a reference to be scored against. `load` takes the others too.
    max_depth : float, optional
        Metres beyond which references are left out, besides the scene's own ``max_m``.
    """

    root: Path
    reference_only: bool = True
    max_depth: float | None = None

    def __post_init__(self) -> None:
        tree.require_positive(max_depth=self.max_depth)

    @property
    def name(self) -> str:
        return "scenes"

    def names(self) -> list[str]:
        names = [path.parent.relative_to(self.root).as_posix() for path in self.root.rglob(_FILE)]
        # One that cannot be read stays in the list, so that loading it says why.
        kept = [name for name in names if not self.reference_only or self._scored(name)]
        return tree.found(kept, self.root, f"folders with a {_FILE}{' that has a reference' * self.reference_only}")

    def files(self, name: str) -> list[Path]:
        folder, paths = self.root / name, [self.root / name / _FILE]
        try:
            scene = self.describe(name)
        except FileError:
            return paths
        parts = scene.get("reference") or {}
        named = [scene.get("image"), parts.get("file"), parts.get("mask")]
        return paths + [folder / part for part in named if isinstance(part, str)]

    def describe(self, name: str) -> dict[str, Any]:
        """The scene's ``scene.json`` as it stands."""
        return tree.read_json(self.root / name / _FILE, "a scene")

    def load(self, name: str) -> Scene:
        scene, file = self.describe(name), self.root / name / _FILE
        with reading(file, "a scene"):
            picture = self.root / name / scene["image"]
            entry, numbers = scene.get("reference"), scene.get("intrinsics")
        image = read_image(picture)
        depth = None
        if entry is not None:
            depth = tree.reference(self._depth(name, entry, image.shape), self.max_depth)
        camera = None
        if numbers is not None:
            with reading(file, "a scene"):
                camera = Camera(*(numbers[key] for key in ("width", "height", "fx", "fy", "cx", "cy")))
            if (camera.width, camera.height) != (image.shape[1], image.shape[0]):
                raise FileError(
                    f"{file}: its intrinsics are for {camera.width}x{camera.height}, but {picture.name} is "
                    f"{image.shape[1]}x{image.shape[0]}."
                )
        return Scene(name, image, depth, camera)

    def scene_sparse(self, name: str) -> list[SparseInput]:
        """The measurements that a scene carries, in the order of its ``sparse``."""
        inputs = []
        for entry in self._entries(name, "sparse"):
            values = self._depth(name, entry, None)
            from_reference = bool(entry.get("from_reference", False))
            inputs.append(SparseInput(str(entry.get("name")), str(entry.get("sensor")), values, from_reference))
        return inputs

    def scene_priors(self, name: str) -> list[Prior]:
        """The monocular predictions that a scene carries, in the order of its ``priors``; ``gauge`` says the rest."""
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
        """Metres as one entry of the scene describes them, on the image's grid where its `shape` is given."""
        scene = self.root / name / _FILE
        with reading(scene, "a scene"):
            file = self.root / name / entry["file"]
            unit, ceiling = float(entry["metres_per_unit"]), entry.get("max_m")
            invalid = [float(value) for value in entry.get("invalid") or []]
            mask = self.root / name / entry["mask"] if entry.get("mask") else None
        raw = read_values(file, key=entry.get("key"))
        if shape is not None:
            tree.require_shape(raw, shape, file, scene.with_name(str(self.describe(name)["image"])))
        # In the file's own precision: a listed 0.0437… is to match the float32 it was read from.
        missing = np.isin(raw, np.array(invalid, dtype=raw.dtype))
        depth = scaled(raw, unit)
        with np.errstate(invalid="ignore"):
            if ceiling is not None:
                missing |= depth > ceiling
        if mask is not None:
            inside = read_values(mask)
            tree.require_shape(inside, depth.shape, mask, file)
            missing |= ~(inside > 0)
        depth[missing] = np.nan
        return depth

    def _scored(self, name: str) -> bool:
        try:
            return self.describe(name).get("reference") is not None
        except FileError:
            return True
