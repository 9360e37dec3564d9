"""The buffers of a step, allocated once for the largest step because graphs keep addresses, and the peak of the worst step beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.layers.product import Mixture
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.prompt_scoring import TOKENS_AT_ONCE
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler, score_on_device
from nanoserve.kernels.experts.launch import ExpertsWorkspace
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.forms import FP8, form_of
from nanoserve.kernels.linear.launch import LinearWorkspace, takes_fp8
from nanoserve.kernels.sampling.launch import DrawScratch
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.step import AdmittedRow, RowSampling

EVERYTHING = RowSampling(
    seed=0,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    allowed_token_ids=(0, 1),
    bad_token_sequences=((0, 1),),
    min_tokens=1,
    held_back_ids=(1,),
    top_p=0.9,
    logprobs=0,
)
"""A row of the worst step asks for all of this."""
MOST_SLICES = 8
"""See `kernels.linear.launch.slice_count`."""
MOST_PLACES = 1024
"""Places of rows that are verified, which are drawn at a time: their logits are a product that would be no faster if it were larger."""
MOST_SKINNY_ROWS = 64
"""Batches up to this size use `skinny_linear`, larger ones the vendor's library."""
MOST_WIDENED_ROWS = 16
"""Batches of a dense model in 8-bit floats up to this size widen its weights, larger ones round their rows: gate and up of an 8B take 36 us for 64 rows on an H200, widened 64."""


class Views(dict[int, Tensor]):
    """A flat buffer as [rows, width], by width; made once in a step, because every layer asks for the same ones."""

    def __init__(self, buffer: Tensor, rows: int) -> None:
        super().__init__()
        self._buffer, self._rows = buffer, rows

    def __missing__(self, width: int) -> Tensor:
        view = self[width] = self._buffer[: self._rows * width].view(self._rows, width)
        return view


@attrs.frozen(eq=False)
class Mixing:
    """Intermediate results of mixtures of experts, of up to T tokens.

    Attributes:
        logits: flat float32, of the routers, of few tokens in slices.
        experts, weights: flat int32 and float32, what the tokens have chosen.
        partials: flat, in the model's dtype, what many tokens' experts make, which the next norm adds up.
    """

    logits: Tensor
    experts: Tensor
    weights: Tensor
    partials: Tensor
    feeds: ExpertsWorkspace

    @classmethod
    def create(
        cls, mixtures: Sequence[Mixture], tokens: int, *, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """For the largest of each, or nothing if there are none."""

        def empty(size: int, of: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=of, device=device)

        chosen = tokens * max((each.routing.slots for each in mixtures), default=0)
        logits = max((each.router.out_features for each in mixtures), default=0)
        downs = [each.experts.down.shape for each in mixtures]
        experts, hidden, inner = map(max, zip((1, 0, 0), *downs, strict=True))
        rounded = [
            each.experts.down.shape[1] for each in mixtures if isinstance(form_of(each.experts.gate_up), FP8)
        ]
        entering = tokens * max(rounded, default=0) if dtype.itemsize < 4 else 0
        return cls(
            empty(max(tokens, MOST_SLICES * MOST_SKINNY_ROWS) * logits, torch.float32),
            empty(chosen, torch.int32),
            empty(chosen, torch.float32),
            empty(chosen * hidden, dtype),
            ExpertsWorkspace.create(chosen, experts, inner, dtype=dtype, device=device, entering=entering),
        )

    def views(self, tokens: int, mixture: Mixture, slices: int = 1) -> tuple[Tensor, Chosen]:
        """Logits [slices, tokens, E], and what so many tokens choose."""
        width, slots = mixture.router.out_features, mixture.routing.slots
        experts = self.experts if mixture.record is None else mixture.record
        chosen = (each[: tokens * slots].view(tokens, slots) for each in (experts, self.weights))
        return self.logits[: slices * tokens * width].view(slices, tokens, width), Chosen(*chosen)


@attrs.frozen(eq=False, kw_only=True)
class Workspace:
    """Activations of up to T tokens and logits of up to S rows, in the model's dtype; mixers have memory of their own beside it.

    Kernels run one after the other, so one buffer serves every product that enters or leaves the residual stream.

    Attributes:
        stream: [T, hidden], the residual stream; `normed`, its norm.
        entered: flat, what the widest product makes of the stream, T times.
        inner: flat, what the widest product back to the stream reads, T times.
        chosen: [S, hidden], the tokens that get logits; `chosen_inner`, flat, what is read of them.
        logits: [S, vocab].
        partial_sums: float32, what the slices of products that the next norm adds up leave behind.
        widened: flat, the largest weight that is kept as stored, for products of many tokens.
        quantized: flat float8_e4m3fn and float32 [T], what such products read, in 8-bit floats, and the scales of its rows.
        most_skinny: the rows up to which a step's products are `skinny_linear`.
        followed: flat, T times what a product after another one reads: as it was, and normed. `following`, what it makes.
    """

    stream: Tensor
    normed: Tensor
    entered: Tensor
    inner: Tensor
    chosen: Tensor
    chosen_inner: Tensor
    logits: Tensor
    partial_sums: Tensor
    linear: LinearWorkspace
    widened: Tensor
    quantized: tuple[Tensor, Tensor]
    most_skinny: int
    mixing: Mixing
    followed: tuple[Tensor, Tensor]
    following: Tensor
    sampling: DrawScratch


def most_skinny_rows(model: DecoderModel, dtype: torch.dtype) -> int:
    """See `Workspace.most_skinny`."""
    *products, _ = model.products()
    some = torch.empty(0, dtype=dtype)
    rounds = any(takes_fp8(each.linear.matrix, some) for each in products) and not model.mixtures()
    return MOST_WIDENED_ROWS if rounds else MOST_SKINNY_ROWS


def make_workspace(
    model: DecoderModel,
    *,
    max_tokens: int,
    max_num_seqs: int,
    dtype: torch.dtype,
    device: torch.device,
    adds_whole: bool = False,
) -> Workspace:
    """Allocate for the largest step. With `adds_whole`, products that are added to the stream sum their slices up by themselves."""
    *products, head = model.products()
    mixtures = model.mixtures()
    follows = [each.linear for each in products if each.follows]
    followed = max_tokens * max((each.in_features for each in follows), default=0)
    kept = [each.linear for each in (*products, head) if each.linear.weight_form is not None]
    cut = [each.linear for each in (*products, head) if adds_whole or not each.added or each.linear in kept]
    eight_bits = [each for each in kept if takes_fp8(each.matrix, torch.empty(0, dtype=dtype))]
    widened = [each.matrix.shape.numel() for each in kept if each not in eight_bits]
    quantized = max_tokens * max((each.in_features for each in eight_bits), default=0)
    hidden, vocab_size = head.linear.in_features, model.spec.vocab_size
    entering = [each.linear for each in products if not each.added]
    added = [each.linear for each in products if each.added]
    drafting = 0 if model.draft_head is None else model.draft_head.entering
    inner = max([drafting, *(each.in_features for each in added)])
    widest = max([hidden, *(each.out_features for each in added)])
    slices = max([MOST_SLICES, *(each.routing.slots for each in mixtures)])

    def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=of, device=device)

    return Workspace(
        stream=empty(max_tokens, hidden),
        normed=empty(max_tokens, hidden),
        entered=empty(max_tokens * max(each.out_features for each in entering)),
        inner=empty(max_tokens * inner),
        chosen=empty(max_num_seqs, hidden),
        chosen_inner=empty(max_num_seqs * inner),
        logits=empty(max_num_seqs, vocab_size),
        partial_sums=empty(slices * MOST_SKINNY_ROWS * widest, of=torch.float32),
        linear=LinearWorkspace.create(
            [each.matrix for each in cut], max_m=MOST_SKINNY_ROWS, dtype=dtype, device=device
        ),
        widened=empty(max(widened, default=0)),
        quantized=(
            empty(quantized, of=torch.float8_e4m3fn),
            empty(max_tokens if eight_bits else 0, of=torch.float32),
        ),
        most_skinny=most_skinny_rows(model, dtype),
        mixing=Mixing.create(mixtures, max_tokens, dtype=dtype, device=device),
        followed=(empty(followed), empty(followed)),
        following=empty(max_tokens * max((each.out_features for each in follows), default=0)),
        sampling=DrawScratch(max_batch=max(max_num_seqs, MOST_PLACES), vocab_size=vocab_size, device=device),
    )


def make_sampler(spec: ModelSpec, sizes: EngineSizes, device: torch.device) -> DeviceSampler:
    """The sampler of an engine of these sizes."""
    return DeviceSampler(
        vocab_size=spec.vocab_size,
        max_rows=sizes.max_num_seqs,
        device=device,
        processed_logprobs=sizes.processed_logprobs,
    )


@torch.inference_mode()
def worst_step_bytes(spec: ModelSpec, space: Workspace, sizes: EngineSizes) -> int:
    """The peak of device memory that the worst step takes in addition to the present allocations.

    Decoding and prefill compute in the workspace. What allocates is the shaping and scoring of logits: the worst step has
    every row penalised, biased, restricted and scored, while a prompt is scored as well. The counts behind penalties, which
    stay once they are there, are among it. Kernels allocate nothing: whether they run or are compiled ahead makes no difference.
    """
    device = space.logits.device
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    shape_and_score(spec, space, sizes)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


def shape_and_score(spec: ModelSpec, space: Workspace, sizes: EngineSizes) -> None:
    """Process logits as that step does: one row that asks for all of it stands in every place, since what is kept of a row beside its counts is a few bytes."""
    most = sizes.max_logprobs
    sampler = make_sampler(spec, sizes, space.logits.device)
    sampler.admit(
        AdmittedRow(
            row=0,
            token_ids=(0,),
            num_prompt_tokens=1,
            num_computed_tokens=0,
            block_tables=(),
            sampling=attrs.evolve(EVERYTHING, logprobs=most),
            max_length=1,
        )
    )
    rows = (0,) * len(space.logits)
    prompt = space.logits.new_zeros(TOKENS_AT_ONCE, spec.vocab_size)
    predicted = torch.zeros(TOKENS_AT_ONCE, dtype=torch.int64, device=prompt.device)
    logits = space.logits.zero_()
    shaped = sampler.process(logits, rows)
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    sampler.observe(rows[: sizes.max_num_seqs], tokens[: sizes.max_num_seqs])
    scores = sampler.score(shaped if sizes.processed_logprobs else logits, tokens, rows)
    held = prompt.new_empty(sizes.max_num_batched_tokens, 3 * most)  # scores of the step's other prompts
    prompt_scores = score_on_device(prompt, predicted, (most,) * TOKENS_AT_ONCE)
    del shaped, scores, held, prompt_scores
