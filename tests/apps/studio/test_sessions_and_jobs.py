"""The queue of jobs, the lifetime of sessions, and what is left when the server ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline.apps.studio.jobs import Job, JobState, Worker
from leadline.apps.studio.server import Studio
from leadline.apps.studio.sessions import MAX_SESSIONS, Sessions
from support.paths import ROOT
from support.studio_client import KIND, Process, Visitor

# Between run 5 and run 20 an allocator's pools may still settle: 2 MB were measured. The maps of a run take 0.8 MB, so
# fifteen runs that each keep theirs show as 10 MB and more.
MEMORY_GROWTH = 6 * 2**20


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_jobs_are_done_in_order(server: Studio, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image")
    gate = threading.Event()
    first = server.worker.submit("somebody else", "wait", lambda job: gate.wait(60))
    mine = visitor.post("/api/inspect", {"role": "image"})["job"]
    state = visitor.state(mine)
    assert (state["state"], state["position"]) == ("queued", 1)
    newer = visitor.post("/api/inspect", {"role": "image"})["job"]
    assert visitor.state(mine)["state"] == "superseded"  # the same request, sent again
    gate.set()
    while (state := visitor.state(newer))["state"] in ("queued", "running"):
        pass
    assert (state["state"], first.state) == ("done", JobState.DONE)


def test_methods_do_not_supersede_each_other(server: Studio, visitor: Visitor) -> None:
    gate = threading.Event()
    server.worker.submit("somebody else", "wait", lambda job: gate.wait(60))
    jobs = [visitor.post("/api/method", {"name": name})["job"] for name in ("knn", "gdisp")]
    states = [visitor.state(job)["state"] for job in jobs]
    gate.set()
    assert states == ["queued", "queued"]


def test_cancelled_jobs(server: Studio, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image")
    gate, started = threading.Event(), threading.Event()

    def work(job: Job) -> str:
        job.report("first stage")
        started.set()
        gate.wait(60)
        job.report("second stage")
        return "never returned"

    running = server.worker.submit(visitor.key, "two stages", work)
    other = server.worker.submit("somebody else", "nothing", lambda job: "done")
    waiting = visitor.post("/api/inspect", {"role": "image"})["job"]
    assert started.wait(60)
    visitor.post("/api/cancel")
    assert visitor.state(waiting)["state"] == "cancelled"
    gate.set()
    assert running.finished.wait(60)
    assert other.finished.wait(60)
    assert (running.state, running.stage) == (JobState.CANCELLED, "first stage")
    assert other.result == "done"


def test_superseded_jobs_can_still_be_found(worker: Worker) -> None:
    gate = threading.Event()
    worker.submit("other", "wait", lambda job: gate.wait(60))
    jobs = [worker.submit("me", "same", lambda job: {}) for _ in range(50)]
    assert all(worker.find("me", job.key) is job for job in jobs)
    assert {job.state for job in jobs[:-1]} == {JobState.SUPERSEDED}
    gate.set()
    assert jobs[-1].finished.wait(60)
    ended = [worker.submit("me", str(number), lambda job: {}) for number in range(30)]
    assert ended[-1].finished.wait(60)
    last = worker.submit("me", "last", lambda job: {})
    assert worker.find("me", ended[0].key) is None  # results are not kept for ever
    assert last.finished.wait(60)


def test_a_bug_does_not_end_the_worker(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    broken = worker.submit("a", "x", lambda job: 1 // 0)
    assert broken.finished.wait(60)
    assert broken.state is JobState.FAILED
    assert "terminal" in str(broken.error)
    fine = worker.submit("a", "x", lambda job: 1)
    assert fine.finished.wait(60)
    assert fine.result == 1
    assert "ZeroDivisionError" in caplog.text


def test_idle_sessions_are_removed() -> None:
    sessions = Sessions(idle=1000.0)
    stale, used = sessions.open(), sessions.open()
    (stale.folder / "image.png").write_bytes(b"x")
    stale.last_used = time.monotonic() - 2000
    sessions.expire()
    assert sessions.get(stale.key) is None
    assert not stale.folder.exists()
    assert sessions.get(used.key) is used
    for _ in range(2 * MAX_SESSIONS):  # pages that were only opened make room for others
        sessions.open()
    assert len(list(sessions.root.iterdir())) == MAX_SESSIONS
    sessions.close()
    assert not sessions.root.exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_twenty_runs_leave_nothing(tmp_path: Path, scene: dict[str, Path]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NUMBA_NUM_THREADS": "1"}
    process = Process(tmp_path / "tmp", environment)
    try:
        visitor = Visitor(process.port)
        visitor.give(scene, "image", "sparse", "prior", "reference")
        files = sorted(path.name for path in process.files())
        memory = {}
        for number in range(1, 21):
            summary = visitor.complete({**KIND, "options": {"tolerance": f"1e-{4 + number % 3}"}})
            for job, request in (("exponent", {"exponent": 0.5}), ("method", {"name": "knn"}), ("diagnose", {})):
                visitor.result(f"/api/{job}", request)
            for name in (f"view/{summary['revision']}/depth", f"points/{summary['revision']}"):
                visitor.get(f"/api/{name}")
            for kind in ("depth.npy", "depth.png", "cloud.ply", "report.json"):
                visitor.download(summary, kind)
            memory[number] = process.memory()
        assert sorted(path.name for path in process.files()) == files
        assert memory[20] - memory[5] < MEMORY_GROWTH, memory
    finally:
        code = process.end(signal.SIGTERM)
    assert code == 0
    assert not list(process.folder.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal for another process")
def test_ctrl_c_removes_everything(tmp_path: Path, scene: dict[str, Path]) -> None:
    process = Process(tmp_path / "tmp", {**os.environ, "PYTHONPATH": str(ROOT / "src")})
    Visitor(process.port).give(scene)
    assert len(process.files()) == 3
    assert process.end(signal.SIGINT) == 0
    assert not list(process.folder.iterdir())
