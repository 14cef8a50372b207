"""A child process for doubtful input: each way of failing ends in a sentence, and the next call works."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from leadline.base.errors import FileError, LeadlineError
from leadline.base.limited_process import CallStopped, LimitedProcess
from support.jobs import behave


@pytest.fixture(scope="module")
def child() -> Iterator[LimitedProcess]:
    process = LimitedProcess(seconds=3.0, memory=2**28)
    yield process
    process.close()


FAILURES = {
    "loop": "takes longer than 3 s",
    "abort": "crashed",
    "allocate": r"takes more than 0\.25 GB of memory",
    "refuse": "a.las: is damaged",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_is_a_sentence_and_the_next_call_works(child: LimitedProcess, how: str) -> None:
    if how == "allocate" and sys.platform == "win32":
        pytest.skip("Windows has no such limit")
    assert child.call(behave, "fine") == "fine"
    with pytest.raises(FileError if how == "refuse" else LeadlineError, match=FAILURES[how]):
        child.call(behave, how)
    assert child.call(behave, "fine") == "fine"


def test_a_bug_is_no_error_of_the_user(child: LimitedProcess) -> None:
    with pytest.raises(ZeroDivisionError):
        child.call(behave, "bug")


def test_a_call_that_is_not_wanted_any_more_ends(child: LimitedProcess) -> None:
    looks = iter([True, True, False])
    with pytest.raises(CallStopped):
        child.call(behave, "loop", wanted=lambda: next(looks))
    assert next(looks, None) is None
    assert child.call(behave, "fine") == "fine"
