"""The flags of a prior, and flags made from the option dataclasses, so that values and help exist once.

A field of `ReconstructionOptions` or `CompletionOptions` has its own name (``--weight-data``, ``--tolerance``), a field
of `FitOptions` has the prefix ``--fit-`` (``--fit-tolerance``), because both stages have a tolerance and a limit of
iterations.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from leadline.apps.terminal.commands import (
    PATH,
    PRESET,
    PRIOR,
    Numbers,
    camera_option,
    input_option,
    key_value_option,
    option,
    output_option,
    run_option,
)
from leadline.base.errors import InputError, param
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.priors import RECOMMENDED

if TYPE_CHECKING:
    from leadline.core.prior import PriorKindOrAuto
    from leadline.priors.predictor import Predictor


MESH_FORMATS = ("glb", "ply")
KINDS = ("depth", "disparity", "log_depth", "auto")
_PREFIX = "prior_"
Made = TypeVar("Made")


@dataclass(frozen=True)
class PriorFlags:
    """The flags of a prior as they were given."""

    spec: str | None
    kind: PriorKindOrAuto | None
    floor: float | None
    device: str | None
    dtype: str | None
    option: dict[str, Any]
    cache: Path | None
    no_cache: bool
    download: bool = False

    def open(self, focal: float | None = None) -> tuple[Path | None, Predictor | None]:
        """The file or folder of the prior, or else the network that predicts it.

        `focal` is the focal length of the camera in pixels, for networks that take it.
        """
        from leadline.priors.predictor import find_prior_file

        path = find_prior_file(self.spec or RECOMMENDED)
        if path is None:
            return None, self.predictor(focal=focal)
        for name in ("device", "dtype", "option", "cache", "no_cache"):
            if getattr(self, name):
                shown = param("prior_option" if name == "option" else name)
                raise InputError(f"{shown} is for a prior that is predicted, and {param('prior')} is a file.")
        return path, None

    def predictor(self, *, focal: float | None = None, spec: str | None = None) -> Predictor:
        """The network; `spec` replaces the one of the flag."""
        from leadline.apps.terminal.weights import ensure_weights
        from leadline.priors import prior_options
        from leadline.priors.predictor import Predictor, default_cache_folder

        if self.cache is not None and self.no_cache:
            raise InputError(f"{param('cache')} and {param('no_cache')} exclude each other; give one of them.")
        spec = spec or self.spec or RECOMMENDED
        named: dict[str, Any] = {name: getattr(self, name) for name in ("kind", "floor", "device", "dtype")}
        named = {name: value for name, value in named.items() if value is not None}
        takes_focal = "focal" in prior_options(spec.partition(":")[0])
        if focal is not None and takes_focal and not {"focal", "fov_x"} & self.option.keys():
            named["focal"] = focal
        twice = sorted(named.keys() & self.option.keys())
        if twice:
            raise InputError(
                f"{param('prior_option', f'{twice[0]}=...')}: {twice[0]} is set by another flag, too; give one of them."
            )
        cache = None if self.no_cache else self.cache or default_cache_folder()
        predictor = Predictor(spec, {**named, **self.option}, cache)
        ensure_weights(predictor, approved=self.download)
        return predictor


def take_fields(kind: type[Made], values: dict[str, Any], **others: Any) -> Made:
    """An options dataclass of the flags named as its fields, which are removed from `values`, and of `others`."""
    found = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**found, **others)


def prior_flags(
    *, text: str, metavar: str = "PATH|NAME[:MODEL]", default: str = RECOMMENDED, file: bool = True
) -> Callable[..., Any]:
    """Decorate a command with the flags of a prior, which it receives as the one argument `prior`, a `PriorFlags`.

    Without `file` the prior is always predicted, and the flags that describe the numbers of a file are left out.
    """
    described = {
        "kind": "What the numbers of the prior are.  [default: as its sidecar or network says, else depth]",
        "floor": "For disparity: values below this share of the largest one are raised to it.  [default: as its "
        "sidecar or network says, else 0]",
        "device": "Device of the network: auto, cpu, cuda, cuda:1, mps.  [default: auto]",
        "dtype": "Data type of the network: float32, float16, bfloat16.  [default: float32]",
        "option": "Another option of the network, e.g. resolution_level=5; may be repeated.",
        "cache": "Folder where predictions are cached.  [default: the user's cache; see 'leadline priors']",
    }

    def flag(name: str, field: str, **settings: Any) -> Callable[..., Any]:
        return option(name, f"{_PREFIX}{field}", group=PRIOR, help=described[field], **settings)

    options = [option("--prior", f"{_PREFIX}spec", group=PRIOR, metavar=metavar, help=f"{text}  [default: {default}]")]
    if file:
        options += [flag("--prior-kind", "kind", type=click.Choice(KINDS)), flag("--prior-floor", "floor", type=float)]
    options += [
        flag("--device", "device"),
        flag("--dtype", "dtype"),
        key_value_option("--prior-option", f"{_PREFIX}option", group=PRIOR, help=described["option"]),
        flag("--cache", "cache", type=PATH),
        option("--no-cache", f"{_PREFIX}no_cache", group=PRIOR, is_flag=True, help="Do not cache predictions."),
        option(
            "--download",
            f"{_PREFIX}download",
            group=PRIOR,
            is_flag=True,
            help="Download the network's weights without asking, if they are not on this machine.",
        ),
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def collect(*args: Any, **values: Any) -> Any:
            flags = {field.name: values.pop(f"{_PREFIX}{field.name}", None) for field in fields(PriorFlags)}
            return function(*args, prior=PriorFlags(**flags), **values)

        for add in reversed(options):  # decorators apply from the inside out
            collect = add(collect)
        return collect

    return decorate


min_confidence_flag = input_option(
    "--min-confidence",
    type=float,
    help="Leave out measurements of lower confidence.  [default: 2, the highest of ARKit's levels]",
)
noise_flag = input_option(
    "--noise",
    type=Numbers(),
    metavar="C[,P[,Q]]",
    help="Standard deviation of a measurement z: the root of C^2 + (P z)^2 + (Q z^2)^2, in metres.  [default: the "
    "measurements are exact]",
)
sigma_flag = output_option(
    "--sigma",
    is_flag=True,
    help="Also write the standard deviation of the depth in metres (npy beside a png). It takes three times as long.",
)
edge_filter_flag = output_option(
    "--edge-filter/--no-edge-filter",
    default=True,
    help="Leave pixels between two objects out of clouds and meshes; the depth keeps them.",
)
quiet_flag = run_option("--quiet", is_flag=True, help="Print only notes and errors.")


def geometry_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the flags of point clouds and meshes, which are fields of `OutputOptions`."""
    cloud = output_option(
        "--ply", is_flag=True, help="Also write a point cloud with colours and normals; needs a camera."
    )
    mesh = output_option(
        "--mesh",
        type=click.Choice(MESH_FORMATS),
        help="Also write a mesh: glb, textured by the image, or ply, with the colours of its points; needs a camera.",
    )
    decorated: Callable[..., Any] = cloud(mesh(edge_filter_flag(function)))
    return decorated


def camera_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the flags of the camera of an image, and of its place relative to a point cloud."""
    flags = (
        camera_option(
            "--intrinsics",
            type=Numbers(),
            metavar="FX,FY,CX,CY",
            help="Pinhole camera in pixels, for --ply and --mesh; pixel centres are at integers.",
        ),
        camera_option(
            "--camera",
            type=PATH,
            metavar="FILE",
            help="Camera as JSON, for --ply, --mesh, --points: {width, height, fx, fy, cx, cy}; a lens adds model and "
            "params.",
        ),
        camera_option(
            "--extrinsics",
            type=PATH,
            metavar="FILE",
            help="For --points: transform from the cloud to the camera, JSON.",
        ),
        camera_option(
            "--kitti",
            type=PATH,
            metavar="PATH",
            help="For --points: KITTI's calibration, in place of --camera and --extrinsics.",
        ),
    )
    for flag in reversed(flags):
        function = flag(function)
    return function


PRESETS = {"best": CompletionOptions.best, "paper": CompletionOptions.paper}
DEFAULT = "best"
PREFIXES = {"": "", "fit": "fit_", "reconstruction": ""}
"""Prefixes of the flags, by the field of `CompletionOptions` that holds the options; "" for its own fields."""
_CLASSES = {"": CompletionOptions, "fit": FitOptions, "reconstruction": ReconstructionOptions}
_HEADINGS = {"": PRESET, "fit": "Fit of the response", "reconstruction": "Solve for the residual"}


@dataclass(frozen=True)
class OptionField:
    """A field of the options, and the flag that is made from it."""

    owner: str  # "", "fit" or "reconstruction"
    field: Field[Any]
    hint: Any

    @property
    def parameter(self) -> str:
        """Name of the parameter of a command."""
        return f"{PREFIXES[self.owner]}{self.field.name}"

    @property
    def flag(self) -> str:
        return f"--{self.parameter}".replace("_", "-")

    def value(self, options: CompletionOptions) -> Any:
        return getattr(getattr(options, self.owner) if self.owner else options, self.field.name)

    def help(self, default: Any = None) -> str:
        """The help of the field, and the value in each preset, unless the command has a `default` of its own."""
        text = self.field.metadata["help"]
        if default is not None:
            return f"{text[0].upper()}{text[1:]}.  [default: {_text(default)}]"
        shown = {name: _text(self.value(make())) for name, make in PRESETS.items()}
        if len(set(shown.values())) > 1:
            values = "; ".join(f"{name}: {value}" for name, value in shown.items())
        else:
            values = f"default: {shown[DEFAULT]}"
        unset = all(self.value(make()) is None for make in PRESETS.values())  # the help then says what applies
        return f"{text[0].upper()}{text[1:]}." + ("" if unset else f"  [{values}]")


def option_fields() -> Iterator[OptionField]:
    """All fields of `CompletionOptions` and of the options in it."""
    for owner, cls in _CLASSES.items():
        hints = get_type_hints(cls)
        for field in fields(cls):
            if field.name not in _CLASSES:
                yield OptionField(owner, field, hints[field.name])


def completion_flags_with(**defaults: Any) -> Callable[..., Any]:
    """Decorate a command with ``--preset`` and a flag for each option; it receives them as `completion`.

    The flags of the fit and of the reconstruction are advanced. `defaults` of the command replace those of the preset.
    """
    entries = list(option_fields())

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def collect(*args: Any, **values: Any) -> Any:
            chosen = {entry.parameter: values.pop(entry.parameter) for entry in entries}
            chosen |= {name: value for name, value in defaults.items() if chosen[name] is None}
            return function(*args, completion=completion_options({"preset": values.pop("preset"), **chosen}), **values)

        for entry in reversed(entries):
            is_bool = entry.hint is bool
            collect = option(
                f"{entry.flag}/--no-{entry.flag[2:]}" if is_bool else entry.flag,
                entry.parameter,
                group=_HEADINGS[entry.owner],
                advanced=bool(entry.owner),
                default=None,
                help=entry.help(defaults.get(entry.parameter)),
                **({} if is_bool else {"type": _click_type(entry.hint)}),
            )(collect)
        with_preset: Callable[..., Any] = option(
            "--preset",
            group=PRESET,
            type=click.Choice(list(PRESETS)),
            default=DEFAULT,
            help="The most accurate settings, or those of the paper. Other flags change single settings of the preset.",
        )(collect)
        return with_preset

    return decorate


completion_flags = completion_flags_with()


def completion_options(values: Mapping[str, Any]) -> CompletionOptions:
    """The preset ``values["preset"]``, with the flags that were given (are not None) in place of its values."""
    options = PRESETS[values["preset"]]()
    given: dict[str, dict[str, Any]] = {owner: {} for owner in _CLASSES}
    for entry in option_fields():
        if values.get(entry.parameter) is not None:
            given[entry.owner][entry.field.name] = values[entry.parameter]
    return replace(
        options,
        fit=replace(options.fit, **given["fit"]),
        reconstruction=replace(options.reconstruction, **given["reconstruction"]),
        **given[""],
    )


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _click_type(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (member for member in get_args(hint) if member is not type(None))
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return Numbers()
    if hint in (int, float):
        return hint
    raise TypeError(f"no flag can be made for a field of type {hint}")
