"""Device, dtype and threads of networks that run on torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from leadline.base.errors import InputError, MissingExtra, param

DTYPES = ("float32", "float16", "bfloat16")


def require_packages(packages: Sequence[str], extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless all packages are installed. None of them is imported."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(package, extra, purpose)


def torch_module(extra: str, purpose: str) -> Any:
    """The package torch; `MissingExtra` if it is not installed."""
    try:
        return import_module("torch")  # by name, so that type checkers need not read the package
    except ImportError as error:
        raise MissingExtra("torch", extra, purpose) from error


def check_dtype(dtype: str, allowed: Sequence[str] = DTYPES) -> None:
    """Raise `InputError` unless `dtype` is one of the allowed names. torch is not imported."""
    if dtype not in allowed:
        raise InputError(f"{param('dtype')} must be one of {', '.join(allowed)}, got {dtype!r} instead.")


def torch_device(torch: Any, device: str, dtype: str = "float32") -> Any:
    """The ``torch.device`` of that name, after a test computation; "auto" is CUDA, MPS or the processor."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    check_dtype(dtype)
    try:
        found = torch.device(device)
        (torch.zeros(1, device=found, dtype=getattr(torch, dtype)) + 1)  # only a computation shows whether it works
    except Exception as error:  # the type of the error depends on the device and the build of torch
        raise InputError(
            f"{param('device')} {device!r} cannot be used here in {dtype} ({first_line(error)}). "
            "Use auto, cpu, or a device that this build of torch supports."
        ) from error
    if found.type == "cpu" and dtype == "bfloat16":
        # A transposed convolution was seen to end the process by an illegal instruction, which no error can report.
        raise InputError(f"{param('dtype')} bfloat16 is not safe on the processor; use float32 or float16.")
    return found


@contextmanager
def inference(torch: Any, threads: int | None = None) -> Iterator[None]:
    """Disable gradients and set the number of processor threads, if given; restore the number afterwards."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop; some packages add pages of text."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
