"""Work items in processes: results, lost workers, errors, and the number of threads."""

from __future__ import annotations

import os

import pytest

from leadline.base.errors import InputError
from leadline.base.executors import available_cores, processes, serial, worker_count
from support.jobs import Square


def test_serial_yields_items_with_their_results_in_order():
    pairs = list(serial(Square(), range(4)))
    assert [(item, result[0]) for item, result in pairs] == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert {result[2] for _, result in pairs} == {os.getpid()}


def test_processes_do_every_item_once_elsewhere():
    pairs = list(processes(Square(), range(6), workers=2))
    assert sorted((item, result[0]) for item, result in pairs) == [(n, n * n) for n in range(6)]
    assert os.getpid() not in {result[2] for _, result in pairs}
    assert {result[1] for _, result in pairs} == {max(1, available_cores() // 2)}


def test_an_item_that_kills_its_worker_has_no_result_and_the_others_go_on():
    results = dict(processes(Square(deadly=(2,)), range(5), workers=2))
    assert results.pop(2) is None
    assert {item: result[0] for item, result in results.items()} == {0: 0, 1: 1, 3: 9, 4: 16}


def test_the_number_of_workers_is_checked():
    assert worker_count(3) == 3
    assert worker_count(None) == available_cores()
    with pytest.raises(InputError, match="`workers` must be at least 1, got 0"):
        worker_count(0)
