"""What `bootstrap` hands out: an engine, ready to run, and everything needed to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nanoserve.domain.engine import Engine
from nanoserve.ports.chat_template import ChatTemplate
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.reference_model import Activations, ReferenceModel
from nanoserve.ports.tokenizer import Tokenizer

Observed = Callable[[Sequence[int]], Activations]
"""Our model's forward pass over one prompt, layer by layer."""


@attrs.frozen(kw_only=True)
class Budget:
    """What was decided where the settings left it open.

    Attributes:
        num_kv_blocks: blocks of the KV cache, the sink not counted, and `kv_bytes` what all take.
        max_model_len: the longest sequence in tokens.
        dtype: the numbers it computes in, by name.
        threads: processor threads.
    """

    num_kv_blocks: int
    kv_bytes: int
    max_model_len: int
    dtype: str
    threads: int


@attrs.frozen(kw_only=True)
class Defaults:
    """Sampling defaults that came with the model, by field of `SamplingParams`, and the file they came from."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    origin: str = "the model"


@attrs.frozen(kw_only=True, eq=False)
class Assembly:
    """One model, ready to generate; `folder` is where its files are."""

    folder: str
    engine: Engine[Any]
    tokenizer: Tokenizer
    template: ChatTemplate
    spec: ModelSpec
    defaults: Defaults
    budget: Budget


@attrs.frozen(kw_only=True, eq=False)
class VerificationParts:
    """An assembly, its model laid open, and the reference to compare it with."""

    assembly: Assembly
    ours: Observed
    reference: ReferenceModel
