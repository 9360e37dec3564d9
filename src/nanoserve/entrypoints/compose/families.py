"""The families of models and the supported features of each, from the registry that reads their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nanoserve.adapters.gguf.conversion import GGUF_ARCHITECTURES
from nanoserve.adapters.huggingface.architectures import ARCHITECTURES, Architecture
from nanoserve.adapters.huggingface.spec import spec_of
from nanoserve.entrypoints.compose.shapes import SHAPES
from nanoserve.ports.layer_spec import DenseSpec, ExpertsSpec
from nanoserve.ports.model_spec import CacheKind, Full, Latent, ModelSpec, Recurrent, Uncached, Window

CACHES: Final[Mapping[type[CacheKind], tuple[str, str]]] = {
    Full: ("keys and values", "every block"),
    Window: ("keys and values of a window", "where the window's blocks are kept"),
    Latent: ("latent vectors", "every block"),
    Recurrent: ("states", "at snapshots"),
    Uncached: ("nothing", "never"),
}
"""The content that a cache group keeps of a sequence, and where a prefix of it can be reused."""


@attrs.frozen(kw_only=True)
class ModelFamily:
    """One family.

    Attributes:
        name: what `architectures` in config.json says.
        model_type: what `model_type` says.
        cache, reuse: what is kept of a sequence, and where a prefix is found again.
        feed: `dense`, `experts`, or both.
        quantized: which quantized forms of its checkpoints and weights there are.
    """

    name: str
    model_type: str
    cache: str
    reuse: str
    feed: str
    devices: str
    quantized: str
    shapes: tuple[str, ...]


def families() -> tuple[ModelFamily, ...]:
    """All of them, as the registry has them."""
    return tuple(_family(each) for each in ARCHITECTURES)


def _family(architecture: Architecture) -> ModelFamily:
    shapes = {name: spec for name, spec in SHAPES.items() if spec.architecture == architecture.key}
    specs = [spec_of({"model_type": architecture.key, **architecture.published}), *shapes.values()]
    kept = {type(group.kind) for spec in specs for group in spec.cache_groups}
    kinds = [kind for kind in CACHES if kind in kept]
    return ModelFamily(
        name=architecture.name,
        model_type=architecture.key,
        cache=", ".join(CACHES[kind][0] for kind in kinds),
        reuse=", ".join(dict.fromkeys(CACHES[kind][1] for kind in kinds)),
        feed=" and ".join(_feeds(specs)),
        devices="CPU, GPU",
        quantized=", ".join(_quantized(architecture, specs)),
        shapes=tuple(shapes),
    )


def _feeds(specs: list[ModelSpec]) -> list[str]:
    feeds = [layer.feed for spec in specs for layer in spec.layers]
    names = {DenseSpec: "dense", ExpertsSpec: "experts"}
    return [name for kind, name in names.items() if any(isinstance(feed, kind) for feed in feeds)]


def _quantized(architecture: Architecture, specs: list[ModelSpec]) -> list[str]:
    packed = "MXFP4 experts" if architecture.key == "gpt_oss" else "FP8, AWQ, GPTQ"
    forms = [f"{packed} (on a GPU kept so)", "NVFP4"]
    if architecture.name in GGUF_ARCHITECTURES.values():
        forms.append("GGUF (Q8_0, Q4_0, Q4_1, Q5_0, Q4_K and Q6_K on a GPU kept packed)")
    if _feeds(specs) == ["dense"]:
        forms.append("int8 and int4 on a CPU")
    return forms
