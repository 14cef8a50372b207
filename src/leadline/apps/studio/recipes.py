"""The command line and the Python program that compute the same depth as the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from leadline.apps.studio.messages import PRIOR_FILE, Recipe
from leadline.apps.studio.sessions import Role, Session
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.apps.studio.scene import Result
    from leadline.priors.predictor import Predictor


def make_recipe(session: Session, result: Result, predictors: Mapping[str, Predictor], *, show_folders: bool) -> Recipe:
    """The command and the program for a result.

    With a drawn mask both begin with the measurements as used, which can be downloaded. Without `show_folders` the
    model of a network is named without its folder, which is no concern of visitors from elsewhere.
    """
    names = {role: upload.name for role, upload in session.files.items()}
    masked = f"{result.stem}_sparse.npy" if result.measurements_removed else None
    if masked is not None:
        inputs, unit = {"sparse": masked}, "m"
    elif result.files.points is not None:
        inputs, unit = {"points": names[Role.SPARSE], "camera": names[Role.CAMERA]}, None
        if Role.EXTRINSICS in names:
            inputs["extrinsics"] = names[Role.EXTRINSICS]
    else:
        inputs, unit = {"sparse": names[Role.SPARSE]}, result.inputs.unit
    spec = None
    if result.request.prior == PRIOR_FILE:
        inputs["prior"] = names[Role.PRIOR]
    else:
        spec = predictors[result.request.prior].spec if show_folders else result.request.prior.replace(": ", ":")
    options: dict[str, Any] = {} if unit is None else {"unit": unit}
    if spec is None:
        options["prior_kind"] = result.inputs.prior.kind
    sizes = result.inputs.record["sizes"]
    if sizes["prior"] != sizes["image"]:
        options["resize_prior"] = True
    if sizes["sparse"] != sizes["image"] and masked is None:
        options["scatter_sparse"] = True
    inputs = {"image": names[Role.IMAGE], **inputs}
    head = f"# {masked}: “Measurements as used”, downloaded from the page\n" if masked else ""
    program = _program(inputs, options, spec, result)
    return Recipe(head + _command(inputs, options, spec, result), head + program)


def _command(inputs: Mapping[str, str], options: Mapping[str, Any], spec: str | None, result: Result) -> str:
    words = ["leadline", "complete", inputs["image"]]
    for name, value in {**inputs, **({} if spec is None else {"prior": spec})}.items():
        if name != "image":
            words += [f"--{name}", value]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, value]
    words += ["--sigma"] if result.request.uncertainty else []
    return shlex.join([*words, *result.flags, "-o", "out/"])


def _program(inputs: Mapping[str, str], options: Mapping[str, Any], spec: str | None, result: Result) -> str:
    files = ", ".join(f"{name}=Path({value!r})" for name, value in inputs.items())
    settings = ", ".join(f"{name}={value!r}" for name, value in options.items())
    predict = "" if spec is None else f", Predictor({spec!r}).predict"
    uncertainty = ", uncertainty=True" if result.request.uncertainty else ""
    lines = [
        "from pathlib import Path",
        "",
        "import leadline",
        "from leadline.io import FrameFiles, FrameOptions, read_frame",
        *(["from leadline.priors.predictor import Predictor"] if spec else []),
        "",
        f"files = FrameFiles({files})",
        f"frame = read_frame(files, FrameOptions({settings}){predict})",
        f"result = leadline.complete(frame.prior, frame.sparse{uncertainty}{_options_argument(result.options)})",
        "print(result)",
        "result.depth  # (H, W), metres",
    ]
    return "\n".join(lines)


def _options_argument(options: CompletionOptions) -> str:
    """The options as an argument in Python: a preset by name, or the fields that differ from the constructor's."""
    if options == CompletionOptions.best():
        return ', options="best"'
    if options == CompletionOptions.paper():
        return ', options="paper"'
    return f", options=leadline.{_source(options, CompletionOptions())}"


def _source(value: Any, default: Any) -> str:
    parts = []
    for entry in fields(value):
        own, usual = getattr(value, entry.name), getattr(default, entry.name)
        if own != usual:
            text = f"leadline.{_source(own, usual)}" if is_dataclass(own) else repr(own)
            parts.append(f"{entry.name}={text}")
    return f"{type(value).__name__}({', '.join(parts)})"
