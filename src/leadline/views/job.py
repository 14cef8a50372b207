"""The job of the worker processes that compute the views of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.base.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.views.views import Views


@dataclass(frozen=True, eq=False)
class ViewJob:
    """Computes the views of a round in worker processes, which share the store."""

    views: Views
    number: int
    part: str

    def start(self, threads: int) -> Callable[[str], bool]:
        return self._compute

    def _compute(self, name: str) -> bool:
        """Whether the view was computed."""
        try:
            self.views.compute_one(self.number, name, self.part)
        except LeadlineError:
            return False
        return True
