"""`leadline doctor`: what a bug report needs."""

from __future__ import annotations

import re

import pytest

from support.cli_frames import leadline


def test_doctor_prints_what_a_bug_report_needs() -> None:
    result = leadline("doctor")
    assert result.exit_code == 0, result.output
    names = ("leadline", "python", "processor", "numpy, scipy", "threads", "threading layer", "kernels", "extra files")
    for name in (*names, "cached predictions"):
        assert re.search(rf"^{name} +\S", result.output, flags=re.MULTILINE), result.output
    for name in ("completion", "threads", "files", "worker process"):
        assert re.search(rf"^test {name} +ok: ", result.output, flags=re.MULTILINE), result.output
    shown = leadline("doctor --no-self-test").output
    assert "\ntest " not in shown
    assert not re.search(r"^extra (all|dev|docs|bench) ", shown, flags=re.MULTILINE)  # repeat others, or for developers


def test_doctor_needs_one_of_the_packages_for_different_systems() -> None:
    from leadline.apps.doctor import _describe_packages

    packages = [("open3d-cpu", "0.20", True), ("open3d", None, True), ("pytest", None, False)]
    assert _describe_packages(packages) == "open3d-cpu 0.20, pytest missing"
    assert _describe_packages([("open3d-cpu", None, True)]) == "open3d-cpu missing"


def test_doctor_reports_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImportError("libgomp.so.1 is missing")

    monkeypatch.setattr("leadline.batch.self_test._test_completion", broken)
    result = leadline("doctor")
    assert result.exit_code == 1
    assert re.search(r"^test completion +FAILED: ImportError: libgomp\.so\.1 is missing$", result.output, flags=re.M)
    assert re.search(r"^test files +ok", result.output, flags=re.MULTILINE)
    monkeypatch.undo()
    monkeypatch.setattr("leadline.batch.self_test.MAX_ERROR", 0.0)
    assert "FAILED: the error is 0." in leadline("doctor").output
