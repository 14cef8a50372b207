"""A photo without measurements and without a prior: the recommended network, fetched from a stand-in for the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from leadline.priors import PRIORS, RECOMMENDED
from leadline.priors.model_files import hub_cache
from support.cli_frames import SHAPE, leadline, prepare
from support.hub import Hub, only_hub
from support.tiny_networks import depth_anything, save

ID = str(PRIORS[RECOMMENDED].model)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save(depth_anything, tmp_path_factory.mktemp("network"))
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: dict[str, bytes]) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    prepare()
    with only_hub(Hub(ID, network), tmp_path, monkeypatch) as served:
        yield served


def test_a_photo_gives_relative_depth_once_the_download_is_approved(hub: Hub) -> None:
    refused = leadline("complete photo.jpg")
    assert refused.exit_code == 2
    for part in (ID, "MB from 127.0.0.1", "licence Apache-2.0", str(hub_cache()), "add --download"):
        assert part in " ".join(refused.output.split())
    assert len(hub.requests) == 1  # about the model, not for its files

    done = leadline("complete photo.jpg --download")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert f"downloading {ID}" in text
    assert text.count("there are no measurements, so the depth is relative and has no unit; give --sparse") == 1
    assert "MB of" in text  # progress
    out = Path("leadline-out")
    values = np.load(out / "photo.npy")
    assert values.shape == SHAPE
    facts = json.loads((out / "photo.prior.json").read_text(encoding="utf-8"))
    assert (facts["quantity"], facts["gauge"]) == ("disparity", "affine")
    with Image.open(out / "photo_preview.png") as preview:
        assert preview.width >= 2 * SHAPE[1]

    before = len(hub.requests)
    again = leadline("complete photo.jpg")
    assert again.exit_code == 0, again.output
    assert "predicted already" in again.output
    metric = leadline("complete photo.jpg --sparse lidar.png --unit mm -o metric")  # the same network, by default
    assert metric.exit_code == 0, metric.output
    saved = leadline("complete photo.jpg --sparse lidar.png --unit mm --prior leadline-out/photo.npy -o saved")
    assert saved.exit_code == 0, saved.output
    assert len(hub.requests) == before
    assert Path("metric/photo_depth.png").read_bytes() == Path("saved/photo_depth.png").read_bytes()


def test_a_folder_of_photos(hub: Hub) -> None:
    done = leadline("complete frames --download -o out --format npz")
    assert done.exit_code == 0, done.output
    assert done.output.count("there are no measurements") == 1
    assert sorted(path.name for path in Path("out").glob("*.npz")) == [f"f{index}.npz" for index in range(4)]
    assert len(list(Path("out").glob("*_preview.png"))) == 4


@pytest.mark.parametrize("agreed", [True, False])
def test_a_terminal_is_asked(hub: Hub, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        return agreed

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr("leadline.apps.terminal.weights._is_terminal", lambda: True)
    result = leadline("prior photo.jpg -o out")
    assert "licence Apache-2.0" in questions[0]
    assert len(questions) == 1
    assert (result.exit_code == 0) is agreed
    assert Path("out/photo.npy").exists() is agreed
    if not agreed:
        assert "were not downloaded; choose another --prior" in result.output


def test_without_the_hub_one_line_says_which_files_go_where(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    refused = leadline("complete photo.jpg")
    assert refused.exit_code == 2
    place = Path("cache/leadline/models").absolute() / ID.replace("/", "--")
    text = " ".join(refused.output.split())
    assert f"model.safetensors of http://127.0.0.1:9/{ID} in {place}" in text
    place.mkdir(parents=True)
    for name, content in hub.files.items():
        (place / name).write_bytes(content)
    assert leadline("complete photo.jpg").exit_code == 0


def test_flags_of_measurements_are_refused_without_them(hub: Hub) -> None:
    refused = leadline("complete photo.jpg --unit mm")
    assert refused.exit_code == 2
    assert "--unit has no effect here: there are no measurements; add --sparse or --points" in refused.output
    assert hub.requests == []


def test_a_constant_prior_is_refused_before_anything_is_written(hub: Hub) -> None:
    refused = leadline("complete photo.jpg --prior none -o out")
    assert refused.exit_code == 2
    assert "--prior has the same value everywhere" in " ".join(refused.output.split())
    assert not list(Path("out").glob("*.npy"))
