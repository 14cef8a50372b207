"""Layouts that other programs write: byte orders, row orders, keys, channels and axes, laid out by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.io import read_depth, read_values, write_depth

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(("order", "scale"), [("<", "-1.0"), (">", "1.0"), (">", "0.0039"), ("<", "-1e0")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pfm_is_bottom_up_in_either_byte_order(tmp_path: Path, order: str, scale: str, end: str) -> None:
    path = tmp_path / "a.PFM"
    bottom_row_first = struct.pack(f"{order}6f", 4, 5, 6, 1, 2, 3)
    path.write_bytes(f"Pf{end}3 2{end}{scale}{end}".encode() + bottom_row_first)
    np.testing.assert_array_equal(read_values(path), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    assert read_values(path).dtype.isnative


def test_colmap_width_runs_fastest(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg.geometric.bin"
    path.write_bytes(b"3&2&1&" + struct.pack("<6f", 1, 2, 3, 4, 5, 0))
    back = read_depth(path)
    np.testing.assert_array_equal(back.values, np.array([[1, 2, 3], [4, 5, np.nan]], np.float32))
    assert back.guessed  # a reconstruction has no metres of its own
    assert "reconstruction" in str(back.note)
    assert not read_depth(path, 0.5).guessed


def test_colmap_normals_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg.photometric.bin"
    path.write_bytes(b"2&2&3&" + bytes(48))
    with pytest.raises(FileError, match="3 channels"):
        read_depth(path)


def test_lidar_bin_is_not_a_dense_map(tmp_path: Path) -> None:
    path = tmp_path / "000000.bin"
    path.write_bytes(np.ones((9, 4), np.float32).tobytes())
    with pytest.raises(FileError, match="COLMAP dense map"):
        read_depth(path)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "<u2", ">u2", "<i4", "<u4", "<i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_types_and_orders(tmp_path: Path, dtype: str, order: Any) -> None:
    values = np.array(np.arange(1, 13).reshape(3, 4), dtype=dtype, order=order)
    np.save(tmp_path / "a.npy", values)
    raw = read_values(tmp_path / "a.npy")
    np.testing.assert_array_equal(raw, values)
    assert raw.dtype == (np.float64 if dtype in ("<f8", "<i4", "<u4", "<i8") else np.float32)
    np.testing.assert_allclose(read_depth(tmp_path / "a.npy", "m").values, values)


@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (3, 4, 1), (1, 3, 4), (3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_singleton_axes_go(tmp_path: Path, shape: tuple[int, ...], order: Any) -> None:
    values = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "a.npy", np.asarray(values.reshape(shape), order=order))
    np.testing.assert_array_equal(read_depth(tmp_path / "a.npy").values, values)


@pytest.mark.parametrize("shape", [(12,), (2, 3, 2), (2, 1, 3, 2), (0, 4), ()])
def test_other_shapes_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.float32))
    with pytest.raises(FileError, match=r"\(H, W\) map, got shape"):
        read_depth(tmp_path / "a.npy")


def test_npz_keys(tmp_path: Path) -> None:
    one, two = np.full((2, 3), 1.0, np.float32), np.full((2, 3), 2.0, np.float32)
    np.savez(tmp_path / "single.npz", data=one)
    np.savez(tmp_path / "both.npz", other=two, depth=one)
    np.savez(tmp_path / "neither.npz", a=one, b=two)
    assert read_depth(tmp_path / "single.npz").values[0, 0] == 1
    assert read_depth(tmp_path / "both.npz").values[0, 0] == 1
    assert read_depth(tmp_path / "both.npz", key="other").values[0, 0] == 2
    with pytest.raises(FileError, match="'a', 'b'"):
        read_depth(tmp_path / "neither.npz")
    with pytest.raises(FileError, match="'other', 'depth'"):
        read_depth(tmp_path / "both.npz", key="nothing")


def test_exr_channels(tmp_path: Path) -> None:
    openexr = pytest.importorskip("OpenEXR")

    def save(name: str, **channels: np.ndarray) -> Path:
        with openexr.File({"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}, channels) as file:
            file.write(str(tmp_path / name))
        return tmp_path / name

    one, two = np.full((3, 5), 1.0, np.float32), np.full((3, 5), 2.0, np.float16)
    for channel in "ZYR":
        assert read_depth(save("a.exr", **{channel: one})).values.shape == (3, 5)
    assert read_depth(save("b.exr", Z=one, Y=two.astype(np.float32))).values[0, 0] == 1
    assert read_depth(save("c.exr", **{"layer.Depth": two})).values[0, 0] == 2
    assert read_depth(save("d.exr", R=one, G=one, B=one)).values[0, 0] == 1
    picture = save("e.exr", R=one, G=one * 3, B=one)
    with pytest.raises(FileError, match="picture"):
        read_depth(picture)
    assert read_depth(picture, key="G").values[0, 0] == 3
    with pytest.raises(FileError, match=r"'a', 'b'"):
        read_depth(save("f.exr", a=one, b=one))
    background = one.copy()
    background[0] = (1e10, 65504, 1, 1, 1)
    back = read_depth(save("g.exr", Z=background))
    np.testing.assert_array_equal(np.isnan(back.values[0]), [True, True, False, False, False])
    assert not back.guessed


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_tiff_counts_follow_the_png_rules(tmp_path: Path, byteorder: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.array([[0, 1500, 65535]], np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", values, byteorder=byteorder)
    back = read_depth(tmp_path / "a.tif")
    np.testing.assert_allclose(back.values, [[np.nan, 1.5, np.nan]], rtol=1e-6)
    assert (back.unit, back.guessed) == ("mm", True)
    tifffile.imwrite(tmp_path / "b.tif", values.astype(np.float64) / 1000, byteorder=byteorder)
    np.testing.assert_allclose(read_values(tmp_path / "b.tif"), values / 1000)
    tifffile.imwrite(tmp_path / "c.tif", np.ones((5, 6, 3), np.float32), photometric="rgb")
    with pytest.raises(FileError, match="3 channels"):
        read_depth(tmp_path / "c.tif")


@pytest.mark.parametrize(
    "packing",
    [{"compression": "lzw"}, {"compression": "zlib", "predictor": 3}, {"compression": "lzw", "predictor": 3}],
    ids=["LZW", "predictor", "LZW and predictor"],
)
def test_compressed_tiff(tmp_path: Path, packing: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """What GDAL and MATLAB write by default needs imagecodecs, which comes with the extra."""
    tifffile = pytest.importorskip("tifffile", reason="needs the extra 'files'")
    pytest.importorskip("imagecodecs", reason="needs the extra 'files'")
    depth = np.linspace(1, 5, 40 * 30, dtype=np.float32).reshape(30, 40)
    tifffile.imwrite(tmp_path / "a.tif", depth, **packing)
    np.testing.assert_array_equal(read_depth(tmp_path / "a.tif", "m").values, depth)

    def missing(*_: object, **__: object) -> None:
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", missing)
    with pytest.raises(MissingExtra, match=r"a\.tif: .*'imagecodecs'.*leadline\[files\]"):
        read_depth(tmp_path / "a.tif", "m")


def test_hdf5_of_nyu(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    depth = np.arange(1.0, 43.0, dtype=np.float32).reshape(6, 7)
    with h5py.File(tmp_path / "frame.h5", "w") as file:
        file["rgb"], file["depth"] = np.zeros((3, 6, 7), np.uint8), depth
    np.testing.assert_array_equal(read_depth(tmp_path / "frame.h5").values, depth)
    with h5py.File(tmp_path / "labelled.mat", "w", userblock_size=512) as file:
        file["depths"] = np.stack([depth.T * scale for scale in range(1, 6)])  # (N, W, H), as MATLAB leaves it
        file["group/names"] = np.zeros((5, 2), np.uint16)
    np.testing.assert_array_equal(read_depth(tmp_path / "labelled.mat", key="depths[3]").values, depth * 4)
    for key, message in (("depths[5]", "does not index"), ("depths", "stack"), ("none", "'depths', 'group/names'")):
        with pytest.raises(FileError, match=message):
            read_depth(tmp_path / "labelled.mat", key=key)
    with pytest.raises(InputError, match="read only"):
        write_depth(tmp_path / "a.mat", depth)
    (tmp_path / "old.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(FileError, match=r"7\.3"):
        read_depth(tmp_path / "old.mat")
