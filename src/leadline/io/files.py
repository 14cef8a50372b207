"""Reading of files that may be damaged, and atomic writing.

Every error while reading becomes a `FileError` with one sentence about the file. A written file appears under its name
only when it is complete.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, LeadlineError, param

_MAX_TEXT_BYTES = 16 * 2**20  # calibrations and lists are far smaller, so a larger file is of another kind
_PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")  # the names of temporary files


@contextmanager
def reading(file: Path, expected: str) -> Iterator[None]:
    """Turn every error of a decoder into a `FileError` that names the file and what was `expected`, e.g. "a PNG"."""
    try:
        if not file.exists():
            raise FileError(f"{file}: no such file, expected {expected}. Check the path.")
        if file.is_dir():
            raise FileError(f"{file}: is a folder, expected {expected}.")
        if file.stat().st_size == 0:
            raise FileError(f"{file}: is empty (0 bytes), expected {expected}. Write or copy it again.")
        yield
    except LeadlineError:
        raise
    # On damaged bytes decoders raise anything from KeyError to zlib.error: no narrower set is complete.
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:160] if lines else type(error).__name__
        raise FileError(
            f"{file}: cannot be read as {expected} ({reason}). Is it truncated or in another format?"
        ) from error


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Put the name of the file before every `InputError`, e.g. of a camera whose numbers are wrong."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error.args[0]}") from error


def why_no_folder(path: Path) -> str:
    """Why a path, which should be a folder, is none."""
    return "is a file, not a folder" if path.is_file() else "there is no such folder"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; a file of that name, and whatever else prevents it, is a `FileError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "there is a file of this name" if folder.is_file() else error.strerror
        raise FileError(f"{folder}: the folder cannot be made ({reason}); choose another one.") from error


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process uses in the same way.

    The lock is one of the system on the folder itself: it leaves no file, and it ends with the process, however that
    ends. Windows and some network file systems have no such locks; nothing is refused there.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{param('output')} {folder}: another run is writing there; wait until it ends, or choose another "
                "folder."
            ) from error
        except OSError:  # no locks there
            pass
        yield
    finally:
        os.close(handle)


def read_text(file: Path, expected: str) -> str:
    """A small UTF-8 text file; raises as `reading` does."""
    with reading(file, expected):
        if file.stat().st_size > _MAX_TEXT_BYTES:
            raise FileError(f"{file}: has {file.stat().st_size} bytes, too many for {expected}. Is it another file?")
        try:
            return file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise FileError(f"{file}: is not a text file, expected {expected}. Is it another file?") from error


def read_json(file: Path, expected: str) -> dict[str, Any]:
    """The object in a JSON file; raises as `reading` does."""
    text = read_text(file, expected)
    with reading(file, expected):
        content = json.loads(text)
    if not isinstance(content, dict):
        raise FileError(f"{file}: must hold a JSON object, got {type(content).__name__} instead.")
    return content


def read_npy_array(
    file: Path, stream: IO[bytes], check: Callable[[Path, tuple[int, ...], np.dtype[Any]], object]
) -> NDArray[Any]:
    """The array of an npy stream; `check` may refuse its declared shape and dtype before anything is allocated.

    NumPy's own reader allocates first, so that a damaged header could claim all memory.
    """
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, columns_first, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, columns_first, dtype = npy_format.read_array_header_2_0(stream)
    else:  # version 3.0 exists for names of fields only, which plain arrays do not have
        raise FileError(f"{file}: is npy version {version[0]}.{version[1]}, expected 1.0 or 2.0. Save it again.")
    check(file, shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    data = stream.read(size)
    if len(data) < size:
        raise FileError(f"{file}: is truncated: {len(data)} of {size} bytes of its array are there.")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if columns_first else "C")


def parse_table(
    file: Path, text: Path | list[str], dtype: np.dtype[np.void], count: int, *, skip: int = 0
) -> NDArray[np.void]:
    """`count` points from lines of text, after `skip` other lines; raises `FileError` if one is not of `dtype`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # missing lines are reported below
            points: NDArray[np.void] = np.loadtxt(
                text, dtype, comments=None, skiprows=skip, max_rows=count, ndmin=1, encoding="latin-1"
            )
    except ValueError as error:
        names = ", ".join(dtype.names or ())
        raise FileError(f"{file}: has a point that is not the numbers {names} ({error}).") from error
    if len(points) < count:
        raise FileError(f"{file}: declares {count} points and holds {len(points)}. Is it truncated?")
    return points


def choose_key(file: Path, names: Iterable[str], key: str | None, preferred: tuple[str, ...], kind: str) -> str:
    """The name of the array to read: `key`, or the first of `preferred` in the file, or the only one."""
    known = list(names)
    if key is not None:
        if key in known:
            return key
        raise FileError(f"{file}: has no {kind} {key!r}, only {_list_names(known)}. Choose one with {param('key')}.")
    for name in preferred:
        if name in known:
            return name
    if len(known) == 1:
        return known[0]
    if not known:
        raise FileError(f"{file}: has no {kind} at all.")
    raise FileError(
        f"{file}: has no {kind} named {' or '.join(preferred)} but {_list_names(known)}. Choose one with "
        f"{param('key')}."
    )


def _list_names(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12]) or "nothing"
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def file_hash(path: Path) -> str:
    """SHA-256 of the content of a file, or of the text files of a folder (KITTI's calibration)."""
    try:
        if path.is_dir():
            contents = b"".join(entry.read_bytes() for entry in sorted(path.glob("*.txt")))
            return hashlib.sha256(contents).hexdigest()
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}).") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8; see `atomic_write`."""
    atomic_write(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_csv(path: str | os.PathLike[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV; see `atomic_write`."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)

    atomic_write(path, write)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of `atomic_write` that a killed run left in a folder and those below it.

    No other process may be writing there.
    """
    for path in folder.rglob(".*.part"):
        if _PART.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def remove_parts_of(path: Path) -> None:
    """Remove the temporary files of `atomic_write` that killed runs left of one file; no other may be writing it."""
    for other in path.parent.glob(".*.part*"):
        if re.fullmatch(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part(\.\w+)?", other.name):
            with suppress(OSError):
                other.unlink()


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write` create a temporary file in the folder of `path`, then rename it to `path` in one step.

    A run that is killed leaves the old file or none, and at most a hidden ``.<name>.<random>.part``, which no listing
    of ``*.png`` or ``*.npy`` contains. The folder of `path` must exist; a file of that name is replaced. The suffix of
    the temporary path is ``.part``, so a writer that chooses the format by the suffix needs the format as an argument.
    """
    target = Path(path)
    # mkstemp would make the file private (0600), and it would stay private after the rename.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        if not target.parent.is_dir():
            raise FileError(f"{target}: cannot be written, the folder {target.parent} does not exist. Make it first.")
        if target.is_dir():
            raise FileError(f"{target}: cannot be written, it is a folder. Give a file name.")
        write(temporary)
        os.replace(temporary, target)
    except LeadlineError:
        raise  # FileError is an OSError, too, and has a better message
    except OSError as error:
        raise FileError(f"{target}: cannot be written ({error.strerror or error}).") from error
    finally:
        # After the rename there is nothing to remove; if removing fails, writing has failed before.
        with suppress(OSError):
            temporary.unlink()
