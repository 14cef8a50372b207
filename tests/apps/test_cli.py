"""The command line: its help, its flags, what it writes for one image, and what it refuses."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.apps import cli
from leadline.core import pipeline
from leadline.core.options import CompletionOptions
from leadline.geometry.grids import scatter_nearest
from leadline.io.depth import read_depth
from support.cli_frames import ALL, ONE, SHAPE, environment, leadline, make_maps, refused, replace_file, run

HALF_MILLIMETRE = 0.5e-3 + 1e-6  # a PNG in mm rounds to the nearest count; the rest is float32


# ---- help, version, info


def test_top_level_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from leadline.apps.cli import group\n"
        "try: group.main(['--help'], prog_name='leadline')\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'rich', 'PIL', 'leadline.apps.complete'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert run.stderr.strip() == ""
    assert "complete" in run.stdout


def test_help_of_a_command_does_not_import_the_compiler() -> None:
    code = (
        "import sys; from leadline.apps.cli import group\n"
        "try: group.main(['complete', '--help'], prog_name='leadline')\n"
        "except SystemExit: pass\n"
        "sys.exit(', '.join({'numba', 'rich', 'PIL'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert run.stderr.strip() == ""


# These need a run, a sweep, a model, a bag or a browser: their examples are run where their own tests have one.
ELSEWHERE = ("bench", "project", "diagnose", "figures", "colmap", "fuse", "bag", "studio")


def examples() -> list[str]:
    texts = [cli.EXAMPLES, *(cli.group.get_command(None, name).epilog for name in cli.COMMANDS)]  # type: ignore[arg-type]
    found = {line.strip() for text in texts for line in text.splitlines() if line.strip().startswith("leadline ")}
    return sorted(line for line in found if line.split()[1] not in ELSEWHERE)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_has_an_example(name: str) -> None:
    output = leadline(f"{name} --help").output
    assert re.search(rf"Examples?:\s+leadline {name}", output)


@pytest.mark.parametrize("line", examples())
def test_examples_in_the_help_run(line: str, here: Path) -> None:
    if "onnx:" in line:
        pytest.importorskip("onnxruntime", reason="the example predicts with an ONNX network")
    if "--jobs" in line:  # worker processes need a main module that is the command itself
        assert run(line.removeprefix("leadline ")).returncode == 0
    else:
        result = leadline(line.removeprefix("leadline "))
        assert result.exit_code == 0, result.output


def test_no_argument_shows_the_help() -> None:
    result = leadline("")
    assert result.exit_code == 0
    assert "Commands:" in result.output


def test_version_and_unknown_command() -> None:
    assert leadline("--version").output == f"leadline {cli.version()}\n"
    assert "did you mean 'complete'" in refused("complet photo.jpg")
    assert "choose one of bag, bench, colmap, " in refused("xyzzy")


# ---- flags made from the dataclasses


def test_flags_reach_the_options(here: Path) -> None:
    assert (
        leadline(f"{ONE} --unit mm --fit-starts=-1,0.5 --fit-tolerance 1e-9 --tolerance 1e-5 --strict").exit_code == 0
    )
    recorded = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))["settings"]["completion"]
    assert recorded["fit"]["starts"] == [-1, 0.5]
    assert (recorded["fit"]["tolerance"], recorded["reconstruction"]["tolerance"]) == (1e-9, 1e-5)
    assert recorded["strict"] is True


def test_a_wrong_value_names_its_flag(here: Path) -> None:
    assert "--fit-tolerance must be a positive number" in refused(f"{ONE} --fit-tolerance 0")
    assert "--weight-data must be" in refused(f"{ONE} --preset paper --weight-data=-1")
    assert "--fit-starts" in refused(f"{ONE} --fit-starts a,b")


# ---- one image


@pytest.mark.parametrize(
    ("flags", "options"), [("", CompletionOptions.best()), ("--preset paper", CompletionOptions.paper())]
)
def test_the_depth_written_is_the_pipeline_s(flags: str, options: CompletionOptions, here: Path) -> None:
    result = leadline(f"{ONE} --unit mm --format npy --calibrated {flags}")
    assert result.exit_code == 0, result.output
    _, sparse, prior = make_maps(0)
    metres = np.where(sparse > 0, sparse * 1e-3, np.nan).astype(np.float32)
    expected = pipeline.complete(prior, metres, options=options)
    np.testing.assert_array_equal(np.load("out/photo_depth.npy"), expected.depth)
    np.testing.assert_array_equal(np.load("out/photo_calibrated.npy"), expected.calibrated)
    np.testing.assert_array_equal(np.load("out/photo_depth.npy")[sparse > 0], metres[sparse > 0])
    for name in ("photo_depth.npy", "photo_calibrated.npy", "photo_preview.png", "photo.json"):
        assert f"wrote {Path('out') / name}" in result.output
    assert not list(Path("out").glob(".*"))


def test_png_is_the_default_and_in_millimetres(here: Path) -> None:
    assert leadline(f"{ONE} --unit mm").exit_code == 0
    assert leadline(f"{ONE} --unit mm --format npy").exit_code == 0
    png, npy = np.asarray(Image.open("out/photo_depth.png")), np.load("out/photo_depth.npy")
    assert png.dtype.itemsize >= 2
    np.testing.assert_allclose(png * 1e-3, npy, rtol=0, atol=HALF_MILLIMETRE)


def test_preview_shows_the_image_beside_the_depth(here: Path) -> None:
    assert leadline(f"{ONE} --unit mm").exit_code == 0
    preview = np.asarray(Image.open("out/photo_preview.png"))
    assert preview.shape[0] > SHAPE[0]  # the colour scale is below
    assert preview.shape[1] >= 2 * SHAPE[1]  # wider if the scale needs it
    np.testing.assert_array_equal(preview[: SHAPE[0], : SHAPE[1]], np.asarray(Image.open("photo.jpg")))


def test_sidecar_records_how_the_depth_was_computed(here: Path) -> None:
    assert leadline(ONE).exit_code == 0
    record = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    assert record["leadline"] == cli.version()
    for name, file in (("image", "photo.jpg"), ("sparse", "lidar.png"), ("prior", "prior.npy")):
        assert record["inputs"][name]["sha256"] == hashlib.sha256(Path(file).read_bytes()).hexdigest()
        assert record["sizes"][name] == "32x24"
    assert record["units"]["sparse"]["unit"] == "mm"
    assert record["units"]["sparse"]["guessed"] is True
    assert any("unit guessed as mm" in note for note in record["notes"])
    assert record["outputs"] == {"depth": "photo_depth.png", "preview": "photo_preview.png"}
    assert set(record["seconds"]) == {"read", "complete", "write"}
    _, sparse, prior = make_maps(0)
    metres = np.where(sparse > 0, sparse * 1e-3, np.nan).astype(np.float32)
    expected = pipeline.complete(prior, metres, options=CompletionOptions.best())
    not_finite_is_null = json.loads(json.dumps(expected.to_dict()), parse_constant=lambda _: None)
    assert record["result"] == not_finite_is_null


def test_a_guessed_unit_is_noted_and_a_given_one_is_not(here: Path) -> None:
    assert "note: unit guessed as mm" in leadline(ONE).output
    assert "note:" not in leadline(f"{ONE} --unit mm --overwrite").output


def test_prior_kinds(here: Path) -> None:
    np.save("log.npy", np.log(np.load("prior.npy")))
    for kind, file in (("disparity", "disparity.npy"), ("log_depth", "log.npy"), ("depth", "prior.npy")):
        line = (
            f"complete photo.jpg --sparse lidar.png --unit mm --prior {file} --prior-kind {kind} --format npy -o {kind}"
        )
        assert leadline(line).exit_code == 0
    for kind in ("disparity", "log_depth"):
        # The prior reaches the pipeline through 1/h or exp(log h) in float32, a few ulp from h.
        np.testing.assert_allclose(np.load(f"{kind}/photo_depth.npy"), np.load("depth/photo_depth.npy"), rtol=1e-4)


def test_masked_pixels_have_no_depth(here: Path) -> None:
    mask = np.full(SHAPE, 255, np.uint8)
    mask[:5] = 0
    Image.fromarray(mask).save("mask.png")
    assert leadline(f"{ONE} --unit mm --valid mask.png --format npy").exit_code == 0
    np.testing.assert_array_equal(np.isfinite(np.load("out/photo_depth.npy")), mask > 0)


def test_measurements_without_a_prior_are_not_enough(here: Path) -> None:
    prior = np.load("prior.npy")
    prior[np.asarray(Image.open("lidar.png")) > 0] = np.nan
    np.save("prior.npy", prior)
    assert "lidar.png: no_measurements: " in refused(f"{ONE} --unit mm")


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_a_fallback_is_noted_and_refused_when_strict(preset: str, here: Path) -> None:
    files = "--sparse lidar.png --unit mm --prior disparity.npy"  # and not said to be one
    line = f"complete photo.jpg {files} --preset {preset} -o out"
    output = leadline(line).output
    assert "note: fit anti_correlated: " in output
    assert "--prior-kind auto finds out" in output  # an advice that holds with either kind
    assert "anti_correlated" in refused(f"{line} --strict --overwrite")


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_an_early_stop_is_noted_and_refused_when_strict(preset: str, here: Path) -> None:
    limited = f"{ONE} --unit mm --preset {preset} --solver jacobi --max-iterations 1"
    assert "note: solve iteration_limit: " in leadline(limited).output
    assert "iteration_limit" in refused(f"{limited} --strict")


def test_cloud_from_intrinsics_and_camera_file(here: Path) -> None:
    assert leadline(f"{ONE} --unit mm --ply --intrinsics 30,31,15.5,11.5").exit_code == 0
    first = Path("out/photo.ply").read_bytes()
    assert f"element vertex {SHAPE[0] * SHAPE[1]}\n".encode() in first
    assert leadline(f"{ONE} --unit mm --ply --camera cam.json").exit_code == 0
    assert Path("out/photo.ply").read_bytes() == first


def test_maps_of_other_sizes(here: Path) -> None:
    np.save("small_prior.npy", make_maps(0, (12, 16))[2])
    Image.fromarray(make_maps(0, (48, 64))[1]).save("large.png")
    line = "complete photo.jpg --sparse large.png --unit mm --prior small_prior.npy -o out --format npy"
    message = refused(line)
    for part in ("image 32x24", "sparse 64x48", "prior 16x12", "--resize-prior", "--scatter-sparse"):
        assert part in message
    assert "--scatter-sparse" not in refused(f"{line} --scatter-sparse")
    result = leadline(f"{line} --resize-prior --scatter-sparse")
    assert result.exit_code == 0
    assert "moved, not interpolated" in result.output
    assert "the nearest was kept" in result.output
    record = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    moved, lost = scatter_nearest(read_depth("large.png", "mm").values, SHAPE)
    assert record["measurements_lost_in_shared_pixels"] == lost
    known = np.isfinite(moved)
    np.testing.assert_array_equal(np.load("out/photo_depth.npy")[known], moved[known])


def test_other_proportions_are_noted(here: Path) -> None:
    np.save("square.npy", make_maps(0, (24, 24))[2])
    line = "complete photo.jpg --sparse lidar.png --unit mm --prior square.npy -o out --resize-prior"
    assert "may not show the same view" in leadline(line).output


def test_quiet_keeps_notes_only(here: Path) -> None:
    assert leadline(f"{ONE} --unit mm --quiet").output == ""
    assert leadline(f"{ALL} --quiet").output == ""


# ---- what is refused


BAD_FILES = {
    "empty sparse map": ("lidar.png", np.zeros(SHAPE, np.uint16), "no measurement"),
    "prior of NaN": ("prior.npy", np.full(SHAPE, np.nan, np.float32), "no usable pixel"),
    "colour depth": ("lidar.png", np.zeros((*SHAPE, 3), np.uint8), "lidar.png"),
    "colour prior": ("prior.npy", np.ones((*SHAPE, 3), np.float32), "prior.npy"),
    "8-bit depth": ("lidar.png", np.full(SHAPE, 9, np.uint8), "8 bits"),
    "words": ("prior.npy", np.full(SHAPE, "a"), "prior.npy"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_line(case: str, here: Path) -> None:
    file, values, text = BAD_FILES[case]
    replace_file(file, values)
    assert text in refused(f"{ONE} --unit mm")
    assert not list(Path("out").iterdir())


BAD_LINES = {
    "missing image": (ONE.replace("photo.jpg", "foto.jpg"), "did you mean 'photo.jpg'"),
    "missing sparse": (ONE.replace("lidar.png", "nowhere/x.png"), "--sparse nowhere/x.png: there is no such file"),
    "missing prior": (ONE.replace("prior.npy", "pryor.npy"), "did you mean 'prior.npy'"),
    "files and folders": (ONE.replace("lidar.png", "depth"), "--sparse is a folder"),
    "unit": (f"{ONE} --unit furlong", "--unit must be one of"),
    "output unit": (f"{ONE} --output-unit furlong", "--output-unit must be one of"),
    "cloud without camera": (f"{ONE} --ply", "--ply needs a camera: give --intrinsics or --camera"),
    "camera without cloud": (f"{ONE} --camera cam.json", "add --ply"),
    "endless unit": (f"{ONE} --unit 1e20", "--unit must be one of"),
    "endless noise": (
        f"{ONE} --unit mm --noise 1e308",
        "the constant part of --noise must be a number from 0 to 1e+06",
    ),
    "three intrinsics": (f"{ONE} --ply --intrinsics 1,2,3", "four numbers"),
    "negative focal length": (f"{ONE} --unit mm --ply --intrinsics=-1,2,3,4", "fx and fy must be positive"),
    "camera file": (f"{ONE} --ply --camera prior.npy", "prior.npy: is not a text file, expected a camera"),
    "damaged camera file": (f"{ONE} --ply --camera damaged.json", "damaged.json: cannot be read as a camera"),
    "camera model": (f"{ONE} --ply --camera lens.json", "lens.json: the camera model must be one of"),
    "floor of a depth": (f"{ONE} --prior-floor 0.1", "--prior-kind disparity only"),
    "jobs for one": (f"{ONE} --jobs 2", "--jobs is for folders"),
    "output is a file": (f"{ONE}".replace("-o out", "-o prior.npy"), "cannot write there (it is a file)"),
    "output below a file": (f"{ONE}".replace("-o out", "-o prior.npy/out"), "cannot write there"),
    "output is an input": (ALL.replace("-o out", "-o priors"), "choose another"),
    "nothing matches": (ALL.replace("priors", "."), "no image has all its partners"),
    "option": (f"{ONE} --weight-dta 1", "--weight-dta"),
    "missing image without a prior": ("complete foto.jpg", "did you mean 'photo.jpg'"),  # before a network is loaded
    "missing image of a prediction": ("prior foto.jpg -o out", "foto.jpg: there is no such image or folder"),
    "link to nothing": (ONE.replace("photo.jpg", "dangling.png"), "dangling.png: is a link to nowhere"),
    "endless link": (ONE.replace("photo.jpg", "loop.png"), "loop.png: Too many levels of symbolic links"),
    "long name": (ONE.replace("photo.jpg", "x" * 300), "File name too long"),
    "run is a file": ("bench report lidar.png", "lidar.png: is a file, not a folder"),
    "no run": ("bench status nowhere", "nowhere: there is no such folder"),
    "demo onto a file": ("demo -o lidar.png", "there is a file of this name"),
    "text as image": (ONE.replace("photo.jpg", "cam.json") + " --unit mm", "cam.json"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_command_lines_are_one_line(case: str, here: Path) -> None:
    os.symlink("nowhere", "dangling.png")
    os.symlink("loop.png", "loop.png")
    Path("damaged.json").write_text('{"width": 32,', encoding="utf-8")
    camera = json.loads(Path("cam.json").read_text(encoding="utf-8"))
    Path("lens.json").write_text(json.dumps({**camera, "model": "NOPE"}), encoding="utf-8")
    line, text = BAD_LINES[case]
    assert text in refused(line)


def test_an_error_of_the_system_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/photo_depth.png")

    monkeypatch.setattr(pipeline, "complete", full)
    assert refused(f"{ONE} --unit mm") == "error: out/photo_depth.png: No space left on device."


def test_swapped_sparse_and_prior_are_noticed(here: Path) -> None:
    sparse = make_maps(0)[1]
    np.save("sparse.npy", np.where(sparse > 0, sparse * 1e-3, np.nan))
    assert "are --sparse and --prior swapped?" in refused(
        "complete photo.jpg --sparse prior.npy --prior sparse.npy --unit m -o out"
    )


def test_camera_of_another_size(here: Path) -> None:
    camera = json.loads(Path("cam.json").read_text(encoding="utf-8")) | {"width": 640, "height": 480}
    Path("cam.json").write_text(json.dumps(camera), encoding="utf-8")
    assert "the camera was scaled from 640x480" in leadline(f"{ONE} --unit mm --ply --camera cam.json").output
    Path("cam.json").write_text(json.dumps(camera | {"height": 500}), encoding="utf-8")
    assert "--camera is for 640x500 pixels" in refused(f"{ONE} --unit mm --ply --camera cam.json")


@pytest.mark.parametrize(("unit", "side"), [("m", "beyond"), ("1e-7", "within")])
def test_an_implausible_unit_is_noted(unit: str, side: str, here: Path) -> None:
    output = leadline(f"{ONE} --format npy --unit {unit}").output
    assert re.search(rf"note: half of the measurements lie {side} .* is --unit right\?", output)


def test_depth_beyond_16_bits_says_which_flags_help(here: Path) -> None:
    assert "The parameters are --output-unit and --format." in refused(f"{ONE} --unit cm --output-unit 1e-6")


def test_inputs_are_never_overwritten(here: Path) -> None:
    Path("lidar.png").rename("photo_depth.png")
    before = Path("photo_depth.png").read_bytes()
    message = refused("complete photo.jpg --sparse photo_depth.png --unit mm --prior prior.npy -o . --overwrite")
    assert "would overwrite the sparse input" in message
    assert Path("photo_depth.png").read_bytes() == before


def test_a_bug_keeps_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(pipeline, "complete", broken)
    with pytest.raises(ZeroDivisionError):
        leadline(f"{ONE} --unit mm")
    result = leadline(ALL)  # in a folder the other frames go on
    assert result.exit_code == 1
    assert result.output.count("Traceback") == 4
    assert "0 done, 0 skipped, 4 failed" in result.output
