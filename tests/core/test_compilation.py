"""Kernels are compiled before they are needed, each by one process, and a second process only where that is safe."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

from leadline.core import compilation
from leadline.core.options import CompletionOptions

BEST = CompletionOptions.best()

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
compilation._ahead = True  # no second process here
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


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What `compile_ahead` has started in a program without compiled kernels, on two cores."""
    found = []

    class Process:
        def __init__(self, command, **settings):
            found.append("process")

        def wait(self, timeout=None):
            return 0

        kill = wait

    monkeypatch.setattr(compilation, "_ahead", False)
    monkeypatch.setattr(compilation, "_marker", lambda options: tmp_path / "cache" / "marker")
    monkeypatch.setattr(compilation, "available_cores", lambda: 2)
    monkeypatch.setattr(compilation.numba.config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(compilation.sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(compilation.subprocess, "Popen", Process)
    monkeypatch.setattr(compilation, "align", lambda *maps, options: found.append(gc.isenabled()))
    monkeypatch.setattr(compilation, "compile_solver", lambda folder, **settings: None)
    return found


def test_the_first_completion_starts_a_second_process_once(started, tmp_path):
    compilation.compile_ahead(BEST)
    assert started == ["process", False, False]  # without garbage collection
    assert gc.isenabled()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["marker"]
    compilation.compile_ahead(BEST)
    assert len(started) == 3


def test_a_program_with_compiled_kernels_starts_no_process(started):
    compilation._touch(compilation._marker(BEST))
    compilation.compile_ahead(BEST)
    assert started == []


def test_a_worker_process_starts_no_other(started, monkeypatch):
    monkeypatch.setattr(compilation.multiprocessing, "parent_process", lambda: "its parent")
    compilation.compile_ahead(BEST)
    assert started == []


def test_a_program_of_one_thread_starts_no_process(started, monkeypatch):
    monkeypatch.setattr(compilation.numba.config, "NUMBA_NUM_THREADS", 1)
    compilation.compile_ahead(BEST)
    assert started == []


def test_a_program_that_embeds_python_starts_no_process(started, monkeypatch):
    monkeypatch.setattr(compilation.sys, "executable", "/opt/viewer/viewer")
    compilation.compile_ahead(BEST)
    assert started == []


def test_no_process_is_started_where_nothing_can_be_stored(started, tmp_path):
    (tmp_path / "cache").touch()  # a file in place of the folder, which no user can write to
    compilation.compile_ahead(BEST)
    assert started == []


def test_of_several_programs_one_starts_a_process(started, tmp_path):
    lock = tmp_path / "cache" / "marker.lock"
    compilation._touch(lock)
    compilation.compile_ahead(BEST)
    assert started == []
    assert lock.exists()
    assert not compilation.is_compiled(BEST)


def test_the_lock_of_a_program_that_died_is_replaced(started, tmp_path):
    lock = tmp_path / "cache" / "marker.lock"
    compilation._touch(lock)
    old = time.time() - 2 * compilation._PATIENCE
    os.utime(lock, (old, old))
    compilation.compile_ahead(BEST)
    assert "process" in started
    assert not lock.exists()


def test_the_second_process_imports_the_same_modules_and_stores_in_the_same_place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilation.sys, "path", ["modules", *sys.path])
    monkeypatch.setattr(compilation.numba.config, "CACHE_DIR", "cache")
    found = compilation._environment()
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "modules")
    assert found["NUMBA_CACHE_DIR"] == str(tmp_path / "cache")
