"""Atomic writes: a file appears under its name only when it is complete."""

from __future__ import annotations

import csv
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from leadline.base.errors import FileError, LeadlineError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8; see `atomic_write`."""

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    atomic_write(path, write)


def write_csv(path: str | os.PathLike[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV; see `atomic_write`."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)

    atomic_write(path, write)


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Let `write` create a temporary file in the folder of `path`, then rename it to `path` in one step.

    A run that is killed leaves the old file or none, and at most a hidden ``.<name>.<random>.part``, which no listing
    of ``*.png`` or ``*.npy`` contains.

    Parameters
    ----------
    path : path
        The output. Its folder must exist; a file of that name is replaced.
    write : callable
        Called with the temporary path; must create that file. The suffix is ``.part``, so a writer that chooses the
        format by the suffix needs the format as an argument.

    Raises
    ------
    FileError
        The folder does not exist, `path` is a folder, or writing fails. Other errors of `write` pass through. The
        temporary file is removed in any case.
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
