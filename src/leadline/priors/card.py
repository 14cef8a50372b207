"""Model cards: how to feed an ONNX network, and what comes out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

from leadline.base.errors import FileError
from leadline.core.prior import PriorKind

CARDS = Path(__file__).with_name("cards")  # of public exports


@dataclass(frozen=True)
class Card:
    """How to feed a network and what comes out: the `.json` beside the model, or one of `CARDS`."""

    size: tuple[int, int] | None  # (height, width), or (short side, 0) with keep_aspect; None for the image's own
    keep_aspect: bool
    multiple_of: int
    cubic: bool  # interpolation: cubic, else by area
    value_range: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr: bool
    channels_last: bool
    input_name: str | None  # None for the first one
    output_name: str | None
    quantity: PriorKind
    gauge: str
    points: bool = False  # the output is an affine point map, (H, W, 3), and not a map of the quantity itself
    mask_name: str | None = None  # an output that is above 1/2 where the prediction is valid
    scale_name: str | None = None  # an output that multiplies the prediction
    constants: Mapping[str, int] = field(default_factory=dict)  # further inputs, if the network has them

    @classmethod
    def read(cls, path: Path) -> Card:
        """Parse a card; FileError with the missing or wrong key otherwise."""
        fields = _parse(path)
        try:
            source, output = fields["input"], fields["output"]
            resize = source["resize"]
            mode = {"short_side": True, "fixed": False, "none": None}[resize["mode"]]
            size: tuple[int, int] | None = None
            if mode is not None:
                size = (int(resize["size"]), 0) if mode else (int(resize["size"][0]), int(resize["size"][1]))
            points = output["quantity"] == "points"
            quantity: Any = "depth" if points else output["quantity"]
            if quantity not in get_args(PriorKind):
                raise KeyError(f"quantity {quantity!r}")
            return cls(
                size=size,
                keep_aspect=bool(mode),
                multiple_of=int(resize.get("multiple_of") or 1),
                cubic={"area": False, "cubic": True}[resize.get("interpolation", "area")],
                value_range=(float(source["range"][0]), float(source["range"][1])),
                mean=tuple(float(value) for value in source.get("mean") or (0.0, 0.0, 0.0)),
                std=tuple(float(value) for value in source.get("std") or (1.0, 1.0, 1.0)),
                bgr=source.get("channels", "RGB") == "BGR",
                channels_last=source.get("layout", "NCHW") == "NHWC",
                input_name=source.get("name"),
                output_name=output.get("name"),
                quantity=quantity,
                gauge=str(output.get("gauge", "unknown")),
                points=points,
                mask_name=output.get("mask"),
                scale_name=output.get("scale"),
                constants={str(name): int(value) for name, value in source.get("constants", {}).items()},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FileError(f"{path}: the model card lacks or garbles {error}.") from error

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Size at which an image is fed: the short side or both sides as the card says, to a multiple."""
        if self.size is None:
            wanted = (float(height), float(width))
        elif self.keep_aspect:
            scale = self.size[0] / min(height, width)
            wanted = (height * scale, width * scale)
        else:
            wanted = (float(self.size[0]), float(self.size[1]))
        rows, columns = (max(self.multiple_of, round(side / self.multiple_of) * self.multiple_of) for side in wanted)
        return rows, columns


def find_card(model: Path, card: str | Path | None = None) -> Path:
    """The card of a model: the one given, by path or by its name in `CARDS`; else the `.json` beside the model; else
    the one of a public export that the model's file name fits.

    Raises
    ------
    FileError
        There is none.
    """
    known = {path.stem: path for path in sorted(CARDS.glob("*.json"))}
    if card is not None:
        return known.get(str(card), Path(card))
    beside = model.with_suffix(".json")
    if beside.is_file():
        return beside
    # In the hub's cache a model's file is often just model.onnx, and the repository's folder has the name.
    names = [model.name, *(part for part in model.parts if part.startswith("models--"))]
    fitting = [
        (len(pattern), path)
        for path in known.values()
        for pattern in _parse(path)["files"]
        if any(fnmatch(name, pattern) for name in names)
    ]
    if fitting:
        return max(fitting)[1]  # the longest pattern says most
    raise FileError(
        f"{beside}: there is no model card. An ONNX file does not say how to feed it: write one (input size, range, "
        f"mean/std; output name, quantity, gauge), or name one by `card`: {', '.join(known)}."
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: the model card cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise FileError(f"{path}: not a model card in JSON ({error}).") from error
    if not isinstance(fields, dict):
        raise FileError(f"{path}: a model card is a JSON object, got {type(fields).__name__}.")
    return fields
