"""What the tests of folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_frames import prepare


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, filled with the files that the examples in the help name."""
    monkeypatch.chdir(tmp_path)
    prepare()
    return tmp_path
