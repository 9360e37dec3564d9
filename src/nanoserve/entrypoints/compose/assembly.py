"""The values that `bootstrap` hands out: an engine, ready to run, and everything needed to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from nanoserve.domain.text.dialects.tokenized import TokenizedDialect
from nanoserve.ports import driven
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.pooling import PoolerSpec
from nanoserve.ports.sampling import SamplingDefaults

if TYPE_CHECKING:
    from nanoserve.adapters.engine_process.ranks.leader import Ranks
    from nanoserve.adapters.llguidance.grammars import LLGrammars

Observed = Callable[[Sequence[int]], driven.Activations]
"""Our model's forward pass over one prompt, layer by layer."""


@attrs.frozen(kw_only=True, eq=False)
class Assembly:
    """One model, ready to generate; `pooler` is None if it writes text, and `dialect_facts` say how it writes reasoning and calls."""

    folder: str
    engine: EngineHandle
    tokenizer: driven.Tokenizer
    template: driven.ChatTemplate
    spec: ModelSpec
    defaults: SamplingDefaults
    facts: EngineFacts
    dialect_facts: driven.DialectFacts = attrs.field(factory=driven.DialectFacts)
    pooler: PoolerSpec | None = None
    grammars: LLGrammars | None = None

    def finish(self) -> None:
        """Begin what few requests need."""
        if self.grammars is not None:
            self.grammars.begin()


@attrs.frozen(kw_only=True, eq=False)
class TextParts:
    """The tokenizer and template for text, without an engine.

    Attributes:
        template_variables: what the template reads besides the conversation.
        dialect: how the model writes reasoning and calls; None if that is not known or not wanted.
    """

    tokenizer: driven.Tokenizer
    tokenizer_facts: driven.TokenizerFacts
    template: driven.ChatTemplate
    template_variables: frozenset[str]
    eos_token_ids: Sequence[int]
    defaults: SamplingDefaults
    dialect: TokenizedDialect | None = None
    pooler: PoolerSpec | None = None


@attrs.frozen(kw_only=True, eq=False)
class VerificationParts:
    """An assembly, its model laid open, and the reference to compare it with."""

    assembly: Assembly
    ours: Observed
    reference: driven.ReferenceModel


@attrs.frozen(kw_only=True)
class Survey:
    """Facts of a model before its weights are made.

    Attributes:
        folder: None for a shape with random weights.
        parked: KV blocks of each cache group, of an engine that is to sleep beside another one; empty for others.
        draft: the folder of a head that drafts.
        others: the processes of the other ranks; None if the model is not split.
    """

    spec: ModelSpec
    folder: str | None
    device: str
    dtype: str
    parked: tuple[int, ...] = ()
    draft: str | None = None
    others: Ranks | None = None


@attrs.frozen(kw_only=True, eq=False)
class BenchParts:
    """An engine without tokenizer."""

    engine: EngineHandle
    spec: ModelSpec
    facts: EngineFacts
