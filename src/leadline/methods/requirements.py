"""Whether a method can run on this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec

from leadline.base.errors import FileError
from leadline.methods import METHODS
from leadline.methods.external.server_program import SYSTEMS
from leadline.methods.external.setups import read_setups
from leadline.priors.model_files import weights_present


def missing_requirement(name: str) -> str:
    """What is missing before a method of `METHODS` can run here, in words; empty if nothing is missing.

    The weights of a system in its own environment are not looked for: it downloads them or reports that it cannot.
    """
    facts = METHODS[name]
    if facts.extra is not None and find_spec(facts.extra) is None:  # the extra has the name of its main package
        return f"not installed: pip install 'leadline[{facts.extra}]'"
    if facts.model is not None and not weights_present(facts.model):
        return f"its weights are not on this machine: hf download {facts.model}"
    if name not in SYSTEMS:
        return ""
    try:
        found = read_setups().get(name)
    except FileError as error:
        return str(error)
    if found is None:
        return f"not set up; see 'leadline methods setup {name}'"
    absent = [path for path in (found.python, found.repo) if path is not None and not os.path.exists(path)]
    return f"{absent[0]} no longer exists; set the system up again" if absent else ""
