"""Kernels are compiled before they are needed, each by one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leadline.core import compilation

COVERAGE = """
import sys, tempfile
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from leadline.base.jit import ParallelLoop
from leadline.core import compilation
from leadline.core.pipeline import align, complete

def signatures():
    found = set()
    for name, module in list(sys.modules.items()):
        for value in vars(module).values() if name.startswith("leadline") else ():
            dispatcher = value._kernel if isinstance(value, ParallelLoop) else value
            if isinstance(dispatcher, Dispatcher):
                found |= {(dispatcher.py_func.__qualname__, str(types)) for types in dispatcher.signatures}
    return found

examples = [compilation._example(dtype) for dtype in compilation._DTYPES]
for example in examples:
    align(*example, options=PRESET)
compilation.compile_solver(Path(tempfile.mkdtemp()), general=PRESET == "best", reverse=True)
compiled = signatures()
for example in examples:
    complete(*example, options=PRESET)
for name, types in sorted(signatures() - compiled):
    print(name, types)
"""


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_tasks_cover_all_kernels_of_a_completion(preset):
    """Otherwise one process would compile what is left while the other has nothing to do."""
    run = subprocess.run(
        [sys.executable, "-c", f"PRESET = '{preset}'\n{COVERAGE}"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""


def test_each_task_is_done_by_one_process(tmp_path, monkeypatch):
    done = []
    names = ["first", "second", "third"]

    def tasks(general):
        return [lambda name=name: do(name) for name in names]

    def do(name):
        done.append(name)
        if name == "third":  # meanwhile the process at the other end does what is left
            compilation.compile_solver(tmp_path, general=True, reverse=False)

    monkeypatch.setattr(compilation, "_solver_tasks", tasks)
    compilation.compile_solver(tmp_path, general=True, reverse=True)
    assert done == ["third", "first", "second"]
