"""A decoder-only transformer with any layers.

Tokens become vectors, each layer adds the outputs of its mixer and its feed to them, and the last vectors are compared with
one vector per token of the vocabulary. A page such as `models.llama` says which parts a layer has. On a CPU `forward` computes a step; on a GPU the same parts
run over the operations of `cuda/linear_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.checkpoint import Stored, prefixed
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.layers.norm import Norm, RMSNorm, make_norm
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.layers.pooled import PooledDense, make_pooled
from nanoserve.adapters.pytorch.layers.product import Mixture, Product
from nanoserve.adapters.pytorch.layers.rotary import make_rotaries
from nanoserve.adapters.pytorch.linear import Linear, in_fixed_rows
from nanoserve.adapters.pytorch.mixers import kind_of
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.adapters.pytorch.parallel.splitting import Slices, share
from nanoserve.adapters.pytorch.step_inputs import CpuStep, StepInputs
from nanoserve.kernels import pointwise
from nanoserve.kernels.experts import choose, feed, invariant_feed
from nanoserve.ports.layer_spec import Activation
from nanoserve.ports.model_spec import ModelSpec


class Embedding(Stored):
    """One learned vector per token id, times `scale`."""

    def __init__(self, vocab_size: int, hidden_size: int, scale: float | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)
        self.scale = scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        """int64 [T] to [T, hidden]."""
        vectors = F.embedding(token_ids, self.weight)
        return vectors if self.scale is None else vectors * self.scale

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}


Observer = Callable[[str, Tensor], None]
"""Called with "embeddings", "layers.0" ... and "norm", and the residual stream [T, hidden] there (normed for the
last; not in the spec's `stream_unit`, but as it is), for comparison with a reference."""


class DecoderModel(nn.Module):
    """Embedding, layers, norm, head; the head may share the embedding's weight.

    Its weights need no gradients, and callers wrap it in `torch.inference_mode()`.

    Attributes:
        spec: of what this rank computes; with other ranks, its heads and feeds are parts of the model's.
        layers: for each layer its parts, in the order in which they run.
        pooled_layers: what pooled vectors pass through; every rank has all of them.
        head: compares with the rank's share of the vocabulary.
        unused: how names of tensors begin that checkpoints of the family carry for what this engine does not do.
        rounds_embedding_scale: whether the reference rounds the embedding's scale to the weights' dtype.
        slices: where a rank's tensors lie in the whole model's; None of a whole one.
        expert_tokens: int64 [layers, ranks, experts of one], the tokens of each expert; None if whole experts are not divided over ranks.
        draft_head: guesses tokens from its hidden states (`models/eagle.py`).
        further: the draft head, where it is of the model's own checkpoint (`models/mtp.py`); `further_names`, those of its modules there, if not as in DeepSeek's.
        is_invariant: whether, on a CPU, it computes so that a token's bits depend on nothing but the tokens before it; may be set between steps.
    """

    unused: tuple[str, ...] = ()
    further_names: tuple[str, ...] = ()
    rounds_embedding_scale = False

    def __init__(self, spec: ModelSpec, ranks: Communicator = ALONE) -> None:
        super().__init__()
        self.spec, self.ranks = spec, ranks
        self.embedding = Embedding(spec.vocab_size, spec.hidden_size, self._embedding_scale(spec))
        self.layers = tuple(self.make_layer(layer) for layer in range(spec.num_layers))
        self._registered = nn.ModuleList(nn.ModuleList(parts) for parts in self.layers)
        self.norm: Norm | None = make_norm(spec.hidden_size, spec.norm)
        self._own = share(spec.vocab_size, ranks.rank, ranks.size)
        self.head = Linear(spec.hidden_size, self._own.stop - self._own.start)
        if spec.tied_embeddings:
            self.head.weight = self.embedding.weight
        self.pooled_layers = make_pooled(spec.pooled_layers, spec.hidden_size, spec.norm)
        self.slices: Slices | None = None
        self.expert_tokens: Tensor | None = None
        self.is_invariant = False
        self.draft_head: Any = None
        self.further: Any = None
        self._rotaries = make_rotaries(spec, torch.device("cpu"))
        kept = spec.keeping_layers
        self._groups = [(each, kind_of(kept[each.layers[0]].mixer)) for each in spec.cache_groups]

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """The parts of a layer: the page's own."""
        raise NotImplementedError

    def forward(
        self,
        inputs: StepInputs,
        kv: KVStore,
        observe: Observer | None = None,
        low_rank: LowRank | None = None,
    ) -> Tensor:
        """Compute one step's tokens; their keys and values are written to `kv`. `low_rank` is of the adapters that they have.

        Returns:
            Hidden states after the last norm, [T, hidden], in the model's dtype.
        """
        step = self.prepare(inputs, kv)
        ops = TorchLinearOps(
            self.embed(inputs), ranks=self.ranks, invariant=self.is_invariant, low_rank=low_rank
        )

        def show(name: str) -> None:
            if observe is not None:
                observe(name, ops.stream * self.spec.stream_unit)

        show("embeddings")
        for number, parts in enumerate(self.layers):
            for part in parts:
                part.run(ops, step)
            show(f"layers.{number}")
        hidden = ops.stream if self.norm is None else self.norm(ops.stream)
        if observe is not None:
            observe("norm", hidden)
        return hidden

    def embed(self, inputs: StepInputs) -> Tensor:
        """The residual stream before the first layer, [T, hidden]."""
        return self.embedding(inputs.token_ids)

    def prepare(self, inputs: StepInputs, kv: KVStore) -> CpuStep:
        """A step, with what the layers of each cache group share."""
        rotations = {rotation: rotary(inputs.positions) for rotation, rotary in self._rotaries.items()}
        dtype = self.embedding.weight.dtype
        step = CpuStep(inputs, kv.layers, rotations, self.is_invariant, dtype, kv.kept, self.ranks)
        for (group, kind), where in zip(self._groups, inputs.groups, strict=True):
            step.by_layer.update(dict.fromkeys(group.layers, kind.prepare(group, where, step)))
        return step

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, hidden] to logits float32 [S, vocab]."""
        product = in_fixed_rows(self.head, hidden) if self.is_invariant else self.head(hidden)
        scores = self._of_all_ranks(product).float()
        divisor, cap = self.spec.logit_divisor, self.spec.logit_soft_cap
        scores = scores if divisor == 1 else scores / divisor
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def _of_all_ranks(self, scores: Tensor) -> Tensor:
        """This rank's columns of the logits, filled up where the last ranks have fewer, and beside them the other ranks'."""
        if self.ranks.size == 1:
            return scores
        most = -(-self.spec.vocab_size // self.ranks.size)
        gathered = self.ranks.all_gather(F.pad(scores, (0, most - scores.shape[1])))
        return gathered[:, : self.spec.vocab_size].contiguous()

    def _embedding_scale(self, spec: ModelSpec) -> float | None:
        scale = spec.embedding_scale
        if scale is None or not self.rounds_embedding_scale:
            return scale
        return torch.tensor(scale, dtype=torch.get_default_dtype(), device="cpu").item()

    def products(self) -> tuple[Product, ...]:
        """The layers' products, each shape and form once, those of a head that drafts, and the head: what a device must be able to compute."""
        found: dict[object, Product] = {}
        for each in (product for parts in self.layers for part in parts for product in part.products()):
            linear = each.linear
            key = (each.name, linear.out_features, linear.in_features, linear.weight_form)
            found.setdefault(key, each)
        drafting: tuple[Product, ...] = () if self.draft_head is None else self.draft_head.products()
        return *found.values(), *drafting, Product("head", self.head, self.norm)

    @property
    def multiplications(self) -> float:
        """Multiplications for a token in a layer, those of experts left out, on average."""
        products = (each for parts in self.layers for part in parts for each in part.products())
        return sum(each.linear.weight.numel() for each in products) / len(self.layers)

    def mixtures(self) -> tuple[Mixture, ...]:
        """The layers' mixtures of experts, each shape and form once."""
        found: dict[object, Mixture] = {}
        for part in (part for parts in self.filled.values() for part in parts):
            if (mixture := part.mixture()) is not None:
                key = (mixture.routing, mixture.experts.gate_up.shape, mixture.forms)
                found.setdefault(key, mixture)
        return tuple(found.values())

    def kinds(self) -> tuple[tuple[Part, ...], ...]:
        """One layer of each kind: those with the same types of parts and forms of weights in the same cache group launch the same kernels."""
        groups = {layer: group for group in self.spec.cache_groups for layer in group.layers}
        kinds: dict[object, tuple[Part, ...]] = {}
        for number, parts in enumerate(self.layers):
            forms = [product.linear.weight_form for part in parts for product in part.products()]
            mixtures = [each.forms for part in parts if (each := part.mixture())]
            kinds.setdefault((groups[number].kind, *map(type, parts), *forms, *mixtures), parts)
        return tuple(kinds.values())

    @property
    def filled(self) -> dict[str, Sequence[Part]]:
        """The parts of each layer that a checkpoint fills, by its name there."""
        layers: dict[str, Sequence[Part]] = {
            f"model.layers.{number}": parts for number, parts in enumerate(self.layers)
        }
        return layers if self.further is None else {**layers, self.further.name: self.further.parts}

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor that a checkpoint must hold, by its name there; a tied head has none of its own."""
        tensors = prefixed("model.embed_tokens", self.embedding.checkpoint_tensors())
        for name, parts in self.filled.items():
            for part in parts:
                tensors |= prefixed(name, part.checkpoint_tensors())
        if self.further is not None:
            tensors |= self.further.checkpoint_tensors()
        if self.norm is not None:
            tensors |= prefixed("model.norm", self.norm.checkpoint_tensors())
        if not self.spec.tied_embeddings:
            tensors |= prefixed("lm_head", self.head.checkpoint_tensors())
        return tensors | self.pooled_tensors()

    def pooled_tensors(self, folder: str = "") -> dict[str, Tensor]:
        """Those of `pooled_layers` that lie in a folder within the model's."""
        tensors: dict[str, Tensor] = {}
        for layer in self.pooled_layers:
            assert isinstance(layer, PooledDense)
            if layer.spec.folder == folder:
                tensors |= layer.checkpoint_tensors()
        return tensors

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        return {
            f"{layer}.{name}": (tensor, [f"{layer}.{each}" for each in names])
            for layer, parts in self.filled.items()
            for part in parts
            for name, (tensor, names) in part.stacks().items()
        }

    def sections(self) -> dict[str, tuple[int, ...]]:
        return {
            f"{layer}.{name}": sizes
            for layer, parts in self.filled.items()
            for part in parts
            for name, sizes in part.sections().items()
        }

    def fill_plainly(self) -> None:
        """See `Stored`; of all modules inside."""
        for module in self.modules():
            if isinstance(module, Stored):
                module.fill_plainly()

    def arrange(self) -> None:
        """See `Stored`; of all modules inside. Of what every rank adds to the stream, all but the first leave biases out."""
        for module in self.modules():
            if isinstance(module, Stored):
                module.arrange()
        own, form, scales = self.embedding.weight[self._own], self.head.weight_form, self.head.weight_scales
        if self.spec.tied_embeddings and form is not None and scales is not None:
            for kept, made in zip((self.head.weight, scales), form.quantize(own.float()), strict=True):
                kept.copy_(made)
        elif self.ranks.size > 1 and self.spec.tied_embeddings:
            self.head.weight = nn.Parameter(own, requires_grad=False)
        for bias in self._added_biases() if self.ranks.rank else ():
            bias.zero_()
        divided = [
            each for parts in self.layers for each in parts if isinstance(each, Experts) and each.spec.held
        ]
        if divided:
            held = len(divided[0].held)
            shape = (len(divided), divided[0].spec.count // held, held)
            self.expert_tokens = self.embedding.weight.new_zeros(shape, dtype=torch.int64)
            for part, of_ranks in zip(divided, self.expert_tokens, strict=True):
                part.counts = of_ranks.view(-1)

    def _added_biases(self) -> Iterator[Tensor]:
        for part in (part for parts in self.layers for part in parts):
            if isinstance(part, Experts) and part.down_bias is not None and part.spec.held is None:
                yield part.down_bias
            for product in part.products():
                if product.added and product.linear.bias is not None:
                    yield product.linear.bias

    def move_rotary(self, device: torch.device) -> None:
        """Compute rotations on the device where the weights are."""
        self._rotaries = make_rotaries(self.spec, device)


class LowRank(Protocol):
    """Deltas that adapters add to the products of one step's T tokens."""

    def add(self, x: Tensor, linear: Linear, product: Tensor, /) -> None:
        """Add to `product` [T, out_features] of x [T, in_features] and a linear layer what the tokens' adapters make of x."""


class TorchLinearOps:
    """LinearOps by torch's own operators, or by the packed form of a linear layer: what a CPU computes with.

    `stream` is the residual stream, replaced by each sum and never written into; the bits of `invariant` products depend on
    no other token; `low_rank` is of steps with adapters.
    """

    def __init__(
        self,
        stream: Tensor,
        *,
        ranks: Communicator = ALONE,
        invariant: bool = False,
        low_rank: LowRank | None = None,
    ) -> None:
        self.stream = stream
        self.ranks, self._low_rank, self._invariant = ranks, low_rank, invariant
        self._gated = pointwise.invariant_gated_activation if invariant else pointwise.gated_activation
        self._activated = pointwise.invariant_activated if invariant else pointwise.activated

    def project_in(self, norm: Norm | None, linear: Linear, /) -> Tensor:
        return self._product(self.stream if norm is None else norm(self.stream), linear)

    def project_in_activated(self, norm: Norm | None, linear: Linear, activation: Activation, /) -> Tensor:
        return self._activated(self.project_in(norm, linear), activation)

    def project_in_gated(self, norm: Norm | None, gate_up: Linear, activation: Activation, /) -> Tensor:
        return self._gated(self.project_in(norm, gate_up), activation)

    def project(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        return self._product(norm(entered), linear)

    def project_out(self, inner: Tensor, linear: Linear, norm: Norm | None = None, /) -> None:
        product = self.ranks.all_reduce(self._product(inner, linear))
        self.stream = self.stream + (product if norm is None else norm(product))

    def norm_stream(self, norm: Norm | None, /) -> None:
        if norm is not None:
            self.stream = norm(self.stream)

    def experts(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        x = norm(self.stream)
        logits = self._multiply(x.float() if mixture.exact else x, mixture.router).float()
        chosen = choose(logits, mixture.routing, mixture.correction, mixture.counts, mixture.record)
        compute = invariant_feed if self._invariant else feed
        self.stream = self.stream + self.ranks.all_reduce(compute(x, mixture.experts, chosen))

    def _product(self, x: Tensor, linear: Linear) -> Tensor:
        product = self._multiply(x, linear)
        if self._low_rank is not None:
            self._low_rank.add(x, linear, product)
        return product

    def _multiply(self, x: Tensor, linear: Linear) -> Tensor:
        return in_fixed_rows(linear, x) if self._invariant else linear(x)
