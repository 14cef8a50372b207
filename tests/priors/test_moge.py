"""MoGe: the contract with its package, kept by a stand-in of the same modules and signatures."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.geometry.cameras import Camera
from leadline.priors import moge as moge_module
from leadline.priors import prior_source
from leadline.priors.moge import MogePrior
from support.cli_frames import leadline, prepare
from support.moge_package import write_checkpoint, write_package

torch = pytest.importorskip("torch", reason="MoGe runs in torch")

SHAPE = (6, 8)
REFINER = {"width": 4}
NO_CUDA = "raise RuntimeError('no driver for the GPU was found')"


def images(count: int, shape: tuple[int, int] = SHAPE) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8) for seed in range(count)]


def forget_package() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("moge", "flex_gemm")]:
        del sys.modules[name]


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts the stand-in on the path; nothing of it stays behind."""
    forget_package()

    def do(flex_gemm: str | None = "", versions: tuple[int, ...] = (2, 3)) -> None:
        monkeypatch.syspath_prepend(str(write_package(tmp_path / "site", flex_gemm=flex_gemm, versions=versions)))

    yield do
    forget_package()


def calls() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sys.modules["moge.model.v2"].CALLS  # type: ignore[attr-defined]
    return found


@pytest.fixture
def second(install: Install, tmp_path: Path) -> Path:
    install()
    return write_checkpoint(tmp_path / "second.pt")


@pytest.fixture
def third(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "third.pt", refiner=REFINER)


def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device(str):
        type = "cuda"

    monkeypatch.setattr(moge_module, "torch_device", lambda *_: Device("cpu"))


# ---- what comes back


def test_prior_has_depth_mask_and_camera_of_the_network(second: Path) -> None:
    (image,) = images(1)
    prior = MogePrior(second, device="cpu")(image)
    rows = np.arange(SHAPE[0])[:, None]
    np.testing.assert_allclose(prior.values, 3.0 * (1 + image.mean(axis=2) / 255 + rows), rtol=1e-6)
    np.testing.assert_array_equal(prior.valid, image[..., 0] / 255 > 0.25)
    assert (prior.values.dtype, prior.kind) == (np.float32, "depth")
    # Sixty degrees over eight pixels; MoGe's centre, half of the picture, lies between pixels 3 and 4.
    focal = 4 / np.tan(np.pi / 6)
    assert prior.camera is not None
    assert (prior.camera.width, prior.camera.height, prior.camera.cx, prior.camera.cy) == (8, 6, 3.5, 2.5)
    assert (prior.camera.fx, prior.camera.fy) == pytest.approx((focal, focal), rel=1e-6)
    assert calls()[-1] == {
        "shape": (1, 3, 6, 8), "level": 9, "fov_x": None, "fp16": False, "mask": False,
        "model": "moge.model.v2", "device": "cpu",
    }  # fmt: skip


def test_options_reach_the_network(second: Path) -> None:
    source = MogePrior(second, device="cpu", dtype="float16", fov_x=90.0, resolution_level=3)
    camera = source(images(1)[0]).camera
    assert (calls()[-1]["fp16"], calls()[-1]["fov_x"], calls()[-1]["level"]) == (True, 90.0, 3)
    assert camera is not None
    assert camera.fx == pytest.approx(4.0)


@pytest.mark.parametrize("width", [8, 20])
def test_a_focal_length_becomes_each_image_s_field_of_view(second: Path, width: int) -> None:
    camera = MogePrior(second, device="cpu", focal=10.0)(images(1, (6, width))[0]).camera
    assert camera is not None
    assert camera.fx == pytest.approx(10.0, rel=1e-6)


def test_a_model_without_a_mask_or_without_points(install: Install, tmp_path: Path) -> None:
    install()
    bare = MogePrior(write_checkpoint(tmp_path / "bare.pt", heads=["points"]), device="cpu")
    assert bare(images(1)[0]).valid is None
    normals = MogePrior(write_checkpoint(tmp_path / "normals.pt", heads=["mask"]), device="cpu")
    with pytest.raises(FileError, match=r"normals\.pt: this MoGe predicts no depth"):
        normals(images(1)[0])


def test_source_is_picklable(second: Path) -> None:
    source = MogePrior(second, device="cpu")
    before = source(images(1)[0])
    sent = pickle.dumps(source)
    assert b"moge.model" not in sent  # the other process decides for itself what it can load
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again(images(1)[0]).values, before.values)
    assert again.fingerprint() == source.fingerprint()


# ---- names, weights, fingerprints


def test_the_names_of_the_registry(second: Path, third: Path) -> None:
    for name, path, version in (
        *(("moge-2", second, 2), ("moge-2-small", second, 2)),
        *(("moge-3", third, 3), ("moge-3-giant", third, 3)),
    ):
        source = prior_source(f"{name}:{path}", device="cpu")
        assert isinstance(source, MogePrior)
        assert (source.version, source.quantity, source.gauge, source.name) == (version, "depth", "metric", path.name)


def test_a_folder_and_the_hub_s_cache(second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileError, match=re.escape("Ruicheng/moge-2-vitl is not here")):
        prior_source("moge-2")
    with pytest.raises(FileError, match="no such model file or folder"):
        prior_source("moge-2:nowhere.pt")
    home = tmp_path / "hub" / "models--Ruicheng--moge-2-vitl"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    write_checkpoint(snapshot / "model.pt")
    source = prior_source("moge-2", device="cpu")
    np.testing.assert_array_equal(source(images(1)[0]).values, MogePrior(snapshot, device="cpu")(images(1)[0]).values)
    assert source.name == "moge-2-vitl"
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"there is no model\.pt in it"):
        MogePrior(tmp_path / "empty")


def test_the_fingerprint_is_of_weights_and_options(second: Path, tmp_path: Path) -> None:
    def of(path: Path, **options: Any) -> str:
        return MogePrior(path, device="cpu", **options).fingerprint()

    variants: list[dict[str, Any]] = [{}, {"dtype": "float16"}, {"fov_x": 60.0}, {"focal": 60.0}]
    variants.append({"resolution_level": 5})
    found = {of(second, **options) for options in variants}
    found.add(of(write_checkpoint(tmp_path / "second2.pt", gain=2.5)))
    assert len(found) == len(variants) + 1
    assert of(second, name="other") == of(second)


def test_a_pickle_with_more_than_weights_is_not_loaded(install: Install, tmp_path: Path) -> None:
    install()
    path = tmp_path / "foreign.pt"
    torch.save({"model_config": {"gain": Path("x")}, "model": {}}, path)
    with pytest.raises(FileError, match=r"foreign\.pt: cannot be loaded as MoGe-2"):
        MogePrior(path, device="cpu")(images(1)[0])


# ---- MoGe-3 and its refiner


def test_the_refiner_runs_on_cuda(install: Install, third: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    pretend_cuda(monkeypatch)
    source = MogePrior(third, version=3)
    refined = source(images(1)[0])
    assert (calls()[-1]["model"], calls()[-1]["steps"], source.note) == ("moge.model.v3", 3, "")
    once = MogePrior(third, version=3, refine_steps=1)
    np.testing.assert_allclose(refined.values - once(images(1)[0]).values, 2.0, rtol=1e-5)
    assert once.fingerprint() != source.fingerprint()
    assert MogePrior(third, version=3, refine_steps=0).note == ""  # asked for


@pytest.mark.parametrize("flex_gemm", [None, NO_CUDA, ""], ids=["not installed", "cannot load", "without a GPU"])
def test_moge_3_without_flexgemm_runs_without_refiner(install: Install, third: Path, flex_gemm: str | None) -> None:
    install(flex_gemm)
    source = MogePrior(third, version=3, device="cpu")
    prior = source(images(1)[0])
    assert prior.camera is not None
    assert calls()[-1]["steps"] == 0
    assert "without its refiner" in source.note
    with pytest.raises(InputError, match="`refine_steps` must be 0 here, got 2"):
        MogePrior(third, version=3, device="cpu", refine_steps=2)(images(1)[0])


@pytest.mark.parametrize("first", [2, 3])
def test_a_second_source_in_one_process_has_no_refiner_either(
    install: Install, third: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Once the package is imported without FlexGEMM, importing it again succeeds, and its refiner is still missing."""
    install(None)
    before = MogePrior(third if first == 3 else write_checkpoint(tmp_path / "2.pt"), version=first, device="cpu")
    before(images(1)[0])
    pretend_cuda(monkeypatch)
    source = MogePrior(third, version=3)
    assert "without its refiner" in source.note
    source(images(1)[0])
    assert calls()[-1]["steps"] == 0
    with pytest.raises(InputError, match=r"`refine_steps` must be 0 here, got 2.*not usable"):
        MogePrior(third, version=3, refine_steps=2)(images(1)[0])


def test_a_checkpoint_of_the_other_version_is_refused(second: Path, third: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"third\.pt: is a checkpoint of MoGe-3, and `version` is 2; use .* moge-3\.$"):
        MogePrior(third, device="cpu")(images(1)[0])
    with pytest.raises(FileError, match=r"second\.pt: is a checkpoint of MoGe-2, and `version` is 3; use .* moge-2\.$"):
        MogePrior(second, version=3, device="cpu")(images(1)[0])
    # Of a MoGe-3 whose refiner was removed, the configuration remains.
    bare = write_checkpoint(tmp_path / "bare.pt", refiner=None)
    with pytest.raises(FileError, match="is a checkpoint of MoGe-3"):
        MogePrior(bare, device="cpu")(images(1)[0])


def test_missing_weights_are_an_error(
    install: Install, tmp_path: Path, third: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    partial = write_checkpoint(tmp_path / "partial.pt", without="points_head.bias")
    with pytest.raises(FileError, match=r"1 weights of MoGe-2 are missing, such as points_head\.bias; the file is"):
        MogePrior(partial, device="cpu")(images(1)[0])
    cut = write_checkpoint(tmp_path / "cut.pt", refiner=REFINER, without="refiner.layer.weight")
    assert MogePrior(cut, version=3, device="cpu")(images(1)[0]).shape == SHAPE  # the refiner is not built
    pretend_cuda(monkeypatch)
    with pytest.raises(FileError, match=r"1 weights of MoGe-3 are missing, such as refiner\.layer\.weight"):
        MogePrior(cut, version=3)(images(1)[0])
    damaged = tmp_path / "damaged.pt"
    torch.save({"model": {}}, damaged)
    with pytest.raises(FileError, match=r"damaged\.pt: cannot be loaded as MoGe-2 \('model_config'\)"):
        MogePrior(damaged, device="cpu")(images(1)[0])
    old = tmp_path / "old.pt"  # the format before zip archives
    torch.save(torch.load(third, weights_only=True), old, _use_new_zipfile_serialization=False)
    assert MogePrior(old, version=3)(images(1)[0]).shape == SHAPE


def test_moge_2_needs_no_flexgemm(install: Install, tmp_path: Path) -> None:
    install(None)
    source = MogePrior(write_checkpoint(tmp_path / "second.pt"), device="cpu")
    assert source(images(1)[0]).shape == SHAPE
    assert source.note == ""


def test_on_the_command_line(install: Install, third: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare()
    line = f"complete photo.jpg --sparse lidar.png --unit mm --prior moge-3:{third} --device cpu -o out --ply"
    result = leadline(line)
    assert result.exit_code == 0, result.output
    assert "note: third.pt runs without its refiner" in result.output
    record = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    assert (record["camera"]["source"], record["prior"]["gauge"]) == ("prior", "metric")
    assert leadline(f"{line} --intrinsics 30,30,15.5,11.5").exit_code == 0
    assert calls()[-1]["fov_x"] == pytest.approx(np.degrees(2 * np.arctan(16 / 30)))


# ---- what is refused


def test_missing_package_error_has_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_package()
    monkeypatch.setattr(moge_module, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"not on PyPI: pip install .* git\+https://github\.com/microsoft/MoGe\.git$"
    ):
        MogePrior(tmp_path / "any.pt")


def test_an_old_or_broken_package(install: Install, third: Path, tmp_path: Path) -> None:
    install(versions=(2,))
    with pytest.raises(MissingExtra, match=r"has no moge\.model\.v3; a newer one: pip install .* git"):
        MogePrior(third, version=3, device="cpu").fingerprint()
    (tmp_path / "site" / "moge" / "model" / "modules" / "encoder.py").write_text("import utils3d_moge")
    with pytest.raises(MissingExtra, match=r"cannot be imported \(No module named 'utils3d_moge'\)"):
        MogePrior(third, device="cpu").fingerprint()


BAD = {
    "version": ({"version": 1}, "`version` must be 2 or 3"),
    "dtype": ({"dtype": "bfloat16"}, "`dtype` must be one of float32, float16, got"),
    "unknown dtype": ({"dtype": "int4"}, "`dtype` must be one of"),
    "angle": ({"fov_x": 180.0}, "between 0 and 180"),
    "focal": ({"focal": -1.0}, "`focal` must be a positive number"),
    "both": ({"fov_x": 60.0, "focal": 10.0}, "exclude each other"),
    "level": ({"resolution_level": 10}, "from 0 to 9"),
    "steps of MoGe-2": ({"refine_steps": 1}, "for MoGe-3 only"),
    "negative steps": ({"version": 3, "refine_steps": -1}, "at least 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_options_are_one_error(second: Path, case: str) -> None:
    options, text = BAD[case]
    with pytest.raises(InputError, match=re.escape(text)):
        MogePrior(second, **options)


def test_wrong_device_or_image_is_one_error(second: Path) -> None:
    with pytest.raises(InputError, match="`device` 'abacus'"):
        MogePrior(second, device="abacus")(images(1)[0])
    with pytest.raises(InputError, match="`image` must be"):
        MogePrior(second, device="cpu")(np.zeros((3, 4), np.uint8))


def test_a_camera_of_another_size_raises() -> None:
    from leadline.core.prior import Prior

    with pytest.raises(InputError, match=r"`prior\.camera` must have the prior's size"):
        Prior(np.ones(SHAPE), camera=Camera(6, 8, 1.0, 1.0, 0.0, 0.0))
