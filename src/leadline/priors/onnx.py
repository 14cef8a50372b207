"""Any monocular network in an ONNX file, with the input and output that its model card describes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.priors import PriorSource, as_image, default_floor
from leadline.priors.model_files import weights_digest
from leadline.priors.onnx_card import ModelCard, find_card
from leadline.priors.point_map_camera import focal_and_shift

PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "directml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
_AUTOMATIC = ("cuda", "cpu")  # the others compile for long or lack operators, so they must be named


class OnnxPrior(PriorSource):
    """A prior from an ONNX network run by onnxruntime, in the dtype of the file.

    Parameters
    ----------
    model : path
        The `.onnx` file.
    card : path or str, optional
        Its model card: a file, or the name of a card that comes with leadline. Default: the `.json` file of the same
        name beside the model, or the card of the public export that its file name matches.
    floor : float, optional
        For disparity: see `Prior`. Default: `default_floor`.
    device : str
        "auto", "cpu", "cuda", or another of `PROVIDERS` that the installed onnxruntime offers.
    name : str, optional
        For records. Default: the file's name.
    threads : int, optional
        Number of processor threads. Default: all cores.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        card: str | Path | None = None,
        floor: float | None = None,
        device: str = "auto",
        name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(model).expanduser()
        if not self.path.is_file():
            raise FileError(f"{self.path}: there is no such ONNX model.")
        if device != "auto" and device not in PROVIDERS:
            raise InputError(
                f"{param('device')} must be auto or one of {', '.join(PROVIDERS)} for ONNX, got {device!r} instead."
            )
        self.card_path = find_card(self.path, card)
        self.card = ModelCard.read(self.card_path)
        self.name = name or self.path.stem
        self.quantity: PriorKind = self.card.quantity
        self.gauge = self.card.gauge
        self.floor = default_floor(self.quantity, self.gauge, floor)
        self.device = device
        self._threads = threads or os.cpu_count() or 1
        self._session: Any = None

    def fingerprint(self) -> str:
        # Weights beyond 2 GB, and often smaller ones, are in a file of their own: model.onnx_data or model.onnx.data.
        files = [self.card_path, *sorted(self.path.parent.glob(f"{escape(self.path.name)}*"))]
        parts = ([weights_digest(file) for file in files if file.is_file()], self.floor)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # each process opens a session itself

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = as_image(image).shape[:2]
        return self._prior(self._run(self._tensor(image)[None]), height, width)

    def _tensor(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The network's input for one image, without the batch axis."""
        from PIL import Image

        card = self.card
        height, width = image.shape[:2]
        rows, columns = card.input_size(height, width)
        shape = self._input().shape
        own = shape[1:3] if card.channels_last else shape[2:4]
        if all(isinstance(side, int) for side in own):
            rows, columns = own  # the network was exported for this size only
        # The box filter averages areas. When enlarging it would repeat pixels, so bilinear interpolation is used there.
        shrinking = rows <= height and columns <= width
        by_area = Image.Resampling.BOX if shrinking else Image.Resampling.BILINEAR
        resample = Image.Resampling.BICUBIC if card.cubic else by_area
        small = np.asarray(Image.fromarray(image).resize((columns, rows), resample), np.float32) / 255.0
        low, high = card.value_range
        mean, std = np.array(card.mean, np.float32), np.array(card.std, np.float32)
        tensor: NDArray[np.float32] = (small * (high - low) + low - mean) / std
        if card.bgr:
            tensor = tensor[..., ::-1]
        return tensor if card.channels_last else tensor.transpose(2, 0, 1)

    def _run(self, tensor: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The outputs that the card names, for a batch of one image, without the batch axis."""
        session, card = self._open(), self.card
        half = "float16" in self._input().type
        feed: dict[str, Any] = {self._input().name: np.ascontiguousarray(tensor, np.float16 if half else np.float32)}
        declared = {entry.name for entry in session.get_inputs()}
        feed |= {name: np.array(value, np.int64) for name, value in card.constants.items() if name in declared}
        roles = {
            "map": card.output_name or session.get_outputs()[0].name,
            "mask": card.mask_name,
            "scale": card.scale_name,
        }
        wanted = {role: name for role, name in roles.items() if name is not None}
        try:
            found = session.run(list(wanted.values()), feed)
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise FileError(f"{self.path}: the network rejected an input of shape {tensor.shape}: {error}") from error
        outputs = {role: np.asarray(value, np.float32) for role, value in zip(wanted, found, strict=True)}
        for role, value in outputs.items():
            if role == "scale":
                outputs[role] = value.reshape(())
            elif role == "map" and card.points:
                outputs[role] = value[0]
            else:
                outputs[role] = _single_map(value, self.path)
        return outputs

    def _prior(self, outputs: Mapping[str, NDArray[np.float32]], height: int, width: int) -> Prior:
        """The prior from the outputs of the network, at the size of the image."""
        values, camera = outputs["map"], None
        mask = outputs["mask"] > 0.5 if "mask" in outputs else None
        if self.card.points:
            rows, columns = values.shape[:2]
            found = focal_and_shift(values, mask)
            focal, shift = found if found is not None else (None, 0.0)
            values = values[..., 2] + np.float32(shift)
            if focal is not None:
                here = Camera(columns, rows, focal, focal, (columns - 1) / 2, (rows - 1) / 2)
                camera = here.scaled(width, height)
        if "scale" in outputs:
            values = values * outputs["scale"]
        valid = None if mask is None else _resize(mask.astype(np.float32), height, width) > 0.5
        return Prior(_resize(values, height, width), kind=self.quantity, valid=valid, floor=self.floor, camera=camera)

    def _input(self) -> Any:
        inputs = {entry.name: entry for entry in self._open().get_inputs()}
        wanted = self.card.input_name
        if wanted is not None and wanted not in inputs:
            raise FileError(
                f"{self.path}: has no input {wanted!r}, which {self.card_path} names; it has {', '.join(inputs)}."
            )
        return inputs[wanted] if wanted is not None else next(iter(inputs.values()))

    def _open(self) -> Any:
        if self._session is None:
            try:
                import onnxruntime
            except ImportError as error:
                raise MissingExtra("onnxruntime", "onnx", "an ONNX prior") from error
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.log_severity_level = 3
            providers = _providers(self.device, onnxruntime.get_available_providers())
            try:
                self._session = onnxruntime.InferenceSession(str(self.path), options, providers=providers)
            except Exception as error:
                raise FileError(f"{self.path}: onnxruntime cannot load it: {error}") from error
        return self._session


def _providers(device: str, available: Sequence[str]) -> list[str]:
    if device == "auto":
        return [PROVIDERS[one] for one in _AUTOMATIC if PROVIDERS[one] in available]
    if PROVIDERS[device] not in available:
        there = [one for one, provider in PROVIDERS.items() if provider in available]
        raise InputError(
            f"{param('device')} {device!r} is not in the installed onnxruntime, which has {', '.join(there)}."
        )
    return [PROVIDERS[device], *([PROVIDERS["cpu"]] if device != "cpu" else [])]


def _single_map(value: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """The map (h, w) in an output that has further axes of length 1."""
    sides = [side for side in value.shape if side != 1][-2:]
    if len(sides) != 2 or value.size != sides[0] * sides[1]:
        raise FileError(f"{path}: expected one map per image, got an output of shape {value.shape}.")
    return value.reshape(sides)


def _resize(values: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    from PIL import Image

    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR))
