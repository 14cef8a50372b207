"""A server, a session of it and the files of a small scene, for the tests of the studio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline.apps.studio.server import Studio
from support.studio_client import Visitor, studio, write_scene


@pytest.fixture(scope="module")
def server() -> Iterator[Studio]:
    with studio() as running:
        yield running


@pytest.fixture
def visitor(server: Studio) -> Visitor:
    return Visitor(server.port)


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"))
