"""The studio's server: which requests it accepts, and what it answers to wrong files."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.apps.studio.command import find_predictors, open_studio, predictor_name
from leadline.apps.studio.server import Limits, Studio, is_allowed_host
from leadline.apps.studio.sessions import Role, Session
from leadline.base.errors import InputError, MissingExtra
from support.studio_client import KIND, Visitor, studio


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


def test_errors_name_the_controls_of_the_page(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene)
    visitor.put("reference", scene["reference"])
    error = visitor.run("/api/complete", {"unit": "parsec"})["error"]
    assert error.startswith("“Unit of the measurements” must be one of")
    assert "parsec" in error
    error = visitor.run("/api/complete", {**KIND, "reference_unit": "parsec"})["error"]
    assert error.startswith("“Unit of the ground truth” must be one of")
    request = {**KIND, "options": {"preset": "paper", "weight_data": "-1"}}
    assert "“Reconstruction: weight data” must be" in visitor.run("/api/complete", request)["error"]
    error = visitor.run("/api/complete", {**KIND, "options": {"weight_data": "0.01"}})["error"]
    assert "“Reconstruction: system: fixed”" in error
    assert "--" not in error
    error = visitor.run("/api/complete", {**KIND, "options": {"fit_max_iterations": "many"}})["error"]
    assert error == "“Fit: max iterations”: 'many' is not a valid integer."
    assert "'exec'" in visitor.run("/api/complete", {**KIND, "options": {"exec": "1"}})["error"]


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
        (404, "GET", "/assets/%2e%2e%2fserver.py", None, {}),
        (404, "GET", "/api/input/..%2f..%2fetc%2fpasswd", None, {}),
        (404, "GET", "/etc/passwd", None, {}),
        (405, "DELETE", "/api/start", None, {}),
        (400, "POST", "/api/complete", b"[1]", {}),
        (400, "POST", "/api/complete", b"{", {}),
        (400, "POST", "/api/complete", b'{"unit": 3}', {}),
        (400, "POST", "/api/complete", b'{"units": "mm"}', {}),
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


def test_a_body_without_a_stated_length_is_refused(visitor: Visitor) -> None:
    head = f"POST /api/forget HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n"
    head += f"X-Leadline-Token: {visitor.token}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert b" 411 " in connection.recv(4096).split(b"\r\n")[0]


def test_an_upload_that_breaks_off_leaves_nothing(server: Studio, visitor: Visitor) -> None:
    head = f"PUT /api/file/image?name=a.png HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n"
    head += f"X-Leadline-Token: {visitor.token}\r\nContent-Length: 100\r\n\r\nhalf"
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as connection:
        connection.sendall(head.encode())
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    session = server.sessions.get(visitor.key)
    assert session is not None
    end = time.monotonic() + 60
    while list(session.folder.iterdir()):
        assert time.monotonic() < end, "the part that arrived is still there"
        time.sleep(0.01)
    assert not session.files


def test_pages_may_load_nothing_from_elsewhere(visitor: Visitor) -> None:
    for path in ("/", "/assets/studio.js", "/api/start", "/nothing"):
        _, headers, content = visitor.request("GET", path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in content
    cookie = Visitor(visitor.port).request("GET", "/", headers={"Cookie": ""})[1]["Set-Cookie"]
    assert "samesite=strict" in cookie.lower()
    assert "httponly" in cookie.lower()


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost:1", True),
        ("[::1]:80", True),
        ("192.168.0.7:80", True),
        ("studio.lan", True),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
        ("", False),
        (None, False),
    ],
)
def test_allowed_hosts(header: str | None, allowed: bool) -> None:
    assert is_allowed_host(header, "studio.lan") is allowed


@given(st.text(max_size=200), st.sampled_from(list(Role)))
def test_no_name_leaves_the_folder(name: str, role: Role) -> None:
    session = Session("key", "token", Path("/tmp/own"))
    upload = session.plan_upload(role, f"{name}x.png")
    assert upload.path.parent == Path("/tmp/own")
    assert re.fullmatch(rf"{role.value}-[0-9a-f]+\.png", upload.path.name)


def test_upload_limit(scene: dict[str, Path]) -> None:
    with studio(limits=Limits(upload=100)) as small:
        status, answer = Visitor(small.port).put("image", scene["image"])
        assert status == 413
        assert "--upload-limit" in answer["error"]
        assert not [path for path in small.sessions.root.rglob("*") if path.is_file()]


def test_a_port_in_use_is_replaced(server: Studio, capsys: pytest.CaptureFixture[str]) -> None:
    other = open_studio("127.0.0.1", server.port, {}, Limits())
    assert other.port != server.port
    assert "is in use" in capsys.readouterr().err
    other.close()
    with pytest.raises(InputError, match="cannot listen"):
        open_studio("192.0.2.1", 0, {}, Limits())  # an address that no machine has


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[studio\]'"):
        open_studio("127.0.0.1", 0, {}, Limits())


def test_visitors_from_elsewhere_learn_no_folder(scene: dict[str, Path]) -> None:
    spec = "files:/srv/secret/predictions"
    found = find_predictors((spec,), None)
    assert next(iter(found)) == predictor_name(spec) == "files: predictions"
    with studio(found) as open_to_all:
        open_to_all.host = "0.0.0.0"  # as if it listened on every address
        visitor = Visitor(open_to_all.port)
        assert b"secret" not in visitor.get("/api/start")
        visitor.give(scene, "image", "sparse")
        error = visitor.run("/api/complete", {"unit": "mm", "prior": "files: predictions"})["error"]
        assert "predictions" in error
        assert "secret" not in error


def test_the_first_prior_of_the_command_is_selected() -> None:
    with studio(default_prior="none") as running:
        assert json.loads(Visitor(running.port).get("/api/start"))["default_prior"] == "none"
    with studio() as running:
        assert json.loads(Visitor(running.port).get("/api/start"))["default_prior"] == "file"
