"""Errors and statuses, with parameter names that each front end can print in its own words.

A message that advises to change a parameter marks it with `param`. ``str(error)`` prints the Python name; the command
line prints its flag and the studio its label instead, by passing their own wording to `render`. So the library never
mentions a flag, and no front end searches a text for names to replace.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any, get_args

Wording = Callable[[str, "str | None"], str]
"""Function of a parameter's dotted name and its recommended value, or None; returns the text that a user reads."""

# ASCII control characters as delimiters: no file name or formatted value contains them.
_OPEN, _ASSIGN, _CLOSE = "\x02", "\x1d", "\x03"
_REFERENCE = re.compile(f"{_OPEN}([^{_ASSIGN}{_CLOSE}]*)(?:{_ASSIGN}([^{_CLOSE}]*))?{_CLOSE}")


def param(name: str, value: object = None) -> str:
    """A reference to a parameter, to be put into the message of an error, a status or a note.

    `name` is the Python name, dotted for fields of nested options (``fit.max_iterations``); `value` is the value that
    the message recommends.

    Examples
    --------
    >>> str(InputError(f"{param('unit')} must be mm or m; try {param('kind', 'disparity')}."))
    "`unit` must be mm or m; try `kind='disparity'`."
    >>> InputError(f"{param('unit')} must be mm or m.").render(lambda name, value: f"--{name}")
    '--unit must be mm or m.'
    """
    assigned = "" if value is None else f"{_ASSIGN}{value}"
    return f"{_OPEN}{name}{assigned}{_CLOSE}"


def render(text: str, wording: Wording | None = None) -> str:
    """`text` with its parameter references in the words of a front end; by default in Python's."""
    wording = wording or _python_wording
    return _REFERENCE.sub(lambda found: wording(found.group(1), found.group(2)), text)


def _python_wording(name: str, value: str | None) -> str:
    if value is None:
        return f"`{name}`"
    literal = value if value in ("True", "False") or _is_number(value) else repr(value)
    return f"`{name}={literal}`"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class LeadlineError(Exception):
    """A problem that a user can solve. The message names the input, what was expected and given, and what to do."""

    def __str__(self) -> str:
        return self.render()

    def render(self, wording: Wording | None = None) -> str:
        """The message with its parameter references in the words of a front end."""
        return render(super().__str__(), wording)


class InputError(LeadlineError, ValueError):
    """An argument or option has the wrong shape, type, unit or value."""


class FileError(LeadlineError, OSError):
    """A file is missing, truncated, of an unknown format, or does not hold what it should."""


class MissingExtra(LeadlineError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'leadline[{extra}]'")
        self._arguments = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        """Pickle by the constructor's arguments, so that a worker process can pass the error to its parent."""
        return type(self), self._arguments


class NotConverged(LeadlineError, RuntimeError):
    """A stage used a fallback or stopped before its tolerance; raised only with ``strict=True``."""


class InputWarning(UserWarning):
    """An argument is probably not what was meant, such as millimetres that are taken for metres."""


def warn_caller(text: str, package: str) -> None:
    """Issue an `InputWarning` at the line that called `package`, such as "leadline.core".

    Nothing is issued if that line is in another part of leadline: the commands and the studio have notes of their own.
    """
    level, frame = 1, sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and not f"{module}.".startswith(f"{package}."):
            break
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    if frame is not None and not f"{module}.".startswith("leadline."):
        warnings.warn(render(text), InputWarning, stacklevel=level)


class Status(Enum):
    """Base of the statuses of all stages. Each value is a sentence that describes what happened."""

    def __str__(self) -> str:
        return self.describe()

    def describe(self, wording: Wording | None = None) -> str:
        """The name and the sentence, with parameter references in the words of a front end."""
        return f"{self.name.lower()}: {self.advice(wording)}"

    def advice(self, wording: Wording | None = None) -> str:
        """The sentence with its parameter references in the words of a front end."""
        return render(self.value, wording)


def require_choice(name: str, value: str, kind: Any) -> None:
    """Raise `InputError` unless `value` is one of the strings of the Literal type `kind`."""
    if value not in get_args(kind):
        raise InputError(f"{param(name)} must be one of {', '.join(get_args(kind))}, got {value!r} instead.")


def require_positive(**values: float) -> None:
    """Raise `InputError` unless every value is a positive finite number."""
    for name, value in values.items():
        if not (isinstance(value, (int, float)) and value > 0 and math.isfinite(value)):
            raise InputError(f"{param(name)} must be a positive number, got {value!r} instead.")


def require_count(**values: int) -> None:
    """Raise `InputError` unless every value is a positive integer."""
    for name, value in values.items():
        if not (isinstance(value, int) and value > 0):
            raise InputError(f"{param(name)} must be a positive integer, got {value!r} instead.")
