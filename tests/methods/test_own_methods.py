"""Functions of one's own as methods, and the page on methods, which shows how."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from leadline.base.errors import InputError, MissingExtra
from leadline.core.prior import Prior
from leadline.methods import METHODS, MethodResult, method
from support.paths import ROOT

OWN = """
import numpy as np

from leadline.methods import MethodResult

NOT_CALLABLE = 3


def constant(prior, sparse):
    return MethodResult(np.full(prior.shape, np.nanmedian(sparse), np.float32), "ok", 0.0, {})
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN)
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "needs_extra.py").write_text(
        "from leadline.base.errors import MissingExtra\nraise MissingExtra('torch', 'torch', 'This method')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_methods"
    for name in ("own_methods", "needs_more", "needs_extra"):
        sys.modules.pop(name, None)


def test_own_function_is_a_method(own_module):
    result = method(f"{own_module}:constant")(Prior(np.ones((2, 3))), np.full((2, 3), 4.0))
    assert isinstance(result, MethodResult)
    np.testing.assert_array_equal(result.depth, np.full((2, 3), 4.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_methods:constnat", "module 'own_methods' has no function 'constnat'"),
        ("own_methods:NOT_CALLABLE", "no function 'NOT_CALLABLE'"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("needs_more:f", "No module named 'a_package_that_is_not_there'"),
        (":f", "'module:function', got ':f'"),
        ("own_methods:", "'module:function'"),
        ("a/b.py:f", "'module:function'"),
        ("own_methods:a:b", "'module:function'"),
    ],
)
def test_own_function_that_is_not_there_is_an_input_error(own_module, name, message):
    with pytest.raises(InputError, match=re.escape(message)):
        method(name)


def test_missing_extra_of_an_own_method_is_passed_on(own_module):
    with pytest.raises(MissingExtra, match=re.escape("pip install 'leadline[torch]'")):
        method("needs_extra:f")


def test_page_describes_every_method_and_its_python_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert set(METHODS) <= set(re.findall(r"^##+ `([\w-]+)", page, flags=re.MULTILINE))
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    own, use = blocks
    (tmp_path / "mymethods.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {}
    try:
        exec(compile(use, "docs/methods.md", "exec"), namespace)
    finally:
        METHODS.pop("median", None)
        sys.modules.pop("mymethods", None)
    assert isinstance(namespace["result"], MethodResult)
