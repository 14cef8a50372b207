"""What can be taken away from the page: files, and the command and the program that make the same ones."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.apps.cli import version
from leadline.apps.studio.choices import FILE
from leadline.apps.studio.scene import CLOUDS, Result
from leadline.apps.studio.sessions import Session
from leadline.base.errors import InputError
from leadline.base.strict_json import json_ready
from leadline.batch.frame import sha256_of, units_to_try
from leadline.core.options import CompletionOptions
from leadline.geometry.cameras import RayCamera

if TYPE_CHECKING:
    from leadline.apps.network import Network

KINDS = {
    "depth.npy": "Depth, metres (npy)",
    "depth.png": "Depth, 16-bit PNG",
    "sigma.npy": "Uncertainty, metres (npy)",
    "cloud.ply": "Point cloud (PLY)",
    "report.json": "How it was made (JSON)",
    "sparse.npy": "Measurements as used",
    "prior.npy": "Prior as used",
}
"""What is offered: the end of its name, and what it is."""
_TYPES = {".npy": "application/octet-stream", ".png": "image/png", ".ply": "application/octet-stream"}


def kinds(result: Result) -> dict[str, str]:
    """Those of `KINDS` that this result has."""
    return {kind: text for kind, text in KINDS.items() if kind != "sigma.npy" or result.completion.sigma is not None}


def download(session: Session, result: Result, kind: str) -> tuple[str, str, bytes]:
    """A file to take away: its name, its media type and its content.

    Raises
    ------
    InputError
        There is no such kind.
    """
    from leadline.io.depth.files import write_depth

    known = kinds(result)
    if kind not in known:
        raise InputError(f"there is nothing to download by the name {kind!r}; there are {', '.join(known)}.")
    name = f"{result.stem}_{kind}"
    if kind == "report.json":
        text = json.dumps(json_ready(_record(session, result)), indent=2, allow_nan=False) + "\n"
        return name, "application/json", text.encode()
    depth = result.completion.depth
    writers: dict[str, Callable[[Path], None]] = {
        "depth.npy": lambda path: write_depth(path, depth, "m"),
        "depth.png": lambda path: _write_counts(path, result),
        "cloud.ply": lambda path: _write_cloud(path, result),
        "sigma.npy": lambda path: np.save(path, result.completion.sigma),  # type: ignore[arg-type]
        "sparse.npy": lambda path: write_depth(path, result.sparse, "m"),
        "prior.npy": lambda path: np.save(path, result.maps.prior.values),
    }
    path = session.folder / f"out-{secrets.token_hex(4)}{Path(kind).suffix}"
    try:
        writers[kind](path)
        return name, _TYPES[path.suffix], path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def recipe(session: Session, result: Result, networks: Mapping[str, Network], *, paths: bool = True) -> dict[str, str]:
    """The command line and the Python program that give the same depth.

    Where the page itself changed the measurements, by a mask that was drawn, both begin with the measurements as used,
    which can be downloaded; the program also does so for a network's prior, and for what was brought to another size.
    Without `paths` a network's file is named without its folder: it is no business of visitors from elsewhere.
    """
    names = {role: upload.name for role, upload in session.files.items()}
    cloud = session.files["sparse"].path.suffix in CLOUDS
    kind = result.maps.prior.kind
    lines = []
    sparse, unit = names["sparse"], result.maps.unit
    if result.removed:
        sparse, unit = f"{result.stem}_sparse.npy", "m"
    elif cloud:
        sparse, unit = f"{result.stem}_sparse.npy", "m"
        extrinsics = ["--extrinsics", names["extrinsics"]] if "extrinsics" in names else []
        project = ["project", names["sparse"], "--camera", names["camera"], *extrinsics, "--image", names["image"]]
        lines.append([*project, "-o", sparse])
    own = result.choice.prior == FILE
    prior = names["prior"] if own else networks[result.choice.prior].spec
    if not own and not paths:
        prior = result.choice.prior.replace(": ", ":")
    command = ["complete", names["image"], "--sparse", sparse, "--unit", unit, "--prior", prior]
    if own:
        command += ["--prior-kind", kind]
    sizes = result.facts["sizes"]
    if sizes["prior"] != sizes["image"]:
        command.append("--resize-prior")
    if sizes["sparse"] != sizes["image"] and not result.removed:
        command.append("--scatter-sparse")
    if result.choice.uncertainty:
        command.append("--sigma")
    lines.append([*command, *result.choice.flags, "-o", "out/"])
    shown = "\n".join(shlex.join(["leadline", *line]) for line in lines)

    if sizes["sparse"] != sizes["image"]:
        sparse, unit = f"{result.stem}_sparse.npy", "m"
    if not own or sizes["prior"] != sizes["image"]:
        prior = f"{result.stem}_prior.npy"
    taken = [name for name in (sparse, prior) if name not in names.values()]
    head = f"# {' and '.join(taken)}: downloaded from the page\n" if taken else ""
    return {"command": shown, "python": head + _program(result, sparse, unit, prior)}


def _program(result: Result, sparse: str, unit: str, prior: str) -> str:
    """The call in Python on these two files, of the picture's size."""
    values = result.maps.prior
    sigma = ", uncertainty=True" if result.choice.uncertainty else ""
    floor = f", floor={values.floor!r}" if values.floor else ""
    return (
        "import leadline\n"
        "from leadline.sensors import read_depth, read_values\n\n"
        f"sparse = read_depth({sparse!r}, {unit!r}).values\n"
        f"prior = leadline.Prior(read_values({prior!r}), kind={values.kind!r}{floor})\n"
        f"result = leadline.complete(prior, sparse{sigma}{_options_text(result.choice.options)})\n"
        "print(result)\n"
        "result.depth  # (H, W), metres"
    )


def _options_text(options: CompletionOptions) -> str:
    """The options as source: the preset, or what differs from the default in Python; empty if nothing does."""
    if options == CompletionOptions.best():
        return ", options=leadline.CompletionOptions.best()"
    parts = []
    for field in fields(options):
        value = getattr(options, field.name)
        default = getattr(CompletionOptions(), field.name)
        if value == default:
            continue
        if not is_dataclass(value):
            parts.append(f"{field.name}={value!r}")
            continue
        inner = ", ".join(
            f"{part.name}={getattr(value, part.name)!r}"
            for part in fields(value)
            if getattr(value, part.name) != getattr(default, part.name)
        )
        parts.append(f"{field.name}=leadline.{type(value).__name__}({inner})")
    return f", options=leadline.CompletionOptions({', '.join(parts)})" if parts else ""


def _write_counts(path: Path, result: Result) -> None:
    from leadline.io.depth.files import write_depth

    units = units_to_try(result.settings, result.maps.unit)
    for unit in units:
        try:
            return write_depth(path, result.completion.depth, unit)
        except InputError:
            if unit == units[-1]:
                raise
    return None


def _write_cloud(path: Path, result: Result) -> None:
    from leadline.io.clouds.files import write_ply

    places = result.camera.points(result.completion.depth)
    known = np.isfinite(places).all(axis=-1)
    write_ply(path, places[known], result.maps.image[known])


def _record(session: Session, result: Result) -> dict[str, Any]:
    inputs = {role: {"name": upload.name, "sha256": sha256_of(upload.path)} for role, upload in session.files.items()}
    camera = None if isinstance(result.camera, RayCamera) else vars(result.camera)
    return {
        "leadline": version(),
        "frame": result.stem,
        "inputs": inputs,
        **result.maps.recorded,
        "prior_source": result.choice.prior,
        "camera": {"source": result.camera_from, "pinhole": camera},
        "measurements_removed_by_hand": result.removed,
        "notes": [session.own_words(note) for note in result.notes],
        "result": result.completion.to_dict(),
        "settings": result.settings.record(),
    }
