"""A small benchmark run for the tests of the report."""

from __future__ import annotations

import pytest

from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.records import read_records
from leadline.bench.tables import FIXED, OURS, RESPONSE
from leadline.report.image_results import ImageCase, recompute_results
from support.bench_runs import run

METHODS = ("raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "response", "ours", "best")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A run over two rendered rooms."""
    rooms = DatasetEntry("rendered", "Rooms", options={"count": 2, "width": 120, "height": 90})
    methods = tuple(MethodEntry(name) for name in METHODS)
    folder = tmp_path_factory.mktemp("rooms") / "run"
    run(Protocol((rooms,), (PriorEntry("rendered", "made"),), methods, ("distributed", "outer")), folder)
    return folder


@pytest.fixture(scope="session")
def image_case(run_folder):
    record = read_records(run_folder)[0]
    return ImageCase(record.dataset, record.image, "outer", record.prior)


@pytest.fixture(scope="session")
def recomputed(run_folder, image_case):
    return recompute_results(run_folder, image_case, (*FIXED, RESPONSE, OURS))
