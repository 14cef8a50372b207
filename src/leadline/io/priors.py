"""Predictions in files, each with a sidecar that says what its numbers are, so that a reader has nothing to declare.

``photo.npy`` holds the numbers, NaN where they are not to be used; ``photo.prior.json`` the quantity, gauge, floor and
camera, and which network said so about which image. A file without a sidecar is read as it is declared to be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np

from leadline.base.errors import FileError, InputError
from leadline.base.strict_json import json_ready
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.atomic import atomic_write
from leadline.io.depth import packaged as packaged_forms
from leadline.io.depth import raw as raw_forms
from leadline.io.depth.files import read_values

# The forms that hold any number in 32 bits. Others, like 16-bit PNG, would round it and lose zero and NaN.
WRITERS = {
    ".npy": raw_forms.write_npy,
    ".npz": raw_forms.write_npz,
    ".pfm": raw_forms.write_pfm,
    ".exr": packaged_forms.write_exr,
    ".tiff": packaged_forms.write_tiff,
}


def sidecar_path(path: Path) -> Path:
    """Where the facts of the prediction in `path` are.

    Examples
    --------
    >>> sidecar_path(Path("priors/photo.npy")).name
    'photo.prior.json'
    """
    return path.with_name(f"{path.stem}.prior.json")


def write_prior(path: Path, prior: Prior, facts: Mapping[str, Any]) -> None:
    """Write a prediction, then its sidecar: what has one is whole.

    Parameters
    ----------
    path : path
        Its suffix is one of `WRITERS`.
    prior : Prior
    facts : mapping
        What else the sidecar is to say, e.g. gauge, model, fingerprint.

    Raises
    ------
    InputError
        The suffix names a form that would not give the same numbers back.
    FileError
        A file cannot be written.
    """
    write = WRITERS.get(path.suffix)
    if write is None:
        raise InputError(f"{path}: a prediction can be saved as {', '.join(WRITERS)}, got {path.suffix!r} instead.")
    values = prior.values.astype(np.float32)
    if prior.valid is not None:
        values[~prior.valid] = np.nan
    record = {
        "file": path.name,
        "quantity": prior.kind,
        "floor": prior.floor,
        "camera": None if prior.camera is None else asdict(prior.camera),
        **facts,
    }
    text = json.dumps(json_ready(record), indent=2, allow_nan=False) + "\n"

    def write_text(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    sidecar_path(path).unlink(missing_ok=True)
    atomic_write(path, lambda part: write(part, values))
    atomic_write(sidecar_path(path), write_text)


def read_facts(path: Path) -> dict[str, Any]:
    """What the sidecar of the prediction in `path` says; {} if there is none.

    Raises
    ------
    FileError
        There is one, and it cannot be read or is not a prediction's.
    """
    sidecar = sidecar_path(path)
    try:
        facts = json.loads(sidecar.read_text(encoding="utf-8"))
        camera = facts["camera"]
        if facts["quantity"] not in get_args(PriorKind) or not isinstance(facts["floor"], (int, float)):
            raise ValueError("quantity or floor")
        return {**facts, "camera": None if camera is None else Camera(**camera)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{sidecar}: cannot be read as the sidecar of a prediction ({error}). Predict again, or delete it and "
            "declare the kind of the prior."
        ) from error


def read_prior(path: Path, *, kind: PriorKind | None = None, floor: float | None = None) -> Prior:
    """The prediction in a file, as its sidecar says, or as it is declared to be, which counts more.

    Parameters
    ----------
    path : path
        In any form that `read_values` reads.
    kind : {"depth", "disparity", "log_depth"}, optional
        Default: the sidecar's; depth without one.
    floor : float, optional
        See `Prior`. Default: the sidecar's, if `kind` is; 0 without one.

    Raises
    ------
    FileError, InputError
        The file or its sidecar cannot be read.
    """
    values, facts = read_values(path), read_facts(path)
    found = kind or facts.get("quantity", "depth")
    stated = facts.get("floor", 0.0) if found == facts.get("quantity") else 0.0
    camera = facts.get("camera")
    if camera is not None and (camera.height, camera.width) != values.shape:
        raise FileError(f"{sidecar_path(path)}: its camera is not of the size of {path.name}; predict again.")
    return Prior(values, kind=found, floor=stated if floor is None else floor, camera=camera)
