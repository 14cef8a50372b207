"""PLY files: what is written comes back, in every encoding; what is damaged is refused with its path."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import FileError
from leadline.io.ply import read_ply, write_ply

RNG = np.random.default_rng(3)
POINTS = RNG.normal(0, 5, (7, 3)).astype(np.float32)
COLOURS = RNG.integers(0, 256, (7, 3), dtype=np.uint8)


def ply(encoding: str, *, kind: str = "float", before: str = "", after: str = "", end: str = "\n") -> bytes:
    """The points above with a property between, one before and one after; other elements around if asked."""
    lines = ["ply", f"format {encoding} 1.0", "comment made by hand", *before.splitlines(), "element vertex 7"]
    lines += ["property uchar flag", *(f"property {kind} {axis}" for axis in "xyz"), "property short intensity"]
    lines += [f"property uint8 {name}" for name in ("red", "green", "blue")] + [*after.splitlines(), "end_header"]
    header = "".join(line + end for line in lines).encode()
    if encoding == "ascii":
        rows = [
            f"1 {' '.join(repr(float(v)) for v in p)} -5 {' '.join(map(str, c))}{end}"
            for p, c in zip(POINTS, COLOURS, strict=True)
        ]
        return header + "".join(rows).encode()
    order = "<" if "little" in encoding else ">"
    number = order + ("f4" if kind == "float" else "f8")
    fields = [("flag", "u1"), ("xyz", number, 3), ("intensity", order + "i2"), ("rgb", "u1", 3)]
    vertices = np.zeros(7, np.dtype(fields))
    vertices["xyz"], vertices["rgb"] = POINTS, COLOURS
    return header + vertices.tobytes()


ENCODINGS = ("ascii", "binary_little_endian", "binary_big_endian")


def test_written_clouds_come_back(tmp_path):
    write_ply(tmp_path / "a.ply", POINTS, COLOURS)
    points, colours = read_ply(tmp_path / "a.ply")
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, POINTS)
    np.testing.assert_array_equal(colours, COLOURS)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_encoding_gives_the_same(tmp_path, encoding, kind, end):
    (tmp_path / "a.ply").write_bytes(ply(encoding, kind=kind, end=end))
    points, colours = read_ply(tmp_path / "a.ply")
    assert points.dtype == (np.float32 if kind == "float" else np.float64)
    assert points.flags.c_contiguous
    np.testing.assert_array_equal(points, POINTS)
    np.testing.assert_array_equal(colours, COLOURS)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_elements_are_skipped(tmp_path, encoding):
    faces = "element face 2\nproperty list uchar int vertex_indices"
    (tmp_path / "a.ply").write_bytes(ply(encoding, after=faces) + b"\x03 faces may hold anything")
    np.testing.assert_array_equal(read_ply(tmp_path / "a.ply")[0], POINTS)
    data = ply(encoding, before="element camera 2\nproperty float focal\nproperty int id")
    start = data.index(b"end_header") + len("end_header\n")
    filling = b"1.5 2\n2.5 3\n" if encoding == "ascii" else bytes(16)
    (tmp_path / "a.ply").write_bytes(data[:start] + filling + data[start:])
    np.testing.assert_array_equal(read_ply(tmp_path / "a.ply")[0], POINTS)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_points_without_colours_and_none_at_all(tmp_path, encoding):
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    head = f"ply\nformat {encoding} 1.0\nelement vertex 0\n{axes}end_header\n"
    (tmp_path / "a.ply").write_text(head)
    points, colours = read_ply(tmp_path / "a.ply")
    assert points.shape == (0, 3)
    assert colours is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"ply\n", b"PLY\n"), "is not a PLY file"),
        ((b"end_header", b"end_haeder"), "no 'end_header'"),
        ((b"format ascii 1.0\n", b""), "no 'format' line"),
        ((b"format ascii 1.0", b"format ascii 2.0"), "header line 'format ascii 2.0'"),
        ((b"property short", b"property half"), "header line 'property half intensity'"),
        ((b"element vertex 7", b"element vertex -7"), "header line 'element vertex -7'"),
        ((b"element vertex 7", b"element vertex 8"), "declares 8 points and holds 7"),
        ((b"element vertex 7", b"element vertex 90000"), "declares 90000"),
        ((b"element vertex 7", b"element vertex " + b"9" * 5000), "header line"),
        ((b"element vertex 7", b"element point 7"), "no element 'vertex'"),
        ((b"float x", b"float u"), "must have vertices with x, y, z"),
        ((b"property short intensity", b"property list uchar int intensity"), "without lists"),
        ((b"uint8 green", b"uint8 red"), "two properties of the same name"),
        ((b" -5 ", b" five "), "is not the numbers"),
        ((b"element vertex", b"element zone 999999\nproperty int a\nelement vertex"), "declares 999999 of 'zone'"),
    ],
)
def test_damaged_files_are_explained(tmp_path, change, message):
    data = ply("ascii")
    assert change[0] in data
    (tmp_path / "a.ply").write_bytes(data.replace(*change))
    with pytest.raises(FileError, match=f"a.ply: .*{message}"):
        read_ply(tmp_path / "a.ply")


def test_lists_before_binary_vertices_are_refused(tmp_path):
    (tmp_path / "a.ply").write_bytes(ply("binary_little_endian", before="element f 1\nproperty list uchar int i"))
    with pytest.raises(FileError, match="vertices first"):
        read_ply(tmp_path / "a.ply")


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.ply", tmp_path):
        with pytest.raises(FileError, match=r"no such file|is a folder"):
            read_ply(path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_truncation_is_refused(tmp_path, encoding):
    data = ply(encoding)
    # Of text only the last number and its line end can be cut short unnoticed.
    for length in range(len(data) - (4 if encoding == "ascii" else 0)):
        (tmp_path / "a.ply").write_bytes(data[:length])
        with pytest.raises(FileError, match=r"a\.ply"):
            read_ply(tmp_path / "a.ply")


@given(encoding=st.sampled_from(ENCODINGS), place=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=4))
def test_junk_is_read_or_refused(tmp_path_factory, encoding, place, junk):
    data = ply(encoding)
    place %= len(data)
    path = tmp_path_factory.getbasetemp() / "junk.ply"
    path.write_bytes(data[:place] + junk + data[place + len(junk) :])
    with contextlib.suppress(FileError):  # any other exception is a bug
        read_ply(path)
