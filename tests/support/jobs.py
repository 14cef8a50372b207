"""Jobs for the executors; in a module of their own, so that worker processes can import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from leadline.base.errors import FileError


@dataclass(frozen=True)
class Square:
    """Squares numbers; kills its own process at the numbers in `deadly`."""

    deadly: tuple[int, ...] = ()

    def start(self, threads: int) -> Callable[[int], tuple[int, int, int]]:
        def work(number: int) -> tuple[int, int, int]:
            if number in self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return number**2, threads, os.getpid()

        return work


def behave(how: str) -> str:
    """A function for a child process that fails in one of the ways in which decoders fail."""
    if how == "loop":
        while True:
            pass
    if how == "abort":
        os.abort()
    if how == "allocate":
        return str(len(bytearray(2**30)))
    if how == "refuse":
        raise FileError("a.las: is damaged.")
    if how == "bug":
        raise ZeroDivisionError(how)
    return how
