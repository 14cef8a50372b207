"""The program that runs one trained system inside that system's own environment and predicts depth for images.

leadline starts this file with the interpreter of the system's environment, which may be old (Python 3.8) and has NumPy
and the system, but not leadline. It therefore imports nothing of leadline. `leadline.methods.external.process` starts
it and sends it the images.

The first line of the standard input is a JSON object with ``system``, ``repo``, ``options``, ``work`` and ``check``; if
``check`` is true the system is only imported. The answer is ``{"ready": versions}`` once the model is loaded. Each
further line is the path of a job's folder with

    image.npy    (H, W, 3) uint8 RGB
    sparse.npy   (H, W) float32 metres, 0 where not measured
    prior.npy    (H, W) float32 relative depth, 0 where unknown; only for systems that can use one
    job.json     intrinsics {fx, fy, cx, cy} in pixels, or null

and is answered by ``{"job": folder, "seconds": s}`` after ``depth.npy`` (float32 metres) was written to that folder, or
by ``{"job": folder, "failed": reason}``. When the standard input ends, leadline has ended, and this program exits at
once. Arrays are read and written without pickle, so no file can run code on either side.

Each system is a function below that loads the model and returns a function that predicts. Its keywords are the options
of the system; one without a default is required. Nothing of the systems is copied: they are called as the examples of
their authors do.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # Python 3.8 cannot evaluate this alias
    from collections.abc import Callable

    Predict = Callable[[SimpleNamespace], Any]

MODULES = {
    "priorda": "prior_depth_anything",
    "ldcm": "ldcm",
    "any2full": "model.ours.any2full",
    "omni-dc": "model.ognidc",
    "marigold-dc": "marigold_dc",
    "testpromptdc": "unidepth_custom.models",
}
"""The module that the check imports; its first part is the name under which the package is installed, if it is."""

SOURCES = {"omni-dc": "src"}
"""The folder of the repository that goes on the search path, where it is not the repository itself."""


def priorda(
    *,
    device: str = "auto",
    version: str | None = None,
    mde_dir: str | None = None,
    ckpt_dir: str | None = None,
    frozen_model_size: str | None = None,
    conditioned_model_size: str | None = None,
    coarse_only: bool = False,
    geometric: bool = False,
    seed: int = 0,
) -> Predict:
    """Prior Depth Anything (Wang et al. 2025); with `geometric` the given prior replaces that of its network."""
    chosen = {
        "version": version,
        "mde_dir": mde_dir,
        "ckpt_dir": ckpt_dir,
        "frozen_model_size": frozen_model_size,
        "conditioned_model_size": conditioned_model_size,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    model = import_module("prior_depth_anything").PriorDepthAnything(
        device=_device(device), coarse_only=coarse_only, **given
    )

    def predict(job: SimpleNamespace) -> Any:
        import_module("torch").manual_seed(seed)  # its alignment adds random noise
        return model.infer_one_sample(image=job.image, prior=job.sparse, geometric=job.prior if geometric else None)

    return predict


def ldcm(
    *, device: str = "auto", checkpoint: str = "pkqbajng/LDCM", moge: str = "Ruicheng/moge-2-vits-normal"
) -> Predict:
    """Large Depth Completion Model (Yu et al. 2026); it computes its own MoGe prior."""
    torch = import_module("torch")
    where = _device(device)
    model = import_module("ldcm").LDCMModel.from_pretrained(checkpoint, moge_path=moge).to(where).eval()

    def predict(job: SimpleNamespace) -> Any:
        with torch.inference_mode():
            return model.infer(_rgb(job.image, where), _map(job.sparse, where))["depth_pred"]

    return predict


def any2full(
    *, checkpoint: str, device: str = "auto", encoder: str = "vitl", trust_checkpoint: bool = False, seed: int = 0
) -> Predict:
    """Any2Full (Zhou et al. 2026). With `trust_checkpoint` a checkpoint may run code while it is loaded."""
    torch = import_module("torch")
    where = _device(device)
    # The settings of its authors' script: depth limits in metres, and the fit to the measurements at the end.
    settings = SimpleNamespace(init_scailing=True, stage=1, max_depth=1e3, min_depth=1e-6)
    model = import_module("model.ours.any2full").Any2Full(encoder=encoder, da_ckpt_path=None, args=settings)
    try:
        stored = torch.load(checkpoint, map_location="cpu", weights_only=not trust_checkpoint)
    except Exception as error:
        if trust_checkpoint:
            raise
        raise RuntimeError(
            f"{checkpoint} holds more than weights, or is damaged ({str(error)[:120]}). If you trust its source, set "
            "the option trust_checkpoint=true."
        ) from error
    weights = stored.get("state_dict", stored)
    model.load_state_dict({name.replace("module.", ""): value for name, value in weights.items()}, strict=True)
    model = model.to(where).eval()

    def predict(job: SimpleNamespace) -> Any:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model({"rgb": _rgb(job.image, where, normalised=True), "dep": _map(job.sparse, where)})["pred"]

    return predict


def omni_dc(*, device: str = "auto", checkpoint: str = "zuoym15/OMNI-DC") -> Predict:
    """OMNI-DC 1.1 (Zuo et al. 2025), with the settings of its demonstration."""
    # Its configuration parses the command line when it is imported.
    settings = (
        "max_depth=300.0 data_normalize_median=1 num_resolution=3 load_dav2=1 gpus=0 GRU_iters=1 "
        "multi_resolution_learnable_gradients_weights=uniform optim_layer_input_clamp=1.0 depth_activation_format=exp "
        "whiten_sparse_depths=1 gru_internal_whiten_method=median backbone_mode=rgbd pred_confidence_input=1"
    )
    sys.argv[1:] = [f"--{setting}" for setting in settings.split()]
    args = import_module("config").args
    torch = import_module("torch")
    where = _device(device)
    model = import_module("model.ognidc").OGNIDC.from_pretrained(checkpoint, args=args).to(where).eval()
    multiple = 4 * 2 ** (args.num_resolution - 1)

    def predict(job: SimpleNamespace) -> Any:
        height, width = job.sparse.shape
        margin = (0, -width % multiple, 0, -height % multiple)  # to the right and below
        pad = torch.nn.functional.pad
        intrinsics = np.eye(3, dtype=np.float32)
        if job.intrinsics:
            intrinsics[0, 0], intrinsics[1, 1] = job.intrinsics["fx"], job.intrinsics["fy"]
            intrinsics[:2, 2] = job.intrinsics["cx"], job.intrinsics["cy"]
        sample = {
            "rgb": pad(_rgb(job.image, where, normalised=True), margin),
            "dep": pad(_map(job.sparse, where), margin),
            "K": torch.from_numpy(intrinsics[None]).to(where),
            "pattern": 0,
        }
        with torch.no_grad():
            return model(sample)["pred"][..., :height, :width]

    return predict


def marigold_dc(
    *,
    device: str = "auto",
    checkpoint: str = "prs-eth/marigold-depth-v1-0",
    steps: int | None = None,
    ensemble_size: int = 1,
    processing_resolution: int | None = None,
    dtype: str = "bfloat16",
    tiny_vae: str | None = None,
    seed: int = 2024,
) -> Predict:
    """Marigold-DC (Viola et al. 2025). By default 50 steps at 768 pixels; without CUDA 10 at 512, as in its script."""
    diffusers, torch = import_module("diffusers"), import_module("torch")
    pipeline = import_module("marigold_dc").MarigoldDepthCompletionPipeline
    as_pil = import_module("PIL.Image").fromarray
    where = _device(device)
    number_type = getattr(torch, dtype)
    pipe = pipeline.from_pretrained(checkpoint, prediction_type="depth").to(where, dtype=number_type)
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, timestep_spacing="trailing")
    if tiny_vae is not None:
        pipe.vae = diffusers.AutoencoderTiny.from_pretrained(tiny_vae).to(where, dtype=number_type)
    fast = where.startswith("cuda")

    def predict(job: SimpleNamespace) -> Any:
        return pipe(
            image=as_pil(job.image),
            sparse_depth=job.sparse,
            num_inference_steps=(50 if fast else 10) if steps is None else steps,
            ensemble_size=ensemble_size,
            processing_resolution=(768 if fast else 512) if processing_resolution is None else processing_resolution,
            seed=seed,
        )

    return predict


def tuned_prompt(
    *,
    device: str = "auto",
    checkpoint: str = "lpiccinelli/unidepth-v2old-vitl14",
    steps: int = 50,
    rate: float = 2e-3,
    seed: int = 2025,
) -> Predict:
    """TestPromptDC (Jeong et al. 2025): an image is added to the picture so that UniDepth agrees with the measurements.

    Its script has no function for one picture, so that the descent is written here, with the settings of that script:
    `steps` of AdamW of `rate` on the mean absolute error plus the RMSE at the measurements, after the line in depth by
    least squares that each prediction gets.
    """
    torch = import_module("torch")
    where = _device(device)
    model = import_module("unidepth_custom.models").UniDepthV2.from_pretrained(checkpoint).to(where)
    model.requires_grad_(False)

    def predict(job: SimpleNamespace) -> Any:
        torch.manual_seed(seed)
        sparse = _map(job.sparse, where)
        measured = sparse > 0
        resize = torch.nn.functional.interpolate
        picture = resize(_rgb(job.image, where), (476, 630), mode="bilinear", align_corners=False)
        prompt = torch.nn.Parameter(torch.zeros_like(picture))
        optimiser = torch.optim.AdamW([prompt], lr=rate)
        for _ in range(steps):
            depth = model({"image": picture + prompt, "depth": sparse}, {})["depth"]
            known = depth[measured]
            line = torch.pinverse(torch.stack([known, torch.ones_like(known)], dim=1)) @ sparse[measured]
            depth = depth * line[0] + line[1]
            error = depth[measured] - sparse[measured]
            optimiser.zero_grad()
            (error.abs().mean() + (error**2).mean().sqrt()).backward()
            optimiser.step()
        return depth

    return predict


SYSTEMS: dict[str, Callable[..., Predict]] = {
    "priorda": priorda,
    "ldcm": ldcm,
    "any2full": any2full,
    "omni-dc": omni_dc,
    "marigold-dc": marigold_dc,
    "testpromptdc": tuned_prompt,
}


def _device(name: str) -> str:
    return ("cuda:0" if import_module("torch").cuda.is_available() else "cpu") if name == "auto" else name


def _rgb(image: Any, device: str, normalised: bool = False) -> Any:
    """The image as (1, 3, H, W) in [0, 1], or normalised by the mean and deviation of ImageNet."""
    values = image.astype(np.float32) / 255.0
    if normalised:
        values = (values - np.array((0.485, 0.456, 0.406), np.float32)) / np.array((0.229, 0.224, 0.225), np.float32)
    return import_module("torch").from_numpy(values.transpose(2, 0, 1)[None].copy()).to(device)


def _map(values: Any, device: str) -> Any:
    return import_module("torch").from_numpy(values[None, None].copy()).to(device)


def _versions(system: str, repo: str | None) -> dict[str, str]:
    """The versions that identify a prediction: of the package, the repository's commit, torch and Python."""
    found = {"python": sys.version.split()[0]}
    with suppress(Exception):  # it may not be installed as a package
        found["version"] = import_module("importlib.metadata").version(MODULES[system].split(".")[0])
    commit = _commit(repo) if repo else None
    if commit:
        found["commit"] = commit
    if "torch" in sys.modules:
        found["torch"] = str(getattr(sys.modules["torch"], "__version__", "?"))
    return found


def _commit(repo: str) -> str | None:
    """The commit of a checkout, read without git; None if it cannot be found."""
    folder = Path(repo, ".git")
    try:
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:40]
        name = head[5:]
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").strip()[:40]
        lines = (folder / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line[:40] for line in lines if line.rstrip().endswith(" " + name)), None)
    except OSError:
        return None


def _run_job(folder: str, predict: Predict) -> dict[str, Any]:
    """Read a job, predict, write the depth, and return the answer."""
    files = {name: os.path.join(folder, name + ".npy") for name in ("image", "sparse", "prior")}
    arrays = {name: np.load(file, allow_pickle=False) for name, file in files.items() if os.path.exists(file)}
    job = SimpleNamespace(**{"prior": None, **arrays})
    job.intrinsics = json.loads(Path(folder, "job.json").read_text(encoding="utf-8"))["intrinsics"]
    begun = time.perf_counter()
    found = predict(job)
    if hasattr(found, "detach"):
        found = found.detach().float().cpu().numpy()  # also waits for the device
    seconds = time.perf_counter() - begun
    depth = np.squeeze(np.asarray(found))
    if depth.dtype.kind not in "fiu":
        raise TypeError(f"it returned {type(found).__name__} of {depth.dtype}, expected depth in metres")
    target = os.path.join(folder, "depth.npy")
    with open(target + ".part", "wb") as file:
        np.save(file, depth.astype(np.float32), allow_pickle=False)
    os.replace(target + ".part", target)
    return {"job": folder, "seconds": seconds}


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _queue_commands(channel: Any, lines: Any, work: str) -> None:
    """Queue the commands; when they end, leadline has ended, so end everything, whatever the system is doing."""
    for line in channel:
        lines.put(line)
    shutil.rmtree(work, ignore_errors=True)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # including processes that the system has started
    os._exit(0)


def main() -> int:
    """Serve until the standard input ends; the exit code is 1 if the system could not be loaded."""
    # Systems print, and some read from the terminal. Commands and answers therefore use private descriptors that no
    # child inherits; what a system prints goes to the standard error, and reading returns end of file.
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    first = json.loads(commands.readline())
    system, repo = first["system"], first["repo"]
    lines: Any = queue.Queue()
    threading.Thread(target=_queue_commands, args=(commands, lines, first["work"]), daemon=True).start()
    try:
        # Modules in the folder of this file would be found in place of the system's.
        own = os.path.dirname(os.path.realpath(__file__))
        sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != own]
        if repo:
            home = os.path.join(repo, SOURCES.get(system, ""))
            os.chdir(home)  # some systems load files by relative paths
            sys.path.insert(0, home)
        if first["check"]:
            import_module(MODULES[system])
        else:
            predict = SYSTEMS[system](**first["options"])
    except BaseException as error:  # a configuration that parses the command line may raise SystemExit
        answer({"failed": _reason(error)})
        return 1
    answer({"ready": _versions(system, repo)})
    while not first["check"]:
        folder = lines.get().rstrip("\n")
        try:
            answer(_run_job(folder, predict))
        except Exception as error:
            answer({"job": folder, "failed": _reason(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
