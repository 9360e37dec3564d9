"""Puts the GPU data plane together: a cache sized from what the worst step leaves, kernels compiled, checked and warm."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.attending import Attending, rotation_table
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.decoding import Settings, buckets
from nanoserve.adapters.pytorch.cuda.expansion import MOST_ROUNDS, Expansion
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.self_test import Bench, check_kernels, rehearse_checks
from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.cuda.workspace import attention_of, make_workspace
from nanoserve.adapters.pytorch.cuda.worst_step import worst_step_bytes
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.memory import MemoryBudget, PoolRequest, available_memory, plan_memory
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.models.decoder import make_rotaries
from nanoserve.adapters.pytorch.parallel.communicator import Communicator
from nanoserve.adapters.pytorch.prompt_scoring import TOKENS_AT_ONCE
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.adapters.pytorch.sampling.penalties import Penalties
from nanoserve.kernels.device.launch import shared_memory, supports_pdl
from nanoserve.kernels.experts.launch import list_ways
from nanoserve.kernels.latent_attention import tuning as latent_tuning
from nanoserve.kernels.paged_attention.tuning import (
    choose_block,
    choose_splits,
    choose_tile,
    key_bytes,
    queries_per_tile,
)
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.layer_spec import LatentSpec

if TYPE_CHECKING:
    from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange

CUDA_FRACTION = 0.92
"""Of the free memory that the KV pool may have where the settings do not say."""
GRAPH_BYTES = 512 << 20
"""Left free for graphs and for the workspaces of the vendor's library."""
SMALL_GPU = 4
"""Multiprocessors to plan for where kernels are interpreted."""


@attrs.frozen(eq=False)
class Partners:
    """Other ranks that compute the same model.

    Attributes:
        ranks: how they meet on the host, once `meet` has returned.
        make_memory: makes this rank's block of the memory that all share, of so many bytes.
        meet: called when the sizes are known, blocks included; returns when all ranks are here.
        watch: called then with what lets this rank's waits end, for when another rank has ended.
        free: bytes beside the weights of the rank that has fewest; None where the number of blocks is given.
    """

    ranks: Communicator
    make_memory: Callable[[int], object]
    meet: Callable[[EngineSizes], None]
    watch: Callable[[Callable[[], None]], None] = lambda _: None
    free: int | None = None


class _Watch:
    """Seconds of each phase."""

    def __init__(self) -> None:
        """Start with the first."""
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """What came since the last lap was this phase."""
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now


def build_runner(
    model: DecoderModel,
    sizes: EngineSizes,
    pools: PoolRequest | None = None,
    *,
    deterministic: bool = False,
    enforce_eager: bool = False,
    partners: Partners | None = None,
) -> tuple[CudaRunner, MemoryBudget]:
    """Build the runner of a model whose weights are on the GPU; `pools` is as in `plan_memory`, `partners` are other ranks.

    Raises:
        OutOfMemoryError: not one sequence of `max_model_len` tokens fits beside weights and workspace.
        ModelLoadError: a kernel computes something else than its reference on this GPU.
        StepFailedError: another rank was missed.
    """
    watch = _Watch()
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    with compiling_ahead(os.cpu_count() or 1) if on_gpu else contextlib.nullcontext():
        site = _Site(
            model, sizes, deterministic=deterministic, enforce_eager=enforce_eager, partners=partners
        )
        budget = site.plan_pools(pools)
        watch.lap("memory profile")
        if site.exchange is not None and partners is not None:
            partners.meet(attrs.evolve(sizes, num_blocks=budget.num_blocks))
            partners.watch(site.exchange.abandon)
            site.exchange.meet()
            watch.lap("other ranks")
        runner = site.assemble(budget)
        watch.lap("KV pool")
        if on_gpu:  # nothing runs yet: what is launched here only says what there is to compile
            bench = Bench(
                model=model,
                block_size=sizes.block_size,
                deterministic=deterministic,
                pdl=site.settings.pdl,
                ranks=1 if partners is None else partners.ranks.size,
            )
            runner.rehearse()
            rehearse_checks(bench)
    if on_gpu:
        watch.lap("compiling")
        check_kernels(bench)
        torch.cuda.empty_cache()
        if site.exchange is not None:
            site.exchange.try_out()
        watch.lap("kernel self-test")
        runner.prepare()
        torch.cuda.synchronize(device)
        if site.exchange is not None:
            site.exchange.check()
        watch.lap("warm-up and graphs")
    runner.start_serving(watch.phases)
    return runner, budget


class _Site:
    """One runner under construction: its memory but for the KV pools, and how its steps are launched."""

    def __init__(
        self,
        model: DecoderModel,
        sizes: EngineSizes,
        *,
        deterministic: bool,
        enforce_eager: bool,
        partners: Partners | None,
    ) -> None:
        weight, spec = next(model.parameters()), model.spec
        self._model, self._spec, self._sizes = model, spec, sizes
        self._device, self._dtype = weight.device, weight.dtype
        self._on_gpu, self._deterministic = weight.device.type == "cuda", deterministic
        self._heads = attention_of(spec)
        self._latents = {layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentSpec)}
        seqs, tokens = sizes.max_num_seqs, sizes.max_num_batched_tokens
        self._space = make_workspace(
            model,
            max_tokens=max(tokens, seqs),
            max_num_seqs=seqs,
            max_place_splits=max(
                bucket * self._choose_splits(bucket, sizes.max_model_len) for bucket in buckets(seqs)
            ),
            dtype=self._dtype,
            device=self._device,
            adds_whole=partners is not None,
        )
        self._partners = partners
        self.exchange = None if partners is None else self._make_exchange(partners)
        self.settings = Settings(
            graphs=self._on_gpu and not enforce_eager,
            pdl=supports_pdl(self._device) and not enforce_eager,
            tile_queries=self._tile_queries(),
            choose_splits=self._choose_splits,
            token_counts=self._token_counts(),
            expansion=self._expansion(),
        )
        self._arena = Arena(
            sizes,
            num_groups=len(spec.cache_groups),
            max_tiles=tokens // self.settings.tile_queries + seqs + 1,
            max_rounds=MOST_ROUNDS if self.settings.expansion is not None else 0,
            uploads=Uploads(self._device),
        )

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
            device=self._device,
        )

    def _expansion(self) -> Expansion | None:
        """Of chunks' latents; deterministic serving has one arithmetic for prompts and decoding."""
        if self._deterministic or self._heads is not None or len(self._latents) != 1:
            return None
        (mixer,) = self._latents
        return Expansion.of(mixer, self._space.latents.room, self._dtype, self._device)

    def _token_counts(self) -> list[int]:
        """Of mixed steps, one for each way in which these launch experts; none has more tokens than all rows together."""
        sizes = self._sizes
        most = min(sizes.max_num_batched_tokens, sizes.max_num_seqs * sizes.max_model_len)
        what: dict[str, Any] = {
            "dtype": self._dtype,
            "device": self._device,
            "invariant": self._deterministic,
        }
        ways = (list_ways(each.experts, each.routing.slots, most, **what) for each in self._model.mixtures())
        return sorted(set[int]().union(*ways))

    def _tile_queries(self) -> int:
        """Queries per tile of a chunk, as few as any layer asks for."""
        found = [
            latent_tuning.queries_per_tile(
                each.num_heads, latent_tuning.prefill_block(*self._entry(each)).rows
            )
            for each in self._latents
        ]
        if self._heads is not None:
            block = choose_block(self._heads.head_dim, self._dtype)
            found.append(queries_per_tile(self._heads.num_heads, self._heads.num_kv_heads, block))
        return min(found, default=1)

    def _entry(self, mixer: LatentSpec) -> tuple[int, torch.dtype, int]:
        """What the sizes of latent attention follow from."""
        width = latent_tuning.padded_width(mixer.latent_dim, mixer.rope_dim)
        return width, self._dtype, shared_memory(self._device)

    def _choose_splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for a bucket and the length of its longest row."""
        spec = self._spec
        widest = max(group.window or self._sizes.max_model_len for group in spec.cache_groups)
        multiprocessors = SMALL_GPU
        if self._on_gpu:
            multiprocessors = torch.cuda.get_device_properties(self._device).multi_processor_count
        if self._heads is None:
            return max(
                (
                    latent_tuning.choose_splits(
                        bucket,
                        each.num_heads,
                        longest,
                        multiprocessors,
                        latent_tuning.decode_block(*self._entry(each)).keys,
                    )
                    for each in self._latents
                ),
                default=1,
            )
        tile = choose_tile(bucket, self._heads.head_dim, self._dtype).tokens
        size = key_bytes(self._heads.head_dim, self._dtype)
        return choose_splits(
            bucket, self._heads.num_kv_heads, min(longest, widest), multiprocessors, tile, size=size
        )

    def plan_pools(self, pools: PoolRequest | None) -> MemoryBudget:
        """Size the KV pools from what weights, workspace and the worst step leave."""
        seqs, vocab_size = self._sizes.max_num_seqs, self._spec.vocab_size
        weights = sum(each.numel() * each.element_size() for each in self._model.parameters())
        workspace, reserve, available = 0, 0, None
        if self._on_gpu:
            workspace = torch.cuda.memory_allocated(self._device) - weights
            worst = worst_step_bytes(self._spec, self._space, max_num_seqs=seqs)
            reserve = max(worst - seqs * Penalties.bytes_per_row(vocab_size), 0) + GRAPH_BYTES
            if self._partners is not None and self.exchange is not None:
                workspace += self.exchange.size
                available = available_memory(self._device)
                if self._partners.free is not None:
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
            device=self._device,
            available=available,
        )

    def assemble(self, budget: MemoryBudget) -> CudaRunner:
        """The runner, with KV pools as planned."""
        spec, sizes, device = self._spec, self._sizes, self._device
        kv = KVStore(
            spec,
            num_blocks=budget.num_blocks,
            block_size=sizes.block_size,
            dtype=self._dtype,
            device=device,
            whole_blocks=bool(sizes.host_slots),
        )
        rotations = {
            rotation: rotation_table(rotary, sizes.max_model_len + 1, device)
            for rotation, rotary in make_rotaries(spec, device).items()
        }
        space, arena, invariant = self._space, self._arena, self._deterministic
        attending = Attending(spec, arena, space, kv, rotations, invariant=invariant)
        make_launcher = functools.partial(
            ForwardLauncher, self._model, arena, space, attending, invariant=invariant, sums=self.exchange
        )
        return self._runner_type()(
            launcher=make_launcher(),
            rehearsal=make_launcher(brief=True),
            arena=arena,
            space=space,
            sampler=DeviceSampler(vocab_size=spec.vocab_size, max_rows=sizes.max_num_seqs, device=device),
            kv=kv,
            settings=self.settings,
        )

    def _runner_type(self) -> Callable[..., CudaRunner]:
        if self.exchange is None:
            return CudaRunner
        from nanoserve.adapters.pytorch.cuda.ranks.runner import RankRunner  # noqa: PLC0415 - as above

        return functools.partial(RankRunner, exchange=self.exchange)
