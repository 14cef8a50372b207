"""Pickled dictionaries of arrays, OMNI-DC's format, are read without unpickling anything else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from leadline.base.errors import FileError
from leadline.datasets.completion.pickled_arrays import read_pickled_arrays


class Harmful:
    """Unpickling it would call a function."""

    def __reduce__(self):
        return (print, ("called",))


@pytest.mark.parametrize("content", [{"a": Harmful()}, {"a": "text"}, [1, 2], {"a": np.array([None])}, Harmful()])
def test_pickles_of_anything_but_arrays_are_refused(content, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array(content, dtype=object) if isinstance(content, list) else content)
    with pytest.raises(FileError, match=r"x.npy: (cannot be read as|must hold) a dictionary of arrays"):
        read_pickled_arrays(tmp_path / "x.npy")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_of_all_protocols_and_orders_are_read(protocol, tmp_path):
    arrays = {
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(4, dtype=">i2"),
        "flag": np.array([True, False]),
        "byte": np.arange(3, dtype=np.uint8),
    }
    boxed = np.array(arrays, dtype=object)
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(boxed, stream, protocol=protocol)
    if protocol == 2:  # bytes are written as calls of a codec, which no version of NumPy has used for files
        with pytest.raises(FileError, match="which is not part of an array"):
            read_pickled_arrays(tmp_path / "x.npy")
        return
    found = read_pickled_arrays(tmp_path / "x.npy")
    assert found.keys() == arrays.keys()
    for key, values in arrays.items():
        assert_array_equal(found[key], values)
        assert found[key].dtype == values.dtype
