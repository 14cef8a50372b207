"""Frames read from files: sizes, units, confidence, point clouds, cameras, and the notes about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.io import FrameFiles, FrameOptions, NoteKind, ProjectionOptions, project_cloud, read_frame
from leadline.io.depth import read_depth
from leadline.io.frame_checks import exclude_painted
from leadline.io.placement import CloudFiles
from leadline.io.priors import SourcedPrior
from support.cli_frames import SHAPE, make_maps, prepare


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrameFiles:
    monkeypatch.chdir(tmp_path)
    prepare()
    return FrameFiles(image=Path("photo.jpg"), sparse=Path("lidar.png"), prior=Path("prior.npy"))


def kinds(frame: object) -> list[NoteKind]:
    return [note.kind for note in frame.notes]  # type: ignore[attr-defined]


def test_a_frame_has_the_numbers_of_its_files(files: FrameFiles) -> None:
    _, sparse, prior = make_maps(0)
    frame = read_frame(files, FrameOptions(unit="mm"))
    assert frame.image.shape == (*SHAPE, 3)
    np.testing.assert_array_equal(np.nan_to_num(frame.sparse), (sparse * 1e-3).astype(np.float32))
    np.testing.assert_array_equal(frame.prior.values, prior)
    assert (frame.unit, frame.notes, frame.valid, frame.camera) == ("mm", (), None, None)
    assert files.stem == "photo"


def test_a_guessed_unit_is_a_note_of_its_kind_that_names_the_parameter(files: FrameFiles) -> None:
    frame = read_frame(files)
    assert kinds(frame) == [NoteKind.UNIT_GUESSED]
    assert frame.record["units"]["sparse"] == {"unit": "mm", "guessed": True}


def test_a_cloud_gives_its_exact_depth_and_not_rounded_counts() -> None:
    files = FrameFiles(
        image=Path("photo.jpg"),
        points=Path("sweep.npy"),
        prior=Path("prior.npy"),
        camera=Path("cam.json"),
        extrinsics=Path("T.json"),
    )
    options = ProjectionOptions(see_through=False)
    frame = read_frame(files, FrameOptions(projection=options))
    expected = read_depth("lidar.png", "mm").values
    assert NoteKind.PROJECTED in kinds(frame)
    np.testing.assert_allclose(frame.sparse, expected, rtol=1e-6)
    cloud = CloudFiles(cloud=Path("sweep.npy"), camera=Path("cam.json"), extrinsics=Path("T.json"))
    direct = project_cloud(cloud, options, size=SHAPE[::-1])
    np.testing.assert_array_equal(frame.sparse, direct.depth)
    assert frame.camera_source == "user"
    assert frame.record["projection"]["points"]["pixels"] == np.isfinite(expected).sum()


def test_projection_options_reach_the_projection() -> None:
    files = FrameFiles(image=Path("photo.jpg"), points=Path("sweep.npy"), prior=Path("prior.npy"))
    with pytest.raises(InputError, match=r"`camera='cam\.json'`"):
        read_frame(files)
    files = FrameFiles(
        image=Path("photo.jpg"),
        points=Path("sweep.npy"),
        prior=Path("prior.npy"),
        camera=Path("cam.json"),
        extrinsics=Path("T.json"),
    )
    near = read_frame(files, FrameOptions(projection=ProjectionOptions(max_range=3.0)))
    assert np.nanmax(near.sparse) <= 3.0 < np.nanmax(read_frame(files).sparse)


def test_sizes_that_differ_are_refused_and_the_options_that_allow_them_are_named(files: FrameFiles) -> None:
    np.save("small.npy", np.load("prior.npy")[::2, ::2])
    files = FrameFiles(image=files.image, sparse=Path("tof.png"), prior=Path("small.npy"))
    with pytest.raises(InputError, match=r"`resize_prior=True`.*`scatter_sparse=True`"):
        read_frame(files, FrameOptions(unit="mm"))
    frame = read_frame(files, FrameOptions(unit="mm", resize_prior=True, scatter_sparse=True))
    assert frame.prior.shape == frame.sparse.shape == SHAPE
    assert kinds(frame) == [NoteKind.RESIZED]


def test_measurements_of_low_confidence_are_left_out(files: FrameFiles) -> None:
    files = FrameFiles(image=files.image, sparse=Path("tof.png"), prior=files.prior, confidence=Path("levels.png"))
    frame = read_frame(files, FrameOptions(unit="mm", scatter_sparse=True))
    everything = read_frame(files, FrameOptions(unit="mm", scatter_sparse=True, min_confidence=0))
    assert NoteKind.LOW_CONFIDENCE in kinds(frame)
    assert 0 < np.isfinite(frame.sparse).sum() < np.isfinite(everything.sparse).sum()
    with pytest.raises(InputError, match="lower `min_confidence`"):
        read_frame(files, FrameOptions(unit="mm", scatter_sparse=True, min_confidence=3))


def test_the_prior_is_predicted_where_no_file_is_given(files: FrameFiles) -> None:
    def predict(image: np.ndarray, name: str) -> SourcedPrior:
        return SourcedPrior(Prior(np.full(image.shape[:2], 2.0, np.float32)), {"model": name})

    files = FrameFiles(image=files.image, sparse=files.sparse)
    frame = read_frame(files, FrameOptions(unit="mm"), predict)
    assert frame.record["prior"]["model"] == "photo"
    with pytest.raises(InputError, match="the `prior` is missing"):
        read_frame(files, FrameOptions(unit="mm"))


def test_a_camera_of_another_resolution_is_scaled_and_of_another_shape_refused(files: FrameFiles) -> None:
    Path("large.json").write_text('{"width": 64, "height": 48, "fx": 60, "fy": 62, "cx": 31.5, "cy": 23.5}')
    Path("other.json").write_text('{"width": 64, "height": 40, "fx": 60, "fy": 62, "cx": 31.5, "cy": 23.5}')
    options = FrameOptions(unit="mm")
    scaled = read_frame(
        FrameFiles(image=files.image, sparse=files.sparse, prior=files.prior, camera=Path("large.json")), options
    )
    assert kinds(scaled) == [NoteKind.CAMERA_SCALED]
    assert scaled.camera is not None
    assert scaled.camera.width == SHAPE[1]
    with pytest.raises(InputError, match="`camera` is for 64x40"):
        read_frame(
            FrameFiles(image=files.image, sparse=files.sparse, prior=files.prior, camera=Path("other.json")), options
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparse": None}, "the measurements are missing"),
        ({"extrinsics": Path("T.json")}, "`extrinsics` is for `points`"),
        ({"points": Path("sweep.npy")}, "`sparse` and `points` are both measurements"),
        ({"prior": Path("missing.npy")}, "missing.npy"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(change: dict[str, Path | None], message: str) -> None:
    given = {"image": Path("photo.jpg"), "sparse": Path("lidar.png"), "prior": Path("prior.npy"), **change}
    with pytest.raises((InputError, FileError), match=message):
        read_frame(FrameFiles(**given))  # type: ignore[arg-type]


def test_swapped_files_are_recognised(files: FrameFiles) -> None:
    np.save("sparse.npy", read_depth("lidar.png", "mm").values)
    with pytest.raises(InputError, match="swapped"):
        read_frame(
            FrameFiles(image=files.image, sparse=Path("prior.npy"), prior=Path("sparse.npy")), FrameOptions(unit="m")
        )


def test_painted_measurements_are_excluded(tmp_path: Path) -> None:
    sparse = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    path = tmp_path / "mask.png"
    Image.fromarray(np.array([[255, 255], [0, 0]], np.uint8)).save(path)
    kept, count = exclude_painted(sparse, path)
    assert np.array_equal(kept, np.array([[np.nan, np.nan], [2.0, 3.0]], np.float32), equal_nan=True)
    assert (count, kept.dtype) == (1, np.float32)
    with pytest.raises(InputError, match="another size"):
        exclude_painted(np.ones((3, 2), np.float32), path)
    with pytest.raises(InputError, match="every measurement"):
        exclude_painted(np.array([[1.0, 2.0], [0.0, np.nan]], np.float32), path)
