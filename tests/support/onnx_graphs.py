"""Small ONNX files without the package onnx: just enough of the protobuf form to write a graph of a few nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

FLOAT, INT64, FLOAT16 = 1, 7, 10  # element types
_INT, _INTS = 2, 7  # attribute types


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(tag: int, value: int | str | bytes) -> bytes:
    """A field of a message: a number, or a text, message or packed array with its length."""
    if isinstance(value, int):
        return _number(tag << 3) + _number(value)
    content = value.encode() if isinstance(value, str) else value
    return _number(tag << 3 | 2) + _number(len(content)) + content


def node(kind: str, inputs: Sequence[str], output: str, **attributes: int | Sequence[int]) -> bytes:
    parts = [_field(1, name) for name in inputs] + [_field(2, output), _field(4, kind)]
    for name, value in attributes.items():
        if isinstance(value, int):
            content = _field(1, name) + _field(3, value) + _field(20, _INT)
        else:
            content = _field(1, name) + b"".join(_field(8, entry) for entry in value) + _field(20, _INTS)
        parts.append(_field(5, content))
    return b"".join(parts)


def value(name: str, shape: Sequence[int | str], kind: int = FLOAT) -> bytes:
    """An input or output; a text as a side means any."""
    sides = b"".join(_field(1, _field(1 if isinstance(side, int) else 2, side)) for side in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, sides)))


def constant(name: str, content: float | Sequence[int]) -> bytes:
    """A float scalar, or a list of integers."""
    array = np.array(content, np.float32 if isinstance(content, float) else np.int64)
    dims = b"".join(_field(1, side) for side in array.shape)
    kind = FLOAT if isinstance(content, float) else INT64
    return dims + _field(2, kind) + _field(8, name) + _field(9, array.tobytes())


def write_graph(
    path: Path,
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    constants: Sequence[bytes] = (),
) -> Path:
    graph = b"".join(_field(1, one) for one in nodes) + _field(2, "graph")
    graph += b"".join(_field(tag, one) for tag, all_ in ((5, constants), (11, inputs), (12, outputs)) for one in all_)
    path.write_bytes(_field(1, 8) + _field(8, _field(1, "") + _field(2, 13)) + _field(7, graph))
    return path
