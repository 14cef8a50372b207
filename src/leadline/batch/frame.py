"""One frame from its files to its files, with a sidecar that says how the depth came about."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from leadline.apps.cli import version
from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.core.options import CompletionOptions
from leadline.io.frames import Frame, Maps, Settings, read_maps

if TYPE_CHECKING:
    from leadline.apps.network import Network
    from leadline.core.pipeline import Completion

State = Literal["done", "skipped", "failed"]

# By form: the suffix of its files. All but PNG are floats.
FORMS = {"png": ".png", "npy": ".npy", "npz": ".npz", "exr": ".exr", "pfm": ".pfm", "tiff": ".tiff"}
NOISE = ("constant", "proportional", "quadratic")  # what the numbers of --noise are
FARTHEST = 10.0  # times the farthest measurement: what lies beyond is the response's word alone
COMPILING = "compiling kernels (once; cached afterwards)…"


@dataclass(frozen=True)
class Outcome:
    """What became of a frame; picklable, since it comes back from a worker process."""

    stem: str
    state: State
    message: str = ""
    notes: tuple[str, ...] = ()
    outputs: tuple[Path, ...] = ()
    traceback: str = ""


def run_frame(
    frame: Frame, settings: Settings, output: Path, *, network: Network | None = None, overwrite: bool = False
) -> Outcome:
    """Complete one frame and write its files into the folder `output`; "skipped" if that was done before.

    The prior is read from the frame's file, or predicted by the `network`.

    The sidecar ``STEM.json`` is removed first and written last, so its presence means that all files it
    lists are whole and belong together.

    Raises
    ------
    LeadlineError
        If a file cannot be read or written, does not fit the others, or holds nothing to work with.
    """
    files = output_paths(frame, settings, output)
    _refuse_to_write_over_inputs(frame, files)
    inputs = {name: {"path": str(path), "sha256": sha256_of(path)} for name, path in frame.inputs().items()}
    if network is not None:
        inputs["prior"] = {"path": network.spec, "sha256": network.fingerprint}
    notes: tuple[str, ...] = ()
    if not overwrite and files["sidecar"].exists():
        changes = changed(files, {name: entry["sha256"] for name, entry in inputs.items()}, settings)
        if not changes:
            return Outcome(
                frame.stem, "skipped", "complete already, from the same inputs and options (see --overwrite)"
            )
        notes = (f"redone, not skipped: {changes}.",)

    begun = time.perf_counter()
    maps = read_maps(frame, settings, network)
    read = time.perf_counter()
    compile_kernels(settings.completion)
    from leadline.core import pipeline  # brings numba along, which skipped frames and wrong inputs do not need
    from leadline.core.noise import Noise

    compiled = time.perf_counter()
    result = pipeline.complete(
        maps.prior,
        maps.sparse,
        valid=maps.valid,
        noise=None if settings.noise is None else Noise(**dict(zip(NOISE, settings.noise, strict=False))),
        uncertainty=settings.sigma,
        options=settings.completion,
    )
    solved = time.perf_counter()
    if result.fit.count == 0:
        raise InputError(f"{frame.sparse}: {result.fit.status}.")
    unsupported = _unsupported(result.depth, maps.sparse)
    notes += maps.notes + _shortcomings(result) + ((unsupported,) if unsupported else ())
    files["sidecar"].unlink(missing_ok=True)
    unit, beyond = _write_maps(files, maps, result, settings)
    notes += beyond
    maps.recorded["units"]["depth"] = {"unit": unit}
    written = time.perf_counter()
    seconds = {"read": read - begun, "complete": solved - compiled, "write": written - solved}
    record = {
        "leadline": version(),
        "frame": frame.stem,
        "inputs": inputs,
        "outputs": {name: path.name for name, path in files.items() if name != "sidecar"},
        **maps.recorded,
        "notes": notes,
        "result": result.to_dict(),
        "settings": settings.record(),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }
    _write_json(files["sidecar"], record)
    return Outcome(frame.stem, "done", str(result), notes, tuple(files.values()))


def _shortcomings(result: Completion) -> tuple[str, ...]:
    """What ``--strict`` would refuse: a stage that fell back or stopped early, and its advice."""
    found = []
    if result.fit.status is not type(result.fit.status).CONVERGED:
        found.append(f"fit {result.fit.status}.")
    if not result.reconstruction.converged:
        found.append(f"solve {result.reconstruction.status}.")
    return tuple(found)


def _unsupported(depth: FloatArray, sparse: FloatArray) -> str:
    """A sentence if the depth goes far beyond all that was measured; "" if it does not."""
    most, far = (float(np.nanmax(values)) for values in (depth, sparse))
    if not most > FARTHEST * far:
        return ""
    return (
        f"the depth reaches {most:.3g} m and the farthest measurement is {far:.3g} m: the rest is extrapolated; "
        "measure farther away."
    )


def output_paths(frame: Frame, settings: Settings, output: Path) -> dict[str, Path]:
    """The files a frame gives by what they are, in the order in which they are written."""
    suffix = FORMS[settings.form]
    files = {"depth": output / f"{frame.stem}_depth{suffix}"}
    if settings.calibrated:
        files["calibrated"] = output / f"{frame.stem}_calibrated{suffix}"
    if settings.sigma:  # 16 bits of millimetres would lose most of it
        files["sigma"] = output / f"{frame.stem}_sigma{'.npy' if settings.form == 'png' else suffix}"
    files["preview"] = output / f"{frame.stem}_preview.png"
    if settings.ply:
        files["cloud"] = output / f"{frame.stem}.ply"
    return {**files, "sidecar": output / f"{frame.stem}.json"}


def changed(files: Mapping[str, Path], hashes: Mapping[str, str], settings: Settings) -> str:
    """Why a frame that has a sidecar must be redone; "" if it need not.

    Options and the contents of inputs are compared, not their paths, so a folder may be moved. The version
    of leadline is not compared either.
    """
    try:
        record = json.loads(files["sidecar"].read_text(encoding="utf-8"))
        inputs = {name: entry["sha256"] for name, entry in record["inputs"].items()}
        options = _flat(record["settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{files['sidecar'].name} is not a sidecar that leadline wrote"
    reasons = [
        f"the {what} changed ({', '.join(names)})"
        for what, names in (
            ("options", _differing(options, _flat(settings.record()))),
            ("inputs", _differing(inputs, hashes)),
        )
        if names
    ]
    missing = [name for name, path in files.items() if not path.exists()]
    if missing and not reasons:
        reasons = [f"outputs are missing ({', '.join(missing)})"]
    return " and ".join(reasons)


def kernels_compiled(options: CompletionOptions | None = None) -> bool:
    """Whether the kernels for these options are on disk, so that the first frame will not wait for them."""
    from leadline.base.jit import is_warm

    return is_warm(general=_general(options))


def _general(options: CompletionOptions | None) -> bool:
    return options is not None and options.reconstruction.system == "adaptive"


def compile_kernels(options: CompletionOptions | None = None, *, quiet: bool = False) -> bool:
    """Compile the kernels, with a word on stderr as it takes some seconds; False if that was done before."""
    if kernels_compiled(options):
        return False
    from leadline.core import pipeline

    if not quiet:
        click.echo(COMPILING, err=True)
    # A second process compiles the multigrid meanwhile, half of the work; both put it into the cache on disk.
    chosen = options or CompletionOptions()
    program = f"from leadline.core.{'platecycle' if _general(chosen) else 'vcycle'} import warm_up; warm_up()"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as other:
        rest = replace(chosen, reconstruction=replace(chosen.reconstruction, solver="jacobi"))
        pipeline.warm_up(("float32",), rest)  # what files are read as
        other.wait()
    pipeline.warm_up(("float32",), chosen)
    return True


def units_to_try(settings: Settings, measured: str) -> tuple[str, ...]:
    """The units for the depth, the first that holds it is taken.

    Unless one is asked for, PNG has the unit of the measurements, `measured`, so that these come back bit for bit;
    but not one coarser than a centimetre, and millimetres if the depth is beyond what 16 bits hold in it.
    """
    from leadline.io.depth.units import UNITS, as_unit

    if settings.output_unit is not None:
        return (settings.output_unit,)
    if settings.form != "png":
        return ("m",)
    own, coarsest = as_unit(measured), UNITS["cm"]
    fine = own.metres is not None and coarsest is not None and own.metres <= coarsest
    return (own.name, "mm") if fine and own.name != "mm" else ("mm",)


def _write_maps(
    files: Mapping[str, Path], maps: Maps, result: Completion, settings: Settings
) -> tuple[str, tuple[str, ...]]:
    """Write all but the sidecar; returns the depth's unit, and a note if it is not the one first meant."""
    from PIL import Image

    from leadline.io.clouds.files import write_ply
    from leadline.io.depth.files import atomic_write, write_depth
    from leadline.report.colour import colourise

    units = units_to_try(settings, maps.unit)
    for unit in units:
        try:
            write_depth(files["depth"], result.depth, unit)
            if "calibrated" in files:
                write_depth(files["calibrated"], result.calibrated, unit)
            break
        except InputError as error:  # a depth beyond what 16 bits hold in this unit
            if unit == units[-1]:
                why = _unsupported(result.depth, maps.sparse)
                raise InputError(f"{why} {error} The flags are --output-unit and --form.".lstrip()) from error
    if result.sigma is not None:
        write_depth(files["sigma"], result.sigma, "m")
    beyond = () if unit == units[0] else (f"the depth is beyond 16 bits in {units[0]} and was written in {unit}.",)
    preview = Image.fromarray(np.hstack((maps.image, colourise(result.depth))))
    atomic_write(files["preview"], lambda part: preview.save(part, format="PNG"))
    if "cloud" in files and maps.camera is not None:
        points = maps.camera.points(result.depth)
        known = np.isfinite(points).all(axis=-1)  # a lens may have no ray for a corner
        write_ply(files["cloud"], points[known], maps.image[known])
    return unit, beyond


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    from leadline.io.atomic import write_text

    text = json.dumps(_strict_json(record), indent=2, allow_nan=False) + "\n"
    write_text(path, text)


def _strict_json(value: Any) -> Any:
    """`value` with NaN and infinity as null, since JSON proper has neither (e.g. an unknown covariance)."""
    if isinstance(value, Mapping):
        return {key: _strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by their innermost names, the fit's prefixed as its flags are."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = _flat(value) if isinstance(value, Mapping) else {name: value}
        flat |= {f"fit_{key}": item for key, item in nested.items()} if name == "fit" else nested
    return flat


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _refuse_to_write_over_inputs(frame: Frame, files: Mapping[str, Path]) -> None:
    inputs = {path.resolve(): name for name, path in frame.inputs().items()}
    for path in files.values():
        if path.resolve() in inputs:
            raise InputError(f"{path}: would be written over the {inputs[path.resolve()]} input; choose another -o.")


def sha256_of(path: Path) -> str:
    """Hash of a file's content; FileError if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}).") from error
