"""Outputs that are whole or absent: nothing half written ever carries an output's name."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leadline.base.errors import FileError, LeadlineError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8, whole or not at all; raises as `atomic_write` does."""

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    atomic_write(path, write)


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then move it there in one step.

    A run that is killed leaves the old file, or none. At worst a hidden ``.<name>.<random>.part`` stays
    behind: its suffix keeps it out of every ``*.png`` or ``*.npy`` listing, so a resumed run is not misled.

    Parameters
    ----------
    path : path
        The output. Its folder must exist; a file of that name is replaced.
    write : callable
        Is given the temporary path and must create that file. As its suffix is ``.part``, a writer that
        goes by suffix has to be told its format.

    Raises
    ------
    FileError
        The folder does not exist, `path` is a folder, or the disk refuses. Other errors of `write` pass
        through, and the temporary file is removed in any case.
    """
    target = Path(path)
    # Not mkstemp: its files are private (0600) and would stay so under the output's name.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        if not target.parent.is_dir():
            raise FileError(f"{target}: cannot be written, the folder {target.parent} does not exist. Make it first.")
        if target.is_dir():
            raise FileError(f"{target}: cannot be written, it is a folder. Give a file name.")
        write(temporary)
        os.replace(temporary, target)
    except LeadlineError:
        raise  # some of them are OSErrors too, with a better sentence
    except OSError as error:
        raise FileError(f"{target}: cannot be written ({error.strerror or error}).") from error
    finally:
        # After the move there is nothing left to remove; and a folder that refuses this too has said so above.
        with suppress(OSError):
            temporary.unlink()
