"""Small protocols and runs for the tests of the benchmark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leadline.apps import cli
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import TIMES, Record, read_records
from leadline.bench.run import run_protocol

SIZE = (48, 36)
HERE = Path(__file__).parent


def protocol(
    *methods: str | MethodEntry, count: int = 3, cases: Sequence[str] = ("distributed", "central", "outer")
) -> Protocol:
    """Rendered rooms with rendered priors."""
    entries = tuple(entry if isinstance(entry, MethodEntry) else MethodEntry(entry) for entry in methods)
    rooms = DatasetEntry("rendered", "Rooms", options={"count": count, "width": SIZE[0], "height": SIZE[1]})
    return Protocol((rooms,), (PriorEntry("rendered", "made", gauge="metric"),), entries, tuple(cases))


def toml(chosen: Protocol) -> str:
    """The protocol as a file would have it."""
    methods = ", ".join(f'{{name = "{entry.name}", label = "{entry.label}"}}' for entry in chosen.methods)
    cases = ", ".join(f'"{case}"' for case in chosen.cases)
    rooms = chosen.datasets[0]
    options = ", ".join(f"{name} = {value}" for name, value in rooms.options.items())
    return (
        f"cases = [{cases}]\nmethods = [{methods}]\n"
        'priors = [{source = "rendered", label = "made", gauge = "metric"}]\n'
        f'[[datasets]]\nname = "rendered"\nlabel = "{rooms.label}"\noptions = {{{options}}}\n'
    )


def content(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """What two runs of the same work must share, by key; NaN as a text, so that it equals itself."""
    return {
        record.key: {name: repr(value) for name, value in asdict(record).items() if name not in TIMES}
        for record in records
    }


def run(chosen: Protocol, folder: Path, **settings: Any) -> list[Record]:
    run_protocol(chosen, folder, **settings)
    return read_records(folder)


def environment(**more: str) -> dict[str, str]:
    sources = str(Path(cli.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join((sources, str(HERE.parent))), **more}
