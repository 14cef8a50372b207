"""Where a torch network runs, and in which precision: arguments of every such prior and method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from leadline.base.errors import InputError, MissingExtra

PRECISIONS = ("float32", "float16", "bfloat16")


def require_packages(packages: Sequence[str], extra: str, purpose: str) -> None:
    """Nothing, if all packages are installed; MissingExtra otherwise. Imports none of them."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(package, extra, purpose)


def torch_module(extra: str, purpose: str) -> Any:
    """The package torch; MissingExtra if it is not installed."""
    try:
        return import_module("torch")  # by name: type checkers need neither the package nor the time to read it
    except ImportError as error:
        raise MissingExtra("torch", extra, purpose) from error


def check_precision(precision: str) -> str:
    """The same, if it is one of `PRECISIONS`; InputError otherwise. Needs no torch."""
    if precision not in PRECISIONS:
        raise InputError(f"`precision` must be one of {', '.join(PRECISIONS)}, got {precision!r} instead.")
    return precision


def torch_device(torch: Any, device: str, precision: str = "float32") -> Any:
    """The ``torch.device`` that `device` names, checked: "auto" is the fastest there is.

    Raises
    ------
    InputError
        torch does not know the device, this machine does not have it, or it cannot compute in that precision.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    check_precision(precision)
    try:
        found = torch.device(device)
        torch.zeros(1, device=found, dtype=getattr(torch, precision)) + 1  # the one sure way to know
    except Exception as error:  # RuntimeError, AssertionError, TypeError: by kind of device and build of torch
        raise InputError(
            f"`device` {device!r} cannot be used here in {precision} ({first_line(error)}). "
            "Use auto, cpu, or one that this build of torch can reach."
        ) from error
    if found.type == "cpu" and precision == "bfloat16":
        # Seen: a transposed convolution that ends the process by an illegal instruction. No error could be reported.
        raise InputError("`precision` bfloat16 is not safe on the processor; use float32, or float16 to save memory.")
    return found


@contextmanager
def inference(torch: Any, threads: int | None = None) -> Iterator[None]:
    """No gradients inside, and so many threads on the processor, if given; afterwards as many as before."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that some packages add to it."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
