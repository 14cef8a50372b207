"""Reading files that may be damaged: whatever goes wrong becomes one sentence about the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leadline.base.errors import FileError, LeadlineError


@contextmanager
def reading(file: Path, form: str) -> Iterator[None]:
    """Turn whatever a decoder raises on a bad file into a `FileError` that names it and what was expected."""
    try:
        if not file.exists():
            raise FileError(f"{file}: no such file, expected {form}. Check the path.")
        if file.is_dir():
            raise FileError(f"{file}: is a folder, expected {form}.")
        if file.stat().st_size == 0:
            raise FileError(f"{file}: is empty (0 bytes), expected {form}. Write or copy it again.")
        yield
    except LeadlineError:
        raise
    # Decoders fed with damaged bytes raise anything from KeyError to zlib.error: no narrower set is complete.
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:160] if lines else type(error).__name__
        raise FileError(f"{file}: cannot be read as {form} ({reason}). Is it truncated or of another form?") from error
