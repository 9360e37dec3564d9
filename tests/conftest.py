"""Chooses Triton's interpreter where there is no GPU, before anything imports Triton, which reads the choice only then."""

from __future__ import annotations

import importlib.util
import os
from typing import Any


def _interpret_triton() -> None:
    """Also mends the interpreter: it turns arrays of one element into loop bounds by `int`, which numpy 2.4 refuses."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter  # noqa: PLC0415 - after the choice

    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


if importlib.util.find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
        _interpret_triton()
