"""The rendered room as a data set of any number of variations."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from leadline.base.errors import InputError, param
from leadline.datasets.rendered.renderer import render
from leadline.datasets.scene import Scene

NAME = "rendered"


class RenderedDataset:
    """Rooms ``room-0``, ``room-1``, ...; the number is the seed.

    Parameters
    ----------
    count : int
        Number of rooms.
    width, height : int
        Size of each in pixels.
    """

    name = NAME

    def __init__(self, *, count: int = 4, width: int = 320, height: int = 240) -> None:
        if count < 1:
            raise InputError(f"{param('count')} must be at least 1, got {count!r} instead.")
        if width < 2 or height < 2:
            raise InputError(
                f"{param('width')} and {param('height')} must be at least 2, got {width} x {height} instead."
            )
        self.count, self.width, self.height = count, width, height

    def names(self) -> list[str]:
        """The names ``room-0`` and so on."""
        return [f"room-{seed}" for seed in range(self.count)]

    def load(self, name: str) -> Scene:
        """The room of that name with its exact depth and camera.

        Raises
        ------
        InputError
            There is no such room.
        """
        return _render(self.width, self.height, self.seed(name))

    def seed(self, name: str) -> int:
        """The seed of the room of that name."""
        if name not in self.names():
            raise InputError(f"There is no room {name!r}; there are room-0 to room-{self.count - 1}.")
        return int(name.removeprefix("room-"))

    def files(self, name: str) -> list[Path]:
        """No files, since rooms are rendered."""
        return []


@lru_cache(maxsize=2)  # a scene and its prior are loaded one after the other
def _render(width: int, height: int, seed: int) -> Scene:
    return render(width, height, seed=seed)
