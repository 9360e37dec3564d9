"""What `bootstrap` hands out: an engine, ready to run, and everything needed to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from nanoserve.domain.engine import Engine
from nanoserve.ports.chat_template import ChatTemplate
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.reference_model import Activations, ReferenceModel
from nanoserve.ports.tokenizer import Tokenizer, TokenizerFacts

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
        device: where it computes, cpu or cuda.
        max_num_seqs, max_num_batched_tokens: the most sequences and the most tokens of one step.
        depth: steps in flight at once.
        memory: bytes of the device by what they are for, such as weights and kv; empty on a CPU.
    """

    num_kv_blocks: int
    kv_bytes: int
    max_model_len: int
    dtype: str
    threads: int
    device: str = "cpu"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    depth: int = 1
    memory: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Defaults:
    """Sampling defaults that came with the model, by field of `SamplingParams`, and the file they came from."""

    values: Mapping[str, Any] = attrs.field(factory=dict)
    origin: str = "the model"


@attrs.frozen(kw_only=True, eq=False)
class Assembly:
    """One model, ready to generate; `folder` is where its files are, `waits` is as in `BenchParts`."""

    folder: str
    engine: Engine[Any]
    tokenizer: Tokenizer
    template: ChatTemplate
    spec: ModelSpec
    defaults: Defaults
    budget: Budget
    waits: CountsWaits | None = None


@attrs.frozen(kw_only=True, eq=False)
class TextParts:
    """What turns text into tokens and back, without an engine; `eos_token_ids` are the model's own."""

    tokenizer: Tokenizer
    tokenizer_facts: TokenizerFacts
    template: ChatTemplate
    eos_token_ids: Sequence[int]
    defaults: Defaults


@attrs.frozen(kw_only=True, eq=False)
class VerificationParts:
    """An assembly, its model laid open, and the reference to compare it with."""

    assembly: Assembly
    ours: Observed
    reference: ReferenceModel


@runtime_checkable
class CountsWaits(Protocol):
    """A runner that counts what it waited for since it was built."""

    @property
    def device_wait_seconds(self) -> float:
        """How long `collect` has waited for the device."""
        ...

    @property
    def late_compiles(self) -> int:
        """Kernels that were not ready when a step needed them."""
        ...


@runtime_checkable
class TimesItsStart(Protocol):
    """A runner that measured what its start consisted of, in seconds by name."""

    @property
    def start_phases(self) -> Mapping[str, float]:
        """In the order in which they came."""
        ...


@attrs.frozen
class KernelTime:
    """What one kernel (on a CPU: one operator) took: how often it ran, and its seconds of all calls together."""

    name: str
    calls: int
    seconds: float


@attrs.frozen
class Ceilings:
    """What the device can do at most per second: bytes read, and operations of matrix products where that is known."""

    bandwidth: float
    compute: float | None


@attrs.frozen(kw_only=True)
class Survey:
    """What is known of a model before its weights are made; `folder` is None for a shape with random weights."""

    spec: ModelSpec
    folder: str | None
    device: str
    dtype: str


@attrs.frozen(kw_only=True, eq=False)
class BenchParts:
    """An engine without tokenizer, and what a benchmark may ask of it.

    Attributes:
        waits: where the time spent waiting for the device is counted; None where nobody counts it.
        element_bytes: bytes of one number of the weights and of the KV cache.
        profile: runs a function and returns what its kernels took, the longest first.
        measure_ceilings: what the device can do, measured; None on a CPU.
    """

    engine: Engine[Any]
    spec: ModelSpec
    budget: Budget
    waits: CountsWaits | None
    element_bytes: int
    profile: Callable[[Callable[[], object]], Sequence[KernelTime]]
    measure_ceilings: Callable[[], Ceilings | None]
