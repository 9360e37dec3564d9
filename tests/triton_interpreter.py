"""Triton's interpreter as the tests use it: mended, and not slower than it need be."""

from __future__ import annotations

import bisect
import operator
import os
import sys
from typing import Any

from tests.interpreter_costs import spare

REACHED: list[Any] = []
"""Tensors that kernels reach by addresses that lie in memory."""


def interpret() -> None:
    """Make Triton interpret kernels. It reads this choice only when it is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter  # noqa: PLC0415 - after the choice

    _take_elements_for_bounds(interpreter)
    spare(interpreter)
    _trace_no_kernel(interpreter)
    _refuse_what_no_tensor_holds(interpreter)
    _compute_with_anything(interpreter)
    _multiply_in_one_order(interpreter)
    _round_to_8_bits(interpreter)


def _multiply_in_one_order(interpreter: Any) -> None:
    """Products have the same bits on every processor and in tiles of every shape.

    A BLAS library sums in an order that depends on the processor and on the shapes. numpy sums in the order of the common dimension
    where no side of a matrix is contiguous, and products of floats of 16 and 32 bits are exact in float64.
    """
    import numpy as np  # noqa: PLC0415 - tests of the domain run without it

    exact = {np.dtype(np.float16), np.dtype(np.float32)}
    original = interpreter.InterpreterBuilder.create_dot

    def spread(matrix: Any) -> Any:
        spread = np.empty((*matrix.shape, 2), dtype=np.float64)[..., 0]
        spread[...] = matrix
        return spread

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if not {a.data.dtype, b.data.dtype} <= exact:
            return original(self, a, b, d, *options)
        product = np.matmul(spread(a.data), spread(b.data)).astype(d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _round_to_8_bits(interpreter: Any) -> None:
    """It loses the carry of what is rounded up to 8-bit floats, and numbers below the smallest normal one, and NaN."""
    import numpy as np  # noqa: PLC0415 - tests of the domain run without it

    original, eight = interpreter._convert_float, interpreter.tl.float8e4nv
    wide = {interpreter.tl.float32: np.float32, interpreter.tl.float16: np.float16}

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        import torch  # noqa: PLC0415 - takes seconds

        narrow = torch.float8_e4m3fn
        if target == eight and source in wide:
            return torch.from_numpy(np.ascontiguousarray(data)).to(narrow).view(torch.uint8).numpy()
        if source == eight and target in wide:
            numbers = torch.from_numpy(np.ascontiguousarray(data).view(np.uint8)).view(narrow).float()
            return numbers.numpy().astype(wide[target])
        return original(data, source, target, rounding)

    interpreter._convert_float = convert


def _compute_with_anything(interpreter: Any) -> None:
    """It computes with numpy, which warns of infinities in memory that nothing has been written to; a device does not."""
    import numpy as np  # noqa: PLC0415 - tests of the domain run without it

    original = interpreter.GridExecutor.__call__

    def launch(self: Any, *args: Any, **options: Any) -> None:
        with np.errstate(invalid="ignore"):
            original(self, *args, **options)

    interpreter.GridExecutor.__call__ = launch


def _take_elements_for_bounds(interpreter: Any) -> None:
    """It turns arrays of one element into loop bounds by `int`, which numpy 2.4 refuses."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


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


def _refuse_what_no_tensor_holds(interpreter: Any) -> None:
    """A GPU ends the process where a kernel reaches past its tensors; the interpreter would read on in the host's memory."""
    import numpy as np  # noqa: PLC0415 - tests of the domain run where there is none

    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    copy_in, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store
    bounds: list[tuple[int, int]] = []

    def copy_and_note(self: Any, args: Any, kwargs: Any) -> Any:
        copied = copy_in(self, args, kwargs)
        arguments = (*copied[0], *copied[1].values(), *REACHED)
        bounds[:] = sorted({span for each in arguments for span in _spans(each)})
        return copied

    def check(ptrs: Any, mask: Any) -> None:
        touched = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].astype(np.uint64, copy=False)
        if not touched.size:
            return
        size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        first, last = int(touched.min()), int(touched.max())
        at = bisect.bisect_right(bounds, first, key=operator.itemgetter(0)) - 1
        if at >= 0 and last + size <= bounds[at][1]:
            return
        starts, ends = (np.array([span[end] for span in bounds], dtype=np.uint64) for end in (0, 1))
        places = np.searchsorted(starts, touched, side="right")
        inside = (places > 0) & (
            touched + np.uint64(size) <= ends[np.maximum(places, 1) - 1] if bounds else False
        )
        if not np.all(inside):
            raise IndexError(
                f"{np.size(inside) - np.count_nonzero(inside)} elements lie in no tensor of this launch"
            )

    def checked_load(self: Any, ptrs: Any, mask: Any, *others: Any, **named: Any) -> Any:
        check(ptrs, mask)
        return load(self, ptrs, mask, *others, **named)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        check(ptrs, mask)
        return store(self, ptrs, value, mask, *others)

    executor._init_args_hst = copy_and_note
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store


def _spans(argument: Any) -> list[tuple[int, int]]:
    """Where the memory of a tensor or of one that is described, or of the tensors of a tuple, begins and ends."""
    argument = getattr(argument, "base", argument)
    if isinstance(argument, tuple):
        return [span for each in argument for span in _spans(each)]
    if not hasattr(argument, "untyped_storage"):
        return []
    storage = argument.untyped_storage()
    return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes())]
