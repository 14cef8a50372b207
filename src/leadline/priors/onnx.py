"""Any monocular network in an ONNX file, with the input and output that its model card describes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray
from leadline.base.errors import FileError, InputError, MissingExtra, param
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.files import read_json
from leadline.priors import Gauge, PriorSource, as_image, default_floor, resize_map
from leadline.priors.area import resize_area
from leadline.priors.model_files import weights_digest

CARDS = Path(__file__).with_name("onnx_cards")  # cards of public exports
PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "directml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
_AUTOMATIC = ("cuda", "cpu")  # devices that "auto" tries; the others take long to compile or lack operators
_PREPARATION = 2  # counts the ways in which versions of leadline prepared images; cached predictions of others differ
_GRID = 64  # points along each side of the image to which the camera is fitted
_COARSE = 121  # shifts of the first search, over six decades
_EXPONENT_TOLERANCE = 1e-10  # tolerance of the decimal logarithm of the shift


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
            gauge = str(output.get("gauge", "unknown"))
            if gauge not in get_args(Gauge):
                raise KeyError(f"gauge {gauge!r}, expected one of {', '.join(get_args(Gauge))}")
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
                gauge=gauge,
                points=points,
                mask_name=output.get("mask"),
                scale_name=output.get("scale"),
                constants={str(name): int(value) for name, value in source.get("constants", {}).items()},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FileError(f"{path}: a key of the model card is missing or wrong ({error}).") from error

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the network's input for an image: as the card says, rounded to a multiple."""
        wanted: tuple[float, float] = self.size or (height, width)
        if self.size is not None and self.keep_aspect:
            scale = self.size[0] / min(height, width)
            wanted = (height * scale, width * scale)
        rows, columns = (max(self.multiple_of, round(side / self.multiple_of) * self.multiple_of) for side in wanted)
        return rows, columns


def find_card(model: Path, card: str | Path | None = None) -> Path:
    """The path of a model's card.

    That is `card`, a path or a name in `CARDS`, if it is given; else the `.json` file beside the model; else the card
    of a public export whose pattern matches the model's file name.
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
    name, threads : optional
        Name for records, by default that of the file; number of processor threads, by default all cores.
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
            raise InputError(f"{param('device')} must be auto or one of {', '.join(PROVIDERS)}, got {device!r}.")
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
        parts = ([weights_digest(file) for file in files if file.is_file()], self.floor, _PREPARATION)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # each process opens a session itself

    def __call__(self, image: NDArray[np.uint8], *, dataset: Any = None, name: str | None = None) -> Prior:
        height, width = as_image(image).shape[:2]
        return self._prior(self._run(self._tensor(image)[None]), height, width)

    def _tensor(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The network's input for one image, without the batch axis."""
        card = self.card
        height, width = image.shape[:2]
        rows, columns = card.input_size(height, width)
        shape = self._input().shape
        own = shape[1:3] if card.channels_last else shape[2:4]
        if all(isinstance(side, int) for side in own):
            rows, columns = own  # the network was exported for this size only
        small = _resize(image, (rows, columns), card.cubic) / np.float32(255.0)
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
        outputs_of_file = [entry.name for entry in session.get_outputs()]
        for name in wanted.values():
            if name not in outputs_of_file:
                raise FileError(
                    f"{self.path}: has no output {name!r}, which {self.card_path} names; "
                    f"it has {', '.join(outputs_of_file)}."
                )
        try:
            found = session.run(list(wanted.values()), feed)
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise FileError(f"{self.path}: the network rejected an input of shape {tensor.shape}: {error}") from error
        outputs = {role: np.asarray(value, np.float32) for role, value in zip(wanted, found, strict=True)}
        for role, value in outputs.items():
            points = role == "map" and card.points
            single = value[0] if points else value.reshape(()) if role == "scale" else _single_map(value, self.path)
            outputs[role] = single
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
        valid = None if mask is None else resize_map(mask.astype(np.float32), height, width) > 0.5
        return Prior(
            resize_map(values, height, width), kind=self.quantity, valid=valid, floor=self.floor, camera=camera
        )

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
        raise InputError(f"{param('device')} {device!r} is not in this onnxruntime, which has {', '.join(there)}.")
    return [PROVIDERS[device], *([PROVIDERS["cpu"]] if device != "cpu" else [])]


def _resize(image: NDArray[np.uint8], shape: tuple[int, int], cubic: bool) -> NDArray[np.float32]:
    """The image at `shape`, in grey levels: by cubic interpolation, or averaged over areas.

    An image that becomes larger has no areas to average, so that it is interpolated bilinearly.
    """
    from PIL import Image

    if not cubic and shape[0] <= image.shape[0] and shape[1] <= image.shape[1]:
        return resize_area(image, shape)
    resample = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(image).resize(shape[::-1], resample), np.float32)


def _single_map(value: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """The map (h, w) in an output that has further axes of length 1."""
    sides = [side for side in value.shape if side != 1][-2:]
    if len(sides) != 2 or value.size != sides[0] * sides[1]:
        raise FileError(f"{path}: expected one map per image, got an output of shape {value.shape}.")
    return value.reshape(sides)


def focal_and_shift(points: NDArray[np.float32], valid: BoolArray | None = None) -> tuple[float, float] | None:
    """Focal length in pixels and shift of z that fit a point map best; None if too few points are usable.

    For a given shift the best focal length is a linear least-squares problem, so that one unknown is left. It is
    searched among the shifts that put every point in front of the camera, first on a grid, since there may be several
    minima, then by Brent's method in the best interval.

    MoGe (Wang et al. 2025) predicts points (x, y, z), an (H, W, 3) array with x right, y down and z forward, up to a
    scale and a shift of z. A pinhole camera with its principal point in the middle of the image sees a point at
    u = f x / (z + s), v = f y / (z + s), so that the coordinates of the pixels determine f and s.
    """
    from scipy.optimize import minimize_scalar

    height, width = points.shape[:2]
    rows, columns = (np.unique(np.linspace(0, side - 1, _GRID).round().astype(int)) for side in (height, width))
    at = np.ix_(rows, columns)
    chosen = points[at].astype(np.float64)
    usable = np.isfinite(chosen).all(axis=-1)
    if valid is not None:
        usable &= valid[at]
    v, u = np.meshgrid(rows - (height - 1) / 2, columns - (width - 1) / 2, indexing="ij")
    pixels = np.stack((u, v), axis=-1)[usable]
    xy, z = chosen[usable][:, :2], chosen[usable][:, 2]
    reach = float(np.median(np.abs(chosen[usable]))) if usable.any() else 0.0
    if len(z) < 3 or not reach > 0 or not np.square(pixels).sum() > 0:
        return None
    nearest = float(z.min())

    def focal(shift: float) -> float:
        seen = xy / (z + shift)[:, None]
        return float((seen * pixels).sum() / np.square(seen).sum())

    def cost(exponent: float) -> float:
        shift = reach * 10.0**exponent - nearest
        return float(np.square(focal(shift) * xy / (z + shift)[:, None] - pixels).sum())

    exponents = np.linspace(-3.0, 3.0, _COARSE)
    best = int(np.argmin([cost(exponent) for exponent in exponents]))
    low, high = exponents[max(best - 1, 0)], exponents[min(best + 1, _COARSE - 1)]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": _EXPONENT_TOLERANCE})
    shift = reach * 10.0 ** float(found.x) - nearest
    length = focal(shift)
    return (length, shift) if np.isfinite(length) and length > 0 else None
