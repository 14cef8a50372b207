"""A client of `leadline studio` without a browser, the server in this or another process, and a small scene."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leadline.apps.studio.server import COOKIE, TOKEN_HEADER, Limits, Studio
from leadline.bench.observations import observe
from leadline.datasets.rendered import network_like_prior, render
from leadline.io.depth import write_depth
from leadline.priors.predictor import Predictor

SIZE = (160, 120)
KIND = {"prior_kind": "disparity", "unit": "mm"}
"""The unit and the kind of prior of the files of `write_scene`."""


class Visitor:
    """A session: its cookie, its token, and requests like those of the page."""

    def __init__(self, port: int) -> None:
        self.port, self.cookie, self.token = port, "", ""
        status, headers, content = self.request("GET", "/")
        assert status == 200
        self.cookie = headers["Set-Cookie"].split(";")[0]
        found = re.search(rb'name="token" content="([^"]+)"', content)
        assert found is not None
        self.token = found[1].decode()

    @property
    def key(self) -> str:
        return self.cookie.removeprefix(f"{COOKIE}=")

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request like the page; `headers` replace its own, and an empty one is omitted."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        own = {"Cookie": self.cookie, TOKEN_HEADER: self.token} | dict(headers or {})
        try:
            connection.request(method, path, body, {name: value for name, value in own.items() if value})
            answer = connection.getresponse()
            return answer.status, {name.title(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, path: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        status, _, content = self.request("POST", path, json.dumps(request or {}).encode())
        assert status == 200, content
        answer: dict[str, Any] = json.loads(content)
        return answer

    def state(self, job: str) -> dict[str, Any]:
        status, _, content = self.request("GET", f"/api/job/{job}")
        assert status == 200, content
        answer: dict[str, Any] = json.loads(content)
        return answer

    def run(self, path: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The final state of a job: done with its result, or failed with its error."""
        job = self.post(path, request)["job"]
        while (state := self.state(job))["state"] in ("queued", "running"):
            pass  # each answer waits a moment for the end of the job
        return state

    def result(self, path: str, request: Mapping[str, Any] | None = None) -> Any:
        """The result of a job, which must succeed."""
        state = self.run(path, request)
        assert state["state"] == "done", state
        return state["result"]

    def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The summary of a completion, which must succeed."""
        summary: dict[str, Any] = self.result("/api/complete", request)
        return summary

    def download(self, summary: Mapping[str, Any], kind: str) -> bytes:
        return self.get(f"/api/download/{summary['revision']}/{kind}")

    def put(self, role: str, path: Path, name: str | None = None) -> tuple[int, dict[str, Any]]:
        target = f"/api/file/{role}?name={name or path.name}"
        status, _, content = self.request("PUT", target, path.read_bytes())
        return status, json.loads(content)

    def give(self, scene: Mapping[str, Path], *roles: str) -> None:
        """Upload files of a scene: by default image, measurements and prior."""
        for role in roles or ("image", "sparse", "prior"):
            status, answer = self.put(role, scene[role])
            assert (status, answer["name"]) == (200, scene[role].name)

    def get(self, path: str) -> bytes:
        status, _, content = self.request("GET", path)
        assert status == 200, content
        return content


@contextmanager
def studio(
    predictors: Mapping[str, Predictor] | None = None, limits: Limits | None = None, default_prior: str | None = None
) -> Iterator[Studio]:
    """The server on a free port, in a thread of this process."""
    server = Studio("127.0.0.1", 0, {"none": Predictor("none"), **(predictors or {})}, limits, default_prior)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()


class Process:
    """The command in another process, with its temporary files in `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        command = [sys.executable, "-m", "leadline", "studio", "--no-browser", "--port", "0", *arguments]
        self.running = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**environment, "TMPDIR": str(folder)}
        )
        assert self.running.stdout is not None
        self.first = self.running.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.first)
        assert found is not None, self.first
        self.port = int(found[1])

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.running.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def end(self, number: int = signal.SIGINT) -> int:
        if self.running.poll() is None:
            self.running.send_signal(number)
        self.running.communicate(timeout=60)
        return self.running.returncode


def write_scene(folder: Path) -> dict[str, Path]:
    """Files of a small room by role: measurements in millimetres, the prior a disparity."""
    scene = render(*SIZE, seed=3)
    assert scene.reference is not None
    files = {
        "image": folder / "photo.png",
        "sparse": folder / "tof.png",
        "prior": folder / "disparity.npy",
        "reference": folder / "truth.npy",
    }
    Image.fromarray(scene.image).save(files["image"])
    write_depth(files["sparse"], observe(scene.reference, "distributed").sparse, "mm")
    np.save(files["prior"], (1.0 / network_like_prior(scene.reference, seed=3)).astype(np.float32))
    np.save(files["reference"], scene.reference)
    return files


def read_points(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the arrays of an answer of /api/points."""
    length = int(np.frombuffer(content[:4], "<u4")[0])
    header: dict[str, Any] = json.loads(content[4 : 4 + length])
    rest = content[4 + length :]
    arrays = {}
    for name, count in (("points", header["points"]), ("measurements", header["measurements"])):
        arrays[name], rest = np.frombuffer(rest[: 12 * count], "<f4").reshape(-1, 3), rest[12 * count :]
    for name in header["colourings"]:
        size = 3 * header["points"]
        arrays[name], rest = np.frombuffer(rest[:size], np.uint8).reshape(-1, 3), rest[size:]
    assert not rest
    return header, arrays
