"""The kernel self-test: before a model is served, every kernel that serving launches is compared with its reference.

A kernel that was right where it was written may be wrong elsewhere: another GPU, driver or Triton compiles it to
something else, and wrong text looks much like right text. So each one runs once on small random inputs, in the model's
own dimensions and dtype, and one that computes something else keeps the engine from starting, by name.

The cases are those of `kernels/*/cases.py`, which the tests run as well. `checks.py` lists them, a line a kernel, with
what the model, a `Bench`, gives them, and asks each kind of mixer for its own; `checking.py` runs and judges them.
"""

from nanoserve.adapters.pytorch.cuda.self_test.checking import check_kernels, rehearse_checks
from nanoserve.adapters.pytorch.kernel_checks import Bench, Check

__all__ = ["Bench", "Check", "check_kernels", "rehearse_checks"]
