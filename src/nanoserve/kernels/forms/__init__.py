"""The forms in which weights are kept on a GPU, one folder each; every form is for products.

| file          | what a form's folder holds                                                                     |
|---------------|------------------------------------------------------------------------------------------------|
| `__init__.py` | the layout, what it stands for in float32, and how a weight is put into it; never imports Triton |
| `triton.py`   | how kernels load it and widen it in registers                                                   |

`FORMS` here and the functions of `forms/triton.py` have a row for each. What else is multiplied with stored weights is not rounded to anything,
so that a product equals that of the widened weight within the rounding of its own dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nanoserve.kernels.forms.fp8 import FP8
from nanoserve.kernels.forms.integers import Int4, Int4WithMinimum, Int8
from nanoserve.kernels.forms.layout import PLAIN, Form, StoredWeight, form_of, row_arguments, step_arguments
from nanoserve.kernels.forms.mxfp4 import MXFP4

FORMS: Final[Mapping[str, Form]] = {"fp8": FP8(), "mxfp4": MXFP4(), "int4": Int4(), "int8": Int8()}
"""Each form as it usually comes, by the name that a `ModelSpec` has for it."""

__all__ = [
"FORMS", "FP8", "MXFP4", "PLAIN", "Form", "Int4", "Int4WithMinimum", "Int8", "StoredWeight", "form_of",
    "row_arguments", "step_arguments",
]  # fmt: skip
