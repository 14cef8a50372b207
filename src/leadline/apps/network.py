"""A prior that is predicted: its flags on the command line, the network opened once, its predictions kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from leadline.apps.datasets import parse_options
from leadline.base.errors import InputError
from leadline.core.prior import Prior, PriorKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leadline.priors import PriorSource

FLAGS = {
    "device": click.option("--device", help="Where the network runs: auto, cpu, cuda, cuda:1, mps.  [default: auto]"),
    "precision": click.option("--precision", help="Of the network: float32, float16 or bfloat16.  [default: float32]"),
    "prior_option": click.option(
        "--prior-option",
        multiple=True,
        metavar="KEY=VALUE",
        callback=parse_options,
        help="Another option of the prior, e.g. resolution_level=5; may be repeated.",
    ),
    "cache": click.option(
        "--cache",
        type=click.Path(path_type=Path),
        help="Folder where predictions are kept.  [default: the user's cache; see 'leadline priors']",
    ),
    "no_cache": click.option("--no-cache", is_flag=True, help="Predict again, and keep no prediction."),
}


def network_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the flags of a prior that is predicted."""
    return reduce(lambda made, flag: flag(made), reversed(FLAGS.values()), function)


def prior_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the flags of any prior, of a file or predicted: what its numbers are, and `FLAGS`."""
    kind = click.option(
        "--prior-kind",
        type=click.Choice(get_args(PriorKind)),
        help="What the prior's numbers are.  [default: as it says itself; depth for a file that says nothing]",
    )
    floor = click.option(
        "--prior-floor",
        type=float,
        help="For disparity: raise values below this share of the largest one to it.  [default: the prior's own, or 0]",
    )
    return kind(floor(network_flags(function)))


def given_flags(flags: Mapping[str, Any]) -> list[str]:
    """Those of `FLAGS` that were given, as they are typed."""
    return [f"--{name}".replace("_", "-") for name in FLAGS if flags[name]]


class Network:
    """A prior by its name in the registry, opened when it is first needed, once in each process.

    Parameters
    ----------
    spec : str
        As for `prior_source`, e.g. ``onnx:model.onnx``.
    options : mapping
        As for `prior_source`.
    cache : path, optional
        Folder for its predictions. Default: they are not kept.
    """

    def __init__(self, spec: str, options: Mapping[str, Any], cache: Path | None) -> None:
        self.spec, self.options, self.cache = spec, dict(options), cache
        self._opened: tuple[PriorSource, str] | None = None

    @classmethod
    def from_flags(cls, spec: str, flags: Mapping[str, Any], **options: Any) -> Network:
        """The network that a command's parameters describe; `options` are those that other flags stand for.

        Raises
        ------
        InputError
            An option is given twice, or is not one of this prior's.
        """
        from leadline.priors.cache import user_cache

        if flags["cache"] is not None and flags["no_cache"]:
            raise InputError("--cache and --no-cache exclude each other; give one of them.")
        named = {name: flags[name] for name in ("device", "precision") if flags[name] is not None}
        twice = sorted((named | options).keys() & flags["prior_option"].keys())
        if twice:
            raise InputError(
                f"--prior-option {twice[0]}=...: {twice[0]} is set by another flag, too; give one of them."
            )
        chosen = {**named, **options, **flags["prior_option"]}
        return cls(spec, chosen, None if flags["no_cache"] else flags["cache"] or user_cache())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # a network belongs to its process

    @property
    def source(self) -> PriorSource:
        """The source itself; see `prior_source` for what may be wrong with it."""
        return self._open()[0]

    @property
    def fingerprint(self) -> str:
        """Changes whenever a prediction may."""
        return self._open()[1]

    @property
    def note(self) -> str:
        """What a user should know of its predictions; "" if nothing."""
        return str(getattr(self.source, "note", ""))

    def predict(self, image: NDArray[np.uint8], name: str) -> tuple[Prior, dict[str, Any]]:
        """What it says about an image, and whose word that is: gauge, model and fingerprint."""
        from leadline.priors.cache import NOT_CACHED, PriorCache

        source, fingerprint = self._open()
        about = {"gauge": source.gauge, "model": source.name, "fingerprint": fingerprint}
        if self.cache is None or self.spec.partition(":")[0] in NOT_CACHED:
            return source(image, name=name), about
        return PriorCache(self.cache).predict(source, image, fingerprint), about

    def _open(self) -> tuple[PriorSource, str]:
        if self._opened is None:
            from leadline.priors import prior_source

            source = prior_source(self.spec, **self.options)
            self._opened = source, source.fingerprint()
        return self._opened
