"""`leadline.torch` beside other solvers and alignments for tensors, on the CPU and in one run.

    python benchmarks/torch_peers.py
    python benchmarks/torch_peers.py --omni-dc PATH --moge PATH      # with checkouts of these repositories
    python benchmarks/torch_peers.py --sizes 240x320 --batches 1 8 --threads 2 --json results.json

Four tables. *solve*: one system (unit gradient weights, soft measurements at every eighth pixel) by the tensor
multigrid, by OMNI-DC's depth integrator (DDI; Zuo and Deng, 2024; its own code), by conjugate gradients on torch's
sparse matrix with a Jacobi preconditioner, and by SuperLU. Ours stops at the true residual that DDI reached. *align*:
gain and offset with a tenth of outliers, beside MoGe's functions (Wang et al., 2025; their own code), which get
MOGE_PAIRS pairs because their memory grows with the square. *complete*: the whole completion, in units of
`leadline.complete`. *kernels*: operations and bytes of a completion with eight fixed iterations, and from them a
projection, not a measurement, of the time on a GPU. Times are the least of `--repeats`, alternating between the
candidates; memory is the peak of live tensor bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import leadline
import leadline.torch as lt
from leadline.torch.solve import System, solve
from leadline.torch.stencils import unit_graph

STRIDE, WEIGHT, TOLERANCE = 8, 5.0, 1e-5
SCREENING = 1e-6  # of ours alone; DDI has none, and the measurements make its system definite
MOGE_PAIRS = 2048
DIRECT_LIMIT = 400_000  # pixels: beyond it SuperLU takes minutes and gigabytes
GPU, GPU_BANDWIDTH, GPU_LAUNCH = "A100 (80 GB)", 1.5e12, 3e-6  # bytes per second reached in practice; seconds a kernel
VIEWS = (
    "view",
    "slice",
    "unsqueeze",
    "squeeze",
    "expand",
    "select",
    "unbind",
    "permute",
    "transpose",
    "unfold",
    "alias",
)

Run = Callable[[], Tensor]


class Traffic(TorchDispatchMode):
    """Counts kernels and the bytes that they read and write, and follows the bytes of all live tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.moved = self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not str(function).split(".")[1].startswith(VIEWS):
            self.kernels += 1
            inputs = [x for x in tree_leaves((arguments, options)) if isinstance(x, Tensor)]
            self.moved += sum(x.numel() * x.element_size() for x in (*inputs, *outputs))
        for x in (x for x in outputs if x.layout is torch.strided):  # a sparse tensor consists of strided ones
            self._follow(x.untyped_storage())
        return result

    def _follow(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def make_problem(height: int, width: int, batch: int) -> tuple[Tensor, Tensor]:
    """Residuals to interpolate, and where they are measured; (B, H, W)."""
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    fields = [0.1 * np.sin(6 * rows + k) * np.cos(5 * columns - k) for k in range(batch)]
    mask = np.zeros((batch, height, width), bool)
    mask[:, STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE] = True
    return torch.tensor(np.stack(fields)), torch.tensor(mask)


def make_scene(height: int, width: int, batch: int) -> tuple[Tensor, Tensor]:
    """A prior and measurements at every eighth pixel; (B, H, W) float32."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[0:height, 0:width] / height
    detail = 0.1 * np.sin(40 * columns) * np.sin(33 * rows)
    prior = np.stack([1 + rows + 0.3 * np.sin(5 * columns + k) + detail for k in range(batch)])
    depth = 2.5 * prior**1.2 * np.exp(0.03 * np.sin(7 * rows))
    sparse = np.zeros_like(prior)
    there = (slice(None), slice(STRIDE // 2, None, STRIDE), slice(STRIDE // 2, None, STRIDE))
    sparse[there] = depth[there] * (1 + 0.003 * generator.normal(size=depth[there].shape))
    return torch.tensor(prior).float(), torch.tensor(sparse).float()


def system_of(mask: Tensor) -> System:
    valid = torch.ones_like(mask)
    mass = SCREENING + WEIGHT * mask.float()
    return System(valid, valid, unit_graph(valid), mass, torch.zeros((mask.shape[0], 1, 1)))


def true_residual(field: Tensor, values: Tensor, mask: Tensor) -> float:
    rhs = WEIGHT * mask * values
    residual = system_of(mask).residual(field.detach().double(), rhs)
    return float((residual.flatten(1).norm(dim=1) / rhs.flatten(1).norm(dim=1)).max())


def run_leadline(values: Tensor, mask: Tensor, tolerance: float) -> tuple[Run, dict[str, Any]]:
    targets = values.clone().requires_grad_()
    facts: dict[str, Any] = {}

    def forward() -> Tensor:
        rhs = WEIGHT * mask * targets
        solution = solve(system_of(mask), rhs, rhs, torch.zeros_like(rhs), tolerance=tolerance, max_iterations=200)
        facts.update(iterations=int(solution.iterations.max()))
        return solution.field

    return forward, facts


def run_omni_dc(values: Tensor, mask: Tensor, layer: Any) -> tuple[Run, dict[str, Any]]:
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
        return field[:, 0]

    return forward, facts


def sparse_matrix(mask: Any) -> Any:
    from scipy import sparse

    height, width = mask.shape
    line = [sparse.diags([np.full(n - 1, 1.0)], [1]) for n in (height, width)]
    adjacency = sparse.kron(line[0], sparse.eye(width)) + sparse.kron(sparse.eye(height), line[1])
    adjacency = adjacency + adjacency.T
    laplacian = sparse.diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency
    return (laplacian + sparse.diags(SCREENING + WEIGHT * mask.ravel())).tocsr()


def run_superlu(values: Tensor, mask: Tensor, tolerance: float) -> tuple[Run, dict[str, Any]]:
    from scipy.sparse.linalg import splu

    def forward() -> Tensor:
        pairs = zip(values.numpy(), mask.numpy(), strict=True)
        fields = [splu(sparse_matrix(m).tocsc()).solve(WEIGHT * (v * m).ravel()).reshape(v.shape) for v, m in pairs]
        return torch.tensor(np.stack(fields))

    return forward, {"iterations": 1}


def run_torch_sparse(values: Tensor, mask: Tensor, tolerance: float) -> tuple[Run, dict[str, Any]]:
    """Conjugate gradients with a Jacobi preconditioner on torch's CSR matrix, which all items share."""
    matrix = sparse_matrix(mask[0].numpy())
    csr = torch.sparse_csr_tensor(matrix.indptr, matrix.indices, matrix.data, matrix.shape)
    inverse = 1.0 / torch.tensor(matrix.diagonal())[:, None]
    facts: dict[str, Any] = {}

    @torch.no_grad()
    def forward() -> Tensor:
        b = (WEIGHT * mask * values).flatten(1).T.contiguous()
        x, r, p, before, size = torch.zeros_like(b), b, torch.zeros_like(b), None, b.norm(dim=0)
        steps = 0
        while steps < 1000 and bool((r.norm(dim=0) > tolerance * size).any()):
            steps += 1
            z = inverse * r
            product = (r * z).sum(0)
            p = z if before is None else z + product / before * p
            q = csr @ p
            length = product / (p * q).sum(0)
            x, r, before = x + length * p, r - length * q, product
        facts.update(iterations=steps)
        return x.T.reshape(mask.shape)

    return forward, facts


def measure(candidates: dict[str, tuple[Run, dict[str, Any]]], repeats: int) -> dict[str, dict[str, Any]]:
    """Seconds forward and backward, the least of all repeats, alternating; and the peak memory of one more run."""
    rows: dict[str, dict[str, Any]] = {name: {"forward": np.inf, "backward": np.inf} for name in candidates}
    for _ in range(repeats + 1):  # the first one compiles, loads and allocates
        for name, (forward, _) in candidates.items():
            begun = time.perf_counter()
            result = forward()
            rows[name]["forward"] = min(rows[name]["forward"], time.perf_counter() - begun)
            if result.requires_grad:
                begun = time.perf_counter()
                torch.nan_to_num(result).square().mean().backward()
                rows[name]["backward"] = min(rows[name]["backward"], time.perf_counter() - begun)
    for name, (forward, facts) in candidates.items():
        with Traffic() as traffic:
            result = forward()
            if result.requires_grad:
                torch.nan_to_num(result).square().mean().backward()
        rows[name].update(facts, peak=traffic.peak, result=result.detach())
        if not np.isfinite(rows[name]["backward"]):
            rows[name]["backward"] = None
    return rows


def solve_table(height: int, width: int, batch: int, arguments: Any) -> list[dict[str, Any]]:
    values, mask = make_problem(height, width, batch)
    candidates: dict[str, tuple[Run, dict[str, Any]]] = {}
    tolerance = TOLERANCE
    if arguments.omni_dc:
        sys.path.insert(0, str(arguments.omni_dc / "src" / "model"))
        layer = importlib.import_module("optim_layer.optim_layer").DepthGradOptimLayer
        candidates["DDI of OMNI-DC"] = run_omni_dc(values, mask, layer)
        tolerance = true_residual(candidates["DDI of OMNI-DC"][0](), values, mask)
    candidates["leadline.torch"] = run_leadline(values, mask, tolerance)
    candidates["torch.sparse, Jacobi"] = run_torch_sparse(values, mask, tolerance)
    if height * width * batch <= DIRECT_LIMIT:
        candidates["SuperLU"] = run_superlu(values, mask, tolerance)
    rows = measure(candidates, arguments.repeats)
    for row in rows.values():
        row["error"] = true_residual(row.pop("result"), values, mask)
    return [{"table": "solve", "candidate": name, **row} for name, row in rows.items()]


def align_table(height: int, width: int, batch: int, arguments: Any) -> list[dict[str, Any]]:
    """Gain and offset in depth; the error is the mean relative one of the calibrated map."""
    prior, _ = make_scene(height, width, batch)
    truth = 2.0 * prior + 0.5
    generator = torch.Generator().manual_seed(0)
    _, mask = make_problem(height, width, batch)
    wrong = torch.rand(prior.shape, generator=generator) < 0.1
    sparse = torch.where(mask, torch.where(wrong, 2.0 * truth, truth), torch.zeros_like(truth))
    prior.requires_grad_()
    candidates: dict[str, tuple[Run, dict[str, Any]]] = {
        f"align, {loss}": (lambda loss=loss: lt.align(prior, sparse, "depth", loss=loss).calibrated, {})
        for loss in ("squared", "cauchy")
    }
    candidates["align, response"] = (lambda: lt.align(prior, sparse, loss="cauchy").calibrated, {})
    if arguments.moge:
        sys.modules.setdefault("utils3d", types.ModuleType("utils3d"))  # imported there, and not used by these
        sys.path.insert(0, str(arguments.moge))
        moge = importlib.import_module("moge.utils.alignment")
        where = torch.nonzero(mask[0].flatten()).squeeze(1)
        where = where[:: -(-where.numel() // MOGE_PAIRS)]
        for name in ("align_depth_affine", "align_affine_lstsq"):

            def run(name: str = name) -> Tensor:
                source, target = (x.flatten(1)[:, where] for x in (prior, sparse))
                scale, shift = getattr(moge, name)(source, target, torch.ones_like(source))
                return scale[:, None, None] * prior + shift[:, None, None]

            candidates[f"MoGe's {name}"] = (run, {})
    rows = measure(candidates, arguments.repeats)
    for row in rows.values():
        row["error"] = float((row.pop("result") / truth - 1).abs().mean())
    return [{"table": "align", "candidate": name, **row} for name, row in rows.items()]


def complete_table(height: int, width: int, batch: int, arguments: Any) -> list[dict[str, Any]]:
    """The error is the largest relative difference from `leadline.complete`."""
    prior, sparse = make_scene(height, width, batch)
    table = []
    for preset in ("paper", "best"):

        def core(preset: str = preset) -> Tensor:
            pairs = zip(prior.numpy(), sparse.numpy(), strict=True)
            return torch.tensor(np.stack([leadline.complete(p, s, options=preset).depth for p, s in pairs]))

        def tensors(backend: Any, preset: str = preset) -> Tensor:
            inputs = prior.clone().requires_grad_(), sparse.clone().requires_grad_()
            return lt.complete(*inputs, options=preset, backend=backend).depth

        candidates: dict[str, tuple[Run, dict[str, Any]]] = {f"leadline.complete, {preset}": (core, {})}
        for backend in ("core", "tensor"):
            candidates[f"lt.complete, {preset}, {backend}"] = (lambda backend=backend: tensors(backend), {})
        rows = measure(candidates, arguments.repeats)
        reference = rows[f"leadline.complete, {preset}"]
        expected = reference["result"]
        for name, row in rows.items():
            row["error"] = float((row.pop("result") / expected - 1).abs().max())
            row["ratio"] = [None if row[side] is None else row[side] / reference["forward"] for side in SIDES]
            table.append({"table": "complete", "candidate": name, **row})
    return table


SIDES = ("forward", "backward")


def kernel_table(height: int, width: int, batch: int, arguments: Any) -> list[dict[str, Any]]:
    prior, sparse = make_scene(height, width, batch)
    with torch.no_grad(), Traffic() as traffic:
        lt.complete(prior, sparse, options="paper", iterations=8)
    seconds = max(traffic.kernels * GPU_LAUNCH, traffic.moved / GPU_BANDWIDTH)
    row = {"kernels": traffic.kernels, "moved": traffic.moved, "peak": traffic.peak, "projected": seconds}
    pixels = height * width * batch
    print(
        f"  {traffic.kernels} kernels, {traffic.moved / pixels:.0f} bytes moved and {traffic.peak / pixels:.0f} bytes "
        f"of memory a pixel; projection for one {GPU}: {1e3 * seconds:.1f} ms"
    )
    return [{"table": "kernels", "candidate": "lt.complete, paper, iterations=8", **row}]


def show(rows: list[dict[str, Any]], pixels: int) -> None:
    for row in rows:
        if row["table"] == "kernels":
            continue
        back = "-" if row["backward"] is None else f"{row['backward']:.3f} s"
        ratio = "".join(f", {value:.2f} x" for value in row.get("ratio", ()) if value is not None)
        steps = f"{row['iterations']} iterations, " if "iterations" in row else ""
        print(
            f"  {row['candidate']:30} {steps}forward {row['forward']:.3f} s, backward {back}, "
            f"{row['peak'] / pixels:.0f} bytes a pixel, error {row['error']:.1e}{ratio}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"solve": solve_table, "align": align_table, "complete": complete_table, "kernels": kernel_table}
    parser.add_argument("--sizes", nargs="+", default=["240x320", "480x640", "1024x1024"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--omni-dc", type=Path, help="checkout of princeton-vl/OMNI-DC")
    parser.add_argument("--moge", type=Path, help="checkout of microsoft/MoGe")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    numba.set_num_threads(min(arguments.threads, numba.config.NUMBA_NUM_THREADS))
    rows = []
    for size in arguments.sizes:
        height, width = map(int, size.split("x"))
        for batch in arguments.batches:
            for name in arguments.tables:
                print(f"{name}, {size}, batch {batch}", flush=True)
                found = tables[name](height, width, batch, arguments)
                show(found, height * width * batch)
                rows += [{"size": size, "batch": batch, **row} for row in found]
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
