"""The parts of a pattern: a name with numbers and words, and what each name accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple


class PatternPart(NamedTuple):
    """One part of a pattern: the name of a source or fault, its numbers and its words."""

    name: str
    numbers: tuple[float, ...]
    words: tuple[str, ...] = ()


class PatternKind(NamedTuple):
    """A source or fault: how it is written, which numbers and words it accepts, and the function that applies it."""

    example: str
    accepts: Callable[[PatternPart], bool]
    function: Callable[..., Any]
    takes_label: bool = False  # what follows the name is one word, even if it is a number


def parse_part(text: str, kinds: dict[str, PatternKind]) -> PatternPart:
    """The part that `text` describes; numbers and words are separated by colons."""
    name, *values = text.split(":")
    if name in kinds and kinds[name].takes_label:
        return PatternPart(name, (), (":".join(values),) if values else ())
    numbers = tuple(float(value) for value in values if _is_number(value))
    return PatternPart(name, numbers, tuple(value for value in values if not _is_number(value)))


def is_count(part: PatternPart) -> bool:
    """One positive whole number."""
    return not part.words and len(part.numbers) == 1 and _is_whole(part.numbers[0], 1)


def is_count_with_seed(part: PatternPart) -> bool:
    """One positive whole number, and perhaps a seed."""
    seeds = part.numbers[1:]
    return is_count(part._replace(numbers=part.numbers[:1])) and len(seeds) <= 1 and all(_is_whole(s, 0) for s in seeds)


def is_fraction(part: PatternPart) -> bool:
    """One number from 0 to 1."""
    return not part.words and len(part.numbers) == 1 and 0 <= part.numbers[0] <= 1


def is_scale(part: PatternPart) -> bool:
    """One number that is not negative."""
    return not part.words and len(part.numbers) == 1 and part.numbers[0] >= 0


def is_interval(part: PatternPart) -> bool:
    """Two ascending numbers that are not negative."""
    return not part.words and len(part.numbers) == 2 and 0 <= part.numbers[0] < part.numbers[1]


def is_empty(part: PatternPart) -> bool:
    """The name alone."""
    return not part.words and not part.numbers


def _is_whole(number: float, least: int) -> bool:
    return number >= least and number == int(number)


def _is_number(text: str) -> bool:
    """Whether the text is a finite number; ``nan`` and ``inf`` are words, which no source or fault accepts."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
