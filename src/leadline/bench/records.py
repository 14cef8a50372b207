"""The records of a run: one SQLite file with one row per record, in which every key occurs at most once.

Only the process that the user started writes. The records of one work item are written in one transaction, so that a
killed run loses the items in progress and nothing else, and repeats only those.
"""

from __future__ import annotations

import json
import math
import platform
import sqlite3
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from leadline.bench.scoring import PAPER_SCORING, Scoring
from leadline.io.files import make_folder, why_no_folder

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
    irmse: float = math.nan  # 1/km
    imae: float = math.nan  # 1/km
    delta102: float = math.nan
    delta105: float = math.nan
    delta110: float = math.nan
    nmean: float = math.nan  # degrees
    nmed: float = math.nan  # degrees
    measured: int = 0  # number of measurements
    support: int = 0  # pixels scored for depth; a mean over pixels weights the images with it
    missing: int = 0  # pixels to be scored that have no prediction
    normal_support: int = 0  # pixels scored for normals
    seconds: float = math.nan  # run time of the method
    detail: str = ""  # status that the method reported
    converged: bool | None = None  # whether the method's iterations met their tolerances; None if it has none to count
    parameters: str = "{}"  # values that the method estimated, as JSON
    options: str = "{}"  # options of the method, as JSON
    versions: str = "{}"  # versions of the software, as JSON
    image_hash: str = ""
    reference_hash: str = ""
    prior_hash: str = ""
    scene_hash: str = ""  # image, reference, camera and stored measurements; empty in records of earlier versions

    @property
    def is_unconverged(self) -> bool:
        """Whether it has scores of a method that stopped before its tolerances were met."""
        return self.status is RecordStatus.OK and self.converged is False


_TYPES: dict[Any, str] = {
    str: "TEXT NOT NULL",
    RecordStatus: "TEXT NOT NULL",
    float: "REAL",
    int: "INTEGER NOT NULL",
    bool | None: "INTEGER",
}
COLUMNS = tuple(field.name for field in fields(Record))
FIELD_SCORES = ("irmse", "imae", "delta102", "delta105", "delta110")
ADDED_COLUMNS = ("converged", *FIELD_SCORES, "scene_hash")  # which the records of earlier versions do not have
SCORES = ("absrel", "mae", "rmse", "delta1", "delta2", "delta3", *FIELD_SCORES, "nmean", "nmed")
TIMES = ("seconds",)
"""Columns that differ between two runs of the same work."""


class Counts(NamedTuple):
    """Records of one data set and method."""

    dataset: str
    method: str
    planned: int
    done: int
    failed: int
    unconverged: int  # scored records whose method stopped before its tolerances were met
    seconds: float  # total run time of the method


class RecordStore:
    """The records of a run folder, and the plan they belong to.

    With `create`, folder and file are created if they do not exist, and records can be written. Without it nothing is
    written, so that a run can be read from a file system that does not allow writing.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        if create:
            make_folder(self.folder)
        elif not self.path.is_file():
            absent = f"the folder contains no run ({FILE} does not exist)"
            raise FileError(f"{self.folder}: {absent if self.folder.is_dir() else why_no_folder(self.folder)}.")
        try:
            self._connection = _open_to_write(self.path) if create else _open_to_read(self.path)
            try:
                if create:
                    self._create()
                self._columns = self._stored_columns()
            except BaseException:
                self._connection.close()
                raise
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
            connection.execute(
                "CREATE TABLE IF NOT EXISTS files (dataset TEXT NOT NULL, image TEXT NOT NULL, state TEXT NOT NULL, "
                "UNIQUE (dataset, image))"
            )
            for name in set(ADDED_COLUMNS) - set(self._stored_columns()):  # the file is of an earlier version
                default = " DEFAULT ''" if hints[name] is str else ""  # which SQLite needs for NOT NULL
                connection.execute(f'ALTER TABLE records ADD COLUMN "{name}" {_TYPES[hints[name]]}{default}')

    def _stored_columns(self) -> tuple[str, ...]:
        """The columns of records that the file has; one of an earlier version may lack `ADDED_COLUMNS`."""
        stored = {row[1] for row in self._connection.execute("PRAGMA table_info(records)")}
        missing = [name for name in COLUMNS if name not in stored and name not in ADDED_COLUMNS]
        if missing:
            raise FileError(
                f"{self.path}: the records were written by another version of leadline, they lack {missing[0]!r}; run "
                "the protocol again in a new folder."
            )
        return tuple(name for name in COLUMNS if name in stored)

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

    def scoring(self) -> Scoring:
        """The convention of the run's scores; that of the paper for a run of an earlier version."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = 'protocol'").fetchone()
        found = json.loads(row[0]).get("scoring") if row else None
        return Scoring(**found) if found else PAPER_SCORING

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

    def file_states(self) -> dict[tuple[str, str], str]:
        """The state of the files of each image when it was last checked, by data set and image."""
        return {
            (str(label), str(image)): str(state)
            for label, image, state in self._connection.execute("SELECT dataset, image, state FROM files")
        }

    def set_file_states(self, states: Mapping[tuple[str, str], str]) -> None:
        """Remember the states of files."""
        rows = [(*place, state) for place, state in states.items()]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)

    def images_with_records(self) -> set[tuple[str, str]]:
        """Data set and image of all records, those of other plans included."""
        return set(self._connection.execute("SELECT DISTINCT dataset, image FROM records"))

    def scene_hashes(self, dataset: str, image: str) -> set[tuple[str, str, str]]:
        """The hashes of scene, image and reference in all records of an image, those of other plans included."""
        query = "SELECT DISTINCT scene_hash, image_hash, reference_hash FROM records WHERE dataset = ? AND image = ?"
        return set(self._connection.execute(query, (dataset, image)))

    def delete_image(self, dataset: str, image: str) -> int:
        """Delete all records of an image, so that they are computed again; returns their number."""
        with self._transaction() as connection:
            query = "DELETE FROM records WHERE dataset = ? AND image = ?"
            return connection.execute(query, (dataset, image)).rowcount

    def records(self) -> list[Record]:
        """The records of the plan, in the plan's order."""
        names = ", ".join(f'r."{name}"' for name in self._columns)
        query = f"SELECT {names} FROM plan p JOIN records r ON r.key = p.key ORDER BY p.place"
        hints = get_type_hints(Record)
        numbers = {name for name in COLUMNS if hints[name] is float}
        found = []
        for row in self._connection.execute(query):
            values: dict[str, Any] = dict(zip(self._columns, row, strict=True))
            values.update((name, math.nan) for name in numbers if values.get(name) is None)
            values["status"] = RecordStatus(values["status"])
            if values.get("converged") is not None:
                values["converged"] = bool(values["converged"])
            found.append(Record(**values))
        return found

    def labels(self, column: Literal["dataset", "case", "prior", "method"]) -> list[str]:
        """The plan's data sets, cases, priors or methods, in the plan's order."""
        query = f'SELECT "{column}" FROM plan GROUP BY "{column}" ORDER BY MIN(place)'
        return [str(label) for (label,) in self._connection.execute(query)]

    def pairs(self) -> set[tuple[str, str]]:
        """The planned pairs of prior and method."""
        return set(self._connection.execute("SELECT DISTINCT prior, method FROM plan"))

    def images(self, dataset: str) -> list[str]:
        """The planned images of a data set, in the plan's order."""
        query = "SELECT image FROM plan WHERE dataset = ? GROUP BY image ORDER BY MIN(rowid)"
        return [image for (image,) in self._connection.execute(query, (dataset,))]

    def counts(self) -> list[Counts]:
        """The numbers of records per data set and method of the plan."""
        unconverged = "r.status = 'ok' AND r.converged = 0" if "converged" in self._columns else "0"
        query = (
            "SELECT p.dataset, p.method, COUNT(*), COUNT(r.key), "
            f"COALESCE(SUM(r.status = 'failed'), 0), COALESCE(SUM({unconverged}), 0), COALESCE(SUM(r.seconds), 0.0) "
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


def _open_to_write(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT, isolation_level=None)
    # SQLite does not wait for a reader here, so that a look at a run that is just starting would end the run.
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.05)
    # In WAL mode a killed process loses nothing that was committed; a power failure may lose the last items.
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, not even the shared memory file that SQLite needs for a file in WAL mode.

    That file cannot be created on a file system without write access. A finished run has nothing in its write-ahead
    log, so it can be read as a file that nobody changes.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        return _connect(path, "mode=ro")
    except sqlite3.OperationalError:
        if log.exists() and log.stat().st_size > 0:
            raise
        return _connect(path, "mode=ro&immutable=1")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=_LOCK_TIMEOUT, isolation_level=None)
    try:
        connection.execute("SELECT 1 FROM records LIMIT 1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


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
