"""Model cards: the input that an ONNX network expects and the meaning of its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

from leadline.base.errors import FileError, param
from leadline.core.prior import PriorKind
from leadline.io.reading import read_json

CARDS = Path(__file__).with_name("onnx_cards")  # cards of public exports


@dataclass(frozen=True)
class ModelCard:
    """The input that a network expects and the meaning of its output."""

    size: tuple[int, int] | None  # (height, width), or (short side, 0) with keep_aspect; None for the image's own size
    keep_aspect: bool
    multiple_of: int
    cubic: bool  # cubic interpolation, else area averaging
    value_range: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr: bool
    channels_last: bool
    input_name: str | None  # None for the first input
    output_name: str | None
    quantity: PriorKind
    gauge: str
    points: bool = False  # the output is an affine point map, (H, W, 3), instead of a map of the quantity
    mask_name: str | None = None  # output that is above 1/2 where the prediction is valid
    scale_name: str | None = None  # output that multiplies the prediction
    constants: Mapping[str, int] = field(default_factory=dict)  # values of further inputs, if the network has them

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """The card in a file; `FileError` with the missing or wrong key otherwise."""
        fields = read_json(path, "a model card")
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
            raise FileError(f"{path}: a key of the model card is missing or wrong ({error}).") from error

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the network's input for an image: as the card says, rounded to a multiple."""
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
    """The path of a model's card.

    That is `card`, a path or a name in `CARDS`, if it is given; else the `.json` file beside the model; else the card
    of a public export whose pattern matches the model's file name.

    Raises
    ------
    FileError
        There is no card.
    """
    known = {path.stem: path for path in sorted(CARDS.glob("*.json"))}
    if card is not None:
        return known.get(str(card), Path(card))
    beside = model.with_suffix(".json")
    if beside.is_file():
        return beside
    # In the hub's cache the file is often just model.onnx, and the folder of the repository has the model's name.
    names = [model.name, *(part for part in model.parts if part.startswith("models--"))]
    matching = [
        (len(pattern), path)
        for path in known.values()
        for pattern in read_json(path, "a model card")["files"]
        if any(fnmatch(name, pattern) for name in names)
    ]
    if matching:
        return max(matching)[1]  # the longest pattern is the most specific
    raise FileError(
        f"{beside}: there is no model card. An ONNX file does not describe its input: write a card (input size, range, "
        f"mean/std; output name, quantity, gauge), or choose one by {param('card')}: {', '.join(known)}."
    )
