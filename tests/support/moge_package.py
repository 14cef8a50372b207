"""A stand-in for the package `moge`, written here: the same modules and signatures, and a network to be foretold."""

from __future__ import annotations

from pathlib import Path

V2 = """
from pathlib import Path

import torch

from .modules.encoder import GAIN

CALLS = []


class MoGeModel(torch.nn.Module):
    def __init__(self, gain, heads=("points", "mask"), **deprecated_kwargs):
        super().__init__()
        self.gain, self.heads, self.device = gain, heads, None
        self.points_head = torch.nn.Linear(2, 1)
        self.mask_token = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("image_mean", torch.zeros(3))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, model_kwargs=None, **hf_kwargs):
        assert Path(pretrained_model_name_or_path).exists()
        checkpoint = torch.load(pretrained_model_name_or_path, map_location="cpu", weights_only=True)
        config = checkpoint["model_config"]
        config.update(model_kwargs or {})
        model = cls(**config)
        model.load_state_dict(checkpoint["model"], strict=False)
        return model

    def to(self, device):
        self.device = device
        return self

    def eval(self):
        return self

    def infer(
        self,
        image,
        num_tokens=None,
        resolution_level=9,
        force_projection=True,
        apply_mask=True,
        fov_x=None,
        use_fp16=True,
    ):
        CALLS.append({"shape": tuple(image.shape), "level": resolution_level, "fov_x": fov_x, "fp16": use_fp16,
                      "mask": apply_mask, "model": type(self).__module__, "device": str(self.device)})
        return self.answer(image, fov_x)

    def answer(self, image, fov_x):
        assert image.dtype == torch.float32 and 0 <= image.min() and image.max() <= 1
        rows = torch.arange(image.shape[-2])[None, :, None]
        depth = GAIN * self.gain * (1 + image.mean(dim=1) + rows)
        focal = 0.5 / torch.tan(torch.deg2rad(torch.tensor(60.0 if fov_x is None else fov_x) / 2))
        aspect = image.shape[-1] / image.shape[-2]
        one = torch.tensor([[focal, 0, 0.5], [0, focal * aspect, 0.5], [0, 0, 1]])
        found = {"depth": depth, "intrinsics": one.expand(image.shape[0], 3, 3)}
        if "mask" in self.heads:
            found["mask"] = image[:, 0] > 0.25
        return found if "points" in self.heads else {"normal": depth}
"""

V3 = """
import warnings

from .modules.sparse_unet import Sparse3DUNet
from .v2 import CALLS, MoGeModel as MoGeModelV2


class MoGeModel(MoGeModelV2):
    def __init__(self, gain, refiner=None, **deprecated_kwargs):
        super().__init__(gain, **deprecated_kwargs)
        if refiner is None:
            warnings.warn("Warning: refiner is not enabled.")
        else:
            self.refiner = Sparse3DUNet(**refiner)

    def infer(self, image, num_tokens=None, resolution_level=9, force_projection=True, apply_mask=True, fov_x=None,
              refine_steps=3, return_per_step=False, use_fp16=False):
        if refine_steps > 0 and not hasattr(self, "refiner"):
            raise ValueError("Refiner is not enabled but refine_steps > 0.")
        found = super().infer(image, num_tokens, resolution_level, force_projection, apply_mask, fov_x, use_fp16)
        CALLS[-1]["steps"] = refine_steps
        found["depth"] = found["depth"] + refine_steps
        return found
"""

SPARSE_UNET = """
import flex_gemm
import torch


class Sparse3DUNet(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)
"""

FILES = {
    "__init__.py": "",
    "model/__init__.py": "",
    "model/v2.py": V2,
    "model/v3.py": V3,
    # As in the package: whoever imports any of the modules imports FlexGEMM.
    "model/modules/__init__.py": "from .encoder import GAIN\nfrom .sparse_unet import Sparse3DUNet\n",
    "model/modules/encoder.py": "GAIN = 2.0\n",
    "model/modules/sparse_unet.py": SPARSE_UNET,
}


def write_package(folder: Path, *, flex_gemm: str | None, versions: tuple[int, ...] = (2, 3)) -> Path:
    """The package in `folder`, beside a `flex_gemm` with that content, or none."""
    for name, content in FILES.items():
        if name not in {f"model/v{version}.py" for version in {2, 3} - set(versions)}:
            path = folder / "moge" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if flex_gemm is not None:
        (folder / "flex_gemm.py").write_text(flex_gemm, encoding="utf-8")
    return folder


def write_checkpoint(path: Path, *, without: str = "", **config: object) -> Path:
    """A checkpoint with that configuration and its weights, but the one named `without`."""
    import torch

    weights = {"points_head.weight": torch.ones(1, 2), "points_head.bias": torch.ones(1)}
    if config.get("refiner"):
        weights |= {"refiner.layer.weight": torch.ones(1, 4), "refiner.layer.bias": torch.ones(1)}
    weights.pop(without, None)
    torch.save({"model_config": {"gain": 1.5, **config}, "model": weights}, path)
    return path
