"""Linear layers: one plain form that weights are loaded into, and packed forms that are faster to compute."""

from nanoserve.adapters.pytorch.linear.packing import QUANTIZATIONS, pack_linears
from nanoserve.adapters.pytorch.linear.plain import Linear, PackedLinear, in_fixed_rows

__all__ = ["QUANTIZATIONS", "Linear", "PackedLinear", "in_fixed_rows", "pack_linears"]
