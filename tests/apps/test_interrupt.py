"""Ctrl-C at the places of a program where Python itself would print a traceback or drop the signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.cli_frames import environment

COMMAND = """
import signal, sys, time
from leadline.apps import cli

class InTheConstructor:
    def __init__(self):
        signal.raise_signal(signal.SIGINT)
        self.handle = 1
    def __del__(self):
        print(self.handle)  # fails: the constructor did not get this far

class InTheDestructor:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def interrupted():
    try:
        {made}()
        for _ in range(600):  # until the signal is repeated
            time.sleep(0.1)
        print("went on")
    except KeyboardInterrupt:
        print("interrupted")

cli.warm_up.callback = interrupted
sys.argv = ["leadline", "warm-up"]
cli.main()
"""


@pytest.mark.parametrize("made", ["InTheConstructor", "InTheDestructor"])
def test_ctrl_c_ends_a_command_without_a_traceback(made: str) -> None:
    code = COMMAND.replace("{made}", made)
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout == "interrupted\n"
