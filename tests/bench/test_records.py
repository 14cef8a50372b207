"""The store of records."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from leadline.base.errors import FileError
from leadline.bench.plan import Task, WorkItem
from leadline.bench.records import FILE, Record, RecordStore, read_records
from leadline.bench.tables import OURS
from support.bench_records import NAN, few_records, record
from support.bench_runs import protocol


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


def test_records_say_whether_the_method_converged(tmp_path: Path) -> None:
    rows = [
        record("A", "i", case, OURS, score, converged=converged)
        for case, score, converged in (("a", 0.1, True), ("b", 0.2, False), ("c", 0.3, None), ("d", NAN, False))
    ]
    write(tmp_path, rows)
    with RecordStore(tmp_path) as store:
        assert [found.converged for found in store.records()] == [True, False, None, False]
        (counts,) = store.counts()
    # A failed record is counted as failed only.
    assert (counts.done, counts.failed, counts.unconverged) == (4, 1, 1)


def test_a_run_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    rows = few_records()[:3]
    write(tmp_path, rows)
    forget(tmp_path, "converged")
    with RecordStore(tmp_path) as store:
        assert [found.key for found in store.records()] == [row.key for row in rows]
        assert {found.converged for found in store.records()} == {None}
        assert sum(counts.unconverged for counts in store.counts()) == 0
    more = record("B", "j", "outer", OURS, 0.9, converged=False)
    write(tmp_path, [more])
    assert [found.converged for found in read_records(tmp_path)] == [False]
    forget(tmp_path, "normal_support")
    with pytest.raises(FileError, match=r"another version of leadline.*'normal_support'"):
        RecordStore(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems work differently")
def test_a_finished_run_is_read_where_nothing_can_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:  # not below pytest's folder, which other users cannot enter
        folder = Path(name)
        write(folder, few_records())
        with without_write_access(folder):
            with closing(sqlite3.connect(folder / FILE)) as plain, pytest.raises(sqlite3.OperationalError):
                plain.execute("SELECT 1 FROM records")
            assert len(read_records(folder)) == len(few_records())
        # What a killed run left in its log would be ignored, so it is not read without it.
        (folder / f"{FILE}-wal").write_bytes(b"records that were not moved into the file yet")
        with without_write_access(folder), pytest.raises(FileError, match="cannot be opened"):
            read_records(folder)


@contextmanager
def without_write_access(folder: Path) -> Iterator[None]:
    """Forbid changes of a folder and its files. The superuser may change them all the same, so another user is used."""
    nobody, user = 65534, os.geteuid()
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        if user == 0:
            os.seteuid(nobody)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def write(folder: Path, rows: list[Record]) -> None:
    tasks = {row.key: Task(row.key, row.case, row.method, "{}") for row in rows}
    items = [WorkItem(row.dataset, row.image, row.prior, (tasks[row.key],)) for row in rows]
    with RecordStore(folder, create=True) as store:
        store.set_plan(items, protocol("ours"))
        store.add(rows)


def forget(folder: Path, column: str) -> None:
    connection = sqlite3.connect(folder / FILE)
    connection.execute(f'ALTER TABLE records DROP COLUMN "{column}"')
    connection.commit()
    connection.close()


def test_a_reader_delays_the_start_of_a_run_and_does_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with RecordStore(tmp_path, create=True):
        pass
    # A file in rollback mode, as at the first moment of a run, that somebody reads.
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("PRAGMA journal_mode=DELETE")
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM records").fetchone()
    ended = threading.Timer(0.3, reader.execute, ["COMMIT"])
    ended.start()
    with RecordStore(tmp_path, create=True) as store:
        assert store.keys() == set()
    reader.close()
