"""A scene without measurements: the relative depth of its prior, as `leadline complete photo.jpg` writes it."""

from __future__ import annotations

import io
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.apps.studio.form import label_of
from leadline.apps.studio.scene import PRIOR_FILE, CompleteRequest, Uploads, next_revision, predict_with
from leadline.apps.studio.sessions import Role, Session
from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.base.strict_json import dump_json
from leadline.batch.folder import prediction_facts
from leadline.batch.outcome import package_version
from leadline.batch.relative_depth import RelativeDepth, read_relative_depth
from leadline.io.files import file_hash
from leadline.io.priors import prior_record, write_prior_values
from leadline.report.colour import Picture, colour_range, colourise

if TYPE_CHECKING:
    from leadline.priors.predictor import Predictor

_DOWNLOADS = {
    "npy": "Relative depth as predicted (npy)",
    "prior.json": "What its numbers are (JSON)",
    "preview.png": "Picture of image and depth (PNG)",
}
"""Titles of the files to download, whose names are those of the command line."""


@dataclass(eq=False)
class RelativeResult:
    """The relative depth of an image, and what it was computed from."""

    revision: int
    request: CompleteRequest
    image_name: str
    image_hash: str
    prior_name: str | None  # of the file; None if a network predicted it
    predictor: Predictor | None
    found: RelativeDepth
    unused: tuple[str, ...]  # labels of what was given and has no effect without measurements

    @property
    def stem(self) -> str:
        return Path(self.image_name).stem

    @property
    def has_own_metres(self) -> bool:
        return self.found.is_metric


def show_relative_depth(
    session: Session,
    uploads: Uploads,
    request: CompleteRequest,
    predictors: Mapping[str, Predictor],
    report: Callable[[str], None],
) -> RelativeResult:
    """The relative depth of the image of `uploads`, which have no measurements."""
    is_file = request.prior == PRIOR_FILE
    needed = {Role.IMAGE: "an image", **({Role.PRIOR: "a prior"} if is_file else {})}
    missing = [text for role, text in needed.items() if role not in uploads]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: drop the file onto its field, or try an example.")
    report("Reading the files")
    image = uploads[Role.IMAGE]
    prior = uploads[Role.PRIOR] if is_file else None
    found = read_relative_depth(
        image.path,
        None if prior is None else prior.path,
        kind=request.prior_kind if is_file else None,
        predict=predict_with(session, request.prior, predictors, report),
    )
    roles = (Role.CAMERA, Role.EXTRINSICS, Role.REFERENCE)
    unused = [label_of(role.value) for role in roles if role in uploads]
    unused += [label_of("uncertainty")] if request.uncertainty else []
    unused += [label_of("options")] if any(request.options.values()) else []
    return RelativeResult(
        next_revision(),
        request,
        image.name,
        file_hash(image.path),
        None if prior is None else prior.name,
        predictors.get(request.prior),
        found,
        tuple(unused),
    )


def summarize(session: Session, result: RelativeResult, *, show_folders: bool) -> dict[str, Any]:
    """The texts about a relative depth; `near` and `far` are in the network's metres, or null without a unit."""
    depth = result.found.depth
    near, far = colour_range(depth) if result.has_own_metres else (None, None)
    height, width = depth.shape
    # On the page both kinds of measurements have one field, so that the advice of the command line would name it twice.
    notes = [
        (f"{result.found.describe()}; add “{label_of('sparse')}” for depth in metres that agrees with them.", True)
    ]
    notes += [(session.render(note.text), False) for note in result.found.source.notes]
    if result.unused:
        notes.append((f"without measurements there is no use for: {', '.join(result.unused)}.", True))
    return {
        "relative": True,
        "revision": result.revision,
        "width": width,
        "height": height,
        "views": ["image", "relative"],
        "near": near,
        "far": far,
        "prior": result.prior_name or result.request.prior,
        "holds": result.found.prior.kind,
        "notes": [{"text": text, "warning": warning} for text, warning in notes],
        "downloads": _DOWNLOADS,
        "inputs": {},
        "recipe": make_recipe(result, show_folders=show_folders),
    }


def draw_view(result: RelativeResult, name: str) -> Picture:
    """The image, or its relative depth in colours."""
    if name == "image":
        return result.found.image
    if name == "relative":
        return colourise(result.found.depth)
    raise InputError(f"there is no view {name!r} of this result; {suggestion(name, ('image', 'relative'))}")


def make_download(session: Session, result: RelativeResult, kind: str, *, show_folders: bool) -> tuple[bytes, str, str]:
    """The content, the media type and the name of a file of that kind."""
    if kind not in _DOWNLOADS:
        raise InputError(f"there is no download {kind!r}; {suggestion(kind, _DOWNLOADS)}")
    found = result.found
    if kind == "preview.png":
        stream = io.BytesIO()
        found.draw().save(stream, "PNG")
        return stream.getvalue(), "image/png", f"{result.stem}_preview.png"
    name = f"{result.stem}.{kind}"
    if kind == "prior.json":
        record = prior_record(f"{result.stem}.npy", found.source.prior, _facts(result, show_folders=show_folders))
        return dump_json(record).encode(), "application/json", name
    path = session.folder / f"out-{secrets.token_hex(4)}.npy"
    try:
        write_prior_values(path, found.source.prior)
        return path.read_bytes(), "application/octet-stream", name
    finally:
        path.unlink(missing_ok=True)


def _facts(result: RelativeResult, *, show_folders: bool) -> dict[str, Any]:
    source = {"path": result.image_name, "sha256": result.image_hash}
    if result.predictor is None or result.prior_name is not None:
        return {**result.found.source.record, "leadline": package_version(), "image": source}
    return prediction_facts(result.found.source, result.predictor, source) | {"prior": _spec(result, show_folders)}


def _spec(result: RelativeResult, show_folders: bool) -> str:
    """The network as `--prior` takes it; visitors from elsewhere should not see the folder of its model."""
    name = result.request.prior
    return result.predictor.spec if show_folders and result.predictor is not None else name.replace(": ", ":")


def make_recipe(result: RelativeResult, *, show_folders: bool) -> dict[str, str]:
    """The command line and the Python program for the same depth; a prior in a file needs no command."""
    if result.prior_name is None:
        spec = _spec(result, show_folders)
        command = shlex.join(["leadline", "complete", result.image_name, "--prior", spec, "-o", "out/"])
        arguments, imports = f"predict=Predictor({spec!r}).predict", ["from leadline.priors.predictor import Predictor"]
    else:
        command, imports = "", []
        arguments = f"Path({result.prior_name!r}), kind={result.found.prior.kind!r}"
    lines = [
        "from pathlib import Path",
        "",
        "from leadline.batch.relative_depth import read_relative_depth",
        *imports,
        "",
        f"found = read_relative_depth(Path({result.image_name!r}), {arguments})",
        f"found.depth  # (H, W), larger is farther; {'metres of the network' if result.has_own_metres else 'no unit'}",
    ]
    return {"command": command, "python": "\n".join(lines)}
