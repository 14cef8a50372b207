"""The job of the worker processes that compute the views of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.base.errors import InputError, LeadlineError, param

if TYPE_CHECKING:
    from leadline.views.views import Views


@dataclass(frozen=True, eq=False)
class ViewJob:
    """Computes the views of a round in worker processes, which share the store."""

    views: Views
    number: int
    part: str

    def start(self, threads: int) -> Callable[[str], LeadlineError | bool]:
        return self._compute

    def _compute(self, name: str) -> LeadlineError | bool:
        """True, or the error that the computation met."""
        try:
            self.views.compute_one(self.number, name, self.part)
        except LeadlineError as error:
            return error
        return True


def require_computed(name: str, result: LeadlineError | bool | None) -> None:
    """Raise the error that a worker met at a view; None means that the worker itself died."""
    if result is None:
        raise LeadlineError(
            f"{name}: a worker process died twice at this view, perhaps because memory ran out; run again with fewer "
            f"{param('workers')}."
        )
    if isinstance(result, InputError):
        raise InputError(f"{name}: {result.args[0]}") from result
    if isinstance(result, LeadlineError):
        raise result
