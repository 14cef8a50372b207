"""Run times of other solvers on the same linear system, with set-up, to the same relative residual.

Each solver is used as its documentation recommends for a symmetric positive definite matrix, not with slower defaults.
The time of assembling the matrix is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter, sleep
from typing import Any
from unittest import mock

import numba
import numpy as np
from numpy.typing import NDArray
from timing import Size, Times, scene, stopwatch

from leadline.base.arrays import BoolArray
from leadline.bench.observations import Case
from leadline.core import pipeline
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels, reconstruction
from leadline.core.solve.system import System as Ours

OURS = "leadline, multigrid"
OURS_ONE_THREAD = "leadline, multigrid, one thread"
PAPER = "leadline, jacobi (the paper's)"
SCIPY_CG = "SciPy, CG with Jacobi"
PYAMG = "pyamg, smoothed aggregation + CG"
PYAMG_CLASSICAL = "pyamg, Ruge–Stüben + CG"
SUPERLU = "SciPy, SuperLU"
PARDISO = "PyPardiso, Cholesky"

LONGEST = 5.0  # seconds; a solver that is expected to take longer is left out at that size
BUDGET = 4.0  # seconds; a solver that has used more is not repeated
SWEEP_REPEATS = 3  # at most; the sweep is for the figure, the table compares the solvers at one size
UNLIMITED = 100_000  # iterations, instead of the paper's limit of 500
# Largest difference from our solution, in units of the largest log residual. Right solutions of relative residual 1e-6
# were seen to differ by up to 1e-5; a system without its smallest term, the one in A^2, by 1e-3.
AGREEMENT = 1e-4
# Seconds between solvers: some keep their threads spinning for up to 0.2 s after a call, which would slow the next one.
PAUSE = 0.25

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """Result of one run of a solver; `setup` is the time of the part that does not use the right-hand side."""

    x: Vector
    setup: float | None
    iterations: int | None


@dataclass(frozen=True)
class SolverTimes:
    """Times of one solver on one system; `trouble` is the reason if they are missing."""

    solver: str
    times: Times | None = None
    setup: Times | None = None
    iterations: int | None = None
    residual: float = float("nan")
    difference: float = float("nan")
    trouble: str = ""


@dataclass(frozen=True)
class System:
    """The system Q_UU r_U = b: the inputs of our solver, and an explicit matrix for the others."""

    valid: BoolArray  # (H, W)
    where: NDArray[np.intp]  # (n,) flat indices of the measured pixels
    values: Vector  # (n,) their log residuals
    options: ReconstructionOptions

    @classmethod
    def of(cls, size: Size, case: Case) -> System:
        """The system that is solved in a completion of the test scene."""
        recorded: list[System] = []

        class RecordingSystem(Ours):
            def __init__(self, valid: BoolArray, where: NDArray[np.intp], options: Any, **more: Any) -> None:
                super().__init__(valid, where, options, **more)
                self._given = valid, where

            def solve(self, values: Vector, **more: Any) -> Any:
                recorded.append(cls(*self._given, values, self.options))
                return super().solve(values, **more)

        with mock.patch.object(reconstruction, "System", RecordingSystem):
            pipeline.complete(*scene(size, case), options="paper")
        return recorded[0]

    @cached_property  # used inside the timed part
    def free(self) -> NDArray[np.intp]:
        """Flat indices of the unknowns in the padded image."""
        code = Ours(self.valid, self.where, self.options).operator.code
        return np.flatnonzero(code.ravel() >= kernels.FREE)

    @property
    def field(self) -> Vector:
        """The measured residuals in the padded image, zero elsewhere."""
        field = np.zeros(self.valid.shape)
        field.flat[self.where] = self.values
        return np.pad(field, 1)

    def assemble(self) -> tuple[Any, Vector]:
        """Q_UU as a CSR matrix and b = -Q_UF r_F, assembled from the graph, independently of the kernels."""
        from scipy import sparse

        valid = np.pad(self.valid, 1)
        index = np.arange(valid.size).reshape(valid.shape)
        across, down = valid[:, :-1] & valid[:, 1:], valid[:-1] & valid[1:]
        first = np.concatenate((index[:, :-1][across], index[:-1][down]))
        second = np.concatenate((index[:, 1:][across], index[1:][down]))
        edges = np.arange(first.size)
        gradient = sparse.csr_array(
            (np.repeat((1.0, -1.0), first.size), (np.tile(edges, 2), np.concatenate((first, second)))),
            shape=(first.size, valid.size),
        )
        graph = (gradient.T @ gradient).tocsr()
        weights = self.options
        operator = weights.weight_gradient * graph + weights.weight_data * sparse.eye_array(valid.size)
        if weights.weight_laplacian:
            operator = operator + weights.weight_laplacian * (graph @ graph)
        free = self.free
        rows = operator.tocsr()[free]
        # The field is zero at the unknowns, so that the product is that of its fixed part.
        rhs = -(rows @ self.field.ravel())
        # pyamg and PyPardiso take the older matrix class.
        matrix = sparse.csr_matrix(rows[:, free])
        matrix.sort_indices()
        return matrix, rhs


# --- our own solvers --------------------------------------------------------------------------------------------------


def _ours(system: System, options: ReconstructionOptions) -> Outcome:
    with stopwatch() as seconds:
        solution = Ours(system.valid, system.where, options).solve(system.values)
    return Outcome(solution.field.ravel()[system.free], seconds.get("set-up"), solution.iterations)


def _multigrid(system: System) -> Outcome:
    return _ours(system, system.options)


def _multigrid_one_thread(system: System) -> Outcome:
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        return _multigrid(system)
    finally:
        numba.set_num_threads(threads)


def _paper(system: System) -> Outcome:
    return _ours(system, replace(system.options, solver="jacobi", max_iterations=UNLIMITED))


# --- other solvers: each function imports its package and returns the function that solves ----------------------------

Solve = Callable[[Any, Vector, float], Outcome]


def _scipy_cg() -> Solve:
    from scipy.sparse import linalg

    def run(matrix: Any, rhs: Vector, tolerance: float) -> Outcome:
        start = perf_counter()
        inverse = 1.0 / matrix.diagonal()
        jacobi = linalg.LinearOperator(matrix.shape, matvec=lambda r: inverse * r, dtype=np.float64)
        setup = perf_counter() - start
        steps: list[None] = []
        x, _ = linalg.cg(
            matrix, rhs, rtol=tolerance, maxiter=UNLIMITED, M=jacobi, callback=lambda _: steps.append(None)
        )
        return Outcome(x, setup, len(steps))

    return run


def _superlu() -> Solve:
    from scipy.sparse import linalg

    def run(matrix: Any, rhs: Vector, tolerance: float) -> Outcome:
        start = perf_counter()
        # For a symmetric pattern without pivoting: 2 to 3 times as fast here as the default ordering.
        factors = linalg.splu(
            matrix.T, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
        setup = perf_counter() - start
        return Outcome(factors.solve(rhs), setup, None)

    return run


def _pyamg(classical: bool) -> Callable[[], Solve]:
    def load() -> Solve:
        import pyamg

        build = pyamg.ruge_stuben_solver if classical else pyamg.smoothed_aggregation_solver

        def run(matrix: Any, rhs: Vector, tolerance: float) -> Outcome:
            start = perf_counter()
            hierarchy = build(matrix)
            setup = perf_counter() - start
            residuals: list[float] = []
            x = hierarchy.solve(rhs, tol=tolerance, accel="cg", residuals=residuals)
            return Outcome(x, setup, len(residuals) - 1)

        return run

    return load


def _pardiso() -> Solve:
    import pypardiso
    from scipy import sparse

    def run(matrix: Any, rhs: Vector, tolerance: float) -> Outcome:
        start = perf_counter()
        # Type 2, positive definite, needs the upper triangle: 3 times as fast here as the unsymmetric default.
        solver = pypardiso.PyPardisoSolver(mtype=2)
        upper = sparse.triu(matrix, format="csr")
        solver.factorize(upper)
        setup = perf_counter() - start
        x = solver.solve(upper, rhs)
        solver.free_memory(everything=True)
        return Outcome(x, setup, None)

    return run


LOADERS: dict[str, Callable[[], Solve]] = {
    SCIPY_CG: _scipy_cg,
    PYAMG: _pyamg(classical=False),
    PYAMG_CLASSICAL: _pyamg(classical=True),
    PARDISO: _pardiso,
    SUPERLU: _superlu,
}
OUR_SOLVERS: dict[str, Callable[[System], Outcome]] = {
    OURS: _multigrid,
    OURS_ONE_THREAD: _multigrid_one_thread,
    PAPER: _paper,
}


def load_peers() -> tuple[dict[str, Solve], dict[str, str]]:
    """The solvers that can be imported, and the reasons why others cannot."""
    for variable in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when the libraries are loaded
        os.environ[variable] = str(numba.get_num_threads())
    peers: dict[str, Solve] = {}
    missing: dict[str, str] = {}
    for name, load in LOADERS.items():
        try:
            peers[name] = load()
        except (ImportError, OSError) as error:  # OSError: its shared library is missing
            missing[name] = f"cannot be imported ({_one_line(error)})"
    return peers, missing


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def compare(system: System, names: list[str], peers: dict[str, Solve], repeats: int) -> list[SolverTimes]:
    """Time the named solvers in turn, `repeats` times. The first result of each is compared with ours."""
    ours = _multigrid(system).x
    matrix, rhs = system.assemble() if any(name in peers for name in names) else (None, None)
    solvers: dict[str, Callable[[], Outcome]] = {}
    for name in names:
        if name in OUR_SOLVERS:
            solvers[name] = lambda run=OUR_SOLVERS[name]: run(system)  # type: ignore[misc]
        else:
            solvers[name] = lambda run=peers[name]: run(matrix, rhs, system.options.tolerance)  # type: ignore[misc]

    runs: dict[str, list[float]] = {name: [] for name in names}
    setups: dict[str, list[float]] = {name: [] for name in names}
    checked: dict[str, SolverTimes] = {}
    for _ in range(repeats):
        for name, run in solvers.items():
            if sum(runs[name]) > BUDGET or (name in checked and checked[name].trouble):
                continue
            sleep(PAUSE)
            start = perf_counter()
            try:
                outcome = run()
            except Exception as error:  # the failure of another package is a row of the table, not the end of the run
                checked[name] = SolverTimes(name, trouble=f"failed ({type(error).__name__}: {_one_line(error)})")
                continue
            runs[name].append(perf_counter() - start)
            if outcome.setup is not None:
                setups[name].append(outcome.setup)
            if name not in checked:
                checked[name] = _check(name, outcome, ours, matrix, rhs, system.options.tolerance)
            del outcome
    return [
        checked[name]
        if checked[name].trouble
        else replace(
            checked[name],
            times=Times(tuple(runs[name])),
            setup=Times(tuple(setups[name])) if setups[name] else None,
        )
        for name in names
    ]


def _check(name: str, outcome: Outcome, ours: Vector, matrix: Any, rhs: Vector | None, tolerance: float) -> SolverTimes:
    """The row without times: true residual, difference from our solution, and trouble if one of them is too large."""
    difference = float(np.abs(outcome.x - ours).max() / np.abs(ours).max())
    residual = float("nan")
    if rhs is not None:
        residual = float(np.linalg.norm(rhs - matrix @ outcome.x) / np.linalg.norm(rhs))
    trouble = ""
    if not difference <= AGREEMENT:
        trouble = f"disagrees by {difference:.1e} of the largest log residual"
    elif residual > 1.01 * tolerance:  # the last digits depend on the order of summation
        trouble = f"stopped at a residual of {residual:.1e}"
    return SolverTimes(name, iterations=outcome.iterations, residual=residual, difference=difference, trouble=trouble)


def sweep(
    sizes: list[Size], peers: dict[str, Solve], repeats: int, say: Callable[[str], None]
) -> dict[Size, list[SolverTimes]]:
    """Times of the case `outer`, the hardest, by size; each solver up to where it is expected to take `LONGEST`."""
    names = [OURS, PAPER, *peers]
    results: dict[Size, list[SolverTimes]] = {}
    compare(System.of(sizes[0], "outer"), names, peers, 1)  # compiles kernels and loads libraries
    for size in sizes:
        say(f"solvers at {size}, outer: {'; '.join(names)}")
        results[size] = compare(System.of(size, "outer"), names, peers, min(repeats, SWEEP_REPEATS))
        following = sizes[sizes.index(size) + 1 :][:1]
        if following:
            growth = following[0].pixels / size.pixels
            names = [
                row.solver
                for row in results[size]
                if row.solver == OURS or (row.times is not None and row.times.median * growth < LONGEST)
            ]
    return results
