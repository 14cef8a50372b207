"""What a benchmark run is to do, read from a TOML file.

cases = ["distributed", "central", "outer"]       # or further patterns, see `patterns`
stride = 7.5                                      # of the three cases above; this is the default
methods = ["ours", {name = "ours", label = "stiff", options = {weight_data = 1e-2}}]

[[datasets]]
name = "ibims"                                    # one of `leadline datasets`, or "rendered"
label = "iBims"                                   # the subset's name in the tables; default: the name
root = "ibims1"                                   # relative to --data, or to the protocol's own folder
normals = true                                    # false: score depth only, e.g. where the camera is a guess
options = {max_depth = 10.0}                      # of the data set
# split = true                                    # scene folders: each folder of them is a subset of its own

[[priors]]
source = "onnx:model.onnx"                        # one of `leadline priors`, or "rendered"
label = "MoGe-3"                                  # default: the source
# pulled = 0.9                                    # made stronger with the help of the reference, see pulled.py
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from leadline.base.errors import FileError, InputError
from leadline.bench.patterns import parse
from leadline.datasets import dataset

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
    "best": "Best",
    "priorda": "PriorDA",
    "ldcm": "LDCM",
    "any2full": "Any2Full",
    "promptda": "PromptDA",
    "omni-dc": "OMNI-DC",
    "marigold-dc": "Marigold-DC",
}
"""What the paper's tables call the methods."""


@dataclass(frozen=True)
class DatasetEntry:
    """A subset of the tables: a data set, where it lies, and how it is opened.

    A split entry stands for several: one for each folder of scene folders below its root, labelled with its name.
    """

    name: str
    label: str = ""
    root: str = ""
    normals: bool = True  # False: they are not scored, e.g. where a camera was only guessed
    options: dict[str, Any] = field(default_factory=dict)
    split: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)


@dataclass(frozen=True)
class PriorEntry:
    """A source of priors and its options; `pulled`, if not 0, moves them so far to the reference, see pulled.py."""

    source: str
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    pulled: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.source)

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]


@dataclass(frozen=True)
class MethodEntry:
    """A method and its options; with other options it needs another label."""

    name: str
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or LABELS.get(self.name, self.name))


@dataclass(frozen=True)
class Protocol:
    """Data sets x images x cases x priors x methods.

    `limit`, where given, keeps the first images of each data set.
    """

    datasets: tuple[DatasetEntry, ...]
    priors: tuple[PriorEntry, ...]
    methods: tuple[MethodEntry, ...]
    cases: tuple[str, ...] = ("distributed", "central", "outer")
    stride: float = 7.5
    limit: int | None = None

    def __post_init__(self) -> None:
        for what, entries in (("datasets", self.datasets), ("priors", self.priors), ("methods", self.methods)):
            labels = [entry.label for entry in entries]
            if not labels:
                raise InputError(f"`{what}` must name at least one, got none.")
            twice = sorted({label for label in labels if labels.count(label) > 1})
            if twice:
                raise InputError(f"`{what}` must have labels of their own, but {twice[0]!r} occurs twice.")
        if not self.cases or len(set(self.cases)) < len(self.cases):
            raise InputError(f"`cases` must be one or more different patterns, got {list(self.cases)}.")
        for case in self.cases:
            parse(case)
        if isinstance(self.stride, bool) or not isinstance(self.stride, (int, float)) or not 1 <= self.stride < 1e9:
            raise InputError(f"`stride` must be a number of at least 1 pixel, got {self.stride!r}.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"`limit` must be at least 1 image, got {self.limit}.")


def packaged() -> list[str]:
    """Names of the protocols that come with leadline.

    Examples
    --------
    >>> packaged()
    ['baselines', 'beyond', 'fixed', 'normals', 'paper', 'priors', 'scenes', 'smoke', 'stages', 'systems', 'weights']
    """
    folder = files("leadline.bench") / "protocols"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_protocol(
    source: str,
    *,
    data: Path | None = None,
    roots: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    priors: Iterable[str] = (),
    limit: int | None = None,
) -> Protocol:
    """The protocol in a TOML file, with its paths made absolute.

    Parameters
    ----------
    source : str
        A file, or the name of a protocol that comes with leadline (`packaged`).
    data : path, optional
        Folder that relative roots and models are looked up in; default: the file's own, for a packaged one the
        working folder.
    roots : mapping, optional
        Folder per data set label, in place of the file's.
    only : labels, optional
        The data sets to keep; default: all.
    priors : specs, optional
        Sources in place of the file's, each as ``SOURCE`` or ``LABEL=SOURCE``.
    limit : int, optional
        Keep the first images of each data set.

    Raises
    ------
    FileError
        There is no such file, or it is not TOML.
    InputError
        It says something that is not understood, with what was expected.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        base = data or path.parent
        text = _read(path)
    else:
        if source not in packaged():
            close = difflib.get_close_matches(source, packaged(), n=2) or packaged()
            raise FileError(f"{source}: there is no such protocol file; of those that come with leadline: {close}.")
        base = data or Path()
        text = (files("leadline.bench") / "protocols" / f"{source}.toml").read_text(encoding="utf-8")
    try:
        protocol = _parse(text)
        if chosen := list(priors):
            protocol = replace(protocol, priors=tuple(_prior(spec) for spec in chosen))
        protocol = _split(_absolute(_moved(protocol, roots or {}), base.resolve()))
        return replace(_chosen(protocol, list(only)), limit=limit)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FileError(f"{path}: the protocol cannot be read ({reason}).") from error


def _parse(text: str) -> Protocol:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is not valid TOML: {error}.") from error
    _known(content, {"datasets", "priors", "methods", "cases", "stride"}, "the protocol")
    for required in ("datasets", "priors", "methods"):
        if not isinstance(content.get(required), list):
            raise InputError(f"`{required}` must be a list; the file has none.")
    content["datasets"] = tuple(_entry(DatasetEntry, value, "datasets") for value in content["datasets"])
    content["priors"] = tuple(_entry(PriorEntry, value, "priors") for value in content["priors"])
    content["methods"] = tuple(_entry(MethodEntry, value, "methods") for value in content["methods"])
    cases = content.get("cases", list(Protocol.cases))
    if not isinstance(cases, list) or not all(isinstance(case, str) for case in cases):
        raise InputError(f"`cases` must be a list of patterns, got {cases!r}.")
    return Protocol(**{**content, "cases": tuple(cases)})


_PATHS = ("files", "onnx")  # sources whose argument is a path in any case
_SWITCH = (bool, "true or false")
_KINDS: dict[str, tuple[type, str]] = {"options": (dict, "a table"), "normals": _SWITCH, "split": _SWITCH}
_KINDS["pulled"] = (float, "a number such as 0.9")
Entry = TypeVar("Entry", DatasetEntry, PriorEntry, MethodEntry)


def _entry(kind: type[Entry], value: object, where: str) -> Entry:
    first = fields(kind)[0].name
    if isinstance(value, str):
        return kind(value)
    if not isinstance(value, dict):
        raise InputError(f"an entry of `{where}` must be a name or a table, got {value!r}.")
    _known(value, {entry.name for entry in fields(kind)}, f"`{where}`")
    for entry in fields(kind):
        wanted, what = _KINDS.get(entry.name, (str, "a string"))
        if entry.name in value and not isinstance(value[entry.name], wanted):
            raise InputError(f"`{entry.name}` in `{where}` must be {what}, got {value[entry.name]!r}.")
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in value:
            raise InputError(f"an entry of `{where}` needs `{first}`, got {value!r}.")
    return kind(**value)


def _known(table: Mapping[str, object], known: set[str], where: str) -> None:
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}."
            raise InputError(f"{where} has no key {name!r}: {hint}")


def _prior(spec: str) -> PriorEntry:
    label, equals, source = spec.partition("=")
    if not equals or ":" in label or "/" in label:  # then the equals sign belongs to a path
        label, source = spec, spec
    if source.startswith("pulled:"):
        share, _, source = source.removeprefix("pulled:").partition(":")
        return replace(_prior(source), label=label, pulled=_share(share))
    kind, _, argument = source.partition(":")
    # Typed by hand, so relative to the working folder.
    here = argument and (kind in _PATHS or Path(argument).exists())
    return PriorEntry(f"{kind}:{Path(argument).resolve()}" if here else source, label)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"a pulled prior must be like pulled:0.9:onnx:MODEL.onnx, got {text!r} for 0.9.") from None


def _moved(protocol: Protocol, roots: Mapping[str, str]) -> Protocol:
    _require_labels(protocol, roots)
    moved = (
        replace(entry, root=str(Path(roots[entry.label]).resolve())) if entry.label in roots else entry
        for entry in protocol.datasets
    )
    return replace(protocol, datasets=tuple(moved))


def _chosen(protocol: Protocol, only: list[str]) -> Protocol:
    _require_labels(protocol, only)
    kept = tuple(entry for entry in protocol.datasets if not only or entry.label in only)
    return replace(protocol, datasets=kept)


def _require_labels(protocol: Protocol, wanted: Iterable[str]) -> None:
    labels = [entry.label for entry in protocol.datasets]
    for label in wanted:
        if label not in labels:
            close = difflib.get_close_matches(label, labels, n=2) or labels
            raise InputError(f"there is no data set labelled {label!r}; did you mean {' or '.join(close)}?")


def _split(protocol: Protocol) -> Protocol:
    entries: list[DatasetEntry] = []
    for entry in protocol.datasets:
        entries += _subsets(entry) if entry.split else [entry]
    return replace(protocol, datasets=tuple(entries))


def _subsets(entry: DatasetEntry) -> list[DatasetEntry]:
    """An entry for each folder that holds scene folders; the entry itself where its root holds them directly."""
    if entry.name != "scenes":
        raise InputError(f"`split` is for the data set 'scenes', got it for {entry.name!r}.")
    names = dataset(entry.name, entry.root).names()
    folders = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    direct = [name for name in names if "/" not in name]
    if direct and folders:
        raise InputError(
            f"`split` needs all scene folders of {entry.root} at one depth, but {direct[0]!r} lies beside folders "
            f"of scenes such as {next(iter(folders))!r}; move it, or set split = false."
        )
    if direct:
        return [replace(entry, split=False)]
    return [replace(entry, label=name, root=str(Path(entry.root) / name), split=False) for name in folders]


def _absolute(protocol: Protocol, base: Path) -> Protocol:
    """Roots under `base`, and so the files and folders of priors and of predictions."""
    priors = []
    for entry in protocol.priors:
        kind, _, argument = entry.source.partition(":")
        there = argument and (kind in _PATHS or (base / argument).exists())
        priors.append(replace(entry, source=f"{kind}:{base / argument}") if there else entry)
    datasets = (
        entry if entry.name == "rendered" else replace(entry, root=str(base / entry.root))
        for entry in protocol.datasets
    )
    methods = []
    for method in protocol.methods:
        kind, _, argument = method.name.partition(":")
        folder = kind == "predictions" and argument != "scene"
        methods.append(replace(method, name=f"{kind}:{base / argument}") if folder else method)
    return replace(protocol, datasets=tuple(datasets), priors=tuple(priors), methods=tuple(methods))
