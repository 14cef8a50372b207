"""The studio's server: whom it lets in, what it says of wrong files, and how visitors queue."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.apps.studio.command import offered, open_studio
from leadline.apps.studio.jobs import Job, Worker
from leadline.apps.studio.server import Limits, Studio, allowed_host
from leadline.apps.studio.sessions import MOST_SESSIONS, Session, Sessions
from leadline.base.errors import InputError
from support.studio_client import KIND, Visitor, studio, write_scene


@pytest.fixture(scope="module")
def server() -> Iterator[Studio]:
    with studio() as running:
        yield running


@pytest.fixture
def visitor(server: Studio) -> Visitor:
    return Visitor(server.port)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"))


# --- what goes wrong ---------------------------------------------------------------------------------------


def test_wrong_files_give_a_sentence(visitor: Visitor, scene: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not a picture", encoding="utf-8")
    visitor.put("image", tmp_path / "notes.png")
    error = visitor.run("/api/inspect", {"role": "image"})["error"]
    assert error.startswith("notes.png: ")
    assert "leadline-studio-" not in error
    visitor.put("sparse", scene["image"])
    assert "photo.png: " in visitor.run("/api/inspect", {"role": "sparse"})["error"]
    status, answer = visitor.put("prior", scene["prior"], name="prior")
    assert status == 422
    assert "suffix" in answer["error"]
    assert visitor.put("passwords", scene["prior"])[0] == 422
    visitor.give(scene)
    assert "parsec" in visitor.run("/api/complete", {"unit": "parsec"})["error"]
    wish = {**KIND, "options": {"preset": "paper", "weight_data": "-1"}}
    assert "--weight-data must be" in visitor.run("/api/complete", wish)["error"]
    assert "options" in visitor.run("/api/complete", {**KIND, "options": {"exec": "1"}})["error"]


def test_pickles_are_not_loaded(visitor: Visitor, tmp_path: Path) -> None:
    trap = tmp_path / "trap"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trap),)

    array = np.empty((2, 2), object)
    array[:] = Bomb()
    np.save(tmp_path / "sparse.npy", array, allow_pickle=True)
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Bomb()))
    for name in ("sparse.npy", "raw.npy"):
        visitor.put("sparse", tmp_path / name)
        assert visitor.run("/api/inspect", {"role": "sparse"})["state"] == "failed"
    assert not trap.exists()


def test_requests_that_are_refused(server: Studio, visitor: Visitor, scene: dict[str, Path]) -> None:
    body = b"{}"
    refused = [
        (403, "GET", "/", None, {"Host": "evil.example"}),
        (403, "POST", "/api/forget", body, {"X-Leadline-Token": ""}),
        (403, "POST", "/api/forget", body, {"X-Leadline-Token": "guess"}),
        (403, "POST", "/api/forget", body, {"Origin": "http://evil.example"}),
        (403, "PUT", "/api/file/image?name=a.png", body, {"X-Leadline-Token": ""}),
        (401, "POST", "/api/forget", body, {"Cookie": ""}),
        (401, "GET", "/api/start", None, {"Cookie": ""}),
        (404, "GET", "/assets/../server.py", None, {}),
        (404, "GET", "/assets/%2e%2e/server.py", None, {}),
        (404, "GET", "/api/input/..%2f..%2fetc%2fpasswd", None, {}),
        (404, "GET", "/etc/passwd", None, {}),
        (400, "POST", "/api/complete", b"[1]", {}),
        (400, "POST", "/api/complete", b"{", {}),
        (413, "POST", "/api/complete", b" " * 70_000, {}),
    ]
    for status, method, path, content, headers in refused:
        found, _, answer = visitor.request(method, path, content, headers)
        assert found == status, (method, path, headers)
        assert json.loads(answer)["error"].endswith(".")
    visitor.give(scene, "image")
    other = Visitor(server.port)
    assert other.request("GET", "/api/input/image")[0] == 404  # another session has no such file
    job = visitor.post("/api/inspect", {"role": "image"})["job"]
    assert other.request("GET", f"/api/job/{job}")[0] == 404


def test_pages_may_load_nothing_from_elsewhere(visitor: Visitor) -> None:
    for path in ("/", "/assets/studio.js", "/api/start"):
        _, headers, content = visitor.request("GET", path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in content
    assert "SameSite=Strict" in Visitor(visitor.port).request("GET", "/", headers={"Cookie": ""})[1]["Set-Cookie"]


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost:1", True),
        ("[::1]:80", True),
        ("192.168.0.7:80", True),
        ("studio.lan", True),
        ("127.0.0.1.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_hosts(header: str | None, allowed: bool) -> None:
    assert allowed_host(header, "studio.lan") is allowed


@given(st.text(max_size=200), st.sampled_from(["image", "sparse", "mask"]))
def test_no_name_leaves_the_folder(name: str, role: str) -> None:
    session = Session("key", "token", Path("/tmp/own"))
    try:
        upload = session.place(role, name + ".png")
    except InputError:
        return
    assert upload.path.parent == Path("/tmp/own")
    assert upload.path.name == f"{role}.png"


def test_upload_limit(scene: dict[str, Path]) -> None:
    with studio(limits=Limits(upload=100)) as small:
        status, answer = Visitor(small.port).put("image", scene["image"])
        assert status == 413
        assert "--upload-limit" in answer["error"]
        assert not [path for path in small.sessions.root.rglob("*") if path.is_file()]


# --- queue, sessions, end ------------------------------------------------------------------------------------


def test_one_after_the_other(server: Studio, visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image")
    gate = threading.Event()

    def wait(job: Job) -> dict[str, object]:
        assert gate.wait(60)
        return {}

    first = server.worker.submit("somebody else", "wait", wait)
    mine = visitor.post("/api/inspect", {"role": "image"})["job"]
    state = visitor.state(mine)
    assert (state["state"], state["position"]) == ("queued", 1)
    newer = visitor.post("/api/inspect", {"role": "image"})["job"]
    assert visitor.state(mine)["state"] == "superseded"  # the same question, asked again
    gate.set()
    while (state := visitor.state(newer))["state"] in ("queued", "running"):
        pass
    assert (state["state"], first.state) == ("done", "done")


def test_superseded_work_can_still_be_asked_for() -> None:
    worker, gate = Worker(), threading.Event()
    worker.submit("other", "wait", lambda job: {"waited": gate.wait(60)})
    jobs = [worker.submit("me", "same", lambda job: {}) for _ in range(50)]
    assert all(worker.find("me", job.key) is job for job in jobs)
    assert {job.state for job in jobs[:-1]} == {"superseded"}
    gate.set()
    assert jobs[-1].finished.wait(60)
    ended = [worker.submit("me", str(number), lambda job: {}) for number in range(30)]
    assert ended[-1].finished.wait(60)
    last = worker.submit("me", "last", lambda job: {})
    assert worker.find("me", ended[0].key) is None  # outcomes are not kept for ever
    assert last.finished.wait(60)
    worker.close()


def test_a_bug_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    broken = worker.submit("a", "x", lambda job: {"value": 1 // 0})
    assert broken.finished.wait(60)
    assert (broken.state, "terminal" in broken.error) == ("failed", True)
    fine = worker.submit("a", "x", lambda job: {"value": 1})
    assert fine.finished.wait(60)
    assert fine.outcome == {"value": 1}
    worker.close()
    assert "ZeroDivisionError" in caplog.text


def test_idle_sessions_go(scene: dict[str, Path]) -> None:
    sessions = Sessions(idle=1000.0)
    stale, used = sessions.open(), sessions.open()
    (stale.folder / "image.png").write_bytes(b"x")
    stale.touched = time.monotonic() - 2000
    sessions.expire()
    assert sessions.get(stale.key) is None
    assert not stale.folder.exists()
    assert sessions.get(used.key) is used
    for _ in range(2 * MOST_SESSIONS):  # pages that are looked at and left make room for others
        sessions.open()
    assert len(list(sessions.root.iterdir())) == MOST_SESSIONS
    sessions.close()
    assert not sessions.root.exists()


def test_a_taken_port_gives_another(server: Studio, capsys: pytest.CaptureFixture[str]) -> None:
    other = open_studio("127.0.0.1", server.port, {}, Limits())
    assert other.port != server.port
    assert "is taken" in capsys.readouterr().err
    other.close()
    with pytest.raises(InputError, match="cannot listen"):
        open_studio("192.0.2.1", 0, {}, Limits())  # an address that no machine has


def test_visitors_from_elsewhere_learn_no_folder(scene: dict[str, Path]) -> None:
    found = offered(("files:/srv/secret/predictions",), None)
    assert next(iter(found)) == "files: predictions"
    with studio(found) as open_to_all:
        open_to_all.host = "0.0.0.0"  # as if it were bound to every address
        visitor = Visitor(open_to_all.port)
        assert b"secret" not in visitor.get("/api/start")
        visitor.give(scene, "image", "sparse")
        error = visitor.run("/api/complete", {"unit": "mm", "prior": "files: predictions"})["error"]
        assert "predictions" in error
        assert "secret" not in error
