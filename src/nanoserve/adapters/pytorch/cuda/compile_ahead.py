"""Compiles kernels by several threads before any of them runs: one after the other takes 0.3 to 0.5 seconds each.

Whoever launches kernels inside `compiling_ahead` launches none: each launch only hands its kernel to a thread, so code
that is rehearsed anyway, and may compute nonsense meanwhile, says by itself what there is to compile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triton import AsyncCompileMode
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class _CompileWhole(AsyncCompileMode):  # type: ignore[misc]
    """Compiles the host's half of each kernel as well, the C code that launches it.

    Left to the first launches, a compiler would be called for each list of arguments, one after the other.
    """

    def submit(self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]) -> Any:
        def compile_both() -> Any:
            kernel = compile_fn()
            with contextlib.suppress(Exception):  # whoever launches it will see
                driver.active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        return super().submit(key, compile_both, finalize_fn)


@contextlib.contextmanager
def compiling_ahead(num_threads: int) -> Iterator[None]:
    """Compile what is launched inside, and nothing more; returns when all of it is compiled.

    A kernel that does not compile is left to whoever launches it next, who can say what it was for.
    """
    launch = JITFunction.run

    def compile_only(self: Any, *arguments: Any, warmup: bool, **named: Any) -> Any:
        del warmup
        return launch(self, *arguments, warmup=True, **named)

    JITFunction.run = compile_only
    try:
        with ThreadPoolExecutor(num_threads) as pool, _CompileWhole(pool, ignore_errors=True):
            yield
    finally:
        JITFunction.run = launch
