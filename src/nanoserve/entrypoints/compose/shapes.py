"""Published model shapes by name: `shape:llama-3.2-1b` is that model with random weights.

Speed depends on a model's shape and not on its weights' values, so benchmarks need no download. The numbers are those of each
model's published config.json, and stand in `shapes.json`; what a config leaves out is the default of transformers.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.huggingface.spec import spec_of
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import ModelSpec

PREFIX: Final = "shape:"
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    importlib.resources.files(__package__).joinpath("shapes.json").read_text(encoding="utf-8")
)
"""By name; Gemma's are without the half that sees, Mistral is release 0.3, which has no sliding window, those with a number of
layers in their names are cut to fit on one GPU, and `tiny` is made up, for trying things out."""
SHAPES: Final[Mapping[str, ModelSpec]] = {name: spec_of(config) for name, config in CONFIGS.items()}


def is_shape(model: str | None) -> bool:
    """True if a model's name asks for a shape with random weights."""
    return model is not None and model.startswith(PREFIX)


def find_shape(model: str) -> ModelSpec:
    """The shape that `shape:<name>` asks for; raises `BadValueError` that lists the known ones."""
    name = model.removeprefix(PREFIX).strip().lower()
    if name in SHAPES:
        return SHAPES[name]
    near = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.4)
    hint = f"; did you mean {PREFIX}{near[0]}?" if near else "."
    raise BadValueError("model", f"{model!r} is not a known shape{hint} Known are {', '.join(SHAPES)}")


def refuse_shape(model: str | None, purpose: str) -> None:
    """Raise `BadValueError` if a shape is asked for something that needs a tokenizer or real weights."""
    if is_shape(model):
        message = f"{model!r} has random weights and no tokenizer, so it cannot {purpose}; it is for nanoserve bench"
        raise BadValueError("model", message)
