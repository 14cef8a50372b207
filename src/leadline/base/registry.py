"""Names with the object that each stands for, imported on first use: those that a user may write, and public names."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from leadline.base.errors import InputError, param

# Annotations of options, the types that they accept and their names in a message.
_PLAIN_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "Path": ((str, Path), "a path"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "None": ((type(None),), "null"),
}


def suggestion(name: str, known: Iterable[str], fallback: str = "") -> str:
    """The end of a message about an unknown name: names that begin with it or are similar, or else all names.

    Examples
    --------
    >>> suggestion("pnig", ["png", "exr"])
    "did you mean 'png'?"
    >>> suggestion("gif", ["png", "exr"])
    'choose one of exr, png.'
    """
    names = sorted(map(str, known))
    continued = [known_name for known_name in names if name and known_name.startswith(name)][:3]
    close = continued or difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return fallback or f"choose one of {', '.join(names)}."


def check_options(subject: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Raise `InputError` if an option is not among those that `subject`, e.g. "The prior 'onnx'", accepts.

    Examples
    --------
    >>> check_options("The prior 'onnx'", ["flor"], ["card", "floor"])
    Traceback (most recent call last):
    leadline.base.errors.InputError: The prior 'onnx' takes no option 'flor'; did you mean 'floor'?
    """
    names = list(accepted)
    for name in sorted(given):
        if name not in names:
            advice = suggestion(name, names) if names else "it has none."
            raise InputError(f"{subject} takes no option {name!r}; {advice}")


def check_option_types(subject: str, options: Mapping[str, Any], target: Callable[..., Any]) -> None:
    """Raise `InputError` if the value of an option is not of the plain type that the parameter of `target` has.

    Options come from command lines and protocols, where ``floor=low`` is a text and ``floor=0.1`` a number. Parameters
    of other types check their values themselves.

    Examples
    --------
    >>> def blur(radius: float | None) -> None: ...
    >>> check_option_types("The prior 'blur'", {"radius": "low"}, blur)
    Traceback (most recent call last):
    leadline.base.errors.InputError: The prior 'blur': the option 'radius' must be a number or null, got 'low' instead.
    """
    parameters = inspect.signature(target).parameters
    for name, value in options.items():
        annotation = parameters[name].annotation if name in parameters else ""
        kinds = str(getattr(annotation, "__name__", annotation)).split(" | ")
        if not set(kinds) <= _PLAIN_TYPES.keys():
            continue
        accepted = tuple(kind for one in kinds for kind in _PLAIN_TYPES[one][0])
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            words = " or ".join(dict.fromkeys(_PLAIN_TYPES[one][1] for one in kinds))
            raise InputError(f"{subject}: the option {name!r} must be {words}, got {value!r} instead.")


def import_on_first_use(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose public names are imported when they are first used.

    Parameters
    ----------
    package : str
        Name of the package.
    modules : mapping
        The module of each public name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # found there from now on, without a call of this function
        return value

    return load, lambda: sorted(sys.modules[package].__all__)


class Registry(Mapping[str, str]):
    """Names mapped to ``"module:attribute"``; the module is imported when its entry is first loaded.

    Parameters
    ----------
    kind : str
        What the names are, e.g. ``"method"``.
    entries : mapping
        ``{name: "module:attribute"}``.
    parameter : str, optional
        Parameter that the error about an unknown name mentions. Default: `kind`.

    Examples
    --------
    >>> shapes = Registry("sequence", {"counter": "collections:Counter"})
    >>> shapes.load("counter")("aab")["a"]
    2
    >>> shapes.load("conter")
    Traceback (most recent call last):
    leadline.base.errors.InputError: `sequence`: there is no sequence 'conter'; did you mean 'counter'?
    """

    def __init__(self, kind: str, entries: Mapping[str, str], parameter: str | None = None) -> None:
        self.kind, self.parameter = kind, parameter or kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str) -> str:
        """Return `name`; raise `InputError` with close matches if it is not registered."""
        if name not in self._entries:
            raise InputError(f"{param(self.parameter)}: there is no {self.kind} {name!r}; {suggestion(name, self)}")
        return name

    def load(self, name: str) -> Callable[..., Any]:
        """The object that `name` stands for."""
        module, _, attribute = self._entries[self.check(name)].partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), attribute)
        return loaded
