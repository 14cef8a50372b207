"""Finds images whose data have changed since their records were computed, and deletes those records.

The key of a record does not contain the data: reading all of it before a run would take as long as the run. Instead,
the store remembers the state of each image's files: their names, sizes and times of change, not their location. An
image whose files are in the same state is unchanged. Otherwise the scene is loaded, and its content decides: a copied
folder keeps its records, and other values give new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leadline.base.errors import LeadlineError
from leadline.base.strict_json import canonical_json
from leadline.bench.plan import WorkItem
from leadline.bench.protocol import Protocol, find_entry
from leadline.bench.records import RecordStore
from leadline.bench.sources import open_dataset
from leadline.datasets import Dataset, Scene
from leadline.datasets.loading import file_state
from leadline.geometry.cameras import Camera
from leadline.priors.predictor import content_hash


class Changes(NamedTuple):
    """Images whose data have changed, and the number of their records, which were deleted."""

    images: int
    records: int


NO_CHANGES = Changes(0, 0)


class SceneHashes(NamedTuple):
    """Hashes of everything that a scene consists of, of its image, and of its reference, as records have them."""

    scene: str
    image: str
    reference: str


def scene_hashes(scene: Scene) -> SceneHashes:
    """The hashes of a loaded scene. A scene without a reference has an empty one."""
    image = content_hash(scene.image)
    reference = "" if scene.reference is None else content_hash(scene.reference)
    parts = [image, reference]
    if isinstance(scene.camera, Camera):
        parts.append(repr(scene.camera))
    elif scene.camera is not None:
        shape = scene.camera.height, scene.camera.width
        parts.append(content_hash(scene.camera.points(np.ones(shape, dtype=np.float32))))
    for label, measured in sorted(scene.sparse.items()):
        parts += [label, content_hash(measured.values)]
    return SceneHashes(content_hash(*parts), image, reference)


def delete_changed(store: RecordStore, protocol: Protocol, items: Sequence[WorkItem]) -> Changes:
    """Delete the records of the planned images whose data have changed, and remember the state of all their files."""
    known, with_records = store.file_states(), store.images_with_records()
    states: dict[tuple[str, str], str] = {}
    images = records = 0
    opened: dict[str, Dataset] = {}
    for place in dict.fromkeys((item.dataset, item.image) for item in items):
        label, image = place
        if label not in opened:
            opened[label] = open_dataset(find_entry(protocol.datasets, label))
        states[place] = state = _state(opened[label], image)
        if place not in with_records or known.get(place) == state:
            continue
        if not _is_same(opened[label], image, store.scene_hashes(label, image)):
            images += 1
            records += store.delete_image(label, image)
    store.set_file_states({place: state for place, state in states.items() if known.get(place) != state})
    return Changes(images, records)


def _state(data: Dataset, image: str) -> str:
    """A digest of names, sizes and times of change of an image's files."""
    files = [(file.name, *file_state(file)[1:]) for file in data.files(image)]
    return hashlib.sha256(canonical_json(files).encode()).hexdigest()[:32]


def _is_same(data: Dataset, image: str, recorded: set[tuple[str, str, str]]) -> bool:
    """Whether all records of an image were computed from what its files contain now."""
    try:
        found = scene_hashes(data.load(image))
    except LeadlineError:
        return False  # computing the records again gives the reason
    # Records of earlier versions have no hash of the scene.
    return all(tuple(found) == (known or found.scene, *others) for known, *others in recorded)
