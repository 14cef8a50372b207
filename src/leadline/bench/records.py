"""The records of a run: one SQLite file with one row per record, in which every key occurs at most once.

Only the process that the user started writes. The records of one work item are written in one transaction, so that a
killed run loses the items in progress and nothing else, and repeats only those.
"""

from __future__ import annotations

import json
import math
import platform
import sqlite3
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from leadline.base.errors import FileError, LeadlineError
from leadline.base.strict_json import canonical_json
from leadline.bench.plan import WorkItem
from leadline.bench.protocol import Protocol, convert_protocol

FILE = "records.sqlite"
_LOCK_TIMEOUT = 60.0  # seconds to wait for a reader, e.g. `bench status`
_MAX_REASON = 400  # characters


class RecordStatus(str, Enum):
    """Whether a record has scores. A failed one has a reason instead."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Record:
    """All scores of one method on one case of one image; NaN where there is no score."""

    key: str
    dataset: str  # labels of the protocol
    image: str
    case: str
    prior: str
    method: str
    status: RecordStatus
    reason: str = ""  # why it failed
    absrel: float = math.nan
    mae: float = math.nan  # m
    rmse: float = math.nan  # m
    delta1: float = math.nan
    delta2: float = math.nan
    delta3: float = math.nan
    nmean: float = math.nan  # degrees
    nmed: float = math.nan  # degrees
    measured: int = 0  # number of measurements
    support: int = 0  # pixels scored for depth
    missing: int = 0  # pixels to be scored that have no prediction
    normal_support: int = 0  # pixels scored for normals
    seconds: float = math.nan  # run time of the method
    detail: str = ""  # status that the method reported
    parameters: str = "{}"  # values that the method estimated, as JSON
    options: str = "{}"  # options of the method, as JSON
    versions: str = "{}"  # versions of the software, as JSON
    image_hash: str = ""
    reference_hash: str = ""
    prior_hash: str = ""


_TYPES = {str: "TEXT NOT NULL", RecordStatus: "TEXT NOT NULL", float: "REAL", int: "INTEGER NOT NULL"}
COLUMNS = tuple(field.name for field in fields(Record))
SCORES = ("absrel", "mae", "rmse", "delta1", "delta2", "delta3", "nmean", "nmed")
TIMES = ("seconds",)
"""Columns that differ between two runs of the same work."""


class Counts(NamedTuple):
    """Records of one data set and method."""

    dataset: str
    method: str
    planned: int
    done: int
    failed: int
    seconds: float  # total run time of the method


class RecordStore:
    """The records of a run folder, and the plan they belong to.

    With `create`, folder and file are created if they do not exist.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"{self.folder}: the folder cannot be created ({error.strerror}).") from error
        elif not self.path.is_file():
            raise FileError(f"{self.folder}: the folder contains no run ({FILE} does not exist).")
        try:
            self._connection = sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            # In WAL mode a killed process loses nothing that was committed; a power failure may lose the last items.
            self._connection.execute("PRAGMA synchronous=NORMAL")
            if create:
                self._create()
            else:
                self._connection.execute("SELECT 1 FROM records LIMIT 1")
        except sqlite3.Error as error:
            raise FileError(f"{self.path}: the records cannot be opened ({error}).") from error

    def _create(self) -> None:
        hints = get_type_hints(Record)
        columns = ", ".join(f'"{name}" {_TYPES[hints[name]]}' for name in COLUMNS)
        with self._transaction() as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS records ({columns}, UNIQUE (key))")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS plan (place INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, "
                'dataset TEXT NOT NULL, image TEXT NOT NULL, "case" TEXT NOT NULL, prior TEXT NOT NULL, '
                "method TEXT NOT NULL)"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise FileError(f"{self.path}: the records cannot be written ({error}).") from error

    def set_plan(self, items: Sequence[WorkItem], protocol: Protocol) -> None:
        """Replace the plan and its protocol. Records of an earlier plan stay in the file."""
        rows = (
            (task.key, item.dataset, item.image, task.case, item.prior, task.method)
            for item in items
            for task in item.tasks
        )
        with self._transaction() as connection:
            connection.execute("DELETE FROM plan")
            connection.executemany(
                'INSERT INTO plan (key, dataset, image, "case", prior, method) VALUES (?, ?, ?, ?, ?, ?)', rows
            )
            text = canonical_json(asdict(protocol))
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('protocol', ?)", (text,))

    def protocol(self) -> Protocol:
        """The protocol of the run."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = 'protocol'").fetchone()
        try:
            return convert_protocol(json.loads(row[0] if row else ""))
        except ValueError as error:  # from the JSON decoder, or an InputError
            raise FileError(
                f"{self.folder}: the run contains no protocol that this version can read; run it again."
            ) from error

    def add(self, records: Iterable[Record]) -> None:
        """Write the records of a work item, all or none. A key that exists already keeps its record."""
        marks = ", ".join("?" * len(COLUMNS))
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        with self._transaction() as connection:
            connection.executemany(
                f"INSERT INTO records ({names}) VALUES ({marks}) ON CONFLICT (key) DO NOTHING",
                # SQLite stores NaN as NULL.
                (astuple(record) for record in records),
            )

    def keys(self) -> set[str]:
        """The keys of all records."""
        return {key for (key,) in self._connection.execute("SELECT key FROM records")}

    def delete_failed(self) -> int:
        """Delete the failed records, so that they are computed again; returns their number."""
        with self._transaction() as connection:
            return connection.execute("DELETE FROM records WHERE status = 'failed'").rowcount

    def records(self) -> list[Record]:
        """The records of the plan, in the plan's order."""
        names = ", ".join(f'r."{name}"' for name in COLUMNS)
        query = f"SELECT {names} FROM plan p JOIN records r ON r.key = p.key ORDER BY p.place"
        hints = get_type_hints(Record)
        numbers = {name for name in COLUMNS if hints[name] is float}
        found = []
        for row in self._connection.execute(query):
            values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
            values.update((name, math.nan) for name in numbers if values[name] is None)
            values["status"] = RecordStatus(values["status"])
            found.append(Record(**values))
        return found

    def labels(self, column: Literal["dataset", "case", "prior", "method"]) -> list[str]:
        """The plan's data sets, cases, priors or methods, in the plan's order."""
        query = f'SELECT "{column}" FROM plan GROUP BY "{column}" ORDER BY MIN(place)'
        return [str(label) for (label,) in self._connection.execute(query)]

    def images(self, dataset: str) -> list[str]:
        """The planned images of a data set, in the plan's order."""
        query = "SELECT image FROM plan WHERE dataset = ? GROUP BY image ORDER BY MIN(rowid)"
        return [image for (image,) in self._connection.execute(query, (dataset,))]

    def counts(self) -> list[Counts]:
        """The numbers of records per data set and method of the plan."""
        query = (
            "SELECT p.dataset, p.method, COUNT(*), COUNT(r.key), "
            "COALESCE(SUM(r.status = 'failed'), 0), COALESCE(SUM(r.seconds), 0.0) "
            "FROM plan p LEFT JOIN records r ON r.key = p.key GROUP BY p.dataset, p.method ORDER BY MIN(p.place)"
        )
        return [Counts(*row) for row in self._connection.execute(query)]

    def reasons(self, limit: int = 5) -> list[tuple[str, int]]:
        """The most frequent reasons of failed records of the plan, with their numbers."""
        query = (
            "SELECT r.reason, COUNT(*) AS n FROM plan p JOIN records r ON r.key = p.key "
            "WHERE r.status = 'failed' GROUP BY r.reason ORDER BY n DESC, r.reason LIMIT ?"
        )
        return [(str(reason), int(count)) for reason, count in self._connection.execute(query, (limit,))]


def read_records(folder: Path) -> list[Record]:
    """The records of a run, in the order of its plan."""
    with RecordStore(folder) as store:
        return store.records()


def read_run_protocol(folder: Path) -> Protocol:
    """The protocol that a run was made with."""
    with RecordStore(folder) as store:
        return store.protocol()


def failure_reason(error: BaseException) -> str:
    """One line about an error; if it is not an error of leadline, with its type and location."""
    if isinstance(error, LeadlineError):
        text = str(error)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        text = f"{type(error).__name__}: {error}{where}"
    return " ".join(text.split())[:_MAX_REASON]


@lru_cache(maxsize=1)
def software_versions() -> dict[str, str]:
    """Versions of the software that the scores may depend on."""
    import numba
    import numpy as np

    from leadline import __version__

    return {
        "leadline": __version__,
        "machine": platform.machine(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
