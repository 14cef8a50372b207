"""Priors on the command line: listed, predicted, saved, and completed with; and the unit that depth is written in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.depth import read_depth, read_image, write_depth
from leadline.priors import PRIORS, PriorFacts, PriorSource, predictor
from leadline.priors.onnx import OnnxPrior
from support.cli_frames import ALL, ONE, SHAPE, done, environment, leadline, prepare, refused, replace_file, run
from support.onnx_model import write_onnx
from support.paths import SHARED

KITTI = SHARED / "data" / "kitti_dc" / "2011_09_26_drive_0001_f005_cam02"
NETWORK = SHARED / "models" / "tcmonodepth_small.onnx"

NETWORK_ONE = "complete photo.jpg --sparse lidar.png --unit mm --prior onnx:model.onnx"
NETWORK_ALL = "complete frames --sparse depth --unit mm --prior onnx:model.onnx"
BELIEVER_ONE = "complete photo.jpg --sparse lidar.png --unit mm --prior believer --format npy"


class Believer(PriorSource):
    """A network that believes in a camera and distrusts the upper rows."""

    name = "believer"
    quantity: PriorKind = "depth"
    gauge = "metric"
    note = "believer: is made up."

    def __init__(self, *, device: str = "auto", focal: float | None = None) -> None:
        self.focal = focal

    def fingerprint(self) -> str:
        return f"believer {self.focal}"

    def __call__(self, image: np.ndarray, *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = image.shape[:2]
        values = 1 + np.indices((height, width))[1].astype(np.float32)
        focal = self.focal or 40.0
        camera = Camera(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)
        return Prior(values, valid=np.indices((height, width))[0] > 2, camera=camera)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("onnxruntime", reason="the networks here are in ONNX form")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    facts = PriorFacts(f"{__name__}:Believer", "made up", quantity="depth", gauge="metric")
    monkeypatch.setitem(PRIORS, "believer", facts)
    prepare()
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry each time a source is opened or an ONNX network runs."""
    entries: list[str] = []
    plain_open, plain_call = predictor.prior_source, OnnxPrior.__call__

    def opened(spec: str, **options: Any) -> PriorSource:
        entries.append("opened")
        return plain_open(spec, **options)

    def called(self: OnnxPrior, *arguments: Any, **keywords: Any) -> Prior:
        entries.append("called")
        return plain_call(self, *arguments, **keywords)

    monkeypatch.setattr(predictor, "prior_source", opened)
    monkeypatch.setattr(OnnxPrior, "__call__", called)
    return entries


def record(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


# ---- the list


def test_the_list_has_every_prior_with_its_licence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = json.loads(done("priors --json"))
    assert [row["name"] for row in listed["priors"]] == list(PRIORS)
    rows = {row["name"]: row for row in listed["priors"]}
    assert rows["depth-anything-v2-large"]["commercial"] is False
    assert rows["moge-2"]["install"].startswith("pip install 'leadline[moge]' git+https://github.com/microsoft/MoGe")
    assert rows["onnx"]["install"] == "pip install 'leadline[onnx]'"
    assert (rows["onnx"]["weights"], rows["moge-2"]["weights"]) == (None, False)
    assert listed["cache"] == {"path": str(tmp_path / "leadline" / "priors"), "files": 0, "megabytes": 0.0}
    table = done("priors")
    for name, facts in PRIORS.items():
        assert name in table
        assert facts.licence in table
    assert table.count("non-commercial") == sum(not facts.commercial for facts in PRIORS.values())


@pytest.mark.parametrize("command", ["complete", "prior", "priors"])
def test_help_imports_no_framework(command: str) -> None:
    code = (
        "import sys; from leadline.apps.cli import group\n"
        f"try: group.main(['{command}', '--help'], prog_name='leadline')\n"
        "except SystemExit: pass\n"
        "sys.exit(', '.join({'numba', 'rich', 'PIL', 'torch', 'onnxruntime'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


# ---- predictions saved


def test_saved_predictions_are_those_of_the_network(here: Path) -> None:
    assert "photo: depth by model\nwrote priors/photo.npy\n" in done(
        "prior photo.jpg --prior onnx:model.onnx -o priors"
    )
    expected = OnnxPrior("model.onnx")(read_image("photo.jpg"))
    np.testing.assert_array_equal(np.load("priors/photo.npy"), expected.values)
    facts = record("priors/photo.prior.json")
    assert (facts["quantity"], facts["gauge"], facts["model"]) == ("depth", "scale", "model")
    assert facts["fingerprint"] == OnnxPrior("model.onnx").fingerprint()
    done(f"{NETWORK_ONE} --format npy -o network")
    done("complete photo.jpg --sparse lidar.png --unit mm --prior files:priors/photo.npy --format npy -o files")
    np.testing.assert_array_equal(np.load("network/photo_depth.npy"), np.load("files/photo_depth.npy"))


def test_what_the_sidecar_declares_reaches_the_completion(here: Path) -> None:
    write_onnx(Path("far.onnx"), quantity="disparity", gauge="affine")
    done("prior frames --prior onnx:far.onnx -o far --format npz --quiet")
    done("complete frames --sparse depth --unit mm --prior far -o out")
    about = record("out/f0.json")["prior"]
    assert (about["quantity"], about["floor"], about["model"]) == ("disparity", 0.01, "far")
    assert "0 done, 4 skipped" in done("complete frames --sparse depth --unit mm --prior files:far -o out")
    changed = record("far/f0.prior.json") | {"floor": 0.2}
    Path("far/f0.prior.json").write_text(json.dumps(changed), encoding="utf-8")
    assert "the inputs changed (prior_sidecar)" in done("complete frames --sparse depth --unit mm --prior far -o out")
    done("complete frames --sparse depth --unit mm --prior far --prior-kind disparity --prior-floor 0.3 -o out")
    assert record("out/f1.json")["prior"]["floor"] == 0.3


def test_one_bad_image_does_not_end_the_folder(here: Path) -> None:
    Path("frames/f1.png").write_bytes(b"no picture")
    line = "prior frames --prior onnx:model.onnx -o priors"
    result = leadline(line)
    assert result.exit_code == 1
    assert "error: f1: frames/f1.png" in result.output
    assert "3 done, 0 skipped, 1 failed" in result.output
    assert not Path("priors/f1.prior.json").exists()
    Path("frames/f1.png").write_bytes(Path("frames/f0.png").read_bytes())
    assert "1 done, 3 skipped, 0 failed" in done(line)
    assert "4 done, 0 skipped" in done(f"{line} --overwrite")


def test_a_prediction_is_made_again_when_image_or_network_change(here: Path) -> None:
    line = "prior photo.jpg --prior onnx:model.onnx -o priors"
    done(line)
    assert "predicted already" in done(line)
    write_onnx(Path("model.onnx"), short_side=12)
    assert "wrote" in done(line)
    replace_file("photo.jpg", np.zeros((*SHAPE, 3), np.uint8))
    assert "wrote" in done(line)
    Path("priors/photo.prior.json").write_text("{", encoding="utf-8")
    assert "wrote" in done(line)
    assert "predicted already" in done(line)


def test_what_cannot_be_predicted_is_said_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no such ONNX model" in refused("prior frames --prior onnx:none.onnx -o priors")
    assert "did you mean 'moge-2'" in refused("prior frames --prior moge2 -o priors")
    assert "takes no option 'size'" in refused("prior frames --prior onnx:model.onnx --prior-option size=3 -o priors")
    assert "there is no such image" in refused("prior foto.jpg --prior none -o priors")
    Path("other").mkdir()
    assert "there is no image in it" in refused("prior other --prior none -o priors")
    Image.open("photo.jpg").save("other/f0.jpg")
    assert "saved under one name" in refused("prior frames/f0.png other --prior none -o priors")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = refused("prior frames --prior onnx:model.onnx -o priors")
    assert message.endswith("pip install 'leadline[onnx]'")
    assert refused(f"{NETWORK_ALL} -o out") == message


# ---- completed with


def test_the_network_is_opened_once_and_asked_once_for_each_image(here: Path, asked: list[str]) -> None:
    done(f"{NETWORK_ALL} -o out")
    assert sorted(asked) == ["called"] * 4 + ["opened"]
    asked.clear()
    done(f"{NETWORK_ALL} -o out --overwrite")
    done("prior frames --prior onnx:model.onnx -o priors")
    assert "called" not in asked
    done(f"{NETWORK_ALL} -o out --overwrite --no-cache")
    done(f"{NETWORK_ALL} -o out --overwrite --cache kept")
    assert asked.count("called") == 8
    assert len(list(Path("kept").rglob("*.npy"))) == len(list(Path("cache").rglob("*.npy"))) == 4


def test_processes_give_the_same(here: Path) -> None:
    done(f"{NETWORK_ALL} -o out --format npy")
    ended = run(f"{NETWORK_ALL} -o several --format npy --jobs 2 --no-cache")
    assert ended.returncode == 0, ended.stderr
    for stem in ("f0", "f3"):
        np.testing.assert_array_equal(np.load(f"several/{stem}_depth.npy"), np.load(f"out/{stem}_depth.npy"))


def test_the_sidecar_records_the_network_and_a_resumed_run_compares_it(here: Path) -> None:
    done(f"{NETWORK_ONE} -o out")
    found = record("out/photo.json")
    fingerprint = OnnxPrior("model.onnx").fingerprint()
    assert found["prior"] == {
        "quantity": "depth", "floor": 0.0, "gauge": "scale", "model": "model", "fingerprint": fingerprint,
    }  # fmt: skip
    assert found["inputs"]["prior"] == {"path": "onnx:model.onnx", "sha256": fingerprint}
    assert "complete already" in done(f"{NETWORK_ONE} -o out")
    Path("moved").mkdir()
    for name in ("model.onnx", "model.json"):
        Path("moved", name).write_bytes(Path(name).read_bytes())
    assert "complete already" in done(f"{NETWORK_ONE} -o out".replace("onnx:", "onnx:moved/"))
    write_onnx(Path("model.onnx"), short_side=12)
    assert "completed again: the inputs changed (prior)." in done(f"{NETWORK_ONE} -o out")


def test_no_prior_at_all(here: Path) -> None:
    done("complete photo.jpg --sparse lidar.png --unit mm --prior none -o out")
    assert record("out/photo.json")["prior"]["model"] == "none"
    assert not list(Path("cache").rglob("*.npy"))


def test_kind_and_floor_are_the_network_s_options(here: Path) -> None:
    write_onnx(Path("far.onnx"), quantity="disparity", gauge="affine")
    done("complete photo.jpg --sparse lidar.png --unit mm --prior onnx:far.onnx --prior-floor 0.2 -o out")
    assert record("out/photo.json")["prior"]["floor"] == 0.2
    assert "takes no option 'kind'" in refused(f"{NETWORK_ONE} --prior-kind depth -o out")


def test_the_predicted_camera_makes_the_cloud(here: Path) -> None:
    output = done(f"{BELIEVER_ONE} --ply -o own")
    assert output.count("note: believer: is made up.") == 1
    found = record("own/photo.json")
    assert found["camera"] == {
        "width": 32, "height": 24, "fx": 40.0, "fy": 40.0, "cx": 15.5, "cy": 11.5, "source": "prior",
    }  # fmt: skip
    assert Believer.note in found["notes"]
    np.testing.assert_array_equal(np.isfinite(np.load("own/photo_depth.npy"))[3:], True)
    assert np.isnan(np.load("own/photo_depth.npy"))[:3].any()  # outside of the mask, but for what was measured
    done(f"{BELIEVER_ONE} --ply --intrinsics 40,40,15.5,11.5 -o given")
    assert record("given/photo.json")["camera"]["source"] == "user"
    assert Path("given/photo.ply").read_bytes() == Path("own/photo.ply").read_bytes()
    assert "--ply needs a camera" in refused(f"{NETWORK_ONE} --ply -o out")


def test_a_saved_camera_makes_the_cloud_too(here: Path) -> None:
    done("prior photo.jpg --prior believer -o priors")
    done(f"{BELIEVER_ONE.replace('believer', 'priors/photo.npy')} --ply -o saved")
    done(f"{BELIEVER_ONE} --ply -o own")
    assert record("saved/photo.json")["camera"] == record("own/photo.json")["camera"]
    assert Path("saved/photo.ply").read_bytes() == Path("own/photo.ply").read_bytes()


@pytest.mark.parametrize("camera", ["--intrinsics 30,31,15.5,11.5", "--camera cam.json"])
def test_a_known_camera_tells_the_network_its_focal_length(camera: str, here: Path) -> None:
    done(f"{BELIEVER_ONE} {camera} -o out")
    assert record("out/photo.json")["inputs"]["prior"]["sha256"] == "believer 30.0"
    done(f"{BELIEVER_ONE} {camera} --ply --prior-option focal=20 -o out")
    assert record("out/photo.json")["inputs"]["prior"]["sha256"] == "believer 20"
    assert "add --ply" in refused(f"{NETWORK_ONE} {camera} -o out")


REFUSED = {
    "a name": (ONE.replace("prior.npy", "mogee-2"), "no prior of that name; did you mean 'moge-2'"),
    "no name at all": (ONE.replace("prior.npy", "xyzzy"), "choose one of believer, "),
    "a file": (ONE.replace("prior.npy", "prior.npz"), "there is no such file; did you mean 'prior.npy'"),
    "a folder": (ALL.replace("--prior priors", "--prior files:prior"), "--prior prior: there is no such file"),
    "device of a file": (f"{ONE} --device cpu", "--device is for a prior that is predicted"),
    "cache of a file": (f"{ONE} --no-cache", "--no-cache is for a prior that is predicted"),
    "both caches": (f"{NETWORK_ONE} -o out --cache x --no-cache", "exclude each other"),
    "an option twice": (f"{NETWORK_ONE} -o out --prior-floor 0 --prior-option floor=0", "set by another flag"),
    "no pair": (f"{NETWORK_ONE} -o out --prior-option floor", "must have the shape KEY=VALUE"),
    "both cameras": (f"{ONE} --ply --camera cam.json --intrinsics 1,2,3,4", "say the same"),
    "device": (f"{BELIEVER_ONE} -o out --dtype float16", "takes no option 'dtype'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_lines_are_one_line(case: str, here: Path) -> None:
    line, text = REFUSED[case]
    assert text in refused(line)


# ---- the unit of the depth


def write_measured(unit: str, scale: float) -> None:
    """Measurements of the photo in another unit, `scale` times as far."""
    metres = read_depth("lidar.png", "mm").values * scale
    write_depth("measured.png", metres, unit)


MEASURED = "complete photo.jpg --sparse measured.png --prior prior.npy -o out"


@pytest.mark.parametrize(("unit", "scale"), [("kitti", 25.0), ("kitti", 1.0), ("tum", 1.0), ("0.00025", 1.0)])
def test_depth_has_the_unit_of_the_measurements(unit: str, scale: float, here: Path) -> None:
    write_measured(unit, scale)
    done(f"{MEASURED} --unit {unit}")
    given, written = (np.asarray(Image.open(path)) for path in ("measured.png", "out/photo_depth.png"))
    np.testing.assert_array_equal(written[given > 0], given[given > 0])
    assert record("out/photo.json")["units"]["depth"]["unit"] == record("out/photo.json")["units"]["sparse"]["unit"]


def test_millimetres_where_that_unit_is_too_short_or_too_coarse(here: Path) -> None:
    write_measured("tum", 3.0)  # up to 12.6 m, and 16 bits in 1/5000 m end at 13.1 m
    prior = np.load("prior.npy")
    prior[0, 0] = 1.7  # some 20 m
    np.save("prior.npy", prior)
    shown = done(f"{MEASURED} --unit tum --calibrated")
    assert "in tum do not reach the farthest depth, so that it was written in mm: read it with --unit mm." in shown
    assert record("out/photo.json")["units"]["depth"]["unit"] == "mm"
    np.save("metres.npy", read_depth("lidar.png", "mm").values)
    done(f"{MEASURED} --unit m".replace("measured.png", "metres.npy"))
    assert record("out/photo.json")["units"]["depth"]["unit"] == "mm"


def test_float_forms_are_in_metres_and_what_is_asked_for_counts(here: Path) -> None:
    write_measured("kitti", 1.0)
    done(f"{MEASURED} --unit kitti --format npy")
    assert record("out/photo.json")["units"]["depth"]["unit"] == "m"
    done(f"{MEASURED} --unit kitti --output-unit mm")
    assert record("out/photo.json")["units"]["depth"]["unit"] == "mm"


@pytest.mark.skipif(not (KITTI.is_dir() and NETWORK.is_file()), reason=f"needs a scene and a network in {SHARED}")
def test_a_real_sweep_with_a_real_network(here: Path) -> None:
    line = f"complete {KITTI}/rgb.png --sparse {KITTI}/sparse_lidar.png --unit kitti -o out"
    assert "fit    converged" in done(f"{line} --prior onnx:{NETWORK}")
    assert record("out/rgb.json")["units"]["depth"]["unit"] == "kitti"
    given, written = (np.asarray(Image.open(path)) for path in (KITTI / "sparse_lidar.png", "out/rgb_depth.png"))
    np.testing.assert_array_equal(written[given > 0], given[given > 0])
    reference = read_depth(KITTI / "depth.png", "kitti").values
    scored = np.isfinite(reference) & (given == 0)
    error = np.abs(read_depth("out/rgb_depth.png", "kitti").values - reference)[scored] / reference[scored]
    assert error.mean() < 0.1  # the network alone, in its best affine fit, is at about 0.13 on these roads
