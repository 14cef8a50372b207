"""Numeric arrays of a pickled dictionary, without unpickling it.

NumPy stores a dictionary in an npy file as a pickle, and loading a pickle can run any code. This reader follows the
pickle's instructions and understands only those that build dictionaries, lists, tuples, numbers, texts and numeric
arrays; anything else is refused, and nothing is imported or called.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError
from leadline.io.files import reading

_ARRAY_MAKERS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
_DTYPE, _NDARRAY = ("numpy", "dtype"), ("numpy", "ndarray")
_MARK = object()
_PUSH = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Type:
    """A dtype under construction."""

    code: str
    order: str = "="


@dataclass
class _Array:
    """An array under construction: its state is the tuple that NumPy stores."""

    state: tuple[Any, ...] = ()


@dataclass
class _Machine:
    """The stack and memo of the instructions."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop_to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise ValueError("a mark is missing")


def read_pickled_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The numeric arrays of the dictionary in an npy file, by their keys.

    Raises
    ------
    FileError
        The file is missing or damaged, or holds anything but a dictionary of numeric arrays.
    """
    with reading(file, "a dictionary of arrays"), file.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        if version[0] == 1:
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        if dtype.kind != "O" or shape != ():
            raise FileError(f"{file}: must hold a dictionary of arrays, got {dtype} of shape {shape} instead.")
        try:
            content = _build(_run(stream.read()))
        except (ValueError, IndexError, TypeError, KeyError) as error:
            raise FileError(f"{file}: cannot be read as a dictionary of arrays ({error}).") from error
        if isinstance(content, list) and len(content) == 1:
            content = content[0]
        if not isinstance(content, dict) or not all(isinstance(value, np.ndarray) for value in content.values()):
            raise FileError(f"{file}: must hold a dictionary of arrays.")
        return {str(key): value for key, value in content.items()}


def _run(data: bytes) -> Any:
    """The value that the pickle describes, with placeholders for arrays and dtypes."""
    machine = _Machine()
    stack, memo = machine.stack, machine.memo
    instructions: Any = pickletools.genops(io.BytesIO(data))
    for opcode, argument, _ in instructions:
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name in _PUSH:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument)])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        else:
            _STEPS.get(name, _refuse(name))(machine, argument)
    raise ValueError("it ends early")


def _refuse(name: str) -> Callable[[_Machine, Any], None]:
    def refuse(machine: _Machine, argument: Any) -> None:
        raise ValueError(f"it has the instruction {name}, which no dictionary of arrays needs")

    return refuse


def _global(machine: _Machine, module: str, name: str) -> None:
    if (module, name) not in _ARRAY_MAKERS | {_DTYPE, _NDARRAY}:
        raise ValueError(f"it refers to {module}.{name}, which is not part of an array")
    machine.stack.append((module, name))


def _reduce(machine: _Machine, argument: Any) -> None:
    arguments, maker = machine.stack.pop(), machine.stack.pop()
    if maker == _DTYPE:
        machine.stack.append(_Type(arguments[0]))
    elif maker in _ARRAY_MAKERS:
        machine.stack.append(_Array())
    else:
        raise ValueError("it calls something that does not make an array")


def _set_state(machine: _Machine, argument: Any) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, _Type):
        target.order = state[1]
    elif isinstance(target, _Array):
        target.state = state
    else:
        raise ValueError("it changes something that is not an array")


def _set_items(machine: _Machine, items: list[Any]) -> None:
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, argument: machine.stack.append(_MARK),
    "EMPTY_DICT": lambda machine, argument: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, argument: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, argument: machine.stack.append(()),
    "TUPLE": lambda machine, argument: machine.stack.append(tuple(machine.pop_to_mark())),
    "APPEND": lambda machine, argument: machine.stack[-2].append(machine.stack.pop()),
    "APPENDS": lambda machine, argument: _extend(machine, machine.pop_to_mark()),
    "SETITEM": lambda machine, argument: _set_items(machine, [machine.stack.pop(-2), machine.stack.pop(-1)]),
    "SETITEMS": lambda machine, argument: _set_items(machine, machine.pop_to_mark()),
    "GLOBAL": lambda machine, argument: _global(machine, *argument.split(" ")),
    "STACK_GLOBAL": lambda machine, argument: _global(machine, machine.stack.pop(-2), machine.stack.pop()),
    "REDUCE": _reduce,
    "BUILD": _set_state,
}


def _extend(machine: _Machine, items: list[Any]) -> None:
    machine.stack[-1].extend(items)


def _build(value: Any) -> Any:
    """`value` with arrays in place of the placeholders."""
    if isinstance(value, dict):
        return {key: _build(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_build(item) for item in value]
    if not isinstance(value, _Array):
        return value
    _, shape, kind, fortran, data = value.state
    if isinstance(data, (list, tuple)):
        return _build(data)
    if not isinstance(kind, _Type) or kind.code[:1] not in "biuf":
        raise ValueError("an array is not numeric")
    order = "=" if kind.order == "|" else kind.order
    dtype = np.dtype(order + kind.code)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
