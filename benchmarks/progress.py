"""The progress of a benchmark on stderr, so that its table on stdout can be redirected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def show_progress(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    """The items one after the other, with a bar that shows how many of them are done."""
    yield from track(items, description=title, total=total, console=Console(stderr=True))
