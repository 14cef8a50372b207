"""The rendered room as a data set: as many variations as asked for, with nothing to download."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from leadline.base.errors import InputError
from leadline.datasets.rendered import render
from leadline.datasets.scene import Scene

NAME = "rendered"


class RenderedSet:
    """Rooms ``room-0``, ``room-1``, ...: the same for the same seed.

    Parameters
    ----------
    count : int
        How many.
    width, height : int
        Size of each in pixels.
    """

    name = NAME

    def __init__(self, *, count: int = 4, width: int = 320, height: int = 240) -> None:
        if count < 1:
            raise InputError(f"`count` must be at least 1 room, got {count!r}.")
        if width < 2 or height < 2:
            raise InputError(f"`width` and `height` must be at least 2 pixels, got {width} x {height} instead.")
        self.count, self.width, self.height = count, width, height

    def names(self) -> list[str]:
        """``room-0`` and so on, as many as asked for."""
        return [f"room-{seed}" for seed in range(self.count)]

    def load(self, name: str) -> Scene:
        """The room of that name with its exact depth and camera.

        Raises
        ------
        InputError
            There is no such room.
        """
        return _rendered(self.width, self.height, self.seed(name))

    def seed(self, name: str) -> int:
        """What the room of that name is drawn from."""
        if name not in self.names():
            raise InputError(f"There is no room {name!r}; there are room-0 to room-{self.count - 1}.")
        return int(name.removeprefix("room-"))

    def files(self, name: str) -> list[Path]:
        """None: a room is made, not read."""
        return []


@lru_cache(maxsize=2)  # the scene and its prior are asked for one after the other
def _rendered(width: int, height: int, seed: int) -> Scene:
    return render(width, height, seed=seed)
