"""Builds the GPU data plane: a cache sized from the memory that the worst step leaves, and compiled, checked and warm kernels."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches, most_tokens
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.decoding import Decoding, Propose
from nanoserve.adapters.pytorch.cuda.draft_head import GpuDraftHead
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Graphs, most_cached
from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras, lora_sections
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.cuda.recovery import Recovery
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.cuda.row_updates import RowUpdates
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.self_test import Bench, check_kernels, rehearse_checks
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.cuda.windows import Windows
from nanoserve.adapters.pytorch.cuda.workspace import make_sampler, make_workspace, worst_step_bytes
from nanoserve.adapters.pytorch.devices import Take, wait_for_operators
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import make_rotaries
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.memory import MemoryBudget, PoolRequest, available_memory, plan_memory
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuFacts
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.eagle import EagleHead
from nanoserve.adapters.pytorch.models.mtp import MtpHead
from nanoserve.adapters.pytorch.offload import Offload
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.pooling import RowPooling
from nanoserve.adapters.pytorch.prompt_scoring import TOKENS_AT_ONCE, PromptScoring
from nanoserve.adapters.pytorch.routed_experts import ExpertRecords
from nanoserve.adapters.pytorch.sampling.device_sampler import score_on_device
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.kernels.device.launch import has_wgmma, supports_pdl
from nanoserve.kernels.experts.launch import list_ways
from nanoserve.kernels.linear.gated.launch import LEAST_ROWS
from nanoserve.kernels.linear.launch import invariant_ways, stored_ways
from nanoserve.kernels.ngrams.launch import propose_ngrams
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import ModelLoadError

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange

CUDA_FRACTION = 0.92
"""The share of free memory that the KV pool may have where the settings do not say."""
GRAPH_BYTES = 512 << 20
"""Left free for graphs and for the workspaces of the vendor's library."""
CONTEXT_BYTES = 768 << 20
"""A process's share of the driver's memory: its context, and the kernels that it has loaded."""
SMALL_GPU = 4
"""Multiprocessors to plan for where kernels are interpreted."""


@attrs.frozen(eq=False)
class Partners:
    """Other ranks that compute the same model.

    Attributes:
        ranks: how they meet on the host, once `meet` has returned.
        make_memory: makes this rank's block of the memory that all share, of this many bytes.
        meet: called when the sizes are known, blocks included; returns when all ranks are here.
        watch: called then with what lets this rank's waits end, for when another rank has ended.
        free: bytes beside the weights of the rank that has fewest; None if the number of blocks is given.
    """

    ranks: Communicator
    make_memory: Callable[[int], object]
    meet: Callable[[EngineSizes], None]
    watch: Callable[[Callable[[], None]], None] = lambda _: None
    free: int | None = None


def by_ngrams(arena: Arena) -> Propose:
    """Drafts from the rows' tokens."""

    def propose(*, splits: int, **how: Any) -> None:
        del splits
        propose_ngrams(arena.tokens, lengths=arena.lengths, takes_drafts=arena.takes_drafts, **how)

    return propose


def build_runner(
    model: DecoderModel,
    sizes: EngineSizes,
    pools: PoolRequest | None = None,
    *,
    deterministic: bool = False,
    enforce_eager: bool = False,
    partners: Partners | None = None,
    graphs: Graphs | None = None,
    drafter: Callable[[Arena], Propose] = by_ngrams,
    take: Take | None = None,
    beside: bool = False,
    spare: bool = False,
    lap: Callable[[str], object] = lambda _: None,
) -> tuple[CudaRunner, MemoryBudget]:
    """Build the runner of a model whose weights are on the GPU; `pools` is as in `plan_memory`, `partners` are other ranks.

    `drafter` makes drafts in an arena, where `sizes` have room for any. `take` makes the KV pools.
    `beside` is as in `plan_memory`; with `spare`, room is left for the workspace of another engine that sleeps beside this one. `lap` is called with the name of each phase that has ended.

    `graphs` are those that steps are captured into; None makes them where there is a GPU, unless eager is enforced.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits beside weights and workspace.
        ModelLoadError: a kernel computes something else than its reference on this GPU.
        StepFailedError: another rank was missed.
    """
    on_gpu = next(model.parameters()).device.type == "cuda"
    ranks = ALONE if partners is None else partners.ranks
    wait_for_operators()
    with compiling_ahead(os.cpu_count() or 1, ranks) if on_gpu else contextlib.nullcontext():
        site = _Site(model, sizes, partners, deterministic=deterministic, enforce_eager=enforce_eager)
        budget = site.plan_pools(pools, beside=beside, spare=spare)
        lap("memory profile")
        if site.exchange is not None and partners is not None:
            partners.meet(attrs.evolve(sizes, num_blocks=budget.num_blocks))
            partners.watch(site.exchange.abandon)
            site.exchange.meet()
            lap("other ranks")
        if graphs is None and on_gpu and not enforce_eager:
            products = model.products() if has_wgmma(site.device) and not model.mixtures() else ()
            graphs = Graphs(most_cached(each.linear.matrix for each in products))
        runner = site.assemble(budget, graphs, drafter, take)
        lap("KV pool")
        if on_gpu:  # nothing runs yet: what is launched here only says what there is to compile
            runner.rehearsal.run()
            rehearse_checks(site.bench)
    if on_gpu:
        lap("compiling")
        _get_ready(site, runner.rehearsal, lap)
    runner.start_serving()
    return runner, budget


def _get_ready(site: _Site, rehearsal: Rehearsal, lap: Callable[[str], object]) -> None:
    """Check the compiled kernels and the exchange between ranks, run every step once, and capture the first graphs."""
    check_kernels(site.bench)
    torch.cuda.empty_cache()
    if site.exchange is not None:
        site.exchange.try_out()
    lap("kernel self-test")
    rehearsal.prepare()
    torch.cuda.synchronize(site.device)
    if site.exchange is not None:
        site.exchange.check()
    lap("warm-up and graphs")


class _Site:
    """One runner under construction: its memory except the KV pools, and how its steps are launched."""

    def __init__(
        self,
        model: DecoderModel,
        sizes: EngineSizes,
        partners: Partners | None,
        *,
        deterministic: bool,
        enforce_eager: bool,
    ) -> None:
        if partners is not None and sizes.max_width > 1:
            raise ModelLoadError("ranks that compute a model together make no drafts: turn speculation off")
        weight, spec = next(model.parameters()), model.spec
        self._model, self._spec, self._sizes, self._partners = model, spec, sizes, partners
        self.device, self._dtype = weight.device, weight.dtype
        self._on_gpu, self._deterministic = weight.device.type == "cuda", deterministic
        self._before = torch.cuda.memory_allocated(self.device) if self._on_gpu else 0
        gpu = torch.cuda.get_device_properties(self.device) if self._on_gpu else None
        facts = GpuFacts(
            *(sizes, self._dtype, self.device, SMALL_GPU if gpu is None else gpu.multi_processor_count),
            invariant=deterministic,
            decoded=most_tokens(sizes),
        )
        self._space = make_workspace(
            model,
            max_tokens=facts.max_tokens,
            max_num_seqs=most_tokens(sizes),
            dtype=self._dtype,
            device=self.device,
            adds_whole=partners is not None,
        )
        self._mixers, self._many = GpuMixers(spec, facts), ManyRows(invariant=deterministic)
        self.exchange = None if partners is None else self._make_exchange(partners)
        self._pdl = supports_pdl(self.device) and not enforce_eager
        self._arena = self._make_arena()
        host = HostLoras.for_sizes(model, sizes)
        self._loras = None if host is None else DeviceLoras(host, self._arena, self._many, dtype=self._dtype)
        self._head = self._make_head()

    def _make_arena(self) -> Arena:
        spec, sizes = self._spec, self._sizes
        sections = {**self._mixers.sections, **lora_sections(sizes)}
        if spec.draft is not None:
            sections["ends"] = (sizes.max_num_seqs + 1,)
        if spec.encoder is not None:
            sections["added_rows"] = (sizes.max_num_batched_tokens,)
        return Arena(sizes, [group.layers for group in spec.cache_groups], sections, Uploads(self.device))

    def _make_head(self) -> GpuDraftHead | None:
        head, many = self._model.draft_head, ManyRows(invariant=self._deterministic)
        if not isinstance(head, EagleHead | MtpHead):
            return None
        where = self._arena, self._space, self._mixers.by_layer
        return GpuDraftHead(head, *where, model=self._spec, many=many)

    def _make_exchange(self, partners: Partners) -> Exchange:
        from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange  # noqa: PLC0415 - for several ranks alone

        return Exchange(
            partners.ranks,
            partners.make_memory,
            max_tokens=len(self._space.stream),
            hidden=self._spec.hidden_size,
            max_logits=max(self._sizes.max_num_seqs, TOKENS_AT_ONCE),
            vocab_size=self._spec.vocab_size,
            dtype=self._dtype,
            device=self.device,
        )

    @functools.cached_property
    def bench(self) -> Bench:
        """The model as its kernels are checked."""
        return Bench(
            model=self._model,
            block_size=self._sizes.block_size,
            deterministic=self._deterministic,
            pdl=self._pdl,
            ranks=1 if self._partners is None else self._partners.ranks.size,
            lora_rank=0 if self._loras is None else self._loras.rank,
            max_width=self._sizes.max_width,
        )

    def token_counts(self, *, invariant: bool) -> list[int]:
        """Numbers of tokens of mixed steps, one for each way in which these launch experts, and products that have several; none has more tokens than all rows together."""
        sizes, mixtures = self._sizes, self._model.mixtures()
        most = min(sizes.max_num_batched_tokens, sizes.max_num_seqs * sizes.max_model_len)
        what: dict[str, Any] = {"dtype": self._dtype, "device": self.device, "invariant": invariant}
        ways = (list_ways(each.experts, each.routing.slots, most, **what) for each in mixtures)
        some, products = torch.empty(0, dtype=self._dtype, device=self.device), self._model.products()
        tiles = chain.from_iterable(stored_ways(each.linear.matrix, some) for each in products)
        tiles = chain(tiles, (LEAST_ROWS,) if most >= LEAST_ROWS and not invariant else ())
        fixed: list[Any] = [each.router.weight for each in mixtures]
        fixed += [each.linear.matrix for each in products] if invariant else []
        rows = (invariant_ways(each, some, most) for each in fixed)
        return sorted(set[int]().union(*ways, *rows, (min(each, most) for each in tiles)))

    def plan_pools(self, pools: PoolRequest | None, *, beside: bool, spare: bool) -> MemoryBudget:
        """Size the KV pools from the memory that weights, workspace and the worst step leave."""
        seqs, vocab_size = self._sizes.max_num_seqs, self._spec.vocab_size
        weights = sum(each.numel() * each.element_size() for each in self._model.parameters())
        workspace = reserve = 0
        if self._on_gpu:
            workspace = torch.cuda.memory_allocated(self.device) - self._before
            worst = worst_step_bytes(self._spec, self._space, self._sizes)
            reserve = max(worst - seqs * Penalties.bytes_per_row(vocab_size), 0) + GRAPH_BYTES
            if spare:
                reserve += workspace + worst + GRAPH_BYTES + CONTEXT_BYTES
            if self.exchange is not None:
                workspace += self.exchange.size
        available = available_memory(self.device)
        if self._on_gpu and self._partners is not None and self._partners.free is not None:
            available = min(available, self._partners.free - workspace)
        return plan_memory(
            self._spec,
            self._sizes,
            pools,
            dtype=self._dtype,
            usual_fraction=CUDA_FRACTION,
            weights=weights,
            workspace=workspace,
            reserve=reserve,
            available=available,
            beside=beside,
        )

    def assemble(
        self,
        budget: MemoryBudget,
        graphs: Graphs | None,
        drafter: Callable[[Arena], Propose],
        take: Take | None,
    ) -> CudaRunner:
        """The runner, with KV pools as planned."""
        kv, arena, space = self._pools(budget.num_blocks, take), self._arena, self._space
        launcher, brief = self._make_launchers(kv)
        sampler = make_sampler(self._spec, self._sizes, self.device)
        batches, drawing = Batches(arena), Drawing(arena, space.sampling)
        special = SpecialDraws(arena, space.logits, sampler, drawing)
        propose = drafter(arena) if self._head is None else self._head.propose
        how: dict[str, Any] = {"graphs": graphs, "pdl": self._pdl, "propose": propose}
        decoding = Decoding(launcher, brief, arena, drawing, special, **how)
        pooling = RowPooling(launcher.logits.apart, self._model.pooled_layers)
        reads: dict[str, Any] = {"scoring": PromptScoring(score_on_device), "pooling": pooling}
        kept: dict[str, Any] = {"kv": kv, "loras": self._loras, "records": launcher.records}
        updates = RowUpdates(arena, batches, sampler, **reads, **kept)
        mixed = MixedSteps(launcher, arena, space.logits, decoding, graphs, **reads, drawing=drawing)
        tries = {"frees": self.exchange is None, "retries": not kv.has_states}
        recovery = Recovery(arena, batches, drawing, graphs, **tries)
        rehearsal = Rehearsal(
            *(brief, arena, decoding, drawing),
            row_updates=updates,
            mixed_steps=mixed,
            recovery=recovery,
            token_counts=self.token_counts(invariant=self._deterministic),
            invariant_counts=self.token_counts(invariant=True),
        )
        drawn: dict[str, Any] = {"sampler": sampler, "drawing": drawing, "special": special}
        windows = Windows(launcher, arena, space, **drawn, batches=batches, rehearsal=rehearsal)
        offload = Offload(kv, self._sizes.host_slots) if self._sizes.host_slots else None
        return self._runner_type()(
            launcher=launcher,
            arena=arena,
            logits=space.logits,
            sampler=sampler,
            kv=kv,
            batches=batches,
            decoding=decoding,
            drawing=drawing,
            special=special,
            windows=windows,
            row_updates=updates,
            mixed_steps=mixed,
            rehearsal=rehearsal,
            recovery=recovery,
            offload=offload,
            host=None if offload is None else offload.slots,
            loras=None if self._loras is None else self._loras.host,
        )

    def _make_launchers(self, kv: KVStore) -> tuple[ForwardLauncher, ForwardLauncher]:
        """One of whole steps, and one of rehearsals."""
        self._mixers.attach(self._arena, kv, make_rotaries(self._spec, self.device))
        records = ExpertRecords.for_sizes(self._model, kv, self._sizes, len(self._space.stream))
        how: dict[str, Any] = {"many": self._many, "sums": self.exchange, "loras": self._loras}
        how |= {"records": records, "head": self._head}
        where = self._arena, self._space, self._mixers
        whole, brief = (ForwardLauncher(self._model, *where, **how, brief=each) for each in (False, True))
        return whole, brief

    def _pools(self, num_blocks: Sequence[int], take: Take | None) -> KVStore:
        return KVStore(
            self._spec,
            num_blocks=num_blocks,
            block_size=self._sizes.block_size,
            dtype=self._dtype,
            device=self.device,
            whole_blocks=bool(self._sizes.host_slots),
            take=take,
            routed_experts=self._sizes.routed_experts,
        )

    def _runner_type(self) -> Callable[..., CudaRunner]:
        if self.exchange is None:
            return CudaRunner
        from nanoserve.adapters.pytorch.cuda.ranks.exchange import RankRunner  # noqa: PLC0415 - as above

        return functools.partial(RankRunner, exchange=self.exchange, expert_tokens=self._model.expert_tokens)
