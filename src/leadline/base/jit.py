"""Compilation of kernels with numba: on first use, cached on disk, with IEEE division."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic

from leadline.base.threads import numba_lock, thread_count

# Sums may be reordered so that they vectorise. Stencils may not: (p - a) + (p - b) would become
# 2 p - (a + b), which loses digits. Neither set contains 'nnan' or 'ninf', because NaN must propagate.
SUM = {"contract", "reassoc", "nsz"}
STENCIL = {"contract", "nsz"}
EXACT = {"contract"}  # for compensated arithmetic

SERIAL_BELOW = 40_000
"""Elements of the largest array, or plane of a stack, below which a loop runs on one thread. Waking the other threads
takes as long as the work itself, and far longer on a busy machine, where a loop waits for its slowest thread."""
_PACKAGE = Path(__file__).parents[1]


def compiled(*, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a kernel. Division follows IEEE: Python's ZeroDivisionError would be a branch in every loop."""
    return njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath, no_cfunc_wrapper=True)  # type: ignore[no-any-return]


def called_by_kernels(*, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a function that only kernels call. Without the code that Python would need it compiles faster."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath, **options)  # type: ignore[no-any-return]


def parallel_loop(*, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], ParallelLoop]:
    """Decorator of one step of a loop whose steps are independent, ``def step(i, *arguments)``.

    ``step[count](*arguments)`` runs the steps 0 to count - 1, shared among threads. It can be called from several
    threads at a time, but not from a kernel.
    """
    return lambda step: ParallelLoop(step, fastmath)


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator of a small function that is inlined into its callers."""
    return njit(inline="always", error_model="numpy")(function)


@intrinsic
def multiply_add(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    """a b + c for three float32, with one rounding where the processor can do that.

    In a sum of two products the compiler may fuse either one, and chooses by the code around it. This states which.
    """

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        kind = ir.FloatType()
        function = builder.module.declare_intrinsic("llvm.fmuladd", [kind], ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, values)

    return types.float32(types.float32, types.float32, types.float32), generate


class ParallelLoop:
    """A compiled loop, which threads enter one after the other where numba needs that.

    On small arrays it runs on the calling thread alone, and beside other work on fewer threads (`thread_count`).
    """

    def __init__(self, step: Callable[..., Any], fastmath: set[str] | bool) -> None:
        self.__doc__ = step.__doc__
        self._step, self._fastmath = step, fastmath

    def __getitem__(self, count: int) -> Callable[..., None]:
        return partial(self._run, count)

    @cached_property
    def _kernel(self) -> Any:
        return compiled(fastmath=self._fastmath)(_with_loop(self._step))

    def _run(self, count: int, *arguments: Any) -> None:
        kernel, loop = self._kernel, _share_address()
        parts = min(count, thread_count()) if _are_large(arguments) else 1
        with numba_lock() if parts > 1 else nullcontext():
            kernel(-parts, count, loop, *arguments)


def _are_large(arguments: tuple[Any, ...]) -> bool:
    """Whether there is an array, or one plane of a stack of them, that is worth to be shared among threads."""
    for argument in arguments:
        if type(argument) is np.ndarray:
            size = argument.size
            if size >= SERIAL_BELOW and (argument.ndim < 3 or size >= SERIAL_BELOW * len(argument)):
                return True
    return False


_WITH_LOOP = """
def {name}(_first, _end, _loop, {arguments}):
    if _first >= 0:
        for {index} in range(_first, _end):
            pass
    else:
        _run(_loop, _end, -_first, ({arguments},))
"""


def _with_loop(step: Callable[..., Any]) -> Any:
    """A function of the first step, the end, the address of `_share`, and the arguments of the step.

    It does the steps from the first to the end, or, if the first is negative, all of them in as many parallel parts.
    All loops thus share the one in `_share`, which gets the address of this same function. Called by its address, it is
    not compiled again with every kernel. A loop around the step in numba's way, with `prange`, would take LLVM through
    the code of the step three times, and the calls in it through type inference once more. The body of the step
    replaces that of the loop in the syntax tree: numba needs an eighth of the whole compilation to inline the steps
    itself.
    """
    index, *arguments = inspect.signature(step).parameters
    source = _WITH_LOOP.format(name=step.__name__, index=index, arguments=", ".join(arguments))
    function = ast.parse(source)
    loop = next(node for node in ast.walk(function) if isinstance(node, ast.For))
    body = ast.parse(textwrap.dedent(inspect.getsource(step)))
    if any(isinstance(node, ast.Return) for node in ast.walk(body)):
        raise SyntaxError(f"{step.__name__}: a step of a loop may not return before its end")
    loop.body = body.body[0].body  # type: ignore[attr-defined]
    ast.increment_lineno(function, step.__code__.co_firstlineno - 1)
    names = {**step.__globals__, "_run": _run}
    exec(compile(function, step.__code__.co_filename, "exec"), names)  # the file of the step, where numba caches
    return names[step.__name__]


_ENTRY = ir.FunctionType(ir.VoidType(), [cgutils.intp_t, cgutils.intp_t, cgutils.voidptr_t])
"""An entry point does a part of the steps; it takes the first, the end, and where the arguments of the steps are."""
_SHARE = ir.FunctionType(ir.VoidType(), [cgutils.intp_t] * 4)


@intrinsic
def _run(typing_context, loop, count, parts, arguments):  # type: ignore[no-untyped-def]
    """Do all steps of the function that is being compiled, by way of two functions that are made here.

    One is an entry point, the other stores the arguments on its stack and calls the loop at this address. Stored on
    the stack of the function itself, they would slow down its steps by up to a quarter.
    """
    start_types = types.intp, types.intp, *arguments.types
    # What is stored: whether a step has failed, and the arguments.
    stored_types = types.Tuple((types.intp, *arguments.types))  # type: ignore[attr-defined]

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        convention, module, itself = context.call_conv, builder.module, builder.function
        stored_type = context.get_value_type(stored_types)

        entry = ir.Function(module, _ENTRY, module.get_unique_name(f"{itself.name}.entry"))
        body = ir.IRBuilder(entry.append_basic_block())
        first, end, place = entry.args
        place = body.bitcast(place, stored_type.as_pointer())
        _, *stored = cgutils.unpack_tuple(body, body.load(place))
        part = [first, end, end, *stored]
        status, _ = convention.call_function(body, itself, types.none, (types.intp, *start_types), part)
        with cgutils.if_unlikely(body, status.is_error):
            body.store(first.type(1), cgutils.gep_inbounds(body, place, 0, 0))
        body.ret_void()

        kind = convention.get_function_type(types.none, (types.intp, *start_types))
        start = ir.Function(module, kind, module.get_unique_name(f"{itself.name}.start"))
        start.attributes.add("noinline")
        body = ir.IRBuilder(start.append_basic_block())
        packer = context.get_arg_packer((types.intp, *start_types))
        loop, count, parts, *stored = packer.from_arguments(body, convention.get_arguments(start))
        place = cgutils.alloca_once_value(body, context.make_tuple(body, stored_types, [count.type(0), *stored]))
        addresses = [body.ptrtoint(pointer, count.type) for pointer in (entry, place)]
        body.call(body.inttoptr(loop, _SHARE.as_pointer()), [count, parts, *addresses])
        failed = body.load(cgutils.gep_inbounds(body, place, 0, 0))
        with cgutils.if_unlikely(body, cgutils.is_not_null(body, failed)):  # all that can fail is an allocation
            convention.return_user_exc(body, MemoryError, ("a step of a compiled loop failed",))
        convention.return_value(body, context.get_dummy_value())

        entry.linkage = start.linkage = "internal"
        given = [*values[:3], *cgutils.unpack_tuple(builder, values[3])]
        status, _ = convention.call_function(builder, start, types.none, (types.intp, *start_types), given)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp, arguments), generate


@intrinsic
def _enter(typing_context, entry, place, first, end):  # type: ignore[no-untyped-def]
    """Do a part of the steps, by the addresses of their entry point and of their arguments."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        entry = builder.inttoptr(values[0], _ENTRY.as_pointer())
        builder.call(entry, [*values[2:], builder.inttoptr(values[1], cgutils.voidptr_t)])
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp, types.intp), generate


def _share(count, parts, entry, place):  # type: ignore[no-untyped-def]
    """All steps in parts, one per thread. References to the arguments are counted once per part, not once per step."""
    if parts > 1:
        for i in prange(parts):
            part = np.int64(i)  # the index of a parallel loop is unsigned
            _enter(entry, place, part * count // parts, (part + 1) * count // parts)
    else:
        _enter(entry, place, 0, count)


@cache
def _share_address() -> int:
    """The address of the compiled `_share`."""
    numba_lock()  # starts the threads; numba would when it loads the compiled loop, but threads that spin
    signature = types.void(*[types.intp] * 4)
    address: int = numba.cfunc(signature, cache=True, nopython=True, parallel=True)(_share).address
    return address


def compilation_marker(*variant: Any) -> Path:
    """An empty file beside numba's cache, to be made once the kernels for this variant of the method are compiled.

    Its name is a hash of everything that the compiled code depends on: the variant, the sources and the machine.
    """
    from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
    from platformdirs import user_cache_path

    sources = [
        (path.relative_to(_PACKAGE).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in ("base", "core")
        for path in sorted((_PACKAGE / folder).rglob("*.py"))
    ]
    versions = (sys.version, numba.__version__, get_host_cpu_name())
    digest = hashlib.sha256(repr((variant, sources, versions)).encode()).hexdigest()[:16]
    # numba stores compiled code in the configured folder, else in the package if writeable, else in the user's cache.
    own = _PACKAGE / "__pycache__"
    writeable = os.access(own if own.exists() else _PACKAGE, os.W_OK)
    folder = (
        Path(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else own if writeable else user_cache_path("leadline")
    )
    return folder / f"leadline-compiled-{digest}"
