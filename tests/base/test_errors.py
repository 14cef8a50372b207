"""Messages that mark parameters, and the words that each front end prints for them."""

from __future__ import annotations

import pickle

import pytest

from leadline.base.errors import FileError, InputError, LeadlineError, MissingExtra, Status, param, render


def flags(name: str, value: str | None) -> str:
    return f"--{name.replace('_', '-').replace('.', '-')}" + (f" {value}" if value else "")


@pytest.mark.parametrize(
    ("reference", "python", "command_line"),
    [
        (param("unit"), "`unit`", "--unit"),
        (param("prior.kind", "disparity"), "`prior.kind='disparity'`", "--prior-kind disparity"),
        (param("resize_prior", True), "`resize_prior=True`", "--resize-prior True"),
        (param("tolerance", 1e-3), "`tolerance=0.001`", "--tolerance 0.001"),
    ],
)
def test_references_are_rendered_in_the_words_of_the_front_end(reference, python, command_line):
    error = InputError(f"{reference} is wrong.")
    assert str(error) == f"{python} is wrong."
    assert error.render(flags) == f"{command_line} is wrong."


def test_text_without_references_is_left_alone():
    text = "a/path {with} `marks` and --flags"
    assert render(text, flags) == text
    assert str(FileError(text)) == text


def test_errors_keep_their_references_across_processes():
    error = pickle.loads(pickle.dumps(InputError(f"{param('unit')} is wrong.")))
    assert error.render(flags) == "--unit is wrong."


def test_errors_are_also_the_builtin_ones():
    assert isinstance(InputError("x"), ValueError)
    assert isinstance(FileError("x"), OSError)
    assert isinstance(MissingExtra("ray", "ray", "this"), ImportError)
    assert str(MissingExtra("ray", "ray", "This")) == "This needs the package 'ray': pip install 'leadline[ray]'"
    assert all(issubclass(kind, LeadlineError) for kind in (InputError, FileError, MissingExtra))


def test_statuses_name_themselves_and_advise():
    class Example(Status):
        LIMIT = f"stopped at the limit; raise {param('fit.max_iterations')}"

    assert str(Example.LIMIT) == "limit: stopped at the limit; raise `fit.max_iterations`"
    assert Example.LIMIT.advice(flags) == "stopped at the limit; raise --fit-max-iterations"


def test_a_missing_package_can_be_raised_across_processes() -> None:
    error = MissingExtra("onnxruntime", "onnx", "an ONNX prior")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (MissingExtra, str(error))
