"""Bad depth files: each is refused in one sentence about that file, before anything large is read."""

from __future__ import annotations

import io
import random
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError, InputError, LeadlineError, MissingExtra
from leadline.io import DEPTH_SUFFIXES, DepthMap, read_depth, read_image, read_values, write_depth

pytestmark = pytest.mark.filterwarnings("error")

WRITABLE = tuple(suffix for suffix in DEPTH_SUFFIXES if suffix != ".mat")
PACKAGES = {".exr": "OpenEXR", ".tif": "tifffile", ".tiff": "tifffile", ".h5": "h5py", ".hdf5": "h5py", ".mat": "h5py"}


def need(suffix: str) -> None:
    if suffix in PACKAGES:
        pytest.importorskip(PACKAGES[suffix], reason=f"{suffix} needs leadline[files]")


def sample(shape: tuple[int, int]) -> np.ndarray:
    depth = np.random.default_rng(0).uniform(0.5, 50.0, shape).astype(np.float32)
    depth[::3, ::5] = np.nan
    return depth


@pytest.mark.parametrize("read", [read_depth, read_values])
@pytest.mark.parametrize("suffix", [*DEPTH_SUFFIXES])
def test_missing_empty_folder_and_foreign(tmp_path: Path, suffix: str, read: Any) -> None:
    need(suffix)
    path = tmp_path / f"a{suffix}"
    with pytest.raises(FileError, match="no such file"):
        read(path)
    path.touch()
    with pytest.raises(FileError, match="empty"):
        read(path)
    path.write_text("<html>404</html>")
    with pytest.raises(FileError, match=path.name):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="folder"):
        read(path)


def test_unknown_suffix_lists_the_known(tmp_path: Path) -> None:
    for call in (lambda path: read_depth(path), lambda path: write_depth(path, [[1.0]])):
        with pytest.raises(InputError, match=r"'\.jpg'.*\.png, \.npy"):
            call(tmp_path / "a.jpg")


def test_key_where_there_are_none(tmp_path: Path) -> None:
    write_depth(tmp_path / "a.npy", [[1.0]])
    with pytest.raises(InputError, match="`key`"):
        read_depth(tmp_path / "a.npy", key="depth")


@pytest.mark.parametrize(("mode", "message"), [("RGB", "3 channels"), ("RGBA", "4 channels"), ("LA", "2 channels")])
def test_pictures_are_not_depth(tmp_path: Path, mode: str, message: str) -> None:
    Image.new(mode, (4, 3)).save(tmp_path / "a.png")
    for read in (read_depth, read_values):
        with pytest.raises(FileError, match=f"{message}: this looks like a picture, not a depth map"):
            read(tmp_path / "a.png")
    Image.new("P", (4, 3)).save(tmp_path / "b.png")
    with pytest.raises(FileError, match="palette"):
        read_values(tmp_path / "b.png")


def test_eight_bits_do_for_a_prior_only(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = tmp_path / "a.png"
    Image.fromarray(values).save(path)
    np.testing.assert_array_equal(read_values(path), values)
    for unit in (None, "mm"):
        with pytest.raises(FileError, match="8 bits"):
            read_depth(path, unit)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Payload:
        def __reduce__(self) -> Any:
            return Path.touch, (touched,)

    np.save(tmp_path / "a.npy", np.array([[Payload()]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npz", depth=np.array([[Payload()]], dtype=object))
    np.save(tmp_path / "c.npy", np.ones((2, 2), bool))
    np.save(tmp_path / "d.npy", np.ones((2, 2), complex))
    for name, message in (("a.npy", "objects"), ("b.npz", "objects"), ("c.npy", "mask"), ("d.npy", "complex128")):
        with pytest.raises(FileError, match=message):
            read_depth(tmp_path / name)
    assert not touched.exists()


def npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_declared_giants_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header((2**20, 2**20)) + bytes(64))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("depth.npy", npy_header((2**20, 2**20)) + bytes(2**20))
    (tmp_path / "c.pfm").write_bytes(b"Pf\n1048576 1048576\n-1.0\n" + bytes(64))
    (tmp_path / "d.bin").write_bytes(b"1048576&1048576&1&" + bytes(64))
    header = struct.pack(">2I5B", 2**15, 2**15, 16, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(64))), (b"IEND", b"")]
    packed = [struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks]
    (tmp_path / "e.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    for name in ("a.npy", "b.npz", "c.pfm", "d.bin"):
        with pytest.raises(FileError, match="more than the limit of 268435456"):
            read_depth(tmp_path / name)
    for read in (read_depth, read_image):
        with pytest.raises(FileError, match=r"e\.png.*pixels"):
            read(tmp_path / "e.png")


def test_npz_declaring_less_than_its_shape(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("depth.npy", npy_header((100, 100)) + bytes(64))
    with pytest.raises(FileError, match="truncated"):
        read_depth(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".pfm", ".bin"])
def test_size_and_header_must_agree(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_depth(path, sample((4, 6)))
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(4))
    with pytest.raises(FileError, match="too many bytes: 6 x 4 pixels take 96 bytes, got 100"):
        read_depth(path)
    path.write_bytes(whole[:-4])
    with pytest.raises(FileError, match="truncated: 6 x 4 pixels take 96 bytes, got 92"):
        read_depth(path)


@pytest.mark.parametrize(
    "options", [{"rowsperstrip": 4}, {"tile": (16, 16)}, {"rowsperstrip": 4, "compression": "zlib"}]
)
def test_tiff_without_its_last_strips(tmp_path: Path, options: dict[str, Any]) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, sample((64, 80)), photometric="minisblack", metadata=None, **options)
    whole, values = path.read_bytes(), read_values(path)
    np.testing.assert_array_equal(values, sample((64, 80)))
    for share in (0.3, 0.5, 0.9, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(FileError, match=r"a\.tif"):
            read_depth(path)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_truncation_never_costs_a_pixel_unnoticed(tmp_path: Path, suffix: str) -> None:
    need(suffix)
    path = tmp_path / f"a{suffix}"
    write_depth(path, sample((37, 53)))
    whole, values = path.read_bytes(), read_values(path)
    ends = sorted({*range(64), *np.linspace(0, len(whole) - 1, 120).astype(int).tolist()})
    refused = 0
    for end in ends:
        path.write_bytes(whole[:end])
        try:
            found = read_values(path)
        except FileError:
            refused += 1
        else:
            np.testing.assert_array_equal(found, values)
    # A PNG without its end mark and checksums still holds every pixel; nothing else can lose a byte.
    assert refused >= len(ends) - (2 if suffix == ".png" else 0)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_damaged_bytes_are_read_or_refused(tmp_path: Path, suffix: str) -> None:
    need(suffix)
    path, chance = tmp_path / f"a{suffix}", random.Random(suffix)
    write_depth(path, sample((17, 23)))
    whole, refused = path.read_bytes(), 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            # In most formats the header comes first; damage there is more interesting.
            damaged[chance.randrange(min(len(whole), 512) if chance.random() < 0.7 else len(whole))] ^= (
                1 << chance.randrange(8)
            )
        path.write_bytes(damaged)
        for read in (read_depth, read_values):
            try:
                found = read(path)
            except LeadlineError:
                refused += 1
            else:
                assert np.ndim(found.values if isinstance(found, DepthMap) else found) == 2
    assert refused > 0


@pytest.mark.parametrize("suffix", sorted(PACKAGES))
def test_missing_package_names_the_extra(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[suffix], None)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"x")
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[files\]'"):
        read_depth(path)
    if suffix != ".mat":
        with pytest.raises(MissingExtra):
            write_depth(tmp_path / f"b{suffix}", [[1.0]])
