"""Downloads from the Hugging Face hub into its cache: size and licence first, every file checked by its hash.

Only the top-level files of a model are fetched. The cache has the layout of the hub's own client, so that either finds
what the other has downloaded. `supervise` lets a front end ask before a download and show its progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from leadline.base.errors import FileError

PUBLIC_ENDPOINT = "https://huggingface.co"
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20
_PLAIN_NAME = re.compile(r"[\w][\w.-]*")  # no folder: a name from the network must not leave the cache
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class HubFile:
    """A file of a model on the hub. `digest` is its SHA-256, or for a small file the SHA-1 of its git blob."""

    name: str
    size: int  # bytes
    digest: str


@dataclass(frozen=True)
class HubModel:
    """What would be downloaded for a model."""

    name: str  # "owner/name"
    commit: str
    licence: str | None  # as the model's card states it
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


Approve = Callable[[HubModel], None]
"""Called before a download; it raises an error to prevent it."""
Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes of all files."""

_supervision: ContextVar[tuple[Approve | None, Progress | None]] = ContextVar("supervision", default=(None, None))


@contextmanager
def supervise(approve: Approve | None = None, progress: Progress | None = None) -> Iterator[None]:
    """Within this context, every download calls `approve` before it starts and `progress` as it goes on."""
    token = _supervision.set((approve, progress))
    try:
        yield
    finally:
        _supervision.reset(token)


def endpoint() -> str:
    """Address of the hub: ``HF_ENDPOINT`` or the public one."""
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")


def find_model(name: str, patterns: Sequence[str]) -> HubModel:
    """The newest version of a model on the hub, with its top-level files that match `patterns`."""
    with _open(f"{endpoint()}/api/models/{quote(name)}/revision/main?blobs=true", name) as reply:
        try:
            found = json.load(reply)
            commit, card = str(found["sha"]), found.get("cardData") or {}
            files = tuple(
                _hub_file(entry) for entry in found["siblings"] if _is_wanted(str(entry["rfilename"]), patterns)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"{name}: the hub's answer about it cannot be read ({type(error).__name__}: {error})."
            ) from error
    if not re.fullmatch("[0-9a-f]{40}", commit) or not files:
        raise FileError(f"{name}: the hub has no file like {' or '.join(patterns)} for it.")
    licence = card.get("license")
    return HubModel(name, commit, licence if isinstance(licence, str) else None, files)


def download(name: str, patterns: Sequence[str], cache: Path) -> Path:
    """Download a model into the hub's `cache`; returns the folder of its files.

    Files that have arrived before are not fetched again. A file whose content does not have the hub's hash is removed,
    and the download fails.

    Raises
    ------
    FileError
        The hub does not answer or has no such model, or a file is damaged or cannot be written.
    """
    approve, progress = _supervision.get()
    model = find_model(name, patterns)
    if approve is not None:
        approve(model)
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot, arrived = home / "snapshots" / model.commit, 0

    def count(size: int) -> None:
        nonlocal arrived
        arrived += size
        if progress is not None:
            progress(arrived, model.size)

    try:
        for folder in (home / "blobs", home / "refs", snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        # Weights last: a snapshot counts as complete when it has them.
        for file in sorted(model.files, key=lambda one: one.size):
            blob = home / "blobs" / file.digest
            if blob.is_file() and blob.stat().st_size == file.size:
                count(file.size)
            else:
                _fetch(model, file, blob, count)
            _link(snapshot / file.name, blob)
        (home / "refs" / "main").write_text(model.commit, encoding="utf-8")
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{home}: the download of {name} cannot be written ({error.strerror or error}).") from error
    return snapshot


def _fetch(model: HubModel, file: HubFile, blob: Path, count: Callable[[int], None]) -> None:
    """Write a file of the hub to `blob`, if its content has the hash that the hub states."""
    digest = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(f"blob {file.size}\0".encode())
    part = blob.with_name(f"{blob.name}.{secrets.token_hex(4)}.part")
    address = f"{endpoint()}/{quote(model.name)}/resolve/{model.commit}/{quote(file.name)}"
    size = 0
    try:
        with _open(address, model.name) as reply, part.open("wb") as target:
            while chunk := _read(reply, model.name):
                size += len(chunk)
                if size > file.size:
                    break
                digest.update(chunk)
                target.write(chunk)
                count(len(chunk))
        if size != file.size or digest.hexdigest() != file.digest:
            raise FileError(
                f"{model.name}: {file.name} arrived damaged ({min(size, file.size)} of {file.size} bytes, and the hash "
                "is not the hub's); try again."
            )
        part.replace(blob)
    finally:
        part.unlink(missing_ok=True)


def _link(link: Path, blob: Path) -> None:
    """Make `link` the file `blob`: a relative link as the hub's client makes it, or a copy where links are refused."""
    if link.is_file():
        return
    link.unlink(missing_ok=True)  # a broken link
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        shutil.copyfile(blob, link)


def _open(address: str, name: str) -> IO[bytes]:
    try:
        reply: IO[bytes] = urlopen(Request(address, headers={"User-Agent": "leadline"}), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        cause = {
            401: "there is no such model, or it is not public",
            403: "it is not public",
            404: "there is no such model",
        }
        raise FileError(f"{name}: {cause.get(error.code, f'the hub answers {error.code} {error.reason}')}.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise FileError(f"{name}: {urlsplit(address).netloc} cannot be reached ({reason}).") from error
    return reply


def _read(reply: IO[bytes], name: str) -> bytes:
    try:
        return reply.read(_CHUNK)
    except OSError as error:
        raise FileError(f"{name}: the download was interrupted ({error}); the same command continues it.") from error


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return _PLAIN_NAME.fullmatch(name) is not None and any(fnmatch(name, pattern) for pattern in patterns)


def _hub_file(entry: dict[str, Any]) -> HubFile:
    large = entry.get("lfs")
    digest = str(large["sha256"] if large else entry["blobId"])
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a hash")
    return HubFile(str(entry["rfilename"]), int(large["size"] if large else entry["size"]), digest)
