"""Rows in 8-bit floats, for products that read both of their sides in these."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.device.launch import launch_options, next_power_of_2
from nanoserve.kernels.forms.fp8.triton import quantize_rows_kernel
from nanoserve.kernels.gates import Activation


def quantize_rows_into(
    x: Tensor, out: Tensor, scales: Tensor, *, activation: Activation | None = None, pdl: bool = False
) -> None:
    """Round each row to 8-bit floats times a scale, with which the largest becomes the largest of them, 448.

    A number is off by at most 2^-4 of itself, or by 2^-10 of the scale if it is among the smallest.

    Args:
        x: [M, size], contiguous, any float dtype; or [M, 2 * size] with `activation`, gate and up projections.
        out: float8_e4m3fn [M, size], contiguous.
        scales: float32 [M].
        activation: of the gate, if what is rounded is activation(gate) * up.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = out.shape
    quantize_rows_kernel[(num_rows,)](
        x_ptr=x, out_ptr=out, scale_ptr=scales, SIZE=size, ACTIVATION=activation,
        BLOCK=next_power_of_2(size), PDL=pdl, num_warps=min(16, max(1, next_power_of_2(size) // 256)), **launch_options(pdl),
    )  # fmt: skip
