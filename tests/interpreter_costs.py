"""Triton's interpreter without what it computes in vain or again and again; what kernels compute stays the same.

A line of a kernel is tens of its calls on small arrays: most of its time goes into descriptions of types and shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any


def spare(interpreter: Any) -> None:
    """Leave all of it out."""
    _compute_no_overflows(interpreter.interpreter_builder)
    _find_builtins_once(interpreter)
    _bind_builtins_once(interpreter)
    _patch_language_once(interpreter)
    _find_dtypes_by_name(interpreter)
    _compare_dtypes_by_name(interpreter.tl.core)
    _describe_shapes_once(interpreter.tl.core)
    _broadcast_what_differs(interpreter.TritonSemantic)


def _compute_no_overflows(builder: Any) -> None:
    """It computes sums and products of integers again in 64 bits, and looks at the results only where it debugs."""
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


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


def _patch_language_once(interpreter: Any) -> None:
    """It exchanges the language that a module sees whenever one kernel function calls another; a launch does so once for each module."""
    original, scope = interpreter._patch_lang, interpreter._LangPatchScope
    restore, patched = scope.restore, set[int]()

    def patch(function: Any) -> Any:
        seen = id(function.__globals__)
        if seen in patched:
            return None  # only a launch, which is the first, restores what it has exchanged
        patched.add(seen)
        return original(function)

    def restore_all(self: Any) -> None:
        patched.clear()
        restore(self)

    interpreter._patch_lang, scope.restore = patch, restore_all


def _bind_builtins_once(interpreter: Any) -> None:
    """It looks through the names of a call's arguments for the one that it gives itself."""
    semantic = interpreter.interpreter_semantic

    @functools.cache
    def bound(member: Any) -> Any:
        return lambda *args, _semantic=None, **named: member(*args, _semantic=semantic, **named)

    def patch(package: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        scope.set_attr(package, name, bound(member))

    interpreter._patch_attr = patch


def _find_dtypes_by_name(interpreter: Any) -> None:
    """It makes the table of numpy's dtypes anew whenever it wants one."""
    original, found = interpreter._get_np_dtype, {}

    def find(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in found:
            found[name] = original(dtype)
        return found[name]

    interpreter._get_np_dtype = find


def _compare_dtypes_by_name(core: Any) -> None:
    """A dtype first asks whether it is compared with a constant; most are compared with themselves."""
    original = core.dtype.__eq__
    core.dtype.__eq__ = lambda self, other: self is other or original(self, other)


def _describe_shapes_once(core: Any) -> None:
    """Every tensor and every type of a block checks its shape, makes constants of it and writes it out."""

    @functools.cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(each) for each in shape]), core.constexpr(math.prod(shape))

    def describe_tensor(self: Any, handle: Any, dtype: Any) -> None:
        self.handle, self.type, self.dtype = handle, dtype, dtype.scalar
        self.shape, self.numel = constants(tuple(dtype.shape.values) if dtype.is_block() else ())

    @functools.cache
    def described(shape: tuple[int, ...], name: str) -> tuple[Any, int, str]:
        if not shape:
            raise TypeError("0d block_type is forbidden")
        values = core.tuple(shape)
        return values, core.validate_block_shape(shape), f"<{values}, {name}>"

    def describe_block(self: Any, element_ty: Any, shape: Any) -> None:
        values = [each.value if isinstance(each, core.constexpr) else each for each in shape]
        self.element_ty = element_ty
        self.shape, self.numel, self.name = described(tuple(values), element_ty.name)

    core.tensor.__init__, core.block_type.__init__ = describe_tensor, describe_block
    core.block_type.to_ir = lambda self, builder: self


def _broadcast_what_differs(semantic: Any) -> None:
    """It also broadcasts blocks that have one shape."""
    original = semantic.broadcast_impl_value

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        if left.type.is_block() and right.type.is_block() and left.type.shape is right.type.shape:
            return left, right
        return original(self, left, right)

    semantic.broadcast_impl_value = broadcast
