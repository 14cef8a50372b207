"""A stand-in for the Hugging Face hub on this machine: the two addresses that a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """One model, its files by name; `sent` replaces the content of files on their way, `requests` are the paths."""

    model: str
    files: Mapping[str, bytes]
    licence: str = "apache-2.0"
    sent: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def describe(self) -> bytes:
        """The answer about the model: large files have a SHA-256, small ones the hash of their git blob."""
        siblings: list[dict[str, object]] = []
        for name, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith((".safetensors", ".bin")):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        return json.dumps({"sha": COMMIT, "siblings": siblings, "cardData": {"license": self.licence}}).encode()

    def answer(self, path: str) -> bytes | None:
        """The content at a path; None for 404."""
        if path == f"/api/models/{self.model}/revision/main?blobs=true":
            return self.describe()
        start = f"/{self.model}/resolve/{COMMIT}/"
        name = path.removeprefix(start)
        return self.sent.get(name, self.files.get(name)) if path.startswith(start) else None


@contextmanager
def only_hub(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve the stand-in as the only hub that is known, with empty caches in `folder`."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with serve(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve the stand-in at a free port; its address is `hub.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.requests.append(self.path)
            content = hub.answer(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
