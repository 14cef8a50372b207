"""Stand-ins for the trained systems: packages with the signatures that the systems' own examples use.

Each answers depth = 1 + red + measurement, red in [0, 1] and 0 for no measurement, so that a test can tell whether
image and measurements arrived as the system expects them. A word in the file ``fault`` of the checkout makes the next
answers go wrong in the ways that `FAULTS` lists.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

COMMIT = "0123456789abcdef0123456789abcdef01234567"

FAULTS = """
import os, signal, subprocess, sys, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def fault():
    try:
        return open(os.path.join(HERE, "fault")).read()
    except FileNotFoundError:
        return ""


def note(name, value):
    with open(os.path.join(HERE, name), "a") as file:
        file.write(f"{value}\\n")


def loaded():
    note("loaded", os.getpid())
    if fault() == "no start":
        raise RuntimeError("the weights are not there")
    if fault() == "exit at start":
        os._exit(9)


def answer(red, sparse):
    word = fault()
    depth = (1.0 + red + sparse).astype(np.float32)
    if word == "raise":
        raise ValueError("There are not enough known points.\\nAt all.")
    if word == "exit":
        sys.stderr.write("CUDA error: an illegal memory access\\n")
        os._exit(3)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word in ("hang", "child"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) if word == "child" else None
        note("hanging", f"{os.getpid()} {os.getppid()} {child.pid if child else 0}")
        sys.stderr.write("step 1 of 50\\rstep 2 of 50\\n")
        sys.stderr.flush()
        time.sleep(600)
    if word == "shape":
        return depth[:-1]
    if word == "text":
        return "a picture of depth"
    if word == "nothing":
        return np.zeros_like(depth)
    if word == "holes":
        depth[:2] = np.inf
        depth[2:4] = -1
    if word == "prints":
        for _ in range(3000):  # more than a pipe holds
            print('{"job": "none"}', "x" * 100)
        os.write(1, b"straight to the descriptor\\n")
        note("asked", repr(sys.stdin.read()))
    if word == "junk file":
        save = np.save
        np.save = lambda file, array, **_: file.write(b"not an array")
    if word == "pickle":
        np.save = lambda file, array, **_: file.write(
            b"\\x93NUMPY\\x01\\x00v\\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(127) + b"\\n"
            + b"cposix\\nsystem\\n(S'touch " + os.path.join(HERE, "owned").encode() + b"'\\ntR."
        )
    if word == "junk answer":
        for descriptor in range(3, 16):
            try:
                os.write(descriptor, b"Loading weights ...\\n")
            except OSError:
                pass
    return depth
"""

TORCH = """
import contextlib, types
import numpy as np

float32, bfloat16 = "float32", "bfloat16"
cuda = types.SimpleNamespace(is_available=lambda: False)
__version__ = "0.0-standin"
seeds = []


class Tensor:
    def __init__(self, values):
        self.values = values

    def to(self, *_, **__):
        return self

    def __getitem__(self, at):
        return Tensor(self.values[at])

    detach = float = cpu = lambda self: self

    def numpy(self):
        return self.values


from_numpy = Tensor
manual_seed = seeds.append
no_grad = inference_mode = contextlib.nullcontext


def pad(tensor, margin):
    left, right, top, bottom = margin
    return Tensor(np.pad(tensor.values, ((0, 0), (0, 0), (top, bottom), (left, right))))


nn = types.SimpleNamespace(functional=types.SimpleNamespace(pad=pad))


def load(path, map_location=None, weights_only=True):
    text = open(path).read()
    if weights_only and text != "weights":
        raise RuntimeError("Weights only load failed.")
    return {"state_dict": {"module.head": 1.0}}


class Module:
    def to(self, *_, **__):
        return self

    def eval(self):
        return self


def red(rgb, normalised):
    assert rgb.shape[:2] == (1, 3) and rgb.dtype == np.float32
    return rgb[0, 0] * np.float32(0.229) + np.float32(0.485) if normalised else rgb[0, 0]


def sparse(values):
    assert values.shape[:2] == (1, 1) and values.dtype == np.float32
    return values[0, 0]
"""

PRIORDA = """
import numpy as np
import faults, torch


class PriorDepthAnything(torch.Module):
    def __init__(self, device="cuda:0", version="1.1", mde_dir=None, ckpt_dir=None, frozen_model_size=None,
                 conditioned_model_size=None, coarse_only=False):
        assert device == "cpu" and version in ("1.0", "1.1")
        print("Loading checkpoint ...")
        faults.loaded()

    def infer_one_sample(self, image=None, prior=None, geometric=None, pattern=None, double_global=False,
                         prior_cover=False, visualize=False, down_fill_mode="linear"):
        assert image.dtype == np.uint8 and prior.dtype == np.float32 and torch.seeds
        shift = 0 if geometric is None else geometric
        found = faults.answer(image[..., 0].astype(np.float32) / 255 + shift, prior)
        return torch.Tensor(found) if isinstance(found, np.ndarray) else found
"""

LDCM = """
import faults, torch


class LDCMModel(torch.Module):
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path="pkqbajng/LDCM",
                        moge_path="Ruicheng/moge-2-vits-normal", map_location="cpu", **hf_kwargs):
        faults.loaded()
        return cls()

    def infer(self, image, prior):
        found = faults.answer(torch.red(image.values, False), torch.sparse(prior.values))
        return {"depth_pred": torch.Tensor(found[None, None])}
"""

ANY2FULL = """
import faults, torch


class Any2Full(torch.Module):
    def __init__(self, encoder="vitl", da_ckpt_path="checkpoints/promptda_vitl.ckpt", args=None):
        assert da_ckpt_path is None and args.init_scailing and args.stage == 1
        assert (args.min_depth, args.max_depth) == (1e-6, 1e3)

    def load_state_dict(self, state, strict):
        assert state == {"head": 1.0} and strict
        faults.loaded()

    def __call__(self, x, prompt_depth=None):
        return {"pred": torch.Tensor(
            faults.answer(torch.red(x["rgb"].values, True), torch.sparse(x["dep"].values))[None, None])}
"""

OMNI_DC_CONFIG = """
import argparse

parser = argparse.ArgumentParser()
for name, kind in (("max_depth", float), ("data_normalize_median", int), ("num_resolution", int), ("load_dav2", int),
                   ("gpus", str), ("GRU_iters", int), ("multi_resolution_learnable_gradients_weights", str),
                   ("optim_layer_input_clamp", float), ("depth_activation_format", str),
                   ("whiten_sparse_depths", int), ("gru_internal_whiten_method", str), ("backbone_mode", str),
                   ("pred_confidence_input", int)):
    parser.add_argument("--" + name, type=kind)
args = parser.parse_args()
"""

OMNI_DC = """
import os
import faults, torch

# What its own parser makes of the flags in its testing_scripts/demo.sh.
SETTINGS = {
    "max_depth": 300.0, "data_normalize_median": 1, "num_resolution": 3, "load_dav2": 1, "gpus": "0", "GRU_iters": 1,
    "multi_resolution_learnable_gradients_weights": "uniform", "optim_layer_input_clamp": 1.0,
    "depth_activation_format": "exp", "whiten_sparse_depths": 1, "gru_internal_whiten_method": "median",
    "backbone_mode": "rgbd", "pred_confidence_input": 1,
}


class OGNIDC(torch.Module):
    @classmethod
    def from_pretrained(cls, name, args):
        assert vars(args) == SETTINGS, vars(args)
        assert os.path.isdir("depth_models")  # it loads by paths relative to src
        faults.loaded()
        return cls()

    def __call__(self, sample):
        height, width = sample["rgb"].values.shape[2:]
        assert height % 16 == 0 and width % 16 == 0 and sample["pattern"] == 0
        assert sample["K"].values.shape == (1, 3, 3) and sample["K"].values[0, 0, 0] > 1.0  # a camera's
        found = faults.answer(torch.red(sample["rgb"].values, True), torch.sparse(sample["dep"].values))
        return {"pred": torch.Tensor(found[None, None])}
"""

MARIGOLD_DC = """
import types
import numpy as np
import faults, torch


class MarigoldDepthCompletionPipeline(torch.Module):
    scheduler = types.SimpleNamespace(config={})

    @classmethod
    def from_pretrained(cls, checkpoint, prediction_type):
        assert checkpoint == "prs-eth/marigold-depth-v1-0" and prediction_type == "depth"
        faults.loaded()
        return cls()

    def __call__(self, image, sparse_depth, num_inference_steps=50, ensemble_size=1, processing_resolution=768,
                 seed=2024):
        assert (num_inference_steps, ensemble_size, processing_resolution, seed) == (10, 1, 512, 2024)
        assert self.scheduler == "trailing" and type(sparse_depth) is np.ndarray and sparse_depth.ndim == 2
        return faults.answer(np.asarray(image)[..., 0].astype(np.float32) / 255, sparse_depth)
"""

DIFFUSERS = """
import types

DDIMScheduler = types.SimpleNamespace(from_config=lambda config, timestep_spacing: timestep_spacing)
"""

PIL_IMAGE = """
fromarray = lambda array: array
"""

UNIDEPTH = """
import torch


class UniDepthV2(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[[[0.3]], [[0.5]], [[0.2]]]]))

    @classmethod
    def from_pretrained(cls, name):
        assert name == "lpiccinelli/unidepth-v2old-vitl14"
        return cls()

    def forward(self, inputs, image_metas):
        assert inputs["image"].shape == (1, 3, 476, 630) and image_metas == {}
        size = inputs["depth"].shape[-2:]
        grey = torch.nn.functional.conv2d(inputs["image"], self.weight)
        return {"depth": torch.nn.functional.interpolate(torch.exp(grey), size, mode="bilinear", antialias=True)}
"""
"""A network with the interface of TestPromptDC's. It is tuned, so that it needs the real torch."""

FILES = {
    "priorda": {"prior_depth_anything/__init__.py": PRIORDA},
    "ldcm": {"ldcm/__init__.py": LDCM},
    "any2full": {"model/__init__.py": "", "model/ours/any2full.py": ANY2FULL, "any2full.pth.tar": "weights"},
    "omni-dc": {
        "src/config.py": OMNI_DC_CONFIG,
        "src/model/ognidc.py": OMNI_DC,
        "src/depth_models/readme": "",
        "src/faults.py": FAULTS,
        "src/torch.py": TORCH,
    },
    "marigold-dc": {"marigold_dc.py": MARIGOLD_DC, "diffusers.py": DIFFUSERS, "PIL/Image.py": PIL_IMAGE},
}
OPTIONS = {"any2full": {"checkpoint": "any2full.pth.tar"}}


def checkout(system: str, folder: Path) -> Path:
    """A checkout of a stand-in, as git leaves it."""
    common = {
        "faults.py": FAULTS,
        "torch.py": TORCH,
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/refs/heads/main": COMMIT,
    }
    for name, text in {**common, **FILES[system]}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def expected(image: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    """What a stand-in answers."""
    return 1 + image[..., 0].astype(np.float32) / 255 + np.nan_to_num(sparse)
