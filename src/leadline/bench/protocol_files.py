"""Reads the description of a benchmark run from a TOML file:

cases = ["distributed", "central", "outer"]       # or other patterns, see `observations`
stride = 7.5                                      # pixels between the measurements of these cases; the default
methods = ["ours", "best", {name = "ours", label = "stiff", options = {weight_data = 1e-2}}]
# {name = "priorda", priors = "first"}            # run with the first prior only: the system brings its own

[scoring]                                         # the convention of the scores, see `Scoring`; the paper's if left out
pixels = "valid"                                  # or "held-out"
aggregate = "mean-images"                         # or "mean-pixels", "median"
missing = "penalise"                              # or "exclude", "fail"
cases = "separate"                                # or "pooled"
# min_depth = 0.2                                 # metres; max_depth likewise

[[datasets]]
name = "ibims"                                    # a name of `leadline datasets`, or "rendered"
label = "iBims"                                   # name of the subset in the tables; default: the data set's name
root = "ibims1"                                   # relative to --data, or to the folder of the protocol
normals = true                                    # false: score depth only, e.g. if the camera is a guess
options = {max_depth = 10.0}                      # of the data set
# limit = 749                                     # only the first images, e.g. those of a published split
# cases = ["stored"]                              # of this data set, instead of the protocol's
# split = true                                    # scene folders only: one subset per folder of scene folders

[[priors]]
source = "onnx:model.onnx"                        # a name of `leadline priors`, or "rendered"
label = "MoGe-3"                                  # default: the source
# gauge = "metric"                                # the prior is in metres; default: as the source states it
# source = "oracle:0.9:onnx:model.onnx"           # blended with 0.9 of the reference, see `sources`
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError, InputError, param
from leadline.base.registry import suggestion
from leadline.bench.protocol import (
    ORACLE,
    DatasetEntry,
    Entry,
    MethodEntry,
    PriorEntry,
    Protocol,
    convert_protocol,
    split_oracle,
)
from leadline.bench.scoring import Scoring
from leadline.datasets import dataset


def packaged_protocols() -> list[str]:
    """Names of the protocols that come with leadline.

    Examples
    --------
    >>> packaged_protocols()[:5]
    ['arkit-lowres', 'baselines', 'beyond', 'ddad', 'diode1000']
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
    data_options: Mapping[str, Any] | None = None,
    prior_options: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
) -> Protocol:
    """The protocol in a TOML file, with absolute paths.

    Parameters
    ----------
    source : str
        A file, or the name of a protocol that comes with leadline (`packaged_protocols`).
    data : path, optional
        Folder that relative roots and model files are relative to. Default: the folder of the file; for a packaged
        protocol the working folder.
    roots : mapping, optional
        Folder per data set label, instead of the folder in the file.
    only : labels, optional
        Use only these data sets.
    priors : specs, optional
        Sources instead of those in the file, each ``SOURCE`` or ``LABEL=SOURCE``.
    limit : int, optional
        Use only the first images of each data set.
    data_options, prior_options, method_options : mapping, optional
        Options in addition to those in the file, by ``KEY`` for all entries or by ``LABEL:KEY`` for one of them.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        base, text = data or path.parent, _read_text(path)
    else:
        known = packaged_protocols()
        if source not in known:
            raise FileError(f"{source}: this is neither a file nor a packaged protocol; {suggestion(source, known)}")
        base = data or Path()
        text = (files("leadline.bench") / "protocols" / f"{source}.toml").read_text(encoding="utf-8")
    try:
        protocol = _parse(text)
        if replaced := tuple(map(parse_prior, priors)):
            protocol = replace(protocol, priors=replaced)
        roots, only = roots or {}, list(only)
        _require_labels(protocol.datasets, roots, "data set")
        protocol = _with_absolute_paths(protocol, base.resolve(), roots)
        subsets = (_subsets(entry) if entry.split else [entry] for entry in protocol.datasets)
        protocol = replace(protocol, datasets=tuple(chain.from_iterable(subsets)), limit=limit)
        _require_labels(protocol.datasets, only, "data set")
        kept = tuple(entry for entry in protocol.datasets if not only or entry.label in only)
        return replace(
            protocol,
            datasets=_with_options(kept, data_options or {}, "data set"),
            priors=_with_options(protocol.priors, prior_options or {}, "prior"),
            methods=_with_options(protocol.methods, method_options or {}, "method"),
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def parse_prior(text: str) -> PriorEntry:
    """The entry of ``SOURCE`` or ``LABEL=SOURCE``. Paths are relative to the working folder.

    Examples
    --------
    >>> entry = parse_prior("strong=oracle:0.9:scene")
    >>> entry.label, entry.source
    ('strong', 'oracle:0.9:scene')
    """
    label, equals, source = text.partition("=")
    if not equals or ":" in label or "/" in label:  # the equals sign is part of a path
        label, source = text, text
    return PriorEntry(_absolute_source(source, Path().resolve()), label)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FileError(f"{path}: the protocol cannot be read ({reason}).") from error


_ENTRIES: dict[str, type[Any]] = {"datasets": DatasetEntry, "priors": PriorEntry, "methods": MethodEntry}


def _parse(text: str) -> Protocol:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is not valid TOML: {error}.") from error
    _require_known(content, [*_ENTRIES, "cases", "stride", "scoring"], "the protocol")
    if isinstance(content.get("scoring"), dict):
        _require_known(content["scoring"], [item.name for item in fields(Scoring)], param("scoring"))
    for name, kind in _ENTRIES.items():
        required, known = _field_names(kind)
        content.setdefault(name, [])
        if not isinstance(content[name], list):
            raise InputError(f"{param(name)} must be a list of names or tables, got {content[name]!r}.")
        # An entry that is only a name is short for a table with the required key.
        content[name] = [{required: entry} if isinstance(entry, str) else entry for entry in content[name]]
        for place, entry in enumerate(content[name]):
            where = f"{name}[{place}]"
            if not isinstance(entry, dict):
                raise InputError(f"{param(where)} must be a name or a table, got {entry!r}.")
            _require_known(entry, known, param(where))
            if required not in entry:
                raise InputError(f"{param(where)} needs the key {required!r}, got {entry!r}.")
    return convert_protocol(content)


def _field_names(kind: type[Any]) -> tuple[str, list[str]]:
    """The required key of an entry, and all of its keys."""
    names = [item.name for item in fields(kind)]
    required = next(item.name for item in fields(kind) if item.default is item.default_factory is MISSING)
    return required, names


def _require_known(table: Mapping[str, object], known: list[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where} has no key {key!r}; {suggestion(key, known)}")


_PATH_SOURCES = ("files", "onnx")  # sources whose argument is always a path


def _absolute_source(source: str, base: Path) -> str:
    """The source of a prior with an absolute path, if its argument is a path."""
    share, spec = split_oracle(source)
    kind, _, argument = spec.partition(":")
    if argument and (kind in _PATH_SOURCES or (base / argument).exists()):
        spec = f"{kind}:{base / argument}"
    return f"{ORACLE}:{share:g}:{spec}" if share else spec


def _require_labels(entries: tuple[Entry, ...], labels: Iterable[str], kind: str) -> None:
    known = [entry.label for entry in entries]
    for label in labels:
        if label not in known:
            raise InputError(f"there is no {kind} labelled {label!r}; {suggestion(label, known)}")


def _with_options(entries: tuple[Entry, ...], options: Mapping[str, Any], kind: str) -> tuple[Entry, ...]:
    """The entries with further options, each by ``KEY`` or ``LABEL:KEY``."""
    for name, value in options.items():
        label, _, key = name.rpartition(":")
        if label:
            _require_labels(entries, [label], kind)
        entries = tuple(
            replace(entry, options={**entry.options, key: value}) if label in ("", entry.label) else entry
            for entry in entries
        )
    return entries


def _with_absolute_paths(protocol: Protocol, base: Path, roots: Mapping[str, str]) -> Protocol:
    """The protocol with absolute folders: those in `roots` by label, all others below `base`."""
    datasets = []
    for entry in protocol.datasets:
        root = Path(roots[entry.label]).resolve() if entry.label in roots else base / entry.root
        datasets.append(entry if entry.name == "rendered" else replace(entry, root=str(root)))
    priors = (replace(entry, source=_absolute_source(entry.source, base)) for entry in protocol.priors)
    methods = []
    for method in protocol.methods:
        kind, _, argument = method.name.partition(":")
        is_folder = kind == "predictions" and argument != "scene"
        methods.append(replace(method, name=f"{kind}:{base / argument}") if is_folder else method)
    return replace(protocol, datasets=tuple(datasets), priors=tuple(priors), methods=tuple(methods))


def _subsets(entry: DatasetEntry) -> list[DatasetEntry]:
    """One entry per folder of scene folders; the entry itself if its root contains scene folders directly."""
    if entry.name != "scenes":
        raise InputError(f"{param('split')} is an option of the data set 'scenes' only, not of {entry.name!r}.")
    names = dataset(entry.name, entry.root).names()
    folders = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    direct = [name for name in names if "/" not in name]
    if direct and folders:
        raise InputError(
            f"{param('split')} needs all scene folders of {entry.root} at the same depth, but the scene {direct[0]!r} "
            f"is beside {next(iter(folders))!r}, a folder of scenes. Move it, or set split = false."
        )
    if direct:
        return [replace(entry, split=False)]
    return [replace(entry, label=name, root=str(Path(entry.root) / name), split=False) for name in folders]
