"""The store of a run: one SQLite file, one row per record, each key at most once.

Only one process writes: the one that was started by the user. What a worker has done is written in one transaction
per unit, so that a run that is killed loses the units in flight and nothing else, and does only those again.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from leadline.base.errors import FileError, InputError
from leadline.bench.plan import Unit

FILE = "records.sqlite"
_TYPES = {str: "TEXT NOT NULL", float: "REAL", int: "INTEGER NOT NULL"}
_PATIENCE = 60.0  # seconds to wait for a reader, e.g. `bench status`


@dataclass(frozen=True, kw_only=True)
class Record:
    """Every score of one method on one case of one image; NaN where there is none."""

    key: str
    dataset: str  # labels of the protocol
    image: str
    case: str
    prior: str
    method: str
    status: str  # "ok", or "failed" with a reason
    reason: str = ""
    absrel: float = math.nan
    mae: float = math.nan  # m
    rmse: float = math.nan  # m
    delta1: float = math.nan
    delta2: float = math.nan
    delta3: float = math.nan
    nmean: float = math.nan  # degrees
    nmed: float = math.nan  # degrees
    measured: int = 0  # measurements given
    support: int = 0  # pixels scored for depth
    missing: int = 0  # pixels to score without a prediction
    normal_support: int = 0  # pixels scored for normals
    seconds: float = math.nan  # of the method
    detail: str = ""  # the method's own status
    parameters: str = "{}"  # what the method estimated, JSON
    options: str = "{}"  # of the method, JSON
    versions: str = "{}"  # JSON
    image_hash: str = ""
    reference_hash: str = ""
    prior_hash: str = ""


COLUMNS = tuple(field.name for field in fields(Record))
SCORES = ("absrel", "mae", "rmse", "delta1", "delta2", "delta3", "nmean", "nmed")
TIMES = ("seconds",)
"""The columns that differ between two runs of the same work."""


class RecordStore:
    """The records of a run folder.

    Parameters
    ----------
    folder : path
        Is made if `create`; otherwise it must hold a run.
    create : bool

    Raises
    ------
    FileError
        The folder holds no run, or its file is not one.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"{self.folder}: cannot be made ({error.strerror}).") from error
        elif not self.path.is_file():
            raise FileError(f"{self.folder}: holds no run ({FILE} is not there); 'leadline bench run' makes one.")
        try:
            self._connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            # In WAL mode a killed process loses nothing that was committed; a power cut may lose the last units.
            self._connection.execute("PRAGMA synchronous=NORMAL")
            if create:
                self._create()
            else:
                self._connection.execute("SELECT 1 FROM records LIMIT 1")
        except sqlite3.Error as error:
            raise FileError(f"{self.path}: is not a store of records, or cannot be opened ({error}).") from error

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

    def close(self) -> None:
        """Give the file free."""
        self._connection.close()

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            raise FileError(f"{self.path}: cannot be written ({error}).") from error

    def set_plan(self, units: Sequence[Unit], **facts: str) -> None:
        """What is to be done now, in place of an earlier plan; records of an earlier one stay in the file."""
        rows = (
            (task.key, unit.dataset, unit.image, task.case, unit.prior, task.method)
            for unit in units
            for task in unit.tasks
        )
        with self._transaction() as connection:
            connection.execute("DELETE FROM plan")
            connection.executemany(
                'INSERT INTO plan (key, dataset, image, "case", prior, method) VALUES (?, ?, ?, ?, ?, ?)', rows
            )
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def fact(self, name: str) -> str:
        """Something that `set_plan` was told, or an empty string."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def add(self, records: Iterable[Record]) -> None:
        """Write the records of a unit, all or none; a key that is there already keeps its record."""
        holes = ", ".join("?" * len(COLUMNS))
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        with self._transaction() as connection:
            connection.executemany(
                f"INSERT INTO records ({names}) VALUES ({holes}) ON CONFLICT (key) DO NOTHING",
                # SQLite turns NaN into NULL by itself, infinity it would keep.
                (astuple(record) for record in records),
            )

    def keys(self) -> set[str]:
        """Of all records there are."""
        return {key for (key,) in self._connection.execute("SELECT key FROM records")}

    def forget_failed(self) -> int:
        """Remove the failed records, so that they are done again; returns how many."""
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
            values.update((name, _number(values[name])) for name in numbers)
            found.append(Record(**values))
        return found

    def labels(self, column: str) -> list[str]:
        """The plan's data sets, cases, priors or methods, in the plan's order."""
        if column not in ("dataset", "case", "prior", "method"):
            raise InputError(f"`column` must be dataset, case, prior or method, got {column!r}.")
        query = f'SELECT "{column}" FROM plan GROUP BY "{column}" ORDER BY MIN(place)'
        return [str(label) for (label,) in self._connection.execute(query)]

    def images(self, dataset: str) -> list[str]:
        """The planned images of a data set, in the plan's order."""
        query = "SELECT image FROM plan WHERE dataset = ? GROUP BY image ORDER BY MIN(rowid)"
        return [image for (image,) in self._connection.execute(query, (dataset,))]

    def counts(self) -> list[tuple[str, str, int, int, int, float]]:
        """Per data set and method of the plan: planned, done, failed, and the seconds of the method altogether."""
        query = (
            "SELECT p.dataset, p.method, COUNT(*), COUNT(r.key), "
            "COALESCE(SUM(r.status = 'failed'), 0), COALESCE(SUM(r.seconds), 0.0) "
            "FROM plan p LEFT JOIN records r ON r.key = p.key GROUP BY p.dataset, p.method ORDER BY MIN(p.place)"
        )
        return list(self._connection.execute(query))

    def reasons(self, limit: int = 5) -> list[tuple[str, int]]:
        """The commonest reasons of failed records of the plan."""
        query = (
            "SELECT r.reason, COUNT(*) AS n FROM plan p JOIN records r ON r.key = p.key "
            "WHERE r.status = 'failed' GROUP BY r.reason ORDER BY n DESC, r.reason LIMIT ?"
        )
        return [(str(reason), int(count)) for reason, count in self._connection.execute(query, (limit,))]


def read_records(folder: Path) -> list[Record]:
    """The records of a run's plan."""
    with closing(RecordStore(folder)) as store:
        return store.records()


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
