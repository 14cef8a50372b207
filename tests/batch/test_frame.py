"""Frames and folders completed from Python: outcomes, notes, units, and failures that end nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import leadline
from leadline.base.errors import InputError
from leadline.batch.folder import complete_folder, match_frames
from leadline.batch.frame import FrameJob, complete_frame
from leadline.batch.outcome import Outcome, State
from leadline.batch.outputs import OutputOptions
from leadline.io import FrameFiles, FrameOptions, Measurements, NoteKind, read_frame
from leadline.io.files import file_hash
from support.cli_frames import SHAPE, prepare


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrameFiles:
    monkeypatch.chdir(tmp_path)
    prepare()
    return FrameFiles(image=Path("photo.jpg"), sparse=Path("lidar.png"), prior=Path("prior.npy"))


def make_job(**changes: object) -> FrameJob:
    Path("out").mkdir(exist_ok=True)
    chosen = {"inputs": FrameOptions(unit="mm"), "outputs": OutputOptions(format="npy"), **changes}
    return FrameJob(folder=Path("out"), **chosen)  # type: ignore[arg-type]


def test_a_frame_is_completed_as_by_the_two_functions_of_the_library(files: FrameFiles) -> None:
    outcome = complete_frame(files, make_job())
    frame = read_frame(files, FrameOptions(unit="mm"))
    expected = leadline.complete(frame.prior, frame.sparse)
    assert (outcome.state, outcome.notes) == (State.DONE, ())
    np.testing.assert_array_equal(np.load("out/photo_depth.npy"), expected.depth)
    assert complete_frame(files, make_job()).state is State.SKIPPED


def test_changed_options_and_inputs_are_noted_by_their_kind(files: FrameFiles) -> None:
    complete_frame(files, make_job())
    looser = replace(make_job(), completion=leadline.CompletionOptions(outliers="single"))
    (note,) = complete_frame(files, looser).notes
    assert note.kind is NoteKind.REDONE
    assert str(note) == "completed again: the options changed (`outliers`)."


def test_measurements_may_be_an_array(files: FrameFiles) -> None:
    depth = read_frame(files, FrameOptions(unit="mm")).sparse
    without = FrameFiles(image=files.image, prior=files.prior)
    complete_frame(without, make_job(), measurements=Measurements(depth))
    complete_frame(replace(files, stem="file"), make_job())
    np.testing.assert_array_equal(np.load("out/photo_depth.npy"), np.load("out/file_depth.npy"))
    assert complete_frame(without, make_job(), measurements=Measurements(depth)).state is State.SKIPPED
    assert complete_frame(without, make_job(), measurements=Measurements(2 * depth)).state is State.DONE


def test_depth_beyond_65_metres_is_written_in_the_unit_that_reaches_it(files: FrameFiles) -> None:
    far = replace(make_job(), inputs=FrameOptions(unit="cm"), outputs=OutputOptions())
    np.save("prior.npy", np.load("prior.npy") * 10)
    Image.fromarray(np.asarray(Image.open("lidar.png")) * 2).save("lidar.png")
    outcome = complete_frame(files, far)
    unit = json.loads(Path("out/photo.json").read_text())["units"]["depth"]["unit"]
    assert unit == "cm"
    assert outcome.notes == ()
    metres = replace(make_job(), inputs=FrameOptions(unit="0.01"), outputs=OutputOptions(output_unit="kitti"))
    assert complete_frame(files, metres).state is State.DONE


@pytest.mark.parametrize(
    ("options", "units"),
    [
        (OutputOptions(), ("mm", "kitti")),
        (OutputOptions(format="npy"), ("m",)),
        (OutputOptions(output_unit="cm"), ("cm",)),
    ],
)
def test_units_of_the_depth(options: OutputOptions, units: tuple[str, ...]) -> None:
    assert options.units("mm") == units


def test_wrong_outputs_are_refused_by_the_name_of_the_parameter() -> None:
    with pytest.raises(InputError, match="`format`: depth cannot be written as 'pgn'; did you mean 'png'"):
        OutputOptions(format="pgn")
    with pytest.raises(InputError, match="`output_unit` must be one of"):
        OutputOptions(output_unit="furlong")


def test_a_folder_reports_every_frame_once(files: FrameFiles) -> None:
    Image.fromarray(np.zeros(SHAPE, np.uint16)).save("depth/f1.png")
    folders = {"image": Path("frames"), "sparse": Path("depth"), "prior": Path("priors")}
    matches = match_frames(folders)
    outcomes: list[Outcome] = []
    complete_folder(matches.frames, make_job(), outcomes.append)
    assert {outcome.stem: outcome.state for outcome in outcomes} == {
        "f0": State.DONE,
        "f1": State.FAILED,
        "f2": State.DONE,
        "f3": State.DONE,
    }


def test_the_hash_of_a_calibration_folder_follows_its_files(tmp_path: Path) -> None:
    (tmp_path / "calib_cam_to_cam.txt").write_text("a")
    before = file_hash(tmp_path)
    (tmp_path / "calib_cam_to_cam.txt").write_text("b")
    assert file_hash(tmp_path) != before
