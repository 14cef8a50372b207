"""A protocol as the text of a TOML file."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import Any

from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def protocol_toml(protocol: Protocol) -> str:
    """The protocol as TOML, which `read_protocol` reads back to an equal one.

    `limit` is an argument of the command line and no part of the file, so it becomes a comment.

    Examples
    --------
    >>> rooms = DatasetEntry("rendered", "Rooms", options={"count": 2})
    >>> print(protocol_toml(Protocol((rooms,), (PriorEntry("rendered"),), (MethodEntry("ours"),), cases=("outer",))))
    cases = ["outer"]
    stride = 7.5
    methods = [
        {name = "ours", label = "Ours (paper)"},
    ]
    priors = [
        {source = "rendered", label = "rendered"},
    ]
    <BLANKLINE>
    [[datasets]]
    name = "rendered"
    label = "Rooms"
    options = {count = 2}
    <BLANKLINE>
    """
    lines = [] if protocol.limit is None else [f"# The run was limited to {protocol.limit} images of each data set."]
    lines += [f"cases = {_value(list(protocol.cases))}", f"stride = {_value(protocol.stride)}"]
    lists: tuple[tuple[str, tuple[Any, ...]], ...] = (("methods", protocol.methods), ("priors", protocol.priors))
    for name, entries in lists:
        lines += [f"{name} = [", *(f"    {_value(_changed_fields(entry))}," for entry in entries), "]"]
    for entry in protocol.datasets:
        lines += ["", "[[datasets]]", *(f"{name} = {_value(value)}" for name, value in _changed_fields(entry).items())]
    return "\n".join([*lines, ""])


def _changed_fields(entry: DatasetEntry | PriorEntry | MethodEntry) -> dict[str, Any]:
    """The fields of an entry that differ from their defaults."""
    changed = {}
    for field in fields(entry):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(entry, field.name)
        if value != default:
            changed[field.name] = value
    return changed


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(name)} = {_value(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """A basic string of TOML: as in JSON, which however does not escape the control character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
