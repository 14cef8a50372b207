"""Predictions of networks in files, each with a sidecar that states what its numbers are.

``photo.npy`` holds the numbers, NaN where there is no prediction. ``photo.prior.json`` holds the quantity, the gauge,
the floor and the camera, and which network predicted them from which image. For a file without a sidecar the caller
states what the numbers are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.core.prior import Prior, PriorKind, PriorKindOrAuto
from leadline.geometry.cameras import Camera
from leadline.io import depth_formats as formats
from leadline.io.depth import read_values
from leadline.io.files import atomic_write, write_text
from leadline.io.notes import Note

# The formats that store any number in 32 bits. Others, like 16-bit PNG, would round it and lose zero and NaN.
WRITERS = {
    ".npy": formats.write_npy,
    ".npz": formats.write_npz,
    ".pfm": formats.write_pfm,
    ".exr": formats.write_exr,
    ".tiff": formats.write_tiff,
}


@dataclass(frozen=True, eq=False)
class SourcedPrior:
    """A prior, and where it comes from."""

    prior: Prior
    # Gauge, model and fingerprint of the network, as far as they are known; ready for JSON.
    record: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def sidecar_path(path: Path) -> Path:
    """The sidecar of the prediction in `path`; it need not exist."""
    return path.with_name(f"{path.stem}.prior.json")


def write_prior(path: Path, prior: Prior, facts: Mapping[str, Any]) -> None:
    """Write a prediction and then its sidecar, so that a prediction with a sidecar is complete.

    `facts` are more entries of the sidecar: gauge, model, fingerprint and so on.
    """
    write_prior_values(path, prior)
    write_text(sidecar_path(path), dump_json(prior_record(path.name, prior, facts)))


def write_prior_values(path: Path, prior: Prior) -> None:
    """Write the numbers of a prediction as float32, NaN where there is none; a sidecar of another one is deleted."""
    write = WRITERS.get(path.suffix)
    if write is None:
        raise InputError(f"{path}: a prediction can be saved as {', '.join(WRITERS)}, got {path.suffix!r} instead.")
    values = prior.values.astype(np.float32)
    if prior.valid is not None:
        values[~prior.valid] = np.nan
    sidecar_path(path).unlink(missing_ok=True)
    atomic_write(path, lambda part: write(part, values))


def prior_record(name: str, prior: Prior, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the sidecar of a prediction in a file of that name, with more entries `facts`."""
    return {
        "file": name,
        "quantity": prior.kind,
        "floor": prior.floor,
        "camera": None if prior.camera is None else asdict(prior.camera),
        **facts,
    }


def read_facts(path: Path) -> dict[str, Any]:
    """The sidecar of the prediction in `path`, as a dictionary; empty if there is none."""
    sidecar = sidecar_path(path)
    try:
        facts = json.loads(sidecar.read_text(encoding="utf-8"))
        camera = facts["camera"]
        if facts["quantity"] not in get_args(PriorKind) or not isinstance(facts["floor"], (int, float)):
            raise ValueError("quantity or floor")
        return {**facts, "camera": None if camera is None else Camera(**camera)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{sidecar}: cannot be read as the sidecar of a prediction ({error}). Predict again, or delete it and "
            f"set {param('prior_kind')}."
        ) from error


def read_prior(path: Path, *, kind: PriorKindOrAuto | None = None, floor: float | None = None) -> SourcedPrior:
    """The prediction in a file of any format that `read_values` reads, with the entries of its sidecar.

    `kind` and `floor` override the sidecar. Without both, the numbers are depth and the floor is 0.
    """
    values, facts = read_values(path), read_facts(path)
    found = kind or facts.get("quantity", "depth")
    if floor and found not in ("disparity", "auto"):
        raise InputError(
            f"{param('prior_floor')} is for {param('prior_kind', 'disparity')} only, and {path} is {found}."
        )
    if floor is None:
        floor = facts.get("floor", 0.0) if found == facts.get("quantity") else 0.0
    camera = facts.get("camera")
    if camera is not None and (camera.height, camera.width) != values.shape:
        raise FileError(f"{sidecar_path(path)}: its camera is not of the size of {path.name}; predict again.")
    record: dict[str, Any] = {name: facts[name] for name in ("gauge", "model", "fingerprint") if name in facts}
    return SourcedPrior(Prior(values, kind=found, floor=floor, camera=camera), record)
