"""Clouds of every format: each gives the same points; damaged files are refused with their path."""

from __future__ import annotations

import contextlib
import struct
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.apps.cli import group
from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.geometry.cameras import ColmapCamera
from leadline.geometry.cloud import Cloud
from leadline.io.clouds import decompress_lzf, read_cloud
from leadline.io.colmap import read_model, read_points

RNG = np.random.default_rng(8)
POINTS = RNG.normal(0, 5, (9, 3)).astype(np.float32)
INTENSITY = RNG.integers(0, 200, 9).astype(np.float32)
TIMES = 1.5e9 + RNG.uniform(0, 0.1, 9)  # seconds since 1970: a float32 would lose all of the tenth
LAS_STEP = 0.001  # metres that the test's scan is rounded to


def lzf(data: bytes) -> bytes:
    """A plain LZF packer: back references where the last three bytes were seen before, literals elsewhere."""
    out, literals, seen, place = bytearray(), bytearray(), {}, 0

    def flush() -> None:
        for start in range(0, len(literals), 32):
            run = literals[start : start + 32]
            out.extend((len(run) - 1, *run))
        literals.clear()

    while place < len(data):
        key = data[place : place + 3]
        source = seen.get(key, -1)
        seen[key] = place
        length = 0
        if len(key) == 3 and source >= 0 and place - source <= 8192:
            while length < 264 and place + length < len(data) and data[source + length] == data[place + length]:
                length += 1
        if length < 3:
            literals.append(data[place])
            place += 1
            continue
        flush()
        back, coded = place - source - 1, length - 2
        out.append((min(coded, 7) << 5) | back >> 8)
        if coded >= 7:
            out.append(coded - 7)
        out.append(back & 255)
        place += length
    flush()
    return bytes(out)


def pcd(encoding: str) -> bytes:
    """With a padding field, an array field, and columns in another order than usual."""
    fields = [("intensity", "<f4"), ("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("_", "u1", 4), ("rings", "<u2", 2)]
    table = np.zeros(9, [*fields, ("timestamp", "<f8")])
    table["intensity"], table["timestamp"] = INTENSITY, TIMES
    for column, axis in enumerate("xyz"):
        table[axis] = POINTS[:, column]
    head = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS intensity x y z _ rings timestamp\nSIZE 4 4 4 4 1 2 8\nTYPE F F F F U U F\n"
        f"COUNT 1 1 1 1 4 2 1\nWIDTH 9\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 9\nDATA {encoding}\n"
    )
    if encoding == "ascii":
        rows = [" ".join(repr(v) for name in table.dtype.names for v in np.ravel(row[name]).tolist()) for row in table]
        return (head + "\n".join(rows) + "\n").encode()
    if encoding == "binary":
        return head.encode() + table.tobytes()
    columns = b"".join(table[name].tobytes() for name in table.dtype.names)
    packed = lzf(columns)
    return head.encode() + struct.pack("<II", len(packed), len(columns)) + packed


PCD = ("ascii", "binary", "binary_compressed")


@pytest.mark.parametrize("encoding", PCD)
def test_pcd(tmp_path, encoding):
    (tmp_path / "a.pcd").write_bytes(pcd(encoding))
    cloud = read_cloud(tmp_path / "a.pcd")
    np.testing.assert_array_equal(cloud.points, POINTS)
    assert cloud.points.dtype == np.float32
    np.testing.assert_array_equal(cloud.intensity, INTENSITY)
    np.testing.assert_array_equal(cloud.time, TIMES)
    assert cloud.confidence is None


@given(data=st.binary(max_size=300), repeats=st.integers(1, 40))
def test_lzf_round_trip(data, repeats):
    whole = data * repeats
    assert decompress_lzf(lzf(whole), len(whole)) == whole


@pytest.mark.parametrize("packed", [[0, 65, 224, 255, 0], [0, 65, 224, 255, 9], [31, 1], [0, 65, 224], [224, 0]])
def test_lzf_refuses_what_reaches_beyond_its_ends(packed):
    """A copy longer than the room for it, one from before the beginning, a run that is not there, missing bytes."""
    for size in range(12):
        with pytest.raises(ValueError, match="compressed block"):
            decompress_lzf(bytes(packed), size)


@pytest.mark.parametrize("encoding", PCD)
def test_every_truncated_pcd_is_refused(tmp_path, encoding):
    data = pcd(encoding)
    # Of text only the last number can be cut short unnoticed.
    for length in range(0, len(data) - (20 if encoding == "ascii" else 0), 3):
        (tmp_path / "a.pcd").write_bytes(data[:length])
        with pytest.raises(FileError, match=r"a\.pcd"):
            read_cloud(tmp_path / "a.pcd")


@settings(max_examples=60)
@given(encoding=st.sampled_from(PCD), place=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=4))
def test_junk_is_read_or_refused(tmp_path_factory, encoding, place, junk):
    data = pcd(encoding)
    place %= len(data)
    path = tmp_path_factory.getbasetemp() / "junk.pcd"
    path.write_bytes(data[:place] + junk + data[place + len(junk) :])
    with contextlib.suppress(FileError):  # any other exception is a bug
        read_cloud(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"DATA ascii", b"DATA zip"), "expected ascii, binary"),
        ((b" x y ", b" x x "), "x, y and z, each once"),
        ((b"POINTS 9", b"POINTS 99999"), "declares 99999"),
        ((b"SIZE 4 4 4", b"SIZE 4 4 3"), "header must have"),
        ((b"COUNT 1 1 1 1 4", b"COUNT 1 1 1 1 0"), "impossible COUNT"),
        ((b"TYPE F F F F U U F", b"TYPE F F F F U U"), "header must have"),
    ],
)
def test_damaged_pcd_is_explained(tmp_path, change, message):
    assert change[0] in pcd("ascii")
    (tmp_path / "a.pcd").write_bytes(pcd("ascii").replace(*change))
    with pytest.raises(FileError, match=f"a.pcd: .*{message}"):
        read_cloud(tmp_path / "a.pcd")


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las(tmp_path, suffix):
    laspy = pytest.importorskip("laspy", reason="needs the extra 'lidar'")
    scan = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    scan.header.scales, scan.header.offsets = [LAS_STEP] * 3, [4.4e5, 5.3e6, 300.0]
    world = POINTS.astype(np.float64) + np.array([4.4e5, 5.3e6, 300.0])  # a national grid: too large for float32
    scan.x, scan.y, scan.z = world.T
    scan.intensity, scan.gps_time = INTENSITY.astype(np.uint16), TIMES
    scan.write(str(tmp_path / f"a{suffix}"))
    cloud = read_cloud(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(cloud.points, world, rtol=0, atol=LAS_STEP)
    np.testing.assert_array_equal(cloud.intensity, INTENSITY)
    np.testing.assert_array_equal(cloud.time, TIMES)
    whole = (tmp_path / f"a{suffix}").read_bytes()
    for length in (0, 4, 100, len(whole) - 30):
        (tmp_path / f"a{suffix}").write_bytes(whole[:length])
        with pytest.raises(FileError, match=rf"a\{suffix}"):
            read_cloud(tmp_path / f"a{suffix}")


# Offset and bytes of a count that the file cannot hold, and the word for what it counts. laspy alone loops for ever on
# the first one, and its decoder aborts the process on the last two.
WRONG_COUNTS = {
    "records": (".las", 100, b"\xff\xff\xff\xff", "4294967295 records before the points"),
    "points": (".las", 107, b"\xff\xff\xff\x00", "16777215 points"),
    "many points": (".laz", 107, b"\xff\xff\xff\x7f", "2147483647 points"),
    "start": (".las", 96, b"\xff\xff\xff\x00", "begin at 16777215"),
    "chunks": (".laz", None, b"\xff\xff\xff\x7f", "2147483647 chunks"),
    "chunk size": (".laz", 227 + 54 + 12, b"\xff\xff\xff\x7f", "chunks of 2147483647 points"),
}


@pytest.mark.parametrize("case", WRONG_COUNTS)
def test_las_counts_are_compared_with_the_size_of_the_file(tmp_path, case):
    laspy = pytest.importorskip("laspy", reason="needs the extra 'lidar'")
    suffix, place, wrong, message = WRONG_COUNTS[case]
    scan = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    scan.x, scan.y, scan.z = POINTS.T
    path = tmp_path / f"a{suffix}"
    scan.write(str(path))
    data = bytearray(path.read_bytes())
    if place is None:  # the points begin with the position of the table of chunks: its version, and their number
        (start,) = struct.unpack_from("<I", data, 96)
        place = struct.unpack_from("<q", data, start)[0] + 4
    data[place : place + 4] = wrong
    path.write_bytes(data)
    with pytest.raises(FileError, match=f"a{suffix}: .*{message}"):
        read_cloud(path)


def test_a_missing_laspy_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.las").write_bytes(b"LASF")
    monkeypatch.setitem(sys.modules, "laspy", None)
    with pytest.raises(MissingExtra, match=r"leadline\[lidar\]"):
        read_cloud(tmp_path / "a.las")


def test_plain_rows(tmp_path):
    rows = np.column_stack((POINTS, INTENSITY, np.arange(9))).astype(np.float32)
    rows[:, :4].tofile(tmp_path / "kitti.bin")
    rows.tofile(tmp_path / "nuscenes.pcd.bin")
    np.save(tmp_path / "a.npy", rows[:, :4])
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows[:, :4]))
    np.savez(tmp_path / "a.npz", data=rows)
    np.savez(tmp_path / "named.npz", points=POINTS, intensity=INTENSITY, time=TIMES, labels=np.zeros(9))
    for name in ("kitti.bin", "nuscenes.pcd.bin", "a.npy", "columns.npy", "a.npz", "named.npz"):
        cloud = read_cloud(tmp_path / name)
        np.testing.assert_array_equal(cloud.points, POINTS, err_msg=name)
        np.testing.assert_array_equal(cloud.intensity, INTENSITY, err_msg=name)
    np.testing.assert_array_equal(cloud.time, TIMES)


def test_ply_columns_come_along(tmp_path):
    table = np.zeros(9, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("scalar_Intensity", "<f4"), ("t", "<f8")])
    table["x"], table["y"], table["z"] = POINTS.T
    table["scalar_Intensity"], table["t"] = INTENSITY, TIMES
    names = [("float", name) for name in table.dtype.names[:4]] + [("double", "t")]
    head = "\n".join(["ply", "format binary_little_endian 1.0", "element vertex 9"])
    head += "".join(f"\nproperty {kind} {name}" for kind, name in names) + "\nend_header\n"
    (tmp_path / "a.ply").write_bytes(head.encode() + table.tobytes())
    cloud = read_cloud(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.points, POINTS)
    np.testing.assert_array_equal(cloud.intensity, INTENSITY)
    np.testing.assert_array_equal(cloud.time, TIMES)


def test_unusable_clouds_are_explained(tmp_path):
    np.save(tmp_path / "flat.npy", POINTS[:, :2])
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "nothing.npy", np.full((3, 3), np.nan))
    np.savez(tmp_path / "two.npz", a=POINTS, b=POINTS)
    (tmp_path / "cut.bin").write_bytes(bytes(30))
    (tmp_path / "empty.ply").write_bytes(b"")
    (tmp_path / "text.npz").write_text("no archive")
    huge = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000, 3)}".ljust(
        118
    )
    (tmp_path / "huge.npy").write_bytes(huge)
    for name, message in {
        "flat.npy": r"\(N, 3\) or wider",
        "objects.npy": "expected plain numbers",
        "nothing.npy": "no finite point",
        "two.npz": "but 'a', 'b'. Choose one",
        "cut.bin": "not rows of 4 float32",
        "empty.ply": "is empty",
        "text.npz": "cannot be read as a point cloud",
        "huge.npy": "more than the",
        "gone.pcd": "no such file",
    }.items():
        with pytest.raises(FileError, match=f"{name}: .*{message}"):
            read_cloud(tmp_path / name)
    np.testing.assert_array_equal(read_cloud(tmp_path / "two.npz", key="b").points, POINTS)
    with pytest.raises(InputError, match=r"is not one of a cloud format: \.ply"):
        read_cloud(tmp_path / "a.xyz")
    with pytest.raises(InputError, match="`key` is for npz"):
        read_cloud(tmp_path / "flat.npy", key="a")


def test_points_that_are_not_finite_are_left_out_with_their_columns(tmp_path):
    rows = np.column_stack((POINTS, INTENSITY)).astype(np.float32)
    rows[3, 1], rows[5, 0] = np.nan, np.inf
    np.save(tmp_path / "a.npy", rows)
    cloud = read_cloud(tmp_path / "a.npy")
    kept = ~np.isin(np.arange(9), (3, 5))
    np.testing.assert_array_equal(cloud.points, POINTS[kept])
    np.testing.assert_array_equal(cloud.intensity, INTENSITY[kept])


def test_clouds_check_their_shapes():
    for bad in ({"points": np.ones(3)}, {"points": np.ones((2, 3)), "time": np.ones(3)}):
        with pytest.raises(InputError, match=r"`points`|`time`"):
            Cloud(**bad)


@pytest.mark.parametrize("binary", [True, False])
def test_points_that_a_colmap_image_sees(tmp_path, binary):
    """Against pycolmap's own writer: tracks, errors, and which image sees what."""
    pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(
        pycolmap.Camera(model="PINHOLE", width=64, height=48, params=[50, 50, 32, 24], camera_id=1)
    )
    for number in (1, 2, 3):
        image = pycolmap.Image(name=f"images/{number}.jpg", camera_id=1, image_id=number)
        image.points2D = pycolmap.Point2DList([pycolmap.Point2D(xy) for xy in RNG.uniform(0, 40, (5, 2))])
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
    tracks = [(1, 2), (2, 3), (1, 2, 3), (1, 3), (2, 3)]
    for place, track in enumerate(tracks):
        elements = [pycolmap.TrackElement(image, place) for image in track]
        added = model.add_point3D(POINTS[place], pycolmap.Track(elements=elements), np.zeros(3, np.uint8))
        model.points3D[added].error = 0.5 + place
    (model.write_binary if binary else model.write_text)(str(tmp_path))
    found = read_model(tmp_path)
    for number in (1, 2, 3):
        image = found.find(f"{number}.jpg")
        assert image.image_id == number
        seen = [place for place, track in enumerate(tracks) if number in track]
        cloud = read_points(tmp_path, image)
        order = [int(np.argmin(np.abs(POINTS - point).sum(axis=1))) for point in cloud.points]
        assert sorted(order) == seen
        np.testing.assert_allclose(cloud.points, POINTS[order], rtol=1e-6)
        expected = [np.sqrt(len(tracks[place])) / (0.5 + place) for place in order]
        np.testing.assert_allclose(cloud.confidence, expected, rtol=1e-6)
    assert len(read_cloud(tmp_path)) == 5
    assert found.camera_of(image) == ColmapCamera("PINHOLE", 64, 48, (50.0, 50.0, 32.0, 24.0))
    with pytest.raises(InputError, match="no image '4"):
        found.find("4.jpg")
    path = tmp_path / f"points3D.{'bin' if binary else 'txt'}"
    path.write_bytes(path.read_bytes()[: -10 if binary else 0] if binary else b"1 2 three")
    with pytest.raises(FileError, match="points3D"):
        read_points(tmp_path)
    path.unlink()
    with pytest.raises(FileError, match=r"needs points3D\.bin, or points3D\.txt"):
        read_points(tmp_path)


MALFORMED = {
    "short.bin": (b"1234567", "not rows of 4 float32"),
    "nan.bin": (np.full(8, np.nan, "<f4").tobytes(), "no finite point"),
    "nothing.ply": (b"", "is empty (0 bytes)"),
    "text.ply": (b"hello", "text.ply"),
    "cut.ply": (b"ply\nformat binary_little_endian 1.0\nelement vertex 9\nproperty float x\nproperty float y\n"
                b"property float z\nend_header\n1234", "cut.ply"),
    "headless.pcd": (b"FIELDS x y\n", "headless.pcd"),
    "cut.pcd": (b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 9\nHEIGHT 1\nPOINTS 9\n"
                b"DATA binary\n1234", "cut.pcd"),
    "zip.npz": (b"PK\x03\x04", "zip.npz"),
    "scan.las": (b"LASF" + bytes(40), "scan.las"),
    "cloud.xyz": (b"1 2 3", "is not one of a cloud format"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_clouds_end_the_command_in_one_line(tmp_path, name):
    if name.endswith(".las"):
        pytest.importorskip("laspy", reason="needs the extra 'lidar'")
    content, message = MALFORMED[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "cam.json").write_text('{"width": 8, "height": 6, "fx": 5, "fy": 5, "cx": 4, "cy": 3}')
    line = ["project", tmp_path / name, "--camera", tmp_path / "cam.json", "-o", tmp_path / "sparse.png"]
    result = CliRunner().invoke(group, list(map(str, line)))
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    assert message in result.output
    assert not (tmp_path / "sparse.png").exists()
