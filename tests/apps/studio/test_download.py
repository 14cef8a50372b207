"""The recommended network in the studio: offered with what it costs, and downloaded when it is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline.apps.studio.command import find_predictors
from leadline.priors import PRIORS, RECOMMENDED
from leadline.priors.model_files import needs_download
from support.hub import Hub, only_hub
from support.studio_client import Visitor, studio
from support.tiny_networks import depth_anything, save


def test_the_recommended_network_is_downloaded_when_it_is_chosen(
    scene: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = save(depth_anything, tmp_path / "network")
    hub = Hub(str(PRIORS[RECOMMENDED].model), {file.name: file.read_bytes() for file in network.iterdir()})
    with only_hub(hub, tmp_path, monkeypatch):
        assert RECOMMENDED not in find_predictors((), None)  # not for visitors from other machines
        with studio(find_predictors((), None, offer=True)) as running:
            visitor = Visitor(running.port)
            titles = {each["name"]: each["title"] for each in json.loads(visitor.get("/api/start"))["priors"]}
            assert titles[RECOMMENDED] == f"{RECOMMENDED}: downloads 25 M parameters, licence Apache-2.0"
            assert hub.requests == []
            visitor.give(scene, "image", "sparse")
            result = visitor.run("/api/complete", {"unit": "mm", "prior": RECOMMENDED})
            assert result["state"] == "done", result
            assert not needs_download(RECOMMENDED)
            titles = {each["name"]: each["title"] for each in json.loads(visitor.get("/api/start"))["priors"]}
            assert titles[RECOMMENDED] == RECOMMENDED
