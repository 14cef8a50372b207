"""The flags of a prior, which is a file or is predicted by a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.apps.terminal.help import PATH, PRIOR, key_value_option, option
from leadline.base.errors import InputError, param

if TYPE_CHECKING:
    from leadline.core.prior import PriorKind
    from leadline.priors.predictor import Predictor

KINDS = ("depth", "disparity", "log_depth")
_PREFIX = "prior_"


@dataclass(frozen=True)
class PriorFlags:
    """The flags of a prior as they were given."""

    spec: str | None
    kind: PriorKind | None
    floor: float | None
    device: str | None
    dtype: str | None
    option: dict[str, Any]
    cache: Path | None
    no_cache: bool

    def open(self, focal: float | None = None) -> tuple[Path | None, Predictor | None]:
        """The file or folder of the prior, or else the network that predicts it.

        Parameters
        ----------
        focal : float, optional
            Focal length of the camera in pixels, for networks that take it.

        Raises
        ------
        InputError
            A flag has no effect on a prior of this kind, or two flags say the same.
        """
        from leadline.priors.predictor import find_prior_file

        path = find_prior_file(self.spec or "")
        if path is None:
            return None, self.predictor(focal=focal)
        for name in ("device", "dtype", "option", "cache", "no_cache"):
            if getattr(self, name):
                shown = param("prior_option" if name == "option" else name)
                raise InputError(f"{shown} is for a prior that is predicted, and {param('prior')} is a file.")
        return path, None

    def predictor(self, *, focal: float | None = None, spec: str | None = None) -> Predictor:
        """The network; `spec` replaces the one of the flag."""
        from leadline.priors import prior_options
        from leadline.priors.prediction_cache import default_cache_folder
        from leadline.priors.predictor import Predictor

        if self.cache is not None and self.no_cache:
            raise InputError(f"{param('cache')} and {param('no_cache')} exclude each other; give one of them.")
        spec = spec or self.spec or ""
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
        return Predictor(spec, {**named, **self.option}, cache)


def prior_flags(
    *, text: str, metavar: str = "PATH|NAME[:MODEL]", required: bool = True, file: bool = True
) -> Callable[..., Any]:
    """Decorate a command with the flags of a prior, which it receives as the one argument `prior`, a `PriorFlags`.

    Without `file` the prior is always predicted, and the flags that describe the numbers of a file are left out.
    """
    import click

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def collect(*args: Any, **values: Any) -> Any:
            flags = {field.name: values.pop(f"{_PREFIX}{field.name}", None) for field in fields(PriorFlags)}
            return function(*args, prior=PriorFlags(**flags), **values)

        options = [option("--prior", f"{_PREFIX}spec", group=PRIOR, required=required, metavar=metavar, help=text)]
        if file:
            options += [
                option(
                    "--prior-kind",
                    group=PRIOR,
                    type=click.Choice(KINDS),
                    help="What the numbers of the prior are.  [default: as its sidecar or network says, else depth]",
                ),
                option(
                    "--prior-floor",
                    group=PRIOR,
                    type=float,
                    help="For disparity: values below this share of the largest one are raised to it.  [default: as "
                    "its sidecar or network says, else 0]",
                ),
            ]
        options += [
            option(
                "--device",
                f"{_PREFIX}device",
                group=PRIOR,
                help="Device of the network: auto, cpu, cuda, cuda:1, mps.  [default: auto]",
            ),
            option(
                "--dtype",
                f"{_PREFIX}dtype",
                group=PRIOR,
                help="Data type of the network: float32, float16, bfloat16.  [default: float32]",
            ),
            key_value_option(
                "--prior-option",
                f"{_PREFIX}option",
                group=PRIOR,
                help="Another option of the network, e.g. resolution_level=5; may be repeated.",
            ),
            option(
                "--cache",
                f"{_PREFIX}cache",
                group=PRIOR,
                type=PATH,
                help="Folder where predictions are cached.  [default: the user's cache; see 'leadline priors']",
            ),
            option("--no-cache", f"{_PREFIX}no_cache", group=PRIOR, is_flag=True, help="Do not cache predictions."),
        ]
        for add in reversed(options):
            collect = add(collect)
        return collect

    return decorate
