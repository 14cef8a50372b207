"""Any monocular network in ONNX form, fed as its model card says."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import FileError, InputError, MissingExtra, Prior, PriorKind


@dataclass(frozen=True)
class Card:
    """How to feed a network and what comes out: the `.json` beside the model."""

    size: tuple[int, int]  # (height, width), or (short side, 0) with keep_aspect
    keep_aspect: bool
    multiple_of: int
    value_range: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr: bool
    channels_last: bool
    input_name: str | None
    output_name: str | None
    quantity: PriorKind
    gauge: str

    @classmethod
    def read(cls, path: Path) -> Card:
        """Parse a card; FileError with the missing or wrong key otherwise."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(
                f"{path}: there is no model card ({error.strerror}). An ONNX file does not say how to feed it: "
                "write one (input size, range, mean/std; output name, quantity, gauge)."
            ) from error
        except ValueError as error:
            raise FileError(f"{path}: not a model card in JSON ({error}).") from error
        try:
            source, output = fields["input"], fields["output"]
            resize = source["resize"]
            keep = {"short_side": True, "fixed": False}[resize["mode"]]
            size = (int(resize["size"]), 0) if keep else (int(resize["size"][0]), int(resize["size"][1]))
            quantity = output["quantity"]
            if quantity not in ("depth", "disparity", "log_depth"):
                raise KeyError(f"quantity {quantity!r}")
            return cls(
                size=size,
                keep_aspect=keep,
                multiple_of=int(resize.get("multiple_of") or 1),
                value_range=(float(source["range"][0]), float(source["range"][1])),
                mean=tuple(float(value) for value in source.get("mean") or (0.0, 0.0, 0.0)),
                std=tuple(float(value) for value in source.get("std") or (1.0, 1.0, 1.0)),
                bgr=source.get("channels", "RGB") == "BGR",
                channels_last=source.get("layout", "NCHW") == "NHWC",
                input_name=source.get("name"),
                output_name=output.get("name"),
                quantity=quantity,
                gauge=str(output.get("gauge", "unknown")),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FileError(f"{path}: the model card lacks or garbles {error}.") from error

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Size at which an image is fed: the short side or both sides as the card says, to a multiple."""
        if self.keep_aspect:
            scale = self.size[0] / min(height, width)
            wanted = (height * scale, width * scale)
        else:
            wanted = (float(self.size[0]), float(self.size[1]))
        rows, columns = (max(self.multiple_of, round(side / self.multiple_of) * self.multiple_of) for side in wanted)
        return rows, columns


class OnnxPrior:
    """A prior from an ONNX network run by onnxruntime.

    Parameters
    ----------
    model : path
        The `.onnx` file; its card is the `.json` of the same name, unless given.
    floor : float, optional
        For disparity: see `Prior`. Default: a hundredth where the shift is unknown, since such networks return zero
        for far pixels, and 0 otherwise.
    threads : int, optional
        Of the network. Default: all cores.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        card: str | Path | None = None,
        floor: float | None = None,
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(model)
        if not self.path.is_file():
            raise FileError(f"{self.path}: there is no such ONNX model.")
        self.card_path = Path(card) if card is not None else self.path.with_suffix(".json")
        self.card = Card.read(self.card_path)
        self.name = name or self.path.stem
        self.quantity: PriorKind = self.card.quantity
        self.gauge = self.card.gauge
        unknown_shift = self.quantity == "disparity" and self.gauge == "affine"
        self.floor = floor if floor is not None else (0.01 if unknown_shift else 0.0)
        self._threads = threads or os.cpu_count() or 1
        self._session: Any = None

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.path.read_bytes())
        digest.update(self.card_path.read_bytes())
        digest.update(repr(self.floor).encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session belongs to its process

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        from PIL import Image

        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise InputError(f"`image` must be (H, W, 3) uint8, got shape {image.shape} of {image.dtype}.")
        height, width = image.shape[:2]
        rows, columns = self.card.input_size(height, width)
        # The box filter is area interpolation, which the cards ask for; growing, it is nearest, so bilinear there.
        shrinking = rows <= height and columns <= width
        resample = Image.Resampling.BOX if shrinking else Image.Resampling.BILINEAR
        small = np.asarray(Image.fromarray(image).resize((columns, rows), resample), np.float32) / 255.0
        low, high = self.card.value_range
        tensor = (small * (high - low) + low - np.array(self.card.mean, np.float32)) / np.array(
            self.card.std, np.float32
        )
        if self.card.bgr:
            tensor = tensor[..., ::-1]
        if not self.card.channels_last:
            tensor = tensor.transpose(2, 0, 1)
        predicted = self._run(np.ascontiguousarray(tensor[None], dtype=np.float32))
        values = np.asarray(Image.fromarray(predicted).resize((width, height), Image.Resampling.BILINEAR))
        return Prior(values, kind=self.quantity, floor=self.floor)

    def _run(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        session = self._open()
        feed = {self.card.input_name or session.get_inputs()[0].name: tensor}
        outputs = [self.card.output_name] if self.card.output_name else None
        try:
            predicted = np.asarray(session.run(outputs, feed)[0], np.float32).squeeze()
        except Exception as error:  # onnxruntime's own exceptions share no public base
            raise FileError(f"{self.path}: the network refused an input of shape {tensor.shape}: {error}") from error
        if predicted.ndim != 2:
            raise FileError(f"{self.path}: expected one map, got an output of shape {predicted.shape}.")
        return predicted

    def _open(self) -> Any:
        if self._session is None:
            try:
                import onnxruntime
            except ImportError as error:
                raise MissingExtra("onnxruntime", "onnx", "an ONNX prior") from error
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.log_severity_level = 3
            try:
                self._session = onnxruntime.InferenceSession(
                    str(self.path), options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:
                raise FileError(f"{self.path}: onnxruntime cannot load it: {error}") from error
        return self._session
