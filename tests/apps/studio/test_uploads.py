"""Files from strangers: what their decoding takes is limited, and what nobody waits for ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.apps.studio.server import Limits, Studio
from support.studio_client import KIND, Visitor, studio

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of memory")


@pytest.fixture(scope="module")
def small() -> Iterator[Studio]:
    with studio(limits=Limits(memory=2**26)) as running:
        yield running


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 million pixels in 70 KB."""
    path = tmp_path_factory.mktemp("large") / "large.png"
    Image.fromarray(np.zeros((8000, 8000), np.uint8)).save(path)
    return path


def test_a_file_that_takes_too_much_memory_is_refused(small: Studio, picture: Path, scene: dict[str, Path]) -> None:
    visitor = Visitor(small.port)
    visitor.put("image", picture)
    failed = visitor.run("/api/inspect", {"role": "image"})
    assert failed["state"] == "failed"
    assert failed["error"].startswith("large.png: ")
    visitor.give(scene)
    visitor.put("image", picture)
    again = visitor.run("/api/complete", KIND)  # no file is read in the server's own process before it was tried
    assert (again["state"], again["error"]) == ("failed", failed["error"])
    visitor.give(scene)
    assert visitor.result("/api/inspect", {"role": "image"})["size"] == [160, 120]
    assert visitor.complete(KIND)["width"] == 160


def stop_reading(server: Studio, visitor: Visitor, scene: dict[str, Path]) -> None:
    """Stop the process that reads files, as if it took for ever to decode the next one, and upload that."""
    visitor.give(scene, "sparse")
    visitor.result("/api/inspect", {"role": "sparse", "unit": "mm"})  # starts the process
    assert server.reader.pid is not None
    os.kill(server.reader.pid, signal.SIGSTOP)
    visitor.give(scene, "sparse")


@pytest.mark.parametrize("how", ["cancel", "forget", "again"])
def test_reading_ends_when_nobody_waits_for_it(
    server: Studio, visitor: Visitor, scene: dict[str, Path], how: str
) -> None:
    stop_reading(server, visitor, scene)
    job = visitor.post("/api/inspect", {"role": "sparse"})["job"]
    while (state := visitor.state(job)["state"]) == "queued":
        pass
    assert state == "running"
    if how == "again":
        visitor.give(scene, "sparse")
        assert visitor.result("/api/inspect", {"role": "sparse", "unit": "mm"})["unit"] == "mm"
    else:
        visitor.post(f"/api/{how}")
    assert server.worker.find(visitor.key, job).finished.wait(60)
    assert visitor.state(job)["state"] == ("superseded" if how == "again" else "cancelled")
    other = Visitor(server.port)
    other.give(scene, "image")
    assert other.result("/api/inspect", {"role": "image"})["size"] == [160, 120]


def test_the_jobs_of_a_session_that_ends_are_cancelled(
    server: Studio, visitor: Visitor, scene: dict[str, Path]
) -> None:
    stop_reading(server, visitor, scene)
    job = server.worker.find(visitor.key, visitor.post("/api/inspect", {"role": "sparse"})["job"])
    server.sessions.get(visitor.key).last_used -= 2 * server.sessions.idle
    server.sessions.expire()
    assert job.finished.wait(60)
    assert job.state.value == "cancelled"
