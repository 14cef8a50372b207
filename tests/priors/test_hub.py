"""Downloads, against a stand-in for the hub on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline.base.errors import FileError, InputError
from leadline.priors import PRIORS, RECOMMENDED
from leadline.priors.hub import HubModel, supervise
from leadline.priors.model_files import (
    hub_cache,
    local_weights,
    needs_download,
    placed_folder,
    weights_digest,
    weights_present,
)
from support.hub import COMMIT, Hub, only_hub

ID = str(PRIORS[RECOMMENDED].model)
FILES = {
    "config.json": b'{"model_type": "depth_anything"}',
    "preprocessor_config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 12_000,  # three of the downloader's chunks
    "pytorch_model.bin": b"a pickle",
    "README.md": b"a card",
    "../escaped.json": b"{}",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with only_hub(Hub(ID, FILES), tmp_path, monkeypatch) as served:
        yield served


def test_a_download_is_checked_and_cached(hub: Hub) -> None:
    assert needs_download(RECOMMENDED)
    asked: list[HubModel] = []
    arrived: list[tuple[int, int]] = []
    with supervise(asked.append, lambda *amount: arrived.append(amount)):
        folder = local_weights(ID)
    wanted = ("config.json", "preprocessor_config.json", "model.safetensors")  # no pickle, no text, no other folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {name: FILES[name] for name in wanted}
    assert folder.is_relative_to(hub_cache())
    assert folder.name == COMMIT
    assert [(model.name, model.licence) for model in asked] == [(ID, "apache-2.0")]
    size = sum(len(FILES[name]) for name in wanted)
    assert asked[0].size == size
    assert arrived == sorted(arrived)
    assert len(arrived) > len(wanted)
    assert arrived[-1] == (size, size)
    assert not list(hub_cache().rglob("*.part"))

    assert weights_present(RECOMMENDED)
    assert not needs_download(RECOMMENDED)
    assert COMMIT in weights_digest(folder)
    before = len(hub.requests)
    assert local_weights(ID) == folder
    assert len(hub.requests) == before


def test_a_refused_download_fetches_no_file(hub: Hub) -> None:
    def refuse(model: HubModel) -> None:
        raise InputError("no")

    with supervise(refuse), pytest.raises(InputError, match="no"):
        local_weights(ID)
    assert len(hub.requests) == 1
    assert needs_download(RECOMMENDED)


@pytest.mark.parametrize("damage", ["changed", "short", "long"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_refused_and_the_rest_kept(hub: Hub, name: str, damage: str) -> None:
    whole = FILES[name]
    hub.sent[name] = {"changed": b"x" + whole[1:], "short": whole[:-1], "long": whole + b"x"}[damage]
    with pytest.raises(FileError, match=f"{name} arrived damaged"):
        local_weights(ID)
    assert not weights_present(ID)
    hub.sent.clear()
    hub.requests.clear()
    folder = local_weights(ID)
    assert (folder / name).read_bytes() == whole
    assert any(name in path for path in hub.requests)
    if name == "model.safetensors":  # it came last, and the others need not be fetched again
        assert len(hub.requests) == 2


def test_an_unknown_model_says_which_files_to_place_where(hub: Hub) -> None:
    with pytest.raises(FileError, match="there is no such model") as caught:
        local_weights("nobody/nothing")
    message = str(caught.value)
    assert "\n" not in message
    place = placed_folder("nobody/nothing")
    for part in (
        "config.json, preprocessor_config.json and model.safetensors",
        str(place),
        f"{hub.url}/nobody/nothing",
    ):
        assert part in message
    place.mkdir(parents=True)
    (place / "config.json").write_bytes(FILES["config.json"])
    with pytest.raises(FileError):
        local_weights("nobody/nothing")
    (place / "model.safetensors").write_bytes(FILES["model.safetensors"])
    assert local_weights("nobody/nothing") == place
    assert weights_present("nobody/nothing")


def test_a_hub_that_talks_nonsense_is_one_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (
        b"<html>",
        b"[]",
        b'{"sha": "main", "siblings": []}',
        b'{"sha": 1, "siblings": [{"rfilename": "a.json"}]}',
    ):
        monkeypatch.setattr(hub, "describe", lambda answer=answer: answer)
        with pytest.raises(FileError, match="Place config"):
            local_weights(ID)
