"""Arrays of the views between rounds, in memory or in a folder.

In a folder, each view of each round is one file that is written under a temporary name and renamed. A killed run
therefore leaves whole files only, and the next run continues after them. A few recently used arrays stay in memory,
so that memory does not grow with the number of views.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.io.files import atomic_write, reading, remove_parts, write_text
from leadline.views.evidence import Points

Arrays = Mapping[str, NDArray[Any]]

RECENT_BYTES = 64 * 2**20
"""Bytes of recently used arrays that a folder keeps in memory: fifty maps of 640 x 480 pixels, more than the neighbours
of a view, which are mostly those of the next one in a sequence."""
_RECORD = "views.json"


class Store(Protocol):
    """Arrays by round and name of the view."""

    def has(self, part: str, name: str) -> bool: ...

    def get(self, part: str, name: str, array: str) -> NDArray[Any]: ...

    def put(self, part: str, name: str, arrays: Arrays) -> None: ...


def part_of(number: int) -> str:
    """The part of a store that holds a round."""
    return f"round-{number}"


def stored_points(store: Store, name: str) -> Points:
    """The measurements of a view, as round 0 stores them."""
    return Points(*(store.get(part_of(0), name, array) for array in ("points", "relative", "measured")))


class MemoryStore:
    """All arrays in memory."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], Arrays] = {}

    def has(self, part: str, name: str) -> bool:
        return (part, name) in self._parts

    def get(self, part: str, name: str, array: str) -> NDArray[Any]:
        return self._parts[part, name][array]

    def put(self, part: str, name: str, arrays: Arrays) -> None:
        self._parts[part, name] = dict(arrays)


class FolderStore:
    """Arrays in files ``<folder>/<part>/<name>.npz``, and some of them in memory.

    `facts`, anything that JSON can hold, identify the views.

    Raises
    ------
    InputError
        The folder holds the maps of other views, or of the same views with other inputs or options.
    """

    def __init__(self, folder: Path, facts: Any) -> None:
        self._folder = folder
        self._recent: OrderedDict[tuple[str, str, str], NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._open(facts)

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_recent": OrderedDict(), "_bytes": 0}  # workers read the files themselves

    def _open(self, facts: Any) -> None:
        """Prepare the folder, or check that it is that of these views."""
        text = dump_json(facts)
        digest = hashlib.sha256(text.encode()).hexdigest()
        record = self._folder / _RECORD
        if record.is_file():
            with reading(record, "the record of a store of views"):
                found = json.loads(record.read_text(encoding="utf-8"))["digest"]
            if found != digest:
                raise InputError(
                    f"{param('store')} {self._folder} holds the maps of other views, inputs or options. Use another "
                    "folder, or delete this one."
                )
            remove_parts(self._folder)
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self._folder}: cannot be made ({error.strerror}).") from error
        if any(not path.name.startswith(".") for path in self._folder.iterdir()):
            raise InputError(
                f"{param('store')} {self._folder} is not empty and was not made by Views. Use another folder."
            )
        remove_parts(self._folder)
        write_text(record, dump_json({"digest": digest}))

    def has(self, part: str, name: str) -> bool:
        return self._path(part, name).is_file()

    def get(self, part: str, name: str, array: str) -> NDArray[Any]:
        key = part, name, array
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        path = self._path(part, name)
        with reading(path, "an array of a store of views"), np.load(path, allow_pickle=False) as archive:
            values: NDArray[Any] = archive[array]
        self._recent[key] = values
        self._bytes += values.nbytes
        while self._bytes > RECENT_BYTES and len(self._recent) > 1:
            self._bytes -= self._recent.popitem(last=False)[1].nbytes
        return values

    def put(self, part: str, name: str, arrays: Arrays) -> None:
        path = self._path(part, name)
        path.parent.mkdir(parents=True, exist_ok=True)

        def write(temporary: Path) -> None:
            with temporary.open("wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]

        atomic_write(path, write)
        for key in [key for key in self._recent if key[:2] == (part, name)]:
            self._bytes -= self._recent.pop(key).nbytes

    def _path(self, part: str, name: str) -> Path:
        return self._folder / part / f"{name}.npz"
