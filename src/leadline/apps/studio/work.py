"""What the page can ask for that takes time; each is done by the one worker, and returns what the page then shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leadline.apps.studio import downloads, views
from leadline.apps.studio.choices import choice_of, form
from leadline.apps.studio.examples import EXAMPLES, put_example
from leadline.apps.studio.jobs import Job
from leadline.apps.studio.scene import CLOUDS, Result, complete_scene, inspect, move_exponent, ready_methods
from leadline.apps.studio.sessions import Session
from leadline.base.errors import InputError
from leadline.base.strict_json import json_ready
from leadline.io.depth.files import DEPTH_SUFFIXES
from leadline.io.depth.units import UNITS

if TYPE_CHECKING:
    from leadline.apps.network import Network

Wish = Mapping[str, Any]


def offer(session: Session, networks: Mapping[str, Network]) -> dict[str, Any]:
    """What the page offers to choose from, and the names of the files that the session has already."""
    return {
        "examples": [{"name": name, "title": one.title, "text": one.text} for name, one in EXAMPLES.items()],
        "networks": list(networks),
        "methods": ready_methods(),
        "units": list(UNITS),
        "options": form(),
        "suffixes": {"depth": DEPTH_SUFFIXES, "cloud": CLOUDS},
        "files": {role: upload.name for role, upload in session.files.items()},
    }


def load_example(session: Session, wish: Wish, job: Job) -> dict[str, Any]:
    """Put an example's files in place; returns them as `look_at` does."""
    job.say("Rendering the room")
    put_example(session, str(wish.get("name")))
    units = {"sparse": "mm", "reference": "m"}
    return {
        role: {"name": upload.name, **_looked(session, role, units.get(role))} for role, upload in session.files.items()
    }


def look_at(session: Session, wish: Wish, job: Job) -> dict[str, Any]:
    """What a file is; one that cannot be read is not kept."""
    job.say("Reading the file")
    role, unit = str(wish.get("role")), wish.get("unit") or None
    if role not in session.files:
        raise InputError("there is no such file; drop it again.")
    return {"name": session.files[role].name, **_looked(session, role, unit)}


def complete(session: Session, wish: Wish, job: Job, *, networks: Mapping[str, Network], paths: bool) -> dict[str, Any]:
    """Complete the scene, which becomes the session's result; without `paths`, no folder of this machine is named."""
    choice = choice_of(wish)
    result = complete_scene(session, choice, networks, job)
    job.say("Drawing")
    session.result = result
    told = views.summary(result)
    told["notes"] = [session.own_words(note) for note in told["notes"]]
    inputs = {role: upload.name for role, upload in session.files.items()} if session.example else {}
    return {
        **told,
        "inputs": inputs,
        "downloads": downloads.kinds(result),
        "recipe": downloads.recipe(session, result, networks, paths=paths),
    }


def diagnose(session: Session, wish: Wish, job: Job) -> dict[str, Any]:
    """The curves of the result."""
    job.say("Drawing the curves")
    return views.diagnosis(_result(session))


def exponent(session: Session, wish: Wish, job: Job) -> dict[str, Any]:
    """Hold the exponent where it was put, or with None go back to the fit."""
    result = _result(session)
    wanted = wish.get("exponent")
    if wanted is None:
        result.moved = None
        return {}
    if not isinstance(wanted, (int, float)) or isinstance(wanted, bool) or not math.isfinite(wanted):
        raise InputError(f"the exponent must be a number, got {wanted!r:.40} instead.")
    job.say("Fitting at this exponent")
    result.moved = move_exponent(result, float(wanted))
    return views.moved_summary(result, result.moved)


def method(session: Session, wish: Wish, job: Job) -> dict[str, Any]:
    """Another method on the same scene."""
    result, name = _result(session), str(wish.get("name"))
    job.say(f"Running {name}")
    return {"name": name, **views.method_summary(result, name)}


def _looked(session: Session, role: str, unit: str | None) -> dict[str, Any]:
    facts: dict[str, Any] = json_ready(inspect(session, role, unit))
    return facts


def _result(session: Session) -> Result:
    if session.result is None:
        raise InputError("there is no result yet; complete the scene first.")
    return session.result
