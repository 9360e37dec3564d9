"""What a rehearsal passes through: whatever the layers of a model are made of, it must launch what they launch."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel
from nanoserve.kernels.forms import FP8
from nanoserve.ports.layer_spec import DenseSpec
from nanoserve.ports.model_spec import ModelSpec
from tests.tiny_spec import tiny_spec

SPEC = tiny_spec(
    6,
    windows=(None, None, 8, None, 8, None),
    size=16,
    heads=(2, 1, 4),
    architecture="uneven",
    hidden_size=8,
    vocab_size=32,
    tied_embeddings=True,
)


def wider(spec: ModelSpec, layer: int, size: int) -> ModelSpec:
    layers = list(spec.layers)
    layers[layer] = attrs.evolve(layers[layer], feed=DenseSpec(size=size))
    return attrs.evolve(spec, layers=tuple(layers))


class OtherFeed(SwiGLU):
    """Another kind of feed, wider."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(wider(spec, layer, 48), layer)

    def products(self) -> tuple[Product, ...]:
        """Under names of their own."""
        return tuple(attrs.evolve(each, name=f"other {each.name}") for each in super().products())


class Uneven(DecoderModel):
    """Layer 3 has another feed than the other layers of its cache group, and layer 5 a wider one than layer 0."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention, and one of two feeds."""
        feed = (OtherFeed if layer == 3 else SwiGLU)(self.spec, layer)
        return Attention(self.spec, layer), feed


def uneven() -> DecoderModel:
    with torch.device("meta"):
        return Uneven(wider(SPEC, 5, 40))


def test_a_rehearsal_passes_through_a_layer_of_each_kind_in_each_cache_group() -> None:
    model = uneven()
    nothing: Any = None
    brief = ForwardLauncher(model, nothing, nothing, nothing, many=ManyRows(invariant=False), brief=True)
    passed = [model.layers.index(parts) for parts in brief._layers]
    assert passed == [0, 2, 3]
    whole = ForwardLauncher(model, nothing, nothing, nothing, many=ManyRows(invariant=False))
    assert whole._layers == model.layers


def test_layers_whose_weights_are_kept_in_another_form_are_of_another_kind() -> None:
    model = uneven()
    attention: Any = model.layers[4][0]
    attention.qkv.weight_form, attention.qkv.weight_scales = (
        FP8(128),
        torch.nn.Parameter(torch.ones(1), requires_grad=False),
    )
    assert [model.layers.index(parts) for parts in model.kinds()] == [0, 2, 3, 4]
    forms = [each.linear.weight_form for each in model.products() if each.name == "qkv"]
    assert forms == [None, FP8(128)]


def test_products_are_those_of_every_layer_each_shape_once() -> None:
    shapes = [(each.name, each.linear.out_features, each.linear.in_features) for each in uneven().products()]
    assert shapes == [
        ("qkv", 16, 8),
        ("output", 8, 8),
        ("gate and up", 32, 8),
        ("down", 8, 16),
        ("other gate and up", 96, 8),
        ("other down", 8, 48),
        ("gate and up", 80, 8),
        ("down", 8, 40),
        ("head", 32, 8),
    ]
