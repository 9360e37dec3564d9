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
    _bind_builtins_once(interpreter, _operators(interpreter))
    _patch_language_once(interpreter)
    _find_dtypes_by_name(interpreter)
    _compare_dtypes_by_name(interpreter.tl.core)
    _describe_shapes_once(interpreter.tl.core)
    _broadcast_what_differs(interpreter)
    _check_no_sizes(interpreter.TensorHandle)


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


def _bind_builtins_once(interpreter: Any, operators: dict[Any, Any]) -> None:
    """It looks through the names of a call's arguments for the one that it gives itself."""
    semantic = interpreter.interpreter_semantic

    @functools.cache
    def bound(member: Any) -> Any:
        def call(*args: Any, _semantic: Any = None, **named: Any) -> Any:
            return member(*args, _semantic=semantic, **named)

        return operated(operators[member], call) if member in operators else call

    def operated(compute: Any, call: Any) -> Any:
        def operate(one: Any, other: Any) -> Any:
            found = compute(one, other)
            return call(one, other) if found is None else found

        return operate

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
    block, no_shape = core.block_type, (core.tuple([]), core.constexpr(1))

    def describe_tensor(self: Any, handle: Any, dtype: Any) -> None:
        self.handle, self.type, self.dtype = handle, dtype, dtype.scalar
        self.shape, self.numel = dtype.constants if type(dtype) is block else no_shape

    @functools.cache
    def described(shape: tuple[int, ...], name: str) -> tuple[Any, int, str, Any]:
        if not shape:
            raise TypeError("0d block_type is forbidden")
        values = core.tuple(shape)
        constants = core.tuple([core.constexpr(each) for each in shape]), core.constexpr(math.prod(shape))
        return values, core.validate_block_shape(shape), f"<{values}, {name}>", constants

    def describe_block(self: Any, element_ty: Any, shape: Any) -> None:
        values = [each.value if isinstance(each, core.constexpr) else each for each in shape]
        self.element_ty = element_ty
        self.shape, self.numel, self.name, self.constants = described(tuple(values), element_ty.name)

    core.tensor.__init__, block.__init__ = describe_tensor, describe_block
    block.to_ir = lambda self, builder: self
    block.with_element_ty = lambda self, element_ty: _block(core, element_ty, self.shape.values)


_BLOCKS: dict[tuple[str, tuple[int, ...]], Any] = {}


def _block(core: Any, element: Any, shape: Any) -> Any:
    """The type of blocks of these."""
    key = element.name, tuple(shape)
    if key not in _BLOCKS:
        _BLOCKS[key] = core.block_type(element, key[1])
    return _BLOCKS[key]


def _broadcast_what_differs(interpreter: Any) -> None:
    """It also broadcasts blocks that have one shape, and makes one more array for each dimension that others lack."""
    import numpy as np  # noqa: PLC0415 - tests of the domain run without it

    core, semantic = interpreter.tl.core, interpreter.TritonSemantic
    original, block = semantic.broadcast_impl_value, core.block_type

    def in_shape(one: Any, shape: list[int]) -> Any:
        if one.type.shape.values == shape:
            return one
        data = np.broadcast_to(one.handle.data, shape)
        handle = interpreter.TensorHandle(data, one.handle.dtype.scalar)
        return core.tensor(handle, _block(core, one.dtype, shape))

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        if type(left.type) is block and type(right.type) is block:
            one, other = left.type.shape.values, right.type.shape.values
            if one == other:
                return left, right
            if _fit(one, other):
                shape = list(map(max, one, other))
                return in_shape(left, shape), in_shape(right, shape)
        return original(self, left, right)

    semantic.broadcast_impl_value = broadcast


def _fit(one: list[int], other: list[int]) -> bool:
    """Whether blocks of these shapes have as many dimensions, and each of them is alike or one of them has one place."""
    return len(one) == len(other) and all(len({a, b, 1}) < 3 for a, b in zip(one, other, strict=True))


def _check_no_sizes(handle: Any) -> None:
    """It compares the size of numbers with that of their dtype wherever it has an array."""

    def describe(self: Any, data: Any, dtype: Any) -> None:
        self.data, self.dtype, self.attr = data, dtype, {}

    handle.__init__ = describe


_FLOATS = frozenset({"fp32", "fp64"})
_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_LEAST = {"int32": -(2**31), "int64": -(2**63), "fp32": -(2**31)}
"""The least whole number of Python, by the dtype that takes it as it is; the largest is one less without its sign."""


def _operators(interpreter: Any) -> dict[Any, Any]:
    """Operators by the members of tensors that they are; they return nothing where they leave it to those.

    Before numpy computes, operands are cast, numbers become tensors, and blocks are made of what is not as large as the other one.
    Where both have one dtype, or one is a number, numpy needs none of that.
    """
    import numpy as np  # noqa: PLC0415 - tests of the domain run without it

    core, handle_of = interpreter.tl.core, interpreter.TensorHandle
    tensor, block = core.tensor, core.block_type

    def joined(one: Any, other: Any) -> Any:
        """The type of both, with the element of the first; nothing where they do not fit or have different ranks."""
        if one is other or type(other) is not block:
            return one
        right = other.shape.values
        if type(one) is not block:
            return _block(core, one, right)
        left = one.shape.values
        if left == right:
            return one
        return _block(core, one.element_ty, map(max, left, right)) if _fit(left, right) else None

    def is_taken(number: Any, name: str) -> bool:
        """Whether a number that is no tensor becomes one of this dtype and nothing else."""
        if type(number) is int:
            return name in _LEAST and _LEAST[name] <= number < -_LEAST[name]
        return type(number) is float and name == "fp32" and (number == 0 or 1e-37 < abs(number) < 1e38)

    def operator(ufunc: Any, names: frozenset[str], *, compares: bool = False) -> Any:
        def compute(one: Any, other: Any) -> Any:
            name, handle, kind = one.dtype.name, one.handle, one.type
            if name not in names:
                return None
            if type(other) is core.constexpr:
                other = other.value
            if type(other) is tensor:
                data = other.handle.data
                kind = joined(kind, other.type)
                if kind is None or other.dtype.name != name or data.dtype != handle.data.dtype:
                    return None
            elif is_taken(other, name):
                data = other
            else:
                return None
            if compares:
                kind = kind.with_element_ty(core.int1)
            return tensor(handle_of(ufunc(handle.data, data), handle.dtype.scalar), kind)

        return compute

    def add(one: Any, other: Any) -> Any:
        if not one.dtype.is_ptr():
            return add_numbers(one, other)
        width = max(1, one.dtype.element_ty.primitive_bitwidth // 8)
        if type(other) is int:
            kind, offset = one.type, np.uint64(width * other % 2**64)
        elif type(other) is tensor and other.dtype.name in {"int32", "int64"}:
            kind, offset = joined(one.type, other.type), other.handle.data.astype(np.uint64)
            offset *= np.uint64(width)
        else:
            return None
        return None if kind is None else tensor(handle_of(one.handle.data + offset, one.handle.dtype), kind)

    def index(one: Any, places: Any) -> Any:
        whole = slice(None)
        if (
            type(one.type) is not block
            or type(places) is not tuple
            or any(each is not None and each != whole for each in places)
        ):
            return None
        data = one.handle.data[places]
        return tensor(handle_of(data, one.handle.dtype.scalar), _block(core, one.dtype, data.shape))

    numbers = _FLOATS | _INTEGERS | {"fp16"}
    add_numbers = operator(np.add, numbers)
    return {
        tensor.__getitem__: index,
        tensor.__add__: add,
        tensor.__radd__: add,
        tensor.__sub__: operator(np.subtract, numbers),
        tensor.__mul__: operator(np.multiply, numbers),
        tensor.__rmul__: operator(np.multiply, numbers),
        tensor.__truediv__: operator(np.divide, _FLOATS),
        tensor.__and__: operator(np.bitwise_and, _INTEGERS | {"int1"}),
        tensor.__or__: operator(np.bitwise_or, _INTEGERS | {"int1"}),
        tensor.__xor__: operator(np.bitwise_xor, _INTEGERS | {"int1"}),
        tensor.__lt__: operator(np.less, numbers, compares=True),
        tensor.__le__: operator(np.less_equal, numbers, compares=True),
        tensor.__gt__: operator(np.greater, numbers, compares=True),
        tensor.__ge__: operator(np.greater_equal, numbers, compares=True),
        tensor.__eq__: operator(np.equal, numbers, compares=True),
        tensor.__ne__: operator(np.not_equal, numbers, compares=True),
    }
