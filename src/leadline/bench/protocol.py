"""The types that describe a benchmark run; `protocol_files` reads them from TOML files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from leadline.base.errors import InputError, param
from leadline.base.registry import suggestion
from leadline.bench.observations import CASES, STRIDE, parse_pattern
from leadline.bench.scoring import Scoring

LABELS = {
    "raw": "Raw",
    "gdisp": "GDisp",
    "gmetric": "GMetric",
    "glog": "GLog",
    "knn": "KNN",
    "lwlr": "LWLR",
    "poisson": "Poisson",
    "response": "Ours w/o Dirichlet",
    "ours": "Ours",
    "best": "Ours (best)",
    "priorda": "PriorDA",
    "ldcm": "LDCM",
    "any2full": "Any2Full",
    "promptda": "PromptDA",
    "omni-dc": "OMNI-DC",
    "marigold-dc": "Marigold-DC",
    "testpromptdc": "TestPromptDC",
}
"""Default labels of the methods in tables and records, the paper's where it has one. "Ours" is its configuration."""

ORACLE = "oracle"


@dataclass(frozen=True)
class DatasetEntry:
    """A subset of the tables: a data set, its folder, and its options.

    An entry with `split` expands to several: one per folder of scene folders below its root, labelled with the name of
    the folder.
    """

    name: str
    label: str = ""
    root: str = ""
    normals: bool = True  # False: normals are not scored, e.g. if the camera is only a guess
    options: dict[str, Any] = field(default_factory=dict)
    split: bool = False
    limit: int | None = None  # only its first images, e.g. those of a published split
    cases: tuple[str, ...] = ()  # instead of the protocol's, e.g. if the images have measurements of their own

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)
        _require_patterns(self.cases)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"{param('limit')} must be at least 1 image, got {self.limit}.")


@dataclass(frozen=True)
class PriorEntry:
    """A source of priors and its options.

    The source is a spec as for `leadline.priors.prior_source`, or ``oracle:SHARE:SPEC``: the predictions of SPEC
    blended with the reference depth.
    """

    source: str
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    gauge: Literal["", "metric", "scale", "affine", "unknown"] = ""  # empty: as the source states it

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.source)
        split_oracle(self.source)

    @property
    def share(self) -> float:
        """Share of the reference in an oracle prior; 0 for all others."""
        return split_oracle(self.source)[0]

    @property
    def spec(self) -> str:
        """The source without ``oracle:SHARE:``."""
        return split_oracle(self.source)[1]

    @property
    def kind(self) -> str:
        """The name of the source of `spec`, e.g. ``onnx``."""
        return self.spec.partition(":")[0]


@dataclass(frozen=True)
class MethodEntry:
    """A method and its options. The same method with other options needs another label."""

    name: str
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    priors: Literal["all", "first"] = "all"  # "first": once per image and case, e.g. if it does not use the prior

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or LABELS.get(self.name, self.name))


Entry = TypeVar("Entry", DatasetEntry, PriorEntry, MethodEntry)


@dataclass(frozen=True)
class Protocol:
    """Data sets x images x cases x priors x methods."""

    datasets: tuple[DatasetEntry, ...]
    priors: tuple[PriorEntry, ...]
    methods: tuple[MethodEntry, ...]
    cases: tuple[str, ...] = CASES
    stride: float = STRIDE
    limit: int | None = None  # use only the first images of each data set
    scoring: Scoring = field(default_factory=Scoring)

    def __post_init__(self) -> None:
        for name, entries in (("datasets", self.datasets), ("priors", self.priors), ("methods", self.methods)):
            labels = [entry.label for entry in entries]
            if not labels:
                raise InputError(f"{param(name)} must have at least one entry.")
            duplicates = sorted({label for label in labels if labels.count(label) > 1})
            if duplicates:
                raise InputError(f"{param(name)}: each entry needs its own label, but {duplicates[0]!r} is used twice.")
        if not self.cases:
            raise InputError(f"{param('cases')} must have at least one entry.")
        _require_patterns(self.cases)
        if not 1 <= self.stride < 1e9:
            raise InputError(f"{param('stride')} must be a number of at least 1 pixel, got {self.stride!r}.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"{param('limit')} must be at least 1 image, got {self.limit}.")


def _require_patterns(cases: tuple[str, ...]) -> None:
    if len(set(cases)) < len(cases):
        raise InputError(f"{param('cases')} must be different patterns, got {list(cases)}.")
    for case in cases:
        parse_pattern(case)


def find_entry(entries: tuple[Entry, ...], label: str) -> Entry:
    """The entry with that label."""
    for entry in entries:
        if entry.label == label:
            return entry
    raise InputError(f"the run has no {label!r}; {suggestion(label, [entry.label for entry in entries])}")


def convert_protocol(content: Mapping[str, Any]) -> Protocol:
    """A protocol from nested dictionaries and lists, as TOML and JSON files contain them."""
    try:
        return msgspec.convert(content, Protocol)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):  # raised by an entry itself
            raise error.__cause__ from None
        raise InputError(_explain(str(error))) from error


_TYPE_WORDS = {
    "str": "a string",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}


def _explain(message: str) -> str:
    """A message of msgspec, e.g. "Expected `str`, got `int` - at `$.cases[0]`", with the type names of TOML."""
    problem, _, path = message.partition(" - at `$.")
    words = re.sub(r"`([^`]+)`", lambda found: _TYPE_WORDS.get(found.group(1), found.group(1)), problem)
    return f"{param(path.rstrip('`'))}: {words[:1].lower()}{words[1:]}." if path else f"{words}."


def split_oracle(source: str) -> tuple[float, str]:
    """The share of the reference (0 if the source is not an oracle) and the spec of the blended source."""
    kind, _, rest = source.partition(":")
    if kind != ORACLE:
        return 0.0, source
    share, _, spec = rest.partition(":")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1 or not spec:
        raise InputError(
            f"an oracle prior must be written like oracle:0.9:onnx:MODEL.onnx, with a share of the reference above 0 "
            f"and at most 1; got {source!r}."
        )
    return number, spec
