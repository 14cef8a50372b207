"""The tensor solver beside other differentiable solvers, on the CPU and in one run.

    python benchmarks/torch_peers.py
    python benchmarks/torch_peers.py --omni-dc PATH        # with a checkout of OMNI-DC's repository
    python benchmarks/torch_peers.py --sizes 240x320 --batches 1 8 --threads 2 --json results.json

All solve the same system: unit gradient weights on log depth and soft measurements on a grid of every eighth pixel.
Reported are iterations, seconds forward and backward (median of `--repeats`) and the true relative residual. Peers: the
depth integrator of OMNI-DC (DDI; Zuo and Deng, 2024; its own code, read from `--omni-dc`) and a sparse direct solve
(SciPy's SuperLU).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.torch.solve import System, solve
from leadline.torch.stencils import unit_graph

STRIDE, WEIGHT, TOLERANCE = 8, 5.0, 1e-5
SCREENING = 1e-6  # of ours alone; DDI has none, and the measurements make its system definite


def make_problem(height: int, width: int, batch: int) -> tuple[Tensor, Tensor]:
    """Residuals to interpolate, and where they are measured; (B, H, W)."""
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    fields = [0.1 * np.sin(6 * rows + k) * np.cos(5 * columns - k) for k in range(batch)]
    mask = np.zeros((batch, height, width), bool)
    mask[:, STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE] = True
    return torch.tensor(np.stack(fields)), torch.tensor(mask)


def system_of(mask: Tensor) -> System:
    valid = torch.ones_like(mask)
    mass = SCREENING + WEIGHT * mask.float()
    return System(valid, valid, unit_graph(valid), mass, torch.zeros((mask.shape[0], 1, 1)))


def run_leadline(values: Tensor, mask: Tensor) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    targets = values.clone().requires_grad_()
    facts: dict[str, Any] = {}

    def forward() -> Tensor:
        system = system_of(mask)
        rhs = WEIGHT * mask * targets
        solution = solve(system, rhs, rhs, torch.zeros_like(rhs), tolerance=TOLERANCE, max_iterations=200)
        facts.update(iterations=int(solution.iterations.max()), residual=float(solution.residual.max()))
        return solution.field

    return forward, facts


def run_omni_dc(values: Tensor, mask: Tensor, layer: Any) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    """DDI on the same system: gradients zero, confidences one, sparse depth the residuals."""
    batch, height, width = mask.shape
    gradients = torch.zeros(batch, 2, height, width, requires_grad=True)
    sparse, valid = (values * mask).float()[:, None], mask.float()[:, None]
    ones = torch.ones_like(gradients)
    facts: dict[str, Any] = {}
    module = importlib.import_module(layer.__module__)
    plain = module.cg_batch

    def counted(*arguments: Any, **options: Any) -> Any:
        result, info = plain(*arguments, **options)
        facts.setdefault("iterations", info["niter"])
        return result, info

    def forward() -> Tensor:
        facts.pop("iterations", None)
        module.cg_batch = counted
        field, _ = layer.apply(
            gradients, sparse, valid, ones, torch.ones_like(sparse), 1, None, None, WEIGHT, TOLERANCE, 1000
        )
        module.cg_batch = plain
        system = system_of(mask)
        rhs = WEIGHT * mask * values
        residual = system.residual(field[:, 0].double().detach(), rhs)
        facts["residual"] = float((residual.norm() / rhs.norm()).detach())
        return field

    return forward, facts


def run_direct(values: Tensor, mask: Tensor) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    from scipy import sparse
    from scipy.sparse.linalg import splu

    _, height, width = mask.shape
    line = [sparse.diags([np.full(n - 1, 1.0)], [1]) for n in (height, width)]
    adjacency = sparse.kron(line[0], sparse.eye(width)) + sparse.kron(sparse.eye(height), line[1])
    adjacency = adjacency + adjacency.T
    laplacian = sparse.diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency
    facts: dict[str, Any] = {"iterations": 1, "residual": 0.0}

    def forward() -> Tensor:
        fields = []
        for field, where in zip(values.numpy(), mask.numpy(), strict=True):
            matrix = laplacian + sparse.diags(SCREENING + WEIGHT * where.ravel())
            fields.append(splu(matrix.tocsc()).solve(WEIGHT * (field * where).ravel()).reshape(field.shape))
        return torch.tensor(np.stack(fields))

    return forward, facts


def measure(forward: Callable[[], Tensor], facts: dict[str, Any], repeats: int) -> dict[str, Any]:
    forward()  # compiles, loads, allocates
    ahead, back = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        field = forward()
        ahead.append(time.perf_counter() - begun)
        if field.requires_grad:
            begun = time.perf_counter()
            field.square().sum().backward()
            back.append(time.perf_counter() - begun)
    return {**facts, "forward": statistics.median(ahead), "backward": statistics.median(back) if back else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["240x320", "480x640", "1024x1024"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--omni-dc", type=Path, help="checkout of princeton-vl/OMNI-DC")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    peers: dict[str, Callable[..., Any]] = {"leadline.torch": run_leadline, "SuperLU": run_direct}
    if arguments.omni_dc:
        sys.path.insert(0, str(arguments.omni_dc / "src" / "model"))
        layer = importlib.import_module("optim_layer.optim_layer").DepthGradOptimLayer
        peers["DDI"] = lambda values, mask: run_omni_dc(values, mask, layer)
    rows = []
    for size in arguments.sizes:
        height, width = map(int, size.split("x"))
        for batch in arguments.batches:
            values, mask = make_problem(height, width, batch)
            for name, peer in peers.items():
                if name == "SuperLU" and height * width * batch > 400_000:
                    continue  # minutes and gigabytes
                row = {"solver": name, "size": size, "batch": batch, **measure(*peer(values, mask), arguments.repeats)}
                rows.append(row)
                back = "-" if row["backward"] is None else f"{row['backward']:.3f} s"
                print(
                    f"{name:15} {size:>10} batch {batch}: {row['iterations']:4d} iterations, "
                    f"residual {row['residual']:.1e}, "
                    f"forward {row['forward']:.3f} s, backward {back}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
