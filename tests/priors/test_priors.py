"""Priors: the registry, model cards, where weights are looked for, files, none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leadline import LeadlineError, complete
from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.io.priors import write_prior
from leadline.priors import PRIORS, PriorSource, prior_options, prior_source
from leadline.priors.model_files import (
    hub_cache,
    local_weights,
    placed_folder,
    require_safetensors,
    weights_digest,
    weights_present,
)
from leadline.priors.onnx import ModelCard

CARD = {
    "input": {"range": [0, 1], "resize": {"mode": "short_side", "size": 256, "multiple_of": 32}},
    "output": {"name": "d", "quantity": "disparity", "gauge": "affine"},
}


def write_card(folder: Path, **changes: object) -> Path:
    path = folder / "net.json"
    path.write_text(json.dumps({**CARD, **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (256, 352)), (640, 480, (352, 256)), (256, 256, (256, 256)), (100, 1000, (256, 2560))],
)
def test_short_side_rule(tmp_path: Path, height: int, width: int, expected: tuple[int, int]) -> None:
    assert ModelCard.read(write_card(tmp_path)).input_size(height, width) == expected


def test_fixed_size_rule(tmp_path: Path) -> None:
    resize = {"mode": "fixed", "size": [224, 288], "multiple_of": 32}
    card = ModelCard.read(write_card(tmp_path, input={"range": [0, 255], "resize": resize}))
    assert card.input_size(1080, 1920) == (224, 288)


@pytest.mark.parametrize(
    "changes",
    [
        {"output": {"quantity": "height"}},
        {"output": {"quantity": "depth", "gauge": "metres"}},
        {"output": {}},
        {"input": {"range": [0, 1], "resize": {"mode": "stretch", "size": 3}}},
        {"input": {"range": [0], "resize": {"mode": "short_side", "size": 256}}},
        {"input": None},
    ],
)
def test_a_wrong_model_card_is_one_error(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(LeadlineError, match=r"net\.json: a key of the model card is missing or wrong"):
        ModelCard.read(write_card(tmp_path, **changes))


def test_missing_files_and_unknown_kinds(tmp_path: Path) -> None:
    with pytest.raises(LeadlineError, match="no such ONNX model"):
        prior_source(f"onnx:{tmp_path / 'none.onnx'}")
    (tmp_path / "net.onnx").write_bytes(b"not a network")
    with pytest.raises(LeadlineError, match="no model card"):
        prior_source(f"onnx:{tmp_path / 'net.onnx'}")
    write_card(tmp_path)
    broken = prior_source(f"onnx:{tmp_path / 'net.onnx'}")
    with pytest.raises(LeadlineError, match="cannot load it"):
        broken(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(LeadlineError, match="did you mean 'onnx'"):
        prior_source("onx:model")
    with pytest.raises(LeadlineError, match="follows a colon"):
        prior_source("onnx")


@pytest.mark.parametrize("name", PRIORS)
def test_every_registered_prior_can_be_imported_and_says_what_it_takes(name: str) -> None:
    facts = PRIORS[name]
    module, factory = facts.target.split(":")
    found = getattr(__import__(module, fromlist=[factory]), factory)
    assert PriorSource in found.__mro__
    assert not set(facts.options) & set(prior_options(name))  # what a name stands for is not for the user to change
    assert facts.quantity in ("depth", "disparity", "as declared")
    assert facts.gauge in ("metric", "scale", "affine", "unknown")
    assert facts.commercial == ("NC" not in facts.licence)
    if facts.model is not None:
        assert {"device", "name", "threads"} <= set(prior_options(name))


def test_wrong_option_or_argument_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'files' takes no option 'flor'; did you mean 'floor'"):
        prior_source(f"files:{tmp_path}", flor=0.1)
    with pytest.raises(InputError, match="'none:x' cannot be opened"):
        prior_source("none:x")
    with pytest.raises(InputError, match="there is no prior 'zzz'; choose one of depth-anything-3"):
        prior_source("zzz")


ID = "depth-anything/Depth-Anything-V2-Small-hf"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way to it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "home" / "hub"


def put_in_cache(cache: Path, commit: str, *files: str) -> Path:
    home = cache / "models--depth-anything--Depth-Anything-V2-Small-hf"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in files:
        (snapshot / file).write_text("{}")
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(commit)
    return snapshot


def test_offline_error_names_id_folder_and_command(offline: Path) -> None:
    with pytest.raises(FileError) as caught:
        local_weights(ID)
    message = str(caught.value)
    assert message.count("\n") == 0
    for part in (ID, str(offline), "HF_HUB_OFFLINE is set", f"hf download {ID}", str(placed_folder(ID))):
        assert part in message
    assert not weights_present("depth-anything-v2-small")
    with pytest.raises(FileError, match="no such model file or folder"):
        local_weights("./missing/model")


def test_unreachable_hub_is_the_same_error(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    with pytest.raises(FileError, match=r"127\.0\.0\.1 cannot be reached.*hf download"):
        local_weights(ID)


def test_only_complete_downloads_are_found(offline: Path) -> None:
    old = put_in_cache(offline, "a" * 40, "config.json", "model.safetensors")
    assert local_weights(ID) == old
    new = put_in_cache(offline, "b" * 40, "config.json")
    assert local_weights(ID) == old  # the newer one has no weights yet
    (new / "model.safetensors").symlink_to(new / "on its way")
    assert local_weights(ID) == old
    (new / "on its way").write_text("{}")
    assert local_weights(ID) == new
    assert weights_present(ID)
    assert weights_present("depth-anything-v2-small")
    assert not weights_present("depth-anything-v2-base")
    assert weights_digest(new) != weights_digest(old)
    (new / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    assert local_weights(ID) == old  # a part is missing


def test_the_cache_follows_the_environment(offline: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hub_cache() == offline
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert hub_cache() == tmp_path / "elsewhere"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub_cache() == tmp_path / "xdg" / "huggingface" / "hub"


def test_pickles_raise_and_the_digest_depends_on_the_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError, match="no weights in it"):
        require_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(FileError, match=r"pickled \(pytorch_model\.bin\), and loading a pickle can run"):
        require_safetensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    require_safetensors(tmp_path)
    before = weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"1235")
    assert weights_digest(tmp_path) != before
    with pytest.raises(FileError, match="got a file"):
        require_safetensors(tmp_path / "model.safetensors")


def test_files_are_found_by_name_and_must_have_the_image_size(tmp_path: Path) -> None:
    values = np.linspace(1.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "room_1.npy", values)
    source = prior_source(f"files:{tmp_path}", kind="disparity")
    prior = source(np.zeros((3, 4, 3), np.uint8), name="room/1")
    np.testing.assert_array_equal(prior.depth(), 1 / values)
    with pytest.raises(LeadlineError, match="no prediction for 'room/2'"):
        source(np.zeros((3, 4, 3), np.uint8), name="room/2")
    with pytest.raises(LeadlineError, match=r"4x3.*8x6"):
        source(np.zeros((6, 8, 3), np.uint8), name="room/1")
    before = source.fingerprint()
    np.save(tmp_path / "room_1.npy", np.ones((5, 5)))
    assert source.fingerprint() != before


def test_gauge_of_saved_predictions_is_that_of_their_sidecars_or_declared(tmp_path: Path) -> None:
    prior = Prior(np.ones((4, 6), np.float32))
    write_prior(tmp_path / "a.npy", prior, {"gauge": "metric"})
    assert prior_source(f"files:{tmp_path}").gauge == "metric"
    assert prior_source(f"files:{tmp_path}", gauge="scale").gauge == "scale"
    assert prior_source(f"files:{tmp_path}", kind="disparity").gauge == "unknown"  # not what the sidecar describes
    (tmp_path / "more").mkdir()
    write_prior(tmp_path / "more" / "b.npy", prior, {"gauge": "scale"})
    assert prior_source(f"files:{tmp_path}").gauge == "unknown"
    (tmp_path / "more" / "b.prior.json").write_text("{")
    assert prior_source(f"files:{tmp_path}").gauge == "unknown"
    assert (prior_source("scene").gauge, prior_source("scene:1", gauge="metric").gauge) == ("unknown", "metric")
    for spec in ("scene", f"files:{tmp_path}"):
        with pytest.raises(InputError, match="`gauge` must be one of metric, scale, affine, unknown, got 'metres'"):
            prior_source(spec, gauge="metres")


def test_constant_prior_interpolates_the_measurements() -> None:
    prior = prior_source("none")(np.zeros((20, 30, 3), np.uint8))
    sparse = np.zeros((20, 30), np.float32)
    sparse[::5, ::5] = np.linspace(2.0, 4.0, 24).reshape(4, 6)
    result = complete(prior, sparse)
    assert result.fit.status.name == "SCALE_ONLY"
    # A surface that resists bending may exceed the measurements a little; a membrane would not.
    assert 1.99 <= result.depth.min() <= result.depth.max() <= 4.02
    np.testing.assert_array_equal(result.depth[::5, ::5], sparse[::5, ::5])
