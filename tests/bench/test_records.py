"""The store of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.base.errors import FileError
from leadline.bench.records import RecordStore
from leadline.bench.tables import OURS
from support.bench_records import few_records, record


def test_a_key_is_written_once_and_an_item_completely(tmp_path: Path) -> None:
    with RecordStore(tmp_path, create=True) as store:
        store.add(few_records()[:3])
        store.add([record("A", "i0", "distributed", OURS, 99.0), *few_records()[3:5]])
        assert len(store.keys()) == 5
        broken = few_records()[5:7]
        object.__setattr__(broken[1], "reason", None)  # NOT NULL
        with pytest.raises(FileError, match="NOT NULL"):
            store.add(broken)
        assert len(store.keys()) == 5  # neither of the two


def test_foreign_folders_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="contains no run"):
        RecordStore(tmp_path)
    (tmp_path / "records.sqlite").write_bytes(b"not a database at all, only some text" * 40)
    with pytest.raises(FileError, match="cannot be opened"):
        RecordStore(tmp_path)
