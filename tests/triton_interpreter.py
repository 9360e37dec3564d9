"""Triton's interpreter as the tests use it: mended, and not slower than it need be."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any


def interpret() -> None:
    """Make Triton interpret kernels. It reads this choice only when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter  # noqa: PLC0415 - after the choice

    _take_elements_for_bounds(interpreter)
    _find_builtins_once(interpreter)
    _trace_no_kernel(interpreter)


def _take_elements_for_bounds(interpreter: Any) -> None:
    """It turns arrays of one element into loop bounds by `int`, which numpy 2.4 refuses."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def _find_builtins_once(interpreter: Any) -> None:
    """It looks at every member of Triton's language whenever one kernel function calls another."""
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def builtins(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins(package):
            member = getattr(package, name)
            if is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch


def _trace_no_kernel(interpreter: Any) -> None:
    """Coverage makes the interpreter three times slower, and a kernel is not Python: only who launches it is traced."""
    original = interpreter.GridExecutor.__call__

    def launch(self: Any, *args: Any, **options: Any) -> None:
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            original(self, *args, **options)
        finally:
            sys.settrace(tracer)

    interpreter.GridExecutor.__call__ = launch
